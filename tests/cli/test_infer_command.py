"""`kinfolk infer` as a person meets it."""

from __future__ import annotations

import json
from statistics import mean

SETS = ("data.clients=6", "data.rows=20", "data.groups=2", "engine.name=loop", "run.rounds=1")
SMALL = [word for one in (*SETS, "model.hidden=[8]", "run.pictures=none") for word in ("--set", one)]
WORDS = ("infer", "digits", *SMALL, "-a", "fedavg", "--rows", "2", "--steps", "1", "--seeds", 2, "--out", "i")


def test_tables_a_file_and_a_picture_and_no_second_time(kinfolk, tmp_path):
    code, out, err = kinfolk(*WORDS)
    assert code == 0, err
    told = json.loads((tmp_path / "i/infer.json").read_text())
    areas = [
        row["auc"] for row in told["membership"] if (row["view"], row["attack"]) == ("one model", "loss")
    ]
    assert len(areas) == 2
    assert f"{100 * mean(areas):.1f} ±" in out
    (one,) = {row["attack"] for row in told["inversion"]} - {"analytic"}
    psnr = mean(row["psnr"] for row in told["inversion"] if row["attack"] == one)
    assert f"{psnr:.1f} (" in out
    assert "data.test is group" in out
    assert max(len(line.rstrip()) for line in out.splitlines() if line[:1] in "│┃┏└┡") <= 80
    assert (tmp_path / "i/reconstructions.png").read_bytes()[:4] == b"\x89PNG"
    code, _, err = kinfolk(*WORDS)
    assert (code, len(err.strip().splitlines())) == (2, 1)


def test_more_rows_than_a_client_has_are_one_line(kinfolk):
    code, _, err = kinfolk("infer", "digits", *SMALL, "-a", "fedavg", "--rows", "99", "--out", "i")
    assert code == 2
    assert "--rows" in err
    assert "give no more" in err


def test_json_alone(kinfolk):
    code, out, _ = kinfolk(*WORDS, "--no-inversion", "--json")
    assert code == 0
    assert json.loads(out)["inversion"] == []
