"""Records that are missing or torn when a run is resumed: made again from the rest, or named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_runs import SPEC, assert_same_end, go, rounds_of

from kinfolk.errors import KinfolkError
from kinfolk.experiment.outline import read_outline
from kinfolk.experiment.record import read_audit, read_client_facts, read_rounds, read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override
from kinfolk.report.read import epochs_per_client, extra_rounds, load_run, training_seconds
from kinfolk.report.tables import comparison_frame, comparison_table

FINALIZES = ("algorithm.name=mdicfl", "algorithm.k=2", "algorithm.final_reassign=true", "run.rounds=6")
STARTS = ("algorithm.name=fesem", "algorithm.k=2", "algorithm.start.plateau=0", "run.rounds=6")


def warnings(folder: Path) -> list[str]:
    return [line["text"] for line in read_audit(folder) if line["event"] == "warning"]


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def scores(folder: Path, number: int) -> Path:
    return folder / "records" / f"round-{number:06d}.parquet"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four rounds, and the same after three."""
    room = tmp_path_factory.mktemp("whole")
    go(room / "four", "run.rounds=4")
    go(room / "three", "run.rounds=3")
    return room


@pytest.fixture
def three(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole / "three", tmp_path / "r")
    return tmp_path / "r"


def test_whole_records_are_left_alone(whole, three):
    go(three, "run.rounds=4", resume=True)
    assert warnings(three) == []
    assert_same_end(three, whole / "four")


@pytest.mark.parametrize("damage", [tear, Path.unlink], ids=["torn", "gone"])
def test_scores_of_the_last_round_are_made_again(whole, three, damage):
    damage(scores(three, 3))
    go(three, "run.rounds=4", resume=True)
    assert_same_end(three, whole / "four")
    assert len(warnings(three)) == 1
    assert warnings(three)[0].startswith("scores of round 3 ")
    assert warnings(three)[0].endswith("were made again")


def test_scores_of_the_last_round_are_made_again_for_a_run_that_has_ended(whole, three):
    tear(scores(three, 3))
    go(three, resume=True)
    assert_same_end(three, whole / "three")
    assert read_scores(three)["round"].max() == 3


def test_scores_of_an_earlier_round_are_set_aside_and_named(whole, three):
    tear(scores(three, 1))
    with pytest.raises(KinfolkError, match=r"round-000001\.parquet.*resume=True sets it aside"):
        read_scores(three)
    go(three, "run.rounds=4", resume=True)
    assert [n for n in (0, 2, 3, 4) if n in set(read_scores(three)["round"])] == [0, 2, 3, 4]
    assert 1 not in set(read_scores(three)["round"])
    assert rounds_of(three) == rounds_of(whole / "four"), "means over clients stand in rounds.jsonl"
    aside = scores(three, 1).with_suffix(".torn")
    assert aside.is_file()
    assert warnings(three) == [f"scores of round 1 cannot be read and are set aside as {aside.name}"]


def test_missing_scores_of_an_earlier_round_are_named(three):
    scores(three, 0).unlink()
    scores(three, 2).unlink()
    go(three, "run.rounds=4", resume=True)
    assert warnings(three) == ["scores of rounds 0, 2 are missing; their means over clients are left"]


def test_a_deleted_rounds_file_is_made_again_from_scores_and_what_is_lost_is_said(whole, three):
    before = {line["round"]: line for line in read_rounds(three)}
    (three / "rounds.jsonl").unlink()
    go(three, "run.rounds=4", resume=True)
    lines = read_rounds(three)
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line.get("lost", False) for line in lines] == [True] * 4 + [False]
    for line in lines[:4]:
        then = before[line["round"]]["summary"]["centre"]
        for score, over in line["summary"]["centre"].items():
            assert over == pytest.approx({k: v for k, v in then[score].items() if k in over}, rel=1e-12)
            assert set(then[score]) - set(over) <= {"pooled", "lost"}
    assert lines[4] | {"seconds": 0} == read_rounds(whole / "four")[4] | {"seconds": 0}
    told = "rounds.jsonl lacked rounds 0 to 3: scores are those of the records, bytes and seconds are lost"
    assert warnings(three) == [told]


def test_what_is_lost_does_not_flatter_a_table(whole, three):
    (three / "rounds.jsonl").unlink()
    go(three, "run.rounds=4", resume=True)
    damaged, sound = load_run(three), load_run(whole / "four")
    rows = [comparison_table([one])[0].columns[-3].cells for one in (damaged, sound)]
    assert next(iter(rows[0])).plain == next(iter(rows[1])).plain, "MB of the rounds that are known"
    known = training_seconds(read_rounds(three)[4])
    assert comparison_frame([damaged])["seconds_per_round"].tolist() == [pytest.approx(known)]
    assert epochs_per_client(damaged) != epochs_per_client(damaged), "not a number"
    assert "fedavg seed 0: what 4 rounds took is lost" in comparison_table([damaged])[1]


