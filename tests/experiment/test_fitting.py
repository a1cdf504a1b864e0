"""Runs that begin with weights of a file, train a part of a network or adapters, and what they leave."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import SPEC, digits, equal, go, saved
from torch import nn

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.sections import ModelSpec
from kinfolk.experiment.spec import dump, override, parse

MLP = ("model.name=mlp", "model.hidden=[8, 6]")
HEAD = (*MLP, "model.train=head.*")
LORA = (*MLP, "model.lora.rank=2", "model.train=head.*")
BODY, ALL = 64 * 8 + 8 + 8 * 6 + 6, 64 * 8 + 8 + 8 * 6 + 6 + 6 * 10 + 10
ADAPTERS = 2 * (64 + 8) + 2 * (8 + 6)


class Small(nn.Module):
    """A convolution, BatchNorm and a head: one kind of layer that adapters take, one that they do not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.head = nn.Linear(2 * 36, 10)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).flatten(1))


@pytest.fixture
def weights(tmp_path):
    parts = build_parts(override(SPEC, [*MLP, "run.seed=7"]), digits(SPEC.data, 7))
    save_file(parts.learner.first, tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_a_run_begins_with_the_weights_of_a_file(tmp_path, weights):
    go(tmp_path / "run", *MLP, f"model.weights={weights}")
    first = load_file(tmp_path / "run" / "first.safetensors")
    given = load_file(weights)
    assert {name.removeprefix("model/") for name in first} == set(given)
    assert all(torch.equal(t, given[name.removeprefix("model/")]) for name, t in first.items())


@pytest.mark.parametrize(("changes", "trained"), [(HEAD, 70), (LORA, 70 + ADAPTERS)])
def test_only_the_trained_part_travels_and_is_kept(tmp_path, weights, changes, trained):
    done = go(tmp_path / "run", *changes, f"model.weights={weights}", "algorithm.name=fedavg")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (facts["parameters"], facts["frozen"]) == (trained, BODY)
    for round in read_rounds(tmp_path / "run")[1:]:
        sent = {way: n for ways in round["bytes"].values() for way, n in ways.items()}
        assert sent == {"down": 4 * 4 * trained, "up": 4 * 4 * trained}
    _, tensors, _ = saved(tmp_path / "run")
    assert sum(t.numel() for t in tensors["state"]["model"].values()) == trained
    # Once, in the folder of the run.
    first = load_file(tmp_path / "run" / "first.safetensors")
    assert sum(t.numel() for t in first.values()) == trained + BODY
    assert set(done.state.model) == {n.removeprefix("model/") for n in first if "head" in n or "lora" in n}


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedavg_tuned", "fedem"])
@pytest.mark.parametrize("changes", [HEAD, LORA])
def test_models_that_leave_a_run_are_plain_and_score_as_recorded(tmp_path, weights, algorithm, changes):
    folder = tmp_path / "run"
    go(folder, *changes, f"model.weights={weights}", f"algorithm.name={algorithm}")
    weights.unlink()  # the run folder has all that is needed
    run = kinfolk.load(folder)
    data = digits(SPEC.data, 0)
    scores = read_scores(folder)
    scores = scores[(scores["round"] == 3) & (scores["score"] == "accuracy")]
    for kind in set(scores["model"]):
        models = run.models_of(data.clients, kind=kind)
        for who, network in models.items():
            assert not any("lora" in name for name in network.state_dict())
            row = scores[(scores["client"] == who) & (scores["model"] == kind)].iloc[0]
            x, y = data.take(data.splits["test"].rows(data.place(who)))
            right = int((network(x).argmax(1) == y).sum())
            assert right == round(row["value"] * row["rows"])
            assert type(network).__module__.startswith("kinfolk.")


def test_merged_weights_are_exported(tmp_path):
    folder = tmp_path / "run"
    done = go(folder, *MLP, "model.lora.rank=2", "model.lora.alpha=4", "local.lr=0.5")
    run = kinfolk.load(folder)
    run.export(tmp_path / "out")
    first = {n.removeprefix("model/"): t for n, t in load_file(folder / "first.safetensors").items()}
    out, state = load_file(tmp_path / "out" / "model.safetensors"), done.state.model
    assert set(out) == {n for n in first if "lora" not in n}
    for layer in ("body.0", "body.1", "head"):
        change = state[f"{layer}.lora_B"].double() @ state[f"{layer}.lora_A"].double() * 2
        assert change.abs().max() > 0
        assert torch.equal(out[f"{layer}.weight"], (first[f"{layer}.weight"].double() + change).float())
        assert torch.equal(out[f"{layer}.bias"], first[f"{layer}.bias"])
    assert "model.lora.rank=2" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("engine", ["loop", "batched", "workers", "wire"])
def test_a_resumed_run_has_the_same_bits(tmp_path, weights, engine):
    more = (*LORA, f"model.weights={weights}", "algorithm.name=ifca")
    more = (*more, f"engine.name={engine}", "engine.processes=2")
    go(tmp_path / "whole", *more)
    go(tmp_path / "part", *more, "run.rounds=2")
    go(tmp_path / "part", *more, resume=True)
    (_, a, _), (_, b, _) = saved(tmp_path / "whole"), saved(tmp_path / "part")
    assert equal(a["state"], b["state"])


def test_a_run_is_not_resumed_with_other_frozen_weights(tmp_path, weights):
    more = (*HEAD, f"model.weights={weights}")
    go(tmp_path / "run", *more, "run.rounds=1")
    tensors = load_file(weights)
    save_file({**tensors, "body.0.bias": tensors["body.0.bias"] + 1}, weights)
    with pytest.raises(KinfolkError, match=r"body.0.bias, which is frozen, is not what the run began with"):
        go(tmp_path / "run", *more, resume=True)


def test_in_python_the_users_network_stays_as_it_is(tmp_path):
    data, net = digits(SPEC.data, 0), Small()
    before = {n: t.clone() for n, t in net.state_dict().items()}
    settings = {"model.lora": {"rank": 2}, "model.train": ["norm.*"], "engine.name": "loop"}
    done = kinfolk.run(net, data, rounds=2, settings=settings, folder=tmp_path / "run")
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())
    names = {"head.lora_A", "head.lora_B", *(f"norm.{n}" for n in net.norm.state_dict())}
    assert set(done.state.model) == names
    got = kinfolk.load(tmp_path / "run", network=Small).model()
    assert torch.equal(got.conv.weight, before["conv.weight"])
    assert not torch.equal(got.head.weight, before["head.weight"])


