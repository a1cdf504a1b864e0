"""`kinfolk trust` as a person meets it."""

from __future__ import annotations

import json

SETS = ("data.clients=6", "data.rows=20", "data.groups=2", "model.name=logistic", "engine.name=loop")
SLFED = ("algorithm.name=slfed", "algorithm.images.kind=noise", "algorithm.images.count=20", "run.rounds=2")
SMALL = [word for one in (*SETS, *SLFED, "algorithm.shares.scheme=plain") for word in ("--set", one)]


def test_trust_prints_a_table_and_where_things_are(kinfolk, tmp_path):
    code, out, err = kinfolk("trust", *SMALL, "--out", "t")
    assert code == 0, err
    lines = out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split()[:2] == ["DS", "round"]
    assert [line.split()[:2] for line in lines[1:5]] == [["1", "1"], ["1", "2"], ["2", "1"], ["2", "2"]]
    assert "going on after" not in err
    assert (tmp_path / "t/trust.png").stat().st_size > 10_000
    again, text, err = kinfolk("trust", *SMALL, "--out", "t", "--resume", "--json")
    assert (again, err) == (0, "")
    held = [json.loads((tmp_path / f"t/direct{d}/trust.json").read_text()) for d in (1, 2)]
    assert json.loads(text)["traces"] == held


def test_trust_refuses_in_one_line(kinfolk):
    code, _, err = kinfolk("trust", *SMALL, "--out", "t", "--direct", 1, "--direct", 1)
    assert code == 2
    assert "--direct = [1, 1]: give each number once" in err
