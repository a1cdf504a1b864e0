"""The commands under `kinfolk data`."""

from __future__ import annotations

import json
import sys

import pytest

from kinfolk.cli import main


@pytest.fixture
def kinfolk(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path / "none"))

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kinfolk", "data", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def test_list_names_every_source_and_what_is_here(kinfolk):
    code, out, _ = kinfolk("list", "--json")
    found = {row["name"]: row["where"] for row in json.loads(out)["data"]}
    assert code == 0
    assert {"mnist", "femnist", "cifar10", "digits", "gaussians"} <= set(found)
    assert found["mnist"] == "not here"
    assert found["multi_source"] == "not here"
    assert found["digits"] != "not here"
    *page, _folder = kinfolk("list")[1].splitlines()
    assert max(map(len, page)) <= 100


def test_show_counts_and_draws(kinfolk, tmp_path):
    words = ("show", "--set", "data.clients=8", "--set", "data.rows=20", "--figure", "d.png")
    code, out, _ = kinfolk(*words, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["clients"] == 8
    assert facts["training rows"] == 160
    assert facts["known groups"] == "4 of 2 to 2 clients"
    assert (tmp_path / "d.png").stat().st_size > 10_000
    assert "training rows" in kinfolk(*words)[1]


def test_show_of_made_up_regression_needs_no_images(kinfolk, tmp_path):
    words = ("--set", "data.name=linear", "--set", "data.shift=source", "--set", "data.test=local")
    code, out, err = kinfolk("show", *words, "--figure", "d.png", "--json")
    assert code == 0, err
    assert "classes" not in json.loads(out)
    assert (tmp_path / "d.png").exists()


def test_import_reports_and_writes_a_store(kinfolk, tmp_path):
    folder = tmp_path / "sites"
    folder.mkdir()
    for who in ("ann", "bob"):
        rows = "".join(f"{i},{i * 2},{i % 2}\n" for i in range(10))
        (folder / f"{who}.csv").write_text("a,b,y\n" + rows)
    code, out, err = kinfolk("import", "sites", "--out", "store", "--json")
    assert code == 0, err
    assert (tmp_path / "store").is_dir()
    assert json.loads(out)["store"].endswith("store")


def test_what_is_missing_is_one_line(kinfolk, tmp_path):
    for words, hint in (
        (("show", "--set", "data.name=mnist"), "mnist"),
        (("fetch", "mnst"), "did you mean 'mnist'"),
        (("import", "nowhere", "--out", "store"), "nowhere"),
    ):
        code, _, err = kinfolk(*words)
        assert code == 2
        assert len(err.strip().splitlines()) == 1, err
        assert hint in err
    assert not (tmp_path / "store").exists()