def test_a_users_own_frozen_parameters_count_the_same(tmp_path):
    data, net = digits(SPEC.data, 0), Small()
    net.conv.requires_grad_(False)
    net.norm.requires_grad_(False)
    done = kinfolk.run(net, data, "fesem,k=2,start.warm_epochs=1", rounds=3, folder=tmp_path / "run")
    assert set(done.state.centres) == {"head.weight", "head.bias"}
    assert math.isfinite(done.summary["centre"]["loss"]["macro"])
    net.head.requires_grad_(False)
    with pytest.raises(KinfolkError, match="no parameters that require a gradient"):
        kinfolk.run(net, data, rounds=1)


def test_comparisons_and_searches_take_frozen_networks():
    data = digits(SPEC.data, 0)
    settings = {"model.train": ["norm.*"], "model.lora.rank": 1, "engine.name": "loop"}
    found = kinfolk.compare(Small, data, ["local", "fedprox"], rounds=1, seeds=1, settings=settings)
    assert len(found.frame) == 2
    more = {**settings, "data.valid": 0.2}
    rows = {w: data.take(data.splits["train"].rows(data.place(w))) for w in data.clients}
    space = {"model.lora.alpha": [1.0, 8.0]}
    assert kinfolk.tune(Small, rows, ["fedavg"], rounds=1, space=space, settings=more).frame["tried"].tolist()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.train=haed.*"], r"model.train = 'haed.\*': matches no name; near ones: head"),
        (["model.fresh=head.*"], "is about a file of weights; set model.weights"),
        (["model.weights=none.safetensors"], "model.weights = 'none.safetensors': no such file"),
        (["model.lora.rank=2", "model.lora.layers=attn"], "matches no name; there are body.0, body.1, head"),
        (["model.lora.rank=2", "model.train=*"], "trained whole or tied; name others"),
        (["algorithm.name=fesem_ma", "model.train=head.*"], "whole layers"),
    ],
)
def test_mistakes_are_told_before_anything_is_written(tmp_path, changes, said):
    with pytest.raises(KinfolkError, match=said):
        go(tmp_path / "run", *MLP, *changes)
    assert not (tmp_path / "run").exists()


def test_an_adapter_on_a_layer_that_is_not_called_is_refused():
    class Past(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(64, 8), nn.Linear(8, 10)

        def forward(self, x):
            return self.head(nn.functional.linear(x.flatten(1), self.first.weight))

    with pytest.raises(KinfolkError, match=r"'first': the network does not call this layer"):
        kinfolk.run(Past, digits(SPEC.data, 0), rounds=1, settings={"model.lora.rank": 1})
    settings = {"model.lora": {"rank": 1, "layers": ["head"]}}
    kinfolk.run(Past, digits(SPEC.data, 0), rounds=1, settings=settings)


def test_the_table_is_read_and_written():
    spec = parse('[model]\ntrain = "head.*"\nlora = {rank = 8, layers = ["*attn*"]}\nhidden = [4]')
    assert (spec.model.train, spec.model.lora.rank, spec.model.lora.layers) == (("head.*",), 8, ("*attn*",))
    assert spec.model.options == {"hidden": [4]}
    assert parse(dump(spec)) == spec
    assert parse("[model.lora]\nrank = 8").model.lora.rank == 8
    assert override(spec, ["model.lora={rank = 2}"]).model.lora.rank == 2
    for text, said in (
        ("model.lora = 8", r"model.lora = 8: is a table; write its keys under \[model.lora\]"),
        ("model.lora.rnak = 8", r"model.lora.rnak = 8: no such setting; did you mean 'rank'"),
        ("model.lora.rank = -1", "model.lora.rank = -1: give 0 or more"),
        ("model.lora.alpha = 0", "model.lora.alpha = 0.0: give a number above 0"),
        ("model.train = 3", "model.train = 3: give a list"),
        ("model.train = [3]", "model.train = 3: is a whole number; give text"),
    ):
        with pytest.raises(KinfolkError, match=said):
            parse(text)
    assert ModelSpec().lora.rank == 0
