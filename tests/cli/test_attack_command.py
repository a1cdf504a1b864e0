"""`kinfolk attack` as a person meets it: the table, its numbers beside the records, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kinfolk.experiment.record import read_scores

SETS = ("data.clients=7", "data.rows=20", "model.name=logistic", "engine.name=loop", "data.groups=2")
SMALL = [word for one in (*SETS, "run.rounds=2", "run.pictures=none") for word in ("--set", one)]
FEW = ("-a", "ifca,k=2", "--attacks", "backdoor", "--defences", "mean,krum", "--seeds", 2)


def seen_by_hand(folder, names, attackers):
    """The mean over clients of accuracy and success, and the worst client, run by run."""
    found: dict[str, list[float]] = {"score": [], "worst": [], "success": []}
    for name in names:
        scores = read_scores(folder / name)
        last = scores[(scores["round"] == 2) & (scores["model"] == "centre")]
        values = last[last["score"] == "accuracy"]["value"]
        assert len(values) == 7 - attackers
        found["score"].append(values.mean())
        found["worst"].append(values.min())
        found["success"].append(last[last["score"] == "attack_success"]["value"].mean())
    return found


def test_a_table_of_eighty_columns_says_who_was_hurt_and_who_goes_on_keeps_the_runs(kinfolk, tmp_path):
    code, out, err = kinfolk("attack", *SMALL, *FEW, "--attackers", "0,0.3", "--out", "c")
    assert code == 0, err
    assert max(map(len, out.splitlines()[:-2])) <= 80
    told = " ".join(out.split())
    assert "refused: ifca k=2, krum, f = 2: algorithm.aggregate.attackers: krum needs 7 members" in told
    assert "f: attackers among 7 clients; 2 seeds, mean ± sample standard deviation" in told
    assert (tmp_path / "c/attack.png").stat().st_size > 10_000
    before = {path: path.read_bytes() for path in (tmp_path / "c").rglob("*.parquet")}
    code, out, err = kinfolk(
        "attack", *SMALL, *FEW, "--attackers", "0,0.3", "--out", "c", "--resume", "--json"
    )
    assert (code, err) == (0, "")
    assert {path: path.read_bytes() for path in (tmp_path / "c").rglob("*.parquet")} == before
    rows = json.loads(out)["rows"]
    cells = json.loads((tmp_path / "c/attack.json").read_text())["cells"]
    assert len(rows) == len(cells) == 4
    for row, cell in zip(rows, cells, strict=True):
        assert (row["refused"] == "") == bool(cell["runs"])
        assert len(cell["runs"]) in (0, 2)
        for key, values in seen_by_hand(tmp_path / "c", cell["runs"], row["attackers"]).items():
            if values:
                assert row[key]["mean"] == pytest.approx(np.mean(values))
                assert row[key]["std"] == pytest.approx(np.std(values, ddof=1))
                assert f"{100 * np.mean(values):.1f}" in told
    mixed = [row["mixed"]["mean"] for row in rows if row["seeds"]]
    assert mixed[0] is None
    assert 0 <= mixed[1] <= 2
    code, _, err = kinfolk("attack", *SMALL, *FEW, "--out", "c")
    assert code == 2
    assert "attacks have been run there already; add --resume" in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--attacks", "sign_flop"), "--attacks = 'sign_flop': did you mean 'sign_flip'?"),
        (("--defences", "medan"), "--defences = 'medan': did you mean 'median'?"),
        (("--attackers", "0,some"), "--attackers = '0,some': give shares with commas between them"),
        (("--attackers", "0.6"), "--attackers = 0.6: give shares from 0 to 0.5"),
        (("--attacks", "noise,noise"), "--attacks = 'noise,noise': name each once"),
        (("-a", "fedavg", "-a", "fedavg"), "--algorithm = 'fedavg': is named twice"),
        (("--attacks", "slander", "--attackers", "0.3"), "nothing can be run: run.attack: clients of this"),
        (("--set", "engine.name=distributed"), "engine.name = 'distributed': attacks are run by one process"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kinfolk, tmp_path, words, line):
    code, _, err = kinfolk("attack", *SMALL, "--out", "c", *words)
    assert code == 2
    assert line in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "c" / "attack.json").exists()