def test_lines_that_are_lost_in_the_middle_are_made_again_in_their_place(three):
    lines = (three / "rounds.jsonl").read_text().splitlines(keepends=True)
    (three / "rounds.jsonl").write_text("".join(lines[:1] + lines[2:]))
    go(three, "run.rounds=4", resume=True)
    assert [line["round"] for line in read_rounds(three)] == [0, 1, 2, 3, 4]
    assert [line["round"] for line in read_rounds(three) if line.get("lost")] == [1]
    assert "rounds.jsonl lacked round 1: " in warnings(three)[0]


def test_a_start_that_was_paid_for_stays_paid(tmp_path):
    go(tmp_path / "r", *STARTS)
    paid = extra_rounds(load_run(tmp_path / "r"))
    assert paid > 0
    (tmp_path / "r/rounds.jsonl").unlink()
    go(tmp_path / "r", *STARTS, resume=True)
    assert extra_rounds(load_run(tmp_path / "r")) == pytest.approx(paid)


def test_a_run_that_finalizes_has_its_final_scores_again(tmp_path):
    go(tmp_path / "whole", *FINALIZES)
    for name, damage in (
        ("scores", lambda f: tear(scores(f, last(f)))),
        ("lines", lambda f: (f / "rounds.jsonl").unlink()),
    ):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        damage(tmp_path / name)
        go(tmp_path / name, *FINALIZES, resume=True)
        assert read_scores(tmp_path / name).equals(read_scores(tmp_path / "whole"))
        mine, wanted = (read_rounds(tmp_path / one)[-1]["summary"] for one in (name, "whole"))
        assert mine == wanted


def last(folder: Path) -> int:
    return int(read_rounds(folder)[-1]["round"])


def test_what_follows_from_the_data_alone_is_written_again(three):
    wanted = read_client_facts(three), read_outline(three)
    tear(three / "clients.parquet")
    (three / "federation.json").write_text("{")
    go(three, resume=True)
    assert read_client_facts(three).equals(wanted[0])
    assert read_outline(three) == wanted[1]
    assert warnings(three) == ["clients.parquet, federation.json could not be read and were made again"]


def test_a_missing_audit_trail_and_missing_checkpoints_are_named(three):
    (three / "audit.jsonl").unlink()
    shutil.rmtree(three / "checkpoints")
    go(three, resume=True)
    assert warnings(three) == [
        "no checkpoint is left: the run begins again, and 3 rounds of records are dropped"
    ]
    assert [line["round"] for line in read_rounds(three)] == [0, 1, 2, 3]
    (three / "audit.jsonl").unlink()
    go(three, resume=True)
    assert warnings(three) == ["audit.jsonl is missing: what was rejected or absent before is lost"]


SLFED = [
    *("algorithm.name=slfed", "algorithm.images.kind=noise", "algorithm.images.count=20"),
    *("algorithm.shares.min_members=1", "algorithm.shares.max_share=1.0"),
]


def test_a_shortened_journal_of_answers_is_refused(tmp_path):
    """Who forgets what it has answered might answer two sums that differ by one client."""
    spec = override(SPEC, [*SLFED, "run.rounds=3"])
    run(spec, tmp_path / "r")
    path = tmp_path / "r/answered.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) > 1
    run(override(spec, ["run.rounds=4"]), tmp_path / "r", resume=True)
    for left in ([], lines[1:]):
        path.write_text("".join(left)) if left else path.unlink()
        with pytest.raises(
            KinfolkError, match=r"answered\.jsonl'.*lacks .* answers.*restore it, or start again"
        ):
            run(override(spec, ["run.rounds=5"]), tmp_path / "r", resume=True)
        assert json.loads((tmp_path / "r/run.json").read_text())["status"] == "finished"


def test_a_rounds_file_with_a_line_that_is_none_is_named_by_its_line(three):
    lines = (three / "rounds.jsonl").read_text().splitlines(keepends=True)
    (three / "rounds.jsonl").write_text("".join([lines[0], "#" + lines[1], *lines[2:]]))
    with pytest.raises(KinfolkError, match=r"rounds\.jsonl:2.*mend or remove it"):
        go(three, "run.rounds=4", resume=True)


def test_torn_scores_of_the_start_are_set_aside_and_cost_no_checkpoint(whole, three):
    tear(scores(three, 0))
    go(three, "run.rounds=4", resume=True)
    aside = scores(three, 0).with_suffix(".torn")
    assert warnings(three) == [f"scores of round 0 cannot be read and are set aside as {aside.name}"]
    assert rounds_of(three) == rounds_of(whole / "four")
