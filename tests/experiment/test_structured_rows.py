"""Runs on inputs that are not one tensor of floats: every engine, resumed, predicted, exported; bad input."""

import json

import numpy as np
import pytest
import torch
from structured import NETWORKS, Ragged, Tokens, TwoInputs, clients
from torch import nn

from kinfolk.algorithms import ALGORITHMS
from kinfolk.api import run
from kinfolk.engines.choose import ENGINES
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.fit_rows import fit_rows
from kinfolk.experiment.record import read_scores
from kinfolk.experiment.sections import Experiment
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.streams import Seed
from kinfolk.trained import load

QUIET = {"progress": False}
# Epochs enough for steps to be traced.
USUAL = {
    "engine.device": "cpu", "engine.processes": 2, "local.batch": 4, "local.epochs": 4,
    "data.test_fraction": 0.3,
}  # fmt: skip


def go(network, data, folder, algorithm="fedavg", rounds=2, **settings):
    settings = {**USUAL, **settings}
    return run(network, data, algorithm, rounds=rounds, folder=folder, settings=settings, **QUIET)


def weights(folder, network, **which):
    return load(folder, network=network).model(**which).state_dict()


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_engine_trains_the_same_model(kind, tmp_path):
    network, data, found = NETWORKS[kind], clients(kind), {}
    for engine in ENGINES:
        folder = tmp_path / engine
        go(network, data, folder, **{"engine.name": engine})
        assert json.loads((folder / "run.json").read_text())["choice"]["name"] == engine
        found[engine] = weights(folder, network), read_scores(folder)
    model, scores = found["loop"]
    for engine, (other, told) in found.items():
        for name, tensor in model.items():
            assert torch.allclose(tensor, other[name], rtol=1e-4, atol=1e-6), (engine, name)
        assert np.allclose(told["value"], scores["value"], rtol=1e-4, atol=1e-6), engine
    with Seed(0).borrowed("init"):
        first = network()
    assert any(not torch.equal(t, model[n]) for n, t in first.state_dict().items())  # it did learn


