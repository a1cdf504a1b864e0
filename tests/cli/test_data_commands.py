"""The commands under `kinfolk data`, and runs on what they wrote."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def data(kinfolk):
    """Run `kinfolk data ...`."""
    return lambda *words: kinfolk("data", *words)


@pytest.fixture
def sites(tmp_path):
    """A folder with a table for each of two clients, who read the same numbers differently."""
    folder = tmp_path / "sites"
    folder.mkdir()
    for who, context in (("ann", 0), ("bob", 1)):
        rows = "".join(f"{i},{i * 2},{(i + context) % 2}\n" for i in range(10))
        (folder / f"{who}.csv").write_text("a,b,y\n" + rows)
    return folder


def test_list_names_every_source_and_what_is_here(data):
    code, out, _ = data("list", "--json")
    found = {row["name"]: row["where"] for row in json.loads(out)["data"]}
    assert code == 0
    assert {"mnist", "femnist", "cifar10", "digits", "gaussians"} <= set(found)
    assert found["mnist"] == "not here"
    assert found["multi_source"] == "not here"
    assert found["digits"] != "not here"
    *page, _folder = data("list")[1].splitlines()
    assert max(map(len, page)) <= 100


def test_show_counts_and_draws(data, tmp_path):
    words = ("show", "--set", "data.clients=8", "--set", "data.rows=20", "--figure", "d.png")
    code, out, _ = data(*words, "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["clients"] == 8
    assert facts["training rows"] == 160
    assert facts["known groups"] == "4 of 2 to 2 clients"
    assert (tmp_path / "d.png").stat().st_size > 10_000
    assert "training rows" in data(*words)[1]


def test_show_of_made_up_regression_needs_no_images(data, tmp_path):
    words = ("--set", "data.name=linear", "--set", "data.shift=source", "--set", "data.test=local")
    code, out, err = data("show", *words, "--figure", "d.png", "--json")
    assert code == 0, err
    assert "classes" not in json.loads(out)
    assert (tmp_path / "d.png").exists()


def test_import_reports_and_writes_a_store(data, sites, tmp_path):
    code, out, err = data("import", "sites", "--out", "store", "--json")
    assert code == 0, err
    assert (tmp_path / "store").is_dir()
    assert json.loads(out)["store"].endswith("store")


def test_what_is_missing_is_one_line(data, tmp_path):
    for words, hint in (
        (("show", "--set", "data.name=mnist"), "mnist"),
        (("fetch", "mnst"), "did you mean 'mnist'"),
        (("import", "nowhere", "--out", "store"), "nowhere"),
    ):
        code, _, err = data(*words)
        assert code == 2
        assert len(err.strip().splitlines()) == 1, err
        assert hint in err
    assert not (tmp_path / "store").exists()


def test_runs_on_a_store_and_on_a_folder(kinfolk, sites, tmp_path):
    assert kinfolk("data", "import", "sites", "--out", "store")[0] == 0
    own = ("--set", "data.name=own", "--set", "run.rounds=2", "--set", "model.hidden=[4]")
    for place in ("store", "sites"):
        path = ("--set", f"data.path={place}")
        code, _, err = kinfolk("run", *own, *path, "--out", f"run-{place}", "--json")
        assert code == 0, err
        shown = json.loads(kinfolk("data", "show", *own[:2], *path, "--json")[1])
        assert shown["clients"] == 2
        assert any("label column: 'y'" in note for note in shown["notes"])
        # A run folder says all that is needed to go on with it.
        assert kinfolk("run", *own, *path, "--out", f"run-{place}", "--resume")[0] == 0


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (("data.name=own",), "set data.path"),
        (("data.name=own", "data.path=nowhere"), "no such file"),
        (("data.name=own", "data.path=sites", "data.partition=iid"), "data.partition = 'iid': own rows"),
        (("data.path=sites",), "data.path = 'sites': only \"own\" rows have it"),
        (("data.name=own", "data.path=store", "data.valid=0.1"), "import the data again"),
    ],
)
def test_a_path_that_will_not_do_is_one_line(kinfolk, sites, sets, line):
    assert kinfolk("data", "import", "sites", "--out", "store")[0] == 0
    code, _, err = kinfolk("data", "show", *(word for one in sets for word in ("--set", one)))
    assert code == 2
    assert line in err
    assert len(err.strip().splitlines()) == 1


def alter(path):
    """Another byte in the middle of a file; its size stays."""
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 4
    path.write_bytes(raw)


def test_check_tells_whether_a_store_is_what_was_written(data, sites, tmp_path):
    assert data("import", "sites", "--out", "store")[0] == 0
    code, out, err = data("check", "store")
    assert (code, err) == (0, "")
    assert "2 clients, 20 rows" in out
    assert json.loads(data("check", "store", "--json")[1])["rows"] == 20
    alter(tmp_path / "store" / "x.npy")
    code, out, err = data("check", "store")
    assert (code, out) == (2, "")
    line = "error: store = 'store/x.npy': was altered: its checksum is another; write the store again"
    assert err.strip() == line
    code, _, err = data("check", "sites")
    assert (code, "is no store" in err) == (2, True)
    # An import reads all of it anyway, and would vouch for what it copies.
    code, _, err = data("import", "store", "--out", "copy")
    assert (code, err.strip()) == (2, line)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("name", ["clients.json", "train-row.npy", "y.npy"])
def test_small_files_of_a_store_are_compared_before_every_run(kinfolk, sites, tmp_path, name):
    assert kinfolk("data", "import", "sites", "--out", "store")[0] == 0
    alter(tmp_path / "store" / name)
    code, _, err = kinfolk("run", "store", "--set", "run.rounds=1", "--out", "run")
    assert code == 2
    assert f"store/{name}': was altered" in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_own_data_stand_in_the_place_of_a_spec(kinfolk, sites, tmp_path):
    assert kinfolk("data", "import", "sites", "--out", "store")[0] == 0
    few = ("--set", "run.rounds=1", "--set", "model.hidden=[4]")
    for place in ("store", "sites"):
        code, out, err = kinfolk("run", place, *few, "--out", f"run-{place}", "--json")
        assert code == 0, err
    rows = "".join(f"{who},{i},{i % 2}\n" for who in ("ann", "bob") for i in range(9))
    (tmp_path / "all.csv").write_text("who,age,y\n" + rows)
    code, out, err = kinfolk("data", "show", "all.csv", "--set", "data.client_column=who", "--json")
    assert code == 0, err
    assert json.loads(out)["clients"] == 2
    for place, told in (
        ("all.csv", "data.client_column: name the column of all.csv that says whose each row is"),
        ("run-store", "spec = 'run-store': is a run folder; name its spec.toml, or own data"),
        ("nowhere", "spec = 'nowhere': no such file or configuration"),
    ):
        code, _, err = kinfolk("run", place, "--out", "more")
        assert (code, told in err, len(err.strip().splitlines())) == (2, True, 1), err
    assert not (tmp_path / "more").exists()
