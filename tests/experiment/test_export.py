"""Models as files: what is written is what the run has, and what cannot be traced is said."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from small_runs import flat, go
from torch import nn

from kinfolk.errors import KinfolkError
from kinfolk.trained import load


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    go(folder, "algorithm.name=ifca", "algorithm.k=2", "run.rounds=2")
    return load(folder)


def test_safetensors_hold_the_model_and_the_card_says_what_it_is(run, tmp_path):
    files = run.export(tmp_path / "out", client="client-01", licence="CC BY 4.0")
    assert [path.name for path in files] == ["README.md", "model.json", "model.safetensors"]
    mine = run.model("client-01")
    network = run.model("client-00")
    network.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"))
    assert all(torch.equal(t, network.state_dict()[name]) for name, t in mine.state_dict().items())
    text = (tmp_path / "out" / "README.md").read_text()
    frame = run.scores[(run.scores["client"] == "client-01") & (run.scores["round"] == 2)]
    accuracy = frame[frame["score"] == "accuracy"]["value"].item()
    assert f"| test | accuracy | {accuracy:.4g} | {accuracy:.4g} | 1 |" in text
    for part in (
        "# ifca k=2: the centre model of client client-01",
        run.facts["federation"]["fingerprint"],
        "| round | 2 of 2 |",
        "local.lr=0.1",
        "CC BY 4.0",
        "load_file",
        "## Limits",
    ):
        assert part in text
    told = json.loads((tmp_path / "out" / "model.json").read_text())
    assert (told["shape"], told["classes"], told["client"]) == ([1, 8, 8], 10, "client-01")


def test_a_traced_program_says_the_same_of_any_number_of_rows(run, tmp_path):
    group, members = run._kept.groups(2).popitem()
    run.export(tmp_path / "out", group=group, formats=["torch"])
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    rows = torch.linspace(0, 1, 5 * 64).reshape(5, 1, 8, 8)
    for count in (1, 5):
        want = run.model(members[0])(rows[:count])
        torch.testing.assert_close(program(rows[:count]), want, rtol=1e-5, atol=1e-5)


def test_onnx_says_the_same(run, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    run.export(tmp_path / "out", client="client-00", formats=["onnx"])
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    rows = torch.linspace(0, 1, 5 * 64).reshape(5, 1, 8, 8)
    (said,) = session.run(None, {session.get_inputs()[0].name: rows.numpy()})
    torch.testing.assert_close(
        torch.from_numpy(said), run.model("client-00")(rows).detach(), rtol=1e-4, atol=1e-4
    )


class Fickle(nn.Module):
    """A network that looks at values."""

    def __init__(self):
        super().__init__()
        self.inside = flat(nn.Linear(64, 10))

    def forward(self, x):
        return self.inside(x) if float(x.sum()) > 0 else self.inside(-x)


def test_a_network_that_cannot_be_traced_leaves_safetensors_and_says_so(tmp_path):
    go(tmp_path / "run", "run.rounds=1", network=Fickle)
    run = load(tmp_path / "run", network=Fickle)
    with pytest.raises(
        KinfolkError, match=r"--format = 'torch': the network cannot be traced \(.*torch.where"
    ):
        run.export(tmp_path / "out", formats=["torch"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "README.md", "model.json", "model.safetensors"
    ]  # fmt: skip
    assert "pt2" not in (tmp_path / "out" / "README.md").read_text()


def test_what_is_there_is_not_written_over(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    for export in (
        lambda: run.export(tmp_path / "out", "client-00"),
        lambda: run.export_all(tmp_path / "out"),
    ):
        with pytest.raises(KinfolkError, match="is there already"):
            export()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(KinfolkError, match="did you mean 'safetensors'"):
        run.export(tmp_path / "new", "client-00", formats=["safetensor"])
    assert not (tmp_path / "new").exists()


def test_all_models_are_those_of_groups_or_of_clients(run, tmp_path):
    run.export_all(tmp_path / "groups")
    assert sorted(p.name for p in (tmp_path / "groups").iterdir()) == [
        f"group-{g}" for g in run._kept.groups(2)
    ]
    go(tmp_path / "local", "algorithm.name=local", "run.rounds=1")
    load(tmp_path / "local").export_all(tmp_path / "clients")
    assert sorted(p.name for p in (tmp_path / "clients").iterdir()) == [f"client-0{i}" for i in range(4)]
    go(tmp_path / "one", "run.rounds=1")
    load(tmp_path / "one").export_all(tmp_path / "everyone")
    assert [p.name for p in (tmp_path / "everyone").iterdir()] == ["all"]
