"""Labels that `ignore_index` names: in no loss, in no score, whatever number they are."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, jaccard_score
from torch import nn
from torch.nn import functional as F

from kinfolk.api import assign, run
from kinfolk.errors import KinfolkError
from kinfolk.experiment.outline import read_first
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.folder import read_folder
from kinfolk.federation.own_data.loaded import federate
from kinfolk.learning.losses import find_loss
from kinfolk.trained import load

MARKS = (-100, -1, 255, 3, 1)
SEEN = []


class Tagger(nn.Module):
    """Three classes for each of five positions, or four if one of them is to be left out."""

    def __init__(self, classes=3):
        super().__init__()
        self.head = nn.Linear(2, classes)

    def forward(self, x):
        return self.head(x)


def mean_label(out, y):
    SEEN.append((out, y))
    return float(y.clamp(min=0).float().mean())


def sites(mark, classes=3):
    """Clients of whose positions many have no label; of one row all."""
    found = {}
    for i, who in enumerate(("ann", "bob")):
        draw = torch.Generator().manual_seed(i)
        x = torch.randn(9, 5, 2, generator=draw)
        y = torch.randint(0, classes, (9, 5), generator=draw)
        y[torch.rand(9, 5, generator=draw) < 0.4] = mark
        y[2] = mark
        y[0, :2] = torch.tensor([0, 2])
        found[who] = x, y
    return found


def scored(mark, folder, loss="cross_entropy", network=Tagger, **more):
    rows = sites(mark)
    settings = {"local.loss": loss, "local.loss_options": {"ignore_index": mark, **more}, "local.lr": 0.3}
    metrics = ["balanced_accuracy", "iou", mean_label]
    given = {"settings": settings, "metrics": metrics, "progress": False, "folder": folder}
    done = run(network, rows, "local", test=rows, rounds=2, **given)
    return rows, done, load(folder, network=network)


@pytest.mark.parametrize("mark", MARKS)
def test_scores_of_positions_are_those_of_the_positions_that_count(mark, tmp_path):
    width = 4 if mark == 3 else 3  # the network has the class that is left out, as PyTorch wants it
    network = lambda: Tagger(width)  # noqa: E731
    rows, _, found = scored(mark, tmp_path / "run", network=network)
    table = found.scores[found.scores["round"] == 2]
    for who, (x, y) in rows.items():
        out = found.model(who)(x).detach().double()
        keep = y != mark
        truth, logits = y[keep].numpy(), out[keep]
        said = logits.argmax(1).numpy()
        assert 5 < len(truth) < 45
        value = table[table["client"] == who].set_index("score")["value"]
        assert value["accuracy"] == pytest.approx(accuracy_score(truth, said))
        recall = [np.mean(said[truth == c] == c) for c in np.unique(truth)]
        assert value["balanced_accuracy"] == pytest.approx(np.mean(recall))
        if mark == -100:
            assert value["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(truth, said))
        nll = F.cross_entropy(logits, y[keep])
        assert value["perplexity"] == pytest.approx(float(nll.exp()), rel=1e-5)
        # A class that is left out is no class, though it may be said.
        classes = sorted((set(truth.tolist()) | set(said.tolist())) - {mark})
        overlap = jaccard_score(truth, said, labels=classes, average="macro")
        assert value["iou"] == pytest.approx(overlap, rel=1e-6)
        by_row = F.cross_entropy(out.movedim(-1, 1), y, ignore_index=mark, reduction="none").sum(1)
        loss = (by_row / keep.sum(1).clamp(min=1)).mean()
        assert value["loss"] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.usefixtures("torch_allowed")
@pytest.mark.parametrize("mark", MARKS[1:])
@pytest.mark.parametrize("loss", ["cross_entropy", "focal", "torch.nn:CrossEntropyLoss"])
def test_a_mark_trains_the_model_that_minus_100_trains(mark, loss, tmp_path):
    class Second(Tagger):  # where PyTorch's own loss has its classes
        def forward(self, x):
            return self.head(x).movedim(-1, 1)

    own = {"reduction": "none"} if ":" in loss else {}
    models = {}
    for name in (mark, -100):
        rows = {w: (x, torch.where(y == mark, name, y)) for w, (x, y) in sites(mark).items()}
        settings = {"local.loss": loss, "local.loss_options": {"ignore_index": name, **own}}
        settings["local.lr"] = 0.5
        folder = tmp_path / str(name)
        run(lambda: Second(4), rows, rounds=2, folder=folder, settings=settings, progress=False)
        models[name] = load(folder, network=lambda: Second(4)).model().state_dict()
        start = read_first(folder)
    for name, t in models[mark].items():
        assert torch.equal(t, models[-100][name])
        assert not torch.equal(t, start[name])


def test_a_metric_of_the_user_sees_minus_100_whatever_the_mark(tmp_path):
    SEEN.clear()
    scored(255, tmp_path / "run")
    assert SEEN
    assert all(set(y.flatten().tolist()) <= {-100, 0, 1, 2} for _, y in SEEN)
    assert any((y == -100).any() for _, y in SEEN)


def test_padding_and_a_mark_may_meet():
    loss = find_loss("cross_entropy", {"ignore_index": 0}, "positions")
    out, y = torch.randn(2, 3, 4), torch.tensor([[0, 1, -100], [2, 3, 0]])
    kept = [F.cross_entropy(out[0, 1:2], y[0, 1:2]), F.cross_entropy(out[1, :2], y[1, :2])]
    torch.testing.assert_close(loss.row_loss(out, y), torch.stack(kept))
    torch.testing.assert_close(
        find_loss("focal", {"ignore_index": 0, "gamma": 0.0}).row_loss(out, y), torch.stack(kept)
    )


@pytest.mark.parametrize("mark", [1, 3])
@pytest.mark.parametrize("width", [3, 4])
def test_a_row_whose_one_label_is_left_out_is_left_out(mark, width, tmp_path, capsys):
    if mark == 1 and width == 4:
        return
    rows, without = {}, {}
    for i in range(3):
        draw = torch.Generator().manual_seed(i)
        x, y = torch.randn(20, 2, generator=draw), torch.arange(20) % 3
        y[::5] = mark
        y[1] = 2
        rows[f"c{i}"], without[f"c{i}"] = (x, y), (x[y != mark], y[y != mark])
    network = lambda: Tagger(width)  # noqa: E731
    given = {"rounds": 2, "metrics": ["auroc", "perplexity"], "progress": False}
    settings = {"local.loss_options": {"ignore_index": mark}, "local.batch": 50, "engine.name": "loop"}
    done = run(network, rows, test=rows, folder=tmp_path / "run", settings=settings, **given)
    told = capsys.readouterr().err + (tmp_path / "run" / "audit.jsonl").read_text()
    assert f"rows with the label {mark}, which the loss leaves out, are left out" in told
    found = load(tmp_path / "run", network=network)
    table = found.scores[found.scores["round"] == 2]
    for who, (x, y) in without.items():
        out = found.model()(x).detach().double()
        said = out.argmax(1)
        value = table[table["client"] == who].set_index("score")
        assert set(value["rows"]) == {len(y)}
        assert value["value"]["accuracy"] == pytest.approx(accuracy_score(y, said))
        nll = F.cross_entropy(out, y)
        assert value["value"]["loss"] == pytest.approx(float(nll), rel=1e-5)
        assert value["value"]["perplexity"] == pytest.approx(float(nll.exp()), rel=1e-5)
        classes = sorted((set(y.tolist()) | set(said.tolist())) - {mark})
        f1 = f1_score(y, said, labels=classes, average="macro", zero_division=0)
        assert value["value"]["macro_f1"] == pytest.approx(f1)
    assert done.summary["centre"]["macro_f1"]["pooled"] == pytest.approx(
        f1_score(
            torch.cat([y for _, y in without.values()]),
            torch.cat([found.model()(x).argmax(1) for x, _ in without.values()]),
            labels=[c for c in range(width) if c != mark],
            average="macro",
            zero_division=0,
        )
    )
    assert found.predict(rows["c0"][0]).shape == (20,)


def test_newcomers_have_the_same_mark(tmp_path):
    rows = sites(255)
    settings = {"local.loss_options": {"ignore_index": 255}}
    run(
        Tagger,
        rows,
        "fesem,k=2,start.warm_epochs=1",
        rounds=3,
        folder=tmp_path / "run",
        settings=settings,
        progress=False,
    )
    found = assign(tmp_path / "run", {"new": rows["ann"]}, network=Tagger)
    assert found.groups["new"] in (0, 1)


def test_a_mark_in_files_is_named_on_import_and_needs_the_option(tmp_path, kinfolk):
    for who, (x, y) in sites(-1).items():
        (tmp_path / "sites").mkdir(exist_ok=True)
        np.savez(tmp_path / "sites" / f"{who}.npz", x=x.numpy(), y=y.numpy())
    loaded = read_folder(tmp_path / "sites")
    assert federate(loaded).classes == 3
    assert any("has positions of -1: no classes" in note for note in loaded.notes)
    tagger = ("--allow-import", "test_left_out", "--set", "model.name=test_left_out:Tagger")
    code, _, err = kinfolk("run", "sites", *tagger, "--out", "run")
    assert code == 2
    assert "data.ann.y = -1: is no class; set local.loss_options.ignore_index = -1 to leave it out" in err
    assert not (tmp_path / "run").exists()
    words = (*tagger, "--set", "local.loss_options.ignore_index=-1")
    code, _, err = kinfolk("run", "sites", *words, "--set", "run.rounds=1", "--out", "run")
    assert code == 0, err


def test_a_mark_where_none_can_be_left_out_is_an_error():
    soft = torch.rand(9, 3).softmax(1)
    settings = {"local.loss": "cross_entropy", "local.loss_options": {"ignore_index": 1}}
    with pytest.raises(KinfolkError, match=r"ignore_index = 1: targets here are probabilities of classes"):
        run(Tagger, {"ann": (torch.randn(9, 2), soft)}, settings=settings, rounds=1)
    rows = {"ann": (torch.randn(9, 2), torch.arange(9) % 3), "bob": (torch.randn(4, 2), torch.full((4,), 2))}
    settings = {"local.loss_options": {"ignore_index": 2}}
    with pytest.raises(KinfolkError, match=r"data.bob.y = 2: all its training rows have this label"):
        run(Tagger, rows, settings=settings, rounds=1)
    assert from_arrays(rows).classes == 3
    with pytest.raises(KinfolkError, match=r"the data have 256; if 255 marks .*ignore_index = 255"):
        run(Tagger, sites(255), rounds=1)