class Wide(TwoInputs):
    """So large that products go straight into its weights."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(3, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 6)
        )


def test_a_large_network_of_two_inputs_moves_its_weights_alike(tmp_path):
    data = clients("two inputs")
    for engine in ("loop", "batched"):
        go(Wide, data, tmp_path / engine, **{"engine.name": engine})
    a, b = (weights(tmp_path / engine, Wide) for engine in ("loop", "batched"))
    assert all(torch.allclose(a[n], b[n], rtol=1e-4, atol=1e-6) for n in a)


def test_a_padded_sequence_trains_as_its_real_part_does_by_hand(tmp_path):
    data = {"ann": ([torch.tensor([1, 2, 3]), torch.tensor([4])], [0, 2])}
    given = {"local.batch": 2, "local.epochs": 1, "local.lr": 0.5, "engine.name": "batched"}
    run(Ragged, data, test=data, rounds=1, folder=tmp_path / "run", settings=given, **QUIET)
    with Seed(0).borrowed("init"):
        network = Ragged()
    words = [torch.tanh(network.words(torch.tensor(ids))).mean(0) for ids in ([1, 2, 3], [4])]
    loss = nn.functional.cross_entropy(network.head(torch.stack(words)), torch.tensor([0, 2]))
    grads = torch.autograd.grad(loss, list(network.parameters()))
    got = weights(tmp_path / "run", Ragged)
    for (name, p), grad in zip(network.named_parameters(), grads, strict=True):
        assert torch.allclose(got[name], p - 0.5 * grad, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(kind, tmp_path):
    network, data = NETWORKS[kind], clients(kind)
    go(network, data, tmp_path / "whole", "fedavg_tuned", 4)
    stop = lambda facts: "stop" if facts["round"] == 2 else None  # noqa: E731
    part = {"rounds": 4, "folder": tmp_path / "part", "settings": USUAL, **QUIET}
    run(network, data, "fedavg_tuned", on_round=stop, **part)
    run(network, data, "fedavg_tuned", resume=True, **part)
    a, b = (weights(tmp_path / name, network, kind="centre") for name in ("whole", "part"))
    assert all(torch.equal(a[n], b[n]) for n in a)
    # Fine-tuned models are trained again on the rows, which must be found to be the run's.
    tuned = load(tmp_path / "part", network=network, clients=data)
    model = tuned.model("c1", kind="fine-tuned").state_dict()
    assert any(not torch.equal(a[n], model[n]) for n in a)


def test_predictions_of_structured_rows_are_those_of_the_network(tmp_path):
    for kind, network in NETWORKS.items():
        data = clients(kind)
        go(network, data, tmp_path / kind)
        found = load(tmp_path / kind, network=network)
        x, _ = data["c0"]
        module = found.model()
        federation = from_arrays({"c0": data["c0"]}, test={})
        rows = federation.take(torch.arange(federation.rows))[0]
        if kind == "two inputs":
            out = module(rows["age"], rows["word"])
        elif kind == "tokens":
            out = module(rows)
        else:
            longest = found.outline.inputs["0"][0][0]
            real = torch.arange(rows["0"].shape[1]) < rows["0.lengths"][:, None]
            assert longest == 5
            out = module(rows["0"], real)
        said = found.predict(x)
        names = found.class_names if kind == "ragged" else None
        wanted = [names[i] if names else i for i in out.argmax(1).tolist()]
        assert said.tolist() == wanted
        assert np.allclose(found.predict(x, proba=True), out.softmax(1).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(
        KinfolkError, match=r"x\.0 = 'row 1 of length 6': the longest sequence of the run has 5"
    ):
        found.predict([list(range(6))])


def test_models_of_structured_rows_are_exported(tmp_path):
    for kind, network in NETWORKS.items():
        go(network, clients(kind), tmp_path / kind, rounds=1)
        found = load(tmp_path / kind, network=network)
        found.export(tmp_path / f"{kind} out", formats=["torch"])
        facts = json.loads((tmp_path / f"{kind} out" / "model.json").read_text())
        assert facts["inputs"]
        program = torch.export.load(tmp_path / f"{kind} out" / "model.pt2").module()
        module, count = found.model(), 5
        ids = torch.randint(7, (count, 4 if kind == "two inputs" else 6 if kind == "tokens" else 5))
        if kind == "two inputs":
            given = {"age": torch.randn(count, 3), "word": ids}
            assert torch.allclose(program(**given), module(**given), rtol=1e-5, atol=1e-6)
        elif kind == "tokens":
            assert torch.allclose(program(ids), module(ids), rtol=1e-5, atol=1e-6)
        else:
            mask = torch.arange(5) < torch.tensor([1, 2, 3, 4, 5])[:, None]
            assert torch.allclose(program(ids, mask=mask), module(ids, mask), rtol=1e-5, atol=1e-6)


def test_whole_numbers_that_are_features_train_as_the_same_floats_did(tmp_path):
    x = {who: torch.randint(9, (12, 4)) for who in "ab"}
    y = torch.arange(12) % 3
    whole = {who: (x[who], y) for who in x}
    floats = {who: (x[who].double(), y) for who in x}
    results = [go(lambda: nn.Linear(4, 3), rows, tmp_path / str(i)) for i, rows in enumerate((whole, floats))]
    a, b = (weights(tmp_path / str(i), nn.Linear(4, 3)) for i in range(2))
    assert all(torch.equal(a[n], b[n]) for n in a)
    facts = [json.loads((r.folder / "run.json").read_text())["federation"]["fingerprint"] for r in results]
    assert facts[0] == facts[1]


def test_only_inputs_that_a_network_wants_as_floats_become_floats():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.pixels = nn.Embedding(9, 2), nn.Linear(3, 2)

        def forward(self, word, pixel):
            return self.words(word) + self.pixels(pixel)

    x = {"word": torch.arange(8), "pixel": torch.ones(8, 3, dtype=torch.uint8)}
    f, said = fit_rows(Mixed(), from_arrays({"ann": (x, torch.arange(8) % 2)}))
    assert f.x["word"].dtype == torch.int64
    assert f.x["pixel"].dtype == torch.float32
    assert said.startswith("x.pixel: whole numbers that the network takes as floats only")
    pixels = from_arrays({"ann": (torch.ones(8, 3, dtype=torch.uint8), torch.arange(8) % 2)})
    kept = fit_rows(nn.Linear(3, 2), pixels)[0]
    assert kept.x.dtype == torch.uint8  # bytes stay a quarter of the size
    assert kept.take(torch.arange(1))[0].dtype == torch.float32


class Object(Tokens):
    def forward(self, tokens):
        return {"logits": super().forward(tokens), "hidden": None}


def test_an_output_object_is_named_by_model_output(tmp_path):
    data = clients("tokens")
    with pytest.raises(
        KinfolkError, match=r"model\.output = '': the network gives a dict.* name one of: logits"
    ):
        go(Object, data, tmp_path / "no")
    go(Object, data, tmp_path / "object", **{"model.output": "logits"})
    go(Tokens, data, tmp_path / "plain")
    a, b = weights(tmp_path / "object", Object), weights(tmp_path / "plain", Tokens)
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert len(load(tmp_path / "object", network=Object).predict(data["c0"][0])) == 11


class OwnTable(nn.Module):
    """An embedding that is no layer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 3))

    def forward(self, tokens):
        return self.table[tokens].mean(1)


def renamed(data):
    return {who: ({"age": x["age"], "wrod": x["word"]}, y) for who, (x, y) in data.items()}


def with_id(data, who, value):
    """The data with another id in a row of one client."""
    x, y = data[who]
    ids = (x["word"] if isinstance(x, dict) else x).clone()
    ids[3, 2] = value
    return {**data, who: ({**x, "word": ids} if isinstance(x, dict) else ids, y)}


