"""What a run writes down to look at: near the truth, without effect, and forgotten with its rounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import SPEC, assert_same_end, digits, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.picture_files import (
    MOST_BYTES,
    read_arrays,
    read_samples,
    read_sketches,
    write_arrays,
)
from kinfolk.experiment.record import read_audit, round_files
from kinfolk.experiment.sample_rows import ROWS, sample_rows
from kinfolk.experiment.spec import override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Few, Seed
from kinfolk.types import tree_of

LOCAL = "algorithm.name=local"
MORE = {
    "fesem": ["run.rounds=6"],
    "slfed": ["algorithm.images.kind=noise"],
    "mdicfl": ["algorithm.start.name=random_partition", "algorithm.search.iterations=3"],
}


def flat(model):
    return np.concatenate([t.numpy().ravel() for t in model.values()]).astype(float)


def distances(rows):
    rows = np.stack(list(rows)).astype(float)
    return np.linalg.norm(rows[:, None] - rows[None], axis=2)[np.triu_indices(len(rows), 1)]


def test_sketches_of_clients_own_models_keep_their_distances(tmp_path):
    result = go(tmp_path / "r", LOCAL, "data.clients=12", "run.evaluate_every=2")
    sketches = read_sketches(tmp_path / "r")
    assert sorted(set(sketches["round"])) == [2, 3], "evaluated rounds, and the last"
    assert set(sketches["kind"]) == {"personal"}
    last = sketches[sketches["round"] == 3]
    assert last["client"].tolist() == sorted(result.memories)
    exact = distances(flat(tree_of(result.memories[c], "model")) for c in last["client"])
    ratio = distances(last["sketch"]) / exact
    assert 0.6 < ratio.min() < ratio.max() < 1.5
    assert abs((ratio**2).mean() - 1) < 0.15


def test_sketches_of_updates_are_of_those_who_sent_one_in_that_round(tmp_path):
    go(tmp_path / "r", "data.clients=10", "run.participation=0.3", "run.absent=0.4", "run.rounds=4")
    sketches = read_sketches(tmp_path / "r")
    told = [line for line in read_audit(tmp_path / "r") if line["event"] == "absent"]
    assert set(sketches["kind"]) == {"update"}
    assert told, "somebody was away"
    for number, some in sketches.groupby("round"):
        away = {line["client"] for line in told if line["round"] == number - 1}
        assert len(some) == 3 - len(away)
        assert not away & set(some["client"])


def test_an_attackers_update_is_sketched_as_the_server_saw_it(tmp_path):
    attack = ["data.clients=6", "run.attack=scaled", "run.attackers=0.2", "run.rounds=1"]
    go(tmp_path / "bad", *attack)
    go(tmp_path / "good", *attack[:1], "run.rounds=1")
    bad, good = (read_sketches(tmp_path / name).set_index("client")["sketch"] for name in ("bad", "good"))
    moved = [c for c in good.index if not np.array_equal(good[c], bad[c])]
    assert len(moved) == 1, "the others are as they were, to the last bit"


@pytest.mark.parametrize(
    "algorithm",
    ["fedavg", "local", "ifca", "fedfomo", "fesem", "slfed", "mdicfl"],
)
def test_a_run_ends_with_the_same_bits_whatever_is_pictured(tmp_path, algorithm):
    change = [f"algorithm.name={algorithm}", "data.clients=6", "model.name=mlp", "model.hidden=[6]"]
    change += MORE.get(algorithm, [])
    for pictures in ("none", "models", "rows"):
        go(tmp_path / pictures, *change, f"run.pictures={pictures}")
    for pictures in ("models", "rows"):
        assert_same_end(tmp_path / "none", tmp_path / pictures)
    assert [p.name for p in (tmp_path / "none").iterdir() if p.name in ("sketches", "pictures")] == []
    assert not read_sketches(tmp_path / "models").empty


def test_engines_write_the_same_sketches(tmp_path):
    found = {}
    for engine in ("loop", "batched", "workers", "wire"):
        go(tmp_path / engine, f"engine.name={engine}", "data.clients=6")
        frame = read_sketches(tmp_path / engine)
        found[engine] = frame["client"].tolist(), np.stack(list(frame["sketch"]))
    for engine, (clients, rows) in found.items():
        assert clients == found["loop"][0], engine
        np.testing.assert_allclose(rows, found["loop"][1], rtol=1e-3, atol=1e-4)


def test_a_resumed_run_forgets_the_pictures_after_its_checkpoint(tmp_path):
    whole = [LOCAL, "run.rounds=4", "run.checkpoint_every=2"]
    go(tmp_path / "whole", *whole)

    def interrupt(event, facts):
        if event == "round" and facts["round"] == 3:
            raise RuntimeError("the machine stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        go(tmp_path / "torn", *whole, watch=interrupt)
    torn = tmp_path / "torn/sketches"
    assert (torn / "round-000003.parquet").exists()
    (torn / "round-000003.parquet").write_bytes(b"half")
    (torn / ".round-000004.parquet.tmp").write_bytes(b"half")
    seen = []

    def look(event, facts):
        if event == "resume":
            seen.extend(sorted(path.name for path in torn.iterdir()))

    go(tmp_path / "torn", *whole, resume=True, watch=look)
    assert seen == ["round-000001.parquet", "round-000002.parquet"]
    for number, path in round_files(tmp_path / "whole", "sketches"):
        assert path.read_bytes() == (torn / path.name).read_bytes(), number
    assert len(round_files(tmp_path / "torn", "sketches")) == 4


def test_what_is_pictured_may_be_another_when_a_run_goes_on(tmp_path):
    go(tmp_path / "r", "run.rounds=2", "run.pictures=none")
    go(tmp_path / "r", "run.rounds=3", "run.pictures=models", resume=True)
    assert set(read_sketches(tmp_path / "r")["round"]) == {3}


def test_a_long_run_is_pictured_at_a_few_rounds_and_where_it_ends(tmp_path):
    go(tmp_path / "long", "run.rounds=60", "model.name=logistic")
    few = sorted(set(read_sketches(tmp_path / "long")["round"]))
    assert few[:3] == [1, 2, 3]
    assert (few[-1], len(few) <= 20) == (60, True)
    result = go(tmp_path / "early", "run.rounds=60", "run.target=0.2")
    assert result.rounds < 60
    assert max(read_sketches(tmp_path / "early")["round"]) == result.rounds


def test_sample_rows_are_rows_of_their_clients_and_only_if_asked_for(tmp_path):
    go(tmp_path / "none", "run.rounds=1")
    assert read_samples(tmp_path / "none") == []
    go(tmp_path / "r", "run.rounds=1", "run.pictures=rows")
    federation = digits(DataSpec(clients=4, rows=12, groups=2), 0)
    train = federation.splits["train"]
    found = read_samples(tmp_path / "r")
    assert sorted({who for who, _, _ in found}) == list(federation.clients)
    for who, label, image in found:
        rows = train.rows(federation.place(who))
        mine = federation.x[rows][federation.y[rows] == label][:, 0].numpy()
        far = np.abs((mine + 1) / 2 * 255 - image).max((1, 2))
        assert image.shape == (8, 8)
        assert far.min() <= 0.51, "one of the client's own rows of that label"
    labels = [label for who, label, _ in found if who == found[0][0]]
    assert len(labels) == len(set(labels)) == ROWS


def test_rows_that_are_no_images_are_not_written(tmp_path):
    rows = {name: (torch.randn(6, 3), torch.arange(6) % 2) for name in ("ann", "bob")}
    held = from_arrays(rows, test=rows)
    assert sample_rows(held, Few(Seed(0), held.clients)) == []
    go(tmp_path / "r", "data.name=own", "run.rounds=1", "run.pictures=rows", federation=held)
    assert read_samples(tmp_path / "r") == []


def test_a_method_cannot_show_more_than_a_megabyte(tmp_path):
    with pytest.raises(KinfolkError, match="show less"):
        write_arrays(tmp_path, 1, {"large": np.zeros(MOST_BYTES + 1, dtype=np.uint8)})
    assert not (tmp_path / "pictures").exists()


def test_files_that_are_torn_or_foreign_are_named(tmp_path):
    for kind, ending, read in (
        ("sketches", "parquet", read_sketches),
        ("pictures", "safetensors", read_arrays),
    ):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "notes.txt").write_text("mine")
        (tmp_path / kind / f"round-000002.{ending}").write_bytes(b"half")
        with pytest.raises(KinfolkError, match=r"round-000002.*cannot be read"):
            read(tmp_path)


def test_the_setting_is_one_of_three():
    with pytest.raises(KinfolkError, match=r"run\.pictures = 'yes'"):
        override(SPEC, ["run.pictures=yes"])
