"""Runs on standardised rows: what trains, what is scored, what is predicted, exported and told."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_scores
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.scaling import standardized
from kinfolk.streams import Seed

COLUMNS = ["age", "pay", "tiny"]


def table(n=60, who=("ann", "bob", "cyd"), seed=0):
    """A linear rule over columns of very unequal size; the target is near 400,000."""
    draw = np.random.default_rng(seed)
    parts = []
    for name in who:
        z = draw.normal(size=(n, 3))
        part = pd.DataFrame(z * [9, 2e4, 1e-5] + [50, 6e4, 0], columns=COLUMNS)
        part["y"] = 4e5 + 3e4 * (z @ [1.0, -2.0, 0.5]) + 100 * draw.normal(size=n)
        parts.append(part.assign(who=name))
    return pd.concat(parts, ignore_index=True)


def arrays(frame):
    groups = frame.groupby("who")
    return {who: (p[COLUMNS].to_numpy(np.float32), p["y"].to_numpy(np.float32)) for who, p in groups}


def linear():
    return nn.Linear(3, 1)


def trained(folder, clients, algorithm="fedavg", rounds=15, **settings):
    given = {"data.standardize": "global", "engine.name": "loop", "engine.device": "cpu", **settings}
    found = kinfolk.run(
        linear, clients, algorithm, rounds=rounds, folder=folder, settings=given, progress=False
    )
    return found, kinfolk.load(folder, network=linear, clients=clients)


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    folder = tmp_path_factory.mktemp("regression") / "run"
    return folder, *trained(folder, arrays(table()))


def test_columns_and_targets_of_any_size_train(regression):
    _, result, _ = regression
    scores = result.summary["centre"]
    # The variance of the target is 5e9; what no model explains has a deviation of 100.
    assert scores["mse"]["macro"] < 1e6
    assert scores["mae"]["macro"] < 1e3
    # The loss is that of standardised targets.
    assert scores["loss"]["macro"] == pytest.approx(
        scores["mse"]["macro"] / scaling_of(regression[0])["target"]["std"][0] ** 2, rel=1e-4
    )


def scaling_of(folder):
    return json.loads((folder / "federation.json").read_text())["scaling"]


def test_without_it_the_same_run_fails_and_names_the_remedy(tmp_path):
    with pytest.raises(KinfolkError, match=r"columns differ by a factor of .*data\.standardize=global"):
        trained(tmp_path / "r", arrays(table()), **{"data.standardize": "none"})
    audit = [json.loads(line) for line in (tmp_path / "r" / "audit.jsonl").read_text().splitlines()]
    assert any("data.standardize=global gives them" in one.get("text", "") for one in audit)


def test_predictions_of_raw_rows_give_the_recorded_scores(regression):
    folder, _, run = regression
    f = from_arrays(arrays(table()), seed=Seed(0))
    scores = read_scores(folder)
    last = scores[(scores["round"] == 15) & (scores["score"] == "mse")]
    for i, who in enumerate(f.clients):
        rows = f.splits["test"].rows(i)
        said = run.predict(f.x[rows])
        mse = float(np.square(said - f.y[rows].double().numpy()).mean())
        assert mse == pytest.approx(last[last["client"] == who]["value"].item(), rel=1e-4)


def test_statistics_are_recorded_with_what_they_cost(regression):
    folder, _, _ = regression
    told = scaling_of(folder)
    frame = from_arrays(arrays(table()), seed=Seed(0))
    pool = frame.x[frame.splits["train"].row].double().numpy()
    assert told["by"] == "global"
    np.testing.assert_allclose(told["rows"][""]["mean"], pool.mean(0), rtol=1e-9)
    first = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    assert first["bytes"]["standardize"] == {"up": 3 * 8 * 9, "down": 3 * 8 * 8}
    audit = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    assert [one["tells"] for one in audit if one["event"] == "standardize"] == [told["tells"]]


@pytest.mark.parametrize("engine", ["batched", "workers", "wire"])
def test_engines_agree(regression, tmp_path, engine):
    _, result, _ = regression
    other, _ = trained(tmp_path / "run", arrays(table()), **{"engine.name": engine, "engine.processes": 2})
    # Errors are a thousandth of the targets, and so have three digits less than these.
    for score, over in result.summary["centre"].items():
        assert other.summary["centre"][score]["macro"] == pytest.approx(over["macro"], rel=1e-3), score


def test_several_targets_are_scored_and_predicted_in_their_own_units(tmp_path):
    draw = np.random.default_rng(0)
    clients = {}
    for who in ("ann", "bob"):
        x = draw.normal(size=(60, 3)).astype(np.float32)
        clients[who] = (x, (x @ draw.normal(size=(3, 2)) * [1e-2, 1e3] + [0, 5e3]).astype(np.float32))
    given = {"data.standardize_target": "global", "engine.name": "batched"}
    two = lambda: nn.Linear(3, 2)  # noqa: E731
    kinfolk.run(two, clients, "local", rounds=5, folder=tmp_path / "r", settings=given, progress=False)
    run, f = kinfolk.load(tmp_path / "r", network=two), from_arrays(clients, seed=Seed(0))
    rows = f.splits["test"].rows(1)
    error = run.predict(f.x[rows], client="bob") - f.y[rows].double().numpy()
    scores = read_scores(tmp_path / "r")
    last = scores[(scores["round"] == 5) & (scores["client"] == "bob")].set_index("score")["value"]
    assert float(np.square(error).mean()) == pytest.approx(last["mse"], rel=1e-4)
    assert float(np.abs(error).mean()) == pytest.approx(last["mae"], rel=1e-4)
    assert np.abs(run.predict(f.x[rows], client="bob").mean(0) - [0, 5e3]).max() < 2e3


def test_a_clients_own_statistics_are_used_for_its_rows(tmp_path):
    _, run = trained(tmp_path / "r", arrays(table()), "local", 5, **{"data.standardize": "client"})
    f = from_arrays(arrays(table()), seed=Seed(0))
    rows = f.splits["test"].rows(1)
    scores = read_scores(tmp_path / "r")
    last = scores[(scores["round"] == 5) & (scores["client"] == "bob")].set_index("score")["value"]
    error = run.predict(f.x[rows], client="bob") - f.y[rows].double().numpy()
    assert float(np.square(error).mean()) == pytest.approx(last["mse"], rel=1e-4)
    run.export(tmp_path / "out", client="bob", formats=["torch"])
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    np.testing.assert_allclose(
        program(f.x[rows])[:, 0].detach().numpy(), run.predict(f.x[rows], "bob"), rtol=1e-5
    )


def test_whose_statistics_must_be_said(tmp_path):
    _, run = trained(tmp_path / "r", arrays(table()), "fedavg", 1, **{"data.standardize": "client"})
    with pytest.raises(KinfolkError, match="each has statistics of its own; name whose"):
        run.predict(np.zeros((1, 3)))
    run.export(tmp_path / "out", formats=["torch"])
    assert "each client's own training rows" in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "model.json").read_text())["standardized"]["rows"] is None


@pytest.mark.parametrize("name", ["torch", "onnx"])
def test_exported_programs_take_raw_rows(regression, tmp_path, name):
    _, _, run = regression
    x = np.array(table(5, seed=3)[COLUMNS], dtype=np.float32)
    if name == "onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    run.export(tmp_path / "out", formats=[name])
    if name == "torch":
        said = torch.export.load(tmp_path / "out" / "model.pt2").module()(torch.from_numpy(x))
        said = said.detach().numpy()
    else:
        said = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx")).run(None, {"x": x})[0]
    np.testing.assert_allclose(said[:, 0], run.predict(x), rtol=1e-5)


def test_the_card_says_what_weights_alone_need(regression, tmp_path):
    _, _, run = regression
    run.export(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "(x - mean) / std, by global" in card
    told = json.loads((tmp_path / "out" / "model.json").read_text())["standardized"]
    network = linear()
    network.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    x = table(5, seed=3)[COLUMNS].to_numpy(np.float32)
    rows = torch.tensor((x - np.array(told["rows"]["mean"])) / told["rows"]["std"], dtype=torch.float32)
    out = network(rows).detach().double().numpy()[:, 0] * told["target"]["std"][0] + told["target"]["mean"][0]
    np.testing.assert_allclose(out, run.predict(x), rtol=1e-6)


def test_a_table_is_standardised_without_being_asked(tmp_path):
    loaded = kinfolk.federate(kinfolk.read_frame(table(), client="who", label="y"))
    found = kinfolk.run(linear, loaded, rounds=15, folder=tmp_path / "r", progress=False)
    assert found.summary["centre"]["mse"]["macro"] < 1e6
    plain = kinfolk.run(
        linear, loaded, rounds=1, folder=tmp_path / "p", progress=False, settings={"data.standardize": "none"}
    )
    assert scaling_of(tmp_path / "r")["by"] == "global"
    assert scaling_of(tmp_path / "p") is None
    assert plain.rounds == 1


def test_a_run_goes_on_and_is_fine_tuned_on_the_same_rows(tmp_path):
    clients = arrays(table(30))
    whole, _ = trained(tmp_path / "a", clients, "fedavg_tuned", 4)
    given = {"data.standardize": "global", "engine.name": "loop", "engine.device": "cpu"}
    again = kinfolk.run(
        linear, clients, "fedavg_tuned", rounds=4, folder=tmp_path / "a", settings=given, resume=True,
        progress=False,
    )  # fmt: skip
    assert again.summary == whole.summary
    run = kinfolk.load(tmp_path / "a", network=linear, clients=clients)
    f = from_arrays(clients, seed=Seed(0))
    rows = f.splits["test"].rows(0)
    error = run.predict(f.x[rows], "ann", kind="fine-tuned") - f.y[rows].double().numpy()
    scores = read_scores(tmp_path / "a")
    last = scores[(scores["round"] == 4) & (scores["client"] == "ann") & (scores["model"] == "fine-tuned")]
    assert np.square(error).mean() == pytest.approx(last.set_index("score")["value"]["mse"], rel=1e-4)


@pytest.mark.parametrize("by", ["global", "client"])
def test_newcomers_are_placed_in_the_terms_of_the_run(tmp_path, by):
    draw = np.random.default_rng(0)

    def client(sign, shift=0.0):
        x = draw.normal(size=(60, 2)) * [1e4, 1e-3] + [5e5 + shift, 0]
        return x.astype(np.float32), (sign * (x[:, 0] - 5e5 - shift) > 0).astype(np.int64)

    rows = {f"c{i}": client(1 if i % 2 else -1) for i in range(6)}
    make = lambda: nn.Linear(2, 2)  # noqa: E731
    kinfolk.run(
        make, rows, "fesem,k=2", rounds=6, folder=tmp_path / "r", progress=False,
        settings={"data.standardize": by, "engine.name": "loop"},
    )  # fmt: skip
    # Far off in its own units: by statistics of its own it is like the others, by those of the run it is not.
    shift = 0.0 if by == "global" else 4e6
    found = kinfolk.assign(
        tmp_path / "r", {"new": client(1, shift), "old": client(-1, shift)}, network=make, by="loss"
    )
    assert found.groups["new"] != found.groups["old"]
    assert min(one["centre"] for one in found.facts["newcomers"]) > 0.9
    standard = kinfolk.federate(kinfolk.read_frame(table(), client="who", label="y"))
    with pytest.raises(KinfolkError, match="give them as they came"):
        kinfolk.assign(tmp_path / "r", standardized(standard, "global"), network=make)
