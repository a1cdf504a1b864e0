"""A run folder is its owner's alone, holds no secrets, and names out of it obey nobody's terminal."""

import json
import os
import secrets
import stat
from contextlib import suppress

import pytest
import torch
from small_spec import SPEC

from kinfolk.errors import KinfolkError, visible
from kinfolk.experiment.compare import compare
from kinfolk.experiment.record import Records, read_audit, read_rounds, read_scores, write_bytes, write_json
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override
from kinfolk.federation.federation import Federation, pack
from kinfolk.federation.own_data.store import write_store
from kinfolk.federation.soundness import check
from kinfolk.lock import writing
from kinfolk.papers.paper import load_paper
from kinfolk.report.read import load_run

posix = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX")
NASTY = "ann\x1b[2J\x1b]0;owned\x07‮"


def modes(folder):
    """(path, mode) of a folder and all it holds."""
    return {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


@posix
@pytest.mark.parametrize("algorithm", ["ifca", "slfed"])
def test_a_run_folder_and_all_files_in_it_are_their_owners_alone(tmp_path, algorithm):
    before = os.umask(0)  # a careless umask must not matter
    try:
        spec = override(SPEC, [f"algorithm.name={algorithm}", "run.rounds=2", "data.clients=6"])
        run(spec, tmp_path / "runs" / "first")
    finally:
        os.umask(before)
    found = modes(tmp_path / "runs" / "first")
    assert len(found) > 8
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


@posix
def test_a_comparison_and_a_store_of_rows_are_private_too(tmp_path):
    compare(override(SPEC, ["run.rounds=1"]), ["local"], 1, tmp_path / "few")
    assert modes(tmp_path / "few")[tmp_path / "few"] == 0o700
    none, one = torch.zeros(0, dtype=torch.int64), torch.tensor([0])
    splits = {"train": pack([one]), "valid": pack([none]), "test": pack([none])}
    rows = Federation(("ann",), torch.zeros(1, 2), torch.tensor([0]), splits, classes=2)

    class Told:
        class_names, feature_names = (), ()

        def as_dict(self):
            return {}

    write_store(rows, tmp_path / "store", Told())
    for path, mode in modes(tmp_path / "store").items():
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("scheme", ["additive64", "shamir61"])
def test_no_secret_of_a_run_is_in_its_folder(tmp_path, monkeypatch, scheme):
    """Every secret that was drawn is looked for in every file, as bytes, in hex and as a list of numbers."""
    drawn = []
    real = os.urandom

    def listening(count):
        made = real(count)
        drawn.append(made)
        return made

    monkeypatch.setattr(os, "urandom", listening)
    monkeypatch.setattr(secrets, "token_bytes", listening)
    options = ["algorithm.name=slfed", f"algorithm.shares.scheme={scheme}"]
    run(override(SPEC, [*options, "run.rounds=2", "data.clients=8"]), tmp_path / "run")
    long = {one for one in drawn if len(one) >= 8}
    assert long, "no secret was drawn: the test listens at the wrong place"
    held = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for one in long:
        for start in range(0, len(one) - 7, 32):
            part = one[start : start + 16]
            assert part not in held
            assert part.hex().encode() not in held


def test_names_with_commands_for_a_terminal_are_refused_where_data_come_in():
    none, one = torch.zeros(0, dtype=torch.int64), torch.tensor([0])
    splits = {"train": pack([one]), "valid": pack([none]), "test": pack([none])}
    with pytest.raises(KinfolkError, match="holds control characters") as caught:
        check(Federation((NASTY,), torch.zeros(1, 2), torch.tensor([0]), splits, classes=2))
    assert "\x1b" not in str(caught.value)


def test_names_in_a_strangers_folder_are_shown_and_not_obeyed(tmp_path):
    records = Records(tmp_path)
    table = {"client": [NASTY], "model": "centre", "split": "test", "score": ["accuracy"], "value": [0.5]}
    records.write_scores(0, {**table, "model": ["centre"], "split": ["test"], "rows": [1]})
    records.audit("rejected", client=NASTY, reason=NASTY)
    records.append_round(1, {"groups": {"moved": {NASTY: [0, 1]}}})
    write_json(tmp_path / "run.json", {"algorithm": "fedavg", "seed": 0, "title": NASTY, "reason": [NASTY]})
    told = json.dumps([read_audit(tmp_path), read_rounds(tmp_path), dict(load_run(tmp_path).facts)])
    assert "u001b" not in told
    assert "x1b" in told
    assert list(read_scores(tmp_path)["client"]) == [visible(NASTY)]


@pytest.mark.parametrize(
    ("field", "told"),
    [("class_names", "give this class another name"), ("feature_names", "give this column another name")],
)
def test_names_of_classes_and_columns_are_held_to_the_same(field, told):
    none, one = torch.zeros(0, dtype=torch.int64), torch.tensor([0])
    splits = {"train": pack([one]), "valid": pack([none]), "test": pack([none])}
    names = {"class_names": ("old", "young"), "feature_names": ("age", "pay")} | {field: ("a", NASTY)}
    with pytest.raises(KinfolkError, match=told) as caught:
        check(Federation(("ann",), torch.zeros(1, 2), torch.tensor([0]), splits, classes=2, **names))
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", ["ann\nverdict: all is well", "a\u2028b", "a\u200eb", "a\x9b2J", "a\rb"])
def test_a_client_is_one_line_of_letters(name):
    none, one = torch.zeros(0, dtype=torch.int64), torch.tensor([0])
    splits = {"train": pack([one]), "valid": pack([none]), "test": pack([none])}
    with pytest.raises(KinfolkError, match="holds control characters"):
        check(Federation((name,), torch.zeros(1, 2), torch.tensor([0]), splits, classes=2))


def test_an_error_commands_no_terminal_whatever_it_quotes():
    said = str(KinfolkError(f"local.{NASTY}", NASTY, f"did you mean {NASTY}?"))
    assert said == visible(said)
    assert "x1b" in said


@posix
@pytest.mark.parametrize("name", ["rounds.jsonl", "audit.jsonl", ".lock", ".run.json.tmp", ".figure.png.tmp"])
def test_no_link_in_a_run_folder_leads_to_a_file_of_ones_own(tmp_path, name):
    """A stranger's folder may have a link where a run writes."""
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "mine")
    writes = {
        "rounds.jsonl": lambda folder: Records(folder).append_round(1, {}),
        "audit.jsonl": lambda folder: Records(folder).audit("warning"),
        ".lock": lambda folder: writing(folder).__enter__(),
        ".run.json.tmp": lambda folder: write_json(folder / "run.json", {}),
        ".figure.png.tmp": lambda folder: write_bytes(folder / "figure.png", b"drawn"),
    }
    with suppress(KinfolkError, OSError):
        writes[name](tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "precious"


def test_what_is_visible_stays_and_what_commands_is_spelled_out():
    assert visible("أحمد 😀 tab\tline\n") == "أحمد 😀 tab\tline\n"
    assert visible(NASTY) == "ann\\x1b[2J\\x1b]0;owned\\x07\\u202e"


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "", ".", "..", "a\x1b[2J", "x" * 300])
def test_a_table_whose_name_leads_out_of_its_folder_is_refused(tmp_path, name):
    path = tmp_path / "paper.toml"
    table = f"[[tables]]\nname = {json.dumps(name)}\ntitle = 'T'\nspec = 'a.toml'\ncolumns = []\n"
    path.write_text(table + "[[tables.rows]]\nlabel = 'L'\nrun = 'local'\n")
    with pytest.raises(KinfolkError, match=r"name = .*: names a folder"):
        load_paper(path)