WORDS = "the embedding 'words' of the network has ids 0 to"
BAD = {
    "id beyond": (Tokens, with_id(clients("tokens"), "c2", 9), rf"data\.c2\.x = 9: {WORDS} 8"),
    "id below": (Tokens, with_id(clients("tokens"), "c1", -1), rf"data\.c1\.x = -1: {WORDS} 8"),
    "in a dict": (TwoInputs, with_id(clients("two inputs"), "c3", 7), rf"data\.c3\.x\.word = 7: {WORDS} 6"),
    "in a sequence": (lambda: Ragged(8), clients("ragged"), rf"data\.c\d\.x\.0 = 8: {WORDS} 7"),
    "no layer": (
        OwnTable,
        with_id(clients("tokens"), "c2", 9),
        r"data\.c2\.x = 9: .* not take this row \(IndexError",
    ),
    "unknown name": (
        TwoInputs,
        renamed(clients("two inputs")),
        r"data\.x = 'wrod': forward has no input of this name; did you mean 'word'",
    ),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_input_is_named_before_anything_is_written(fault, tmp_path):
    network, data, message = BAD[fault]
    with pytest.raises(KinfolkError, match=message):
        go(network, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_network_of_the_package_takes_one_tensor():
    with pytest.raises(KinfolkError, match=r"model\.name = 'mlp': takes one tensor, and rows are age 3"):
        build_parts(Experiment(), from_arrays(clients("two inputs")))


def test_ids_beyond_the_embedding_of_test_rows_are_found_too(tmp_path):
    data = clients("tokens")
    tests = {"c1": (torch.full((2, 6), 11), torch.tensor([0, 1]))}
    with pytest.raises(KinfolkError, match=r"data\.c1\.x = 11"):
        run(Tokens, data, test=tests, rounds=1, folder=tmp_path / "run", **QUIET)


@pytest.mark.parametrize("name", ["mdicfl", "slfed"])
def test_methods_that_make_rows_refuse_several_tensors(name, tmp_path):
    assert ALGORITHMS[name].makes_rows
    with pytest.raises(KinfolkError, match=rf"algorithm\.name = '{name}': makes .* are several tensors"):
        go(NETWORKS["two inputs"], clients("two inputs"), tmp_path / "two", name)


def test_a_gan_makes_no_tokens(tmp_path):
    with pytest.raises(KinfolkError, match=r"algorithm\.images\.kind = 'gan': makes rows of numbers"):
        go(NETWORKS["tokens"], clients("tokens"), tmp_path / "gan", "slfed")


class Named(nn.Linear):
    """An output object, as networks of transformers have."""

    def forward(self, x):
        return {"logits": super().forward(x), "hidden": x}


@pytest.mark.parametrize("kind", ["two inputs", "ragged", "named output"])
def test_a_mixture_of_networks_is_called_as_one_of_them_is(kind, tmp_path):
    if kind == "named output":
        data = {f"c{i}": (torch.randn(12, 4), torch.arange(12) % 2) for i in range(3)}
        network, settings = (lambda: Named(4, 2)), {"model.output": "logits"}
    else:
        data, network, settings = clients(kind), NETWORKS[kind], {}
    go(network, data, tmp_path / "run", "fedem,k=2", **settings)
    held = load(tmp_path / "run", network=network)
    said = held.predict(data["c0"][0], client="c0", proba=True)
    assert said.sum(1) == pytest.approx(np.ones(len(said)))
    held.export(tmp_path / "out", client="c0", formats=["torch"])
    program = torch.export.load(tmp_path / "out/model.pt2").module()
    if kind == "two inputs":
        x = data["c0"][0]
        out = program(x["age"], x["word"].long())
        np.testing.assert_allclose(out.softmax(1).detach(), said, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["two inputs", "named output"])
def test_programs_of_standardised_runs_take_inputs_and_outputs_of_any_structure(kind, tmp_path):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=draw)
    y = 1000 * x[:, 0] + 5000

    class Sum(TwoInputs):
        def forward(self, age, word):
            return super().forward(age, word)[:, :1]

    if kind == "two inputs":
        rows = {"age": x, "word": torch.randint(7, (20, 4), generator=draw)}
        network, settings = Sum, {"data.standardize_target": "global"}
    else:
        rows, network = x, lambda: Named(3, 1)
        settings = {"data.standardize": "global", "model.output": "logits"}
    go(network, {"ann": (rows, y), "bob": (rows, y)}, tmp_path / "run", **settings)
    held = load(tmp_path / "run", network=network)
    held.export(tmp_path / "out", formats=["torch"])
    program = torch.export.load(tmp_path / "out/model.pt2").module()
    out = (program(*rows.values()) if kind == "two inputs" else program(rows)).detach()
    np.testing.assert_allclose(out[:, 0], held.predict(rows), rtol=1e-4)
    assert abs(float(out.mean()) - 5000) < 3000


def test_an_id_that_the_embedding_lacks_is_named_in_predictions(tmp_path):
    go(Tokens, clients("tokens"), tmp_path / "run")
    with pytest.raises(KinfolkError, match=r"x = 40: an embedding of the network has no such id"):
        load(tmp_path / "run", network=Tokens).predict(torch.full((2, 6), 40))
