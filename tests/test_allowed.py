"""A spec names code, and none of it runs that nobody has allowed: paths that try, places code may be in."""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import kinfolk
from kinfolk import allowed
from kinfolk.algorithms import find_algorithm
from kinfolk.allowed import GROUPS, allow_imports, allowing
from kinfolk.errors import KinfolkError
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import build_optimiser
from kinfolk.learning.row_metrics import find_metrics
from kinfolk.learning.schedules import find_schedule

# What each setting does with the path that a spec gives it.
FIELDS = {
    "algorithm.name": find_algorithm,
    "model.name": lambda path: build_model(path, (4,), 2, {}),
    "local.loss": find_loss,
    "local.optimiser": lambda path: build_optimiser(path, {}),
    "local.schedule": lambda path: find_schedule("local.schedule", path, {}),
    "local.step_schedule": lambda path: find_schedule("local.step_schedule", path, {}),
    "run.metrics": lambda path: find_metrics([path], "class", 2),
}
HIT = 'open({hit!r}, "w").close()\ndef hit(*given, **named):\n    open({hit!r}, "w").close()\n'
PATHS = [
    *(
        "canary:hit",
        "canaries.deep:hit",
        "os:system",
        "builtins:eval",
        "builtins:exec",
        "subprocess:getoutput",
    ),
    *(
        "importlib:import_module",
        "runpy:run_path",
        "pickle:loads",
        "torch.hub:load",
        "torch:load",
        "numpy:load",
    ),
    # Through Kinfolk: what its modules have imported, and what of its own is of another kind.
    *("kinfolk.by_path:importlib.import_module", "kinfolk.by_path:importlib", "kinfolk.by_path:find_spec"),
    *("kinfolk.by_path:by_path", "kinfolk.experiment.record:write_text", "kinfolk.allowed:allow_imports"),
    *("kinfolk:__getattr__", "kinfolk:run", "kinfolk.__main__:main", "kinfolk.learning.losses:lru_cache"),
    *("kinfolk.canary:hit", "kinfolk.experiment.loggers:importlib.import_module", "kinfolkish:hit"),
    # Ways to write it that are not one.
    *(".canary:hit", "..canary:hit", "canary.:hit", "kinfolk..canary:hit", "canary:", ":hit", ":", "::"),
    *("canary::hit", "canary:hit:hit", "canary:hit.__call__", "canary:__getattr__", "canary:__class__"),
    *("kinfolk/../canary:hit", "./canary:hit", "canary/:hit", "kinfolk:../canary:hit", "KINFOLK:run"),
    *("ｃanary:hit", "canary\u200b:hit", "canary\n:hit", "canary\x00:hit", " canary:hit", "canary:hit "),
    *("__main__:hit", "__mp_main__:hit", "sys:exit", "canary;kinfolk:hit", "kinfolk.\u202ecanary:hit"),
    "kinfolk." * 5000 + "canary:hit",
]


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch):
    monkeypatch.setattr(allowed, "_ALLOWED", set())


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """Modules that leave a mark when they are imported, on the path and in the working directory."""
    folder = tmp_path / "here"
    (folder / "canaries").mkdir(parents=True)
    mark = tmp_path / "MARK"
    for name in ("canary", "canaries/__init__", "canaries/deep", "kinfolkish"):
        (folder / f"{name}.py").write_text(HIT.format(hit=str(mark)))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    before = set(sys.modules)
    yield mark
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("canary", "canaries", "kinfolkish", "mine", "theirs", "offer", "wanted"):
            del sys.modules[name]


@pytest.mark.parametrize("field", FIELDS)
def test_no_path_of_a_spec_runs_what_nobody_has_allowed(field, canary):
    for path in PATHS:
        loaded = set(sys.modules)
        with pytest.raises(KinfolkError) as caught:
            FIELDS[field](path)
        assert caught.value.field == field, path
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 600, path
        new = {name for name in set(sys.modules) - loaded if name.split(".")[0] != "kinfolk"}
        assert not new & {"canary", "canaries", "canaries.deep", "kinfolkish", "subprocess", "runpy"}, path
        assert not canary.exists(), path


@pytest.mark.parametrize("field", FIELDS)
def test_the_refusal_names_the_remedy_and_the_remedy_works(field, canary):
    with pytest.raises(KinfolkError) as caught:
        FIELDS[field]("canaries.deep:hit")
    assert "canaries.deep:hit" in str(caught.value)
    assert "--allow-import canaries.deep " in str(caught.value)
    assert not canary.exists()
    # A function may be of the wrong kind, but is found.
    with allowing(["canaries.deep"]), suppress(KinfolkError):
        FIELDS[field]("canaries.deep:hit")
    assert canary.exists()


def test_kinfolks_own_of_the_right_kind_needs_no_word():
    assert find_algorithm("kinfolk.algorithms.fedavg:FedAvg") is find_algorithm("fedavg")
    assert find_algorithm("kinfolk.algorithms:FedAvg") is find_algorithm("fedavg")
    assert build_optimiser("kinfolk.learning.optim:SGD", {}) == build_optimiser("sgd", {})
    cosine = find_schedule("local.schedule", "kinfolk.learning.schedules:Cosine", {})
    assert cosine == find_schedule("local.schedule", "cosine", {})


MINE = """
import functools, subprocess
from os import system
from theirs import borrowed, Class
def own(width=3): return width
lazy = functools.partial(own, width=4)
kept = functools.lru_cache(own)
@functools.wraps(own)
def around(*given): return own(*given)
"""


def test_an_allowed_module_lends_its_own_things_alone(canary):
    Path("mine.py").write_text(MINE)
    Path("theirs.py").write_text("def borrowed(): return 1\nclass Class: pass\n")
    Path("mines.py").write_text("1 / 0")
    with allowing(["mine"]):
        given = FIELDS["local.schedule"]
        assert given("mine:own")() == 3
        assert given("mine:lazy")() == 4
        assert given("mine:kept")() == 3
        assert given("mine:around")() == 3
        for path, words in (
            ("mine:system", f"is not of mine but of {os.system.__module__}, which nobody has allowed"),
            ("mine:borrowed", "add --allow-import theirs if you trust it"),
            ("mine:Class", "add --allow-import theirs if you trust it"),
            ("mine:subprocess", "mine has no class or function 'subprocess'"),
            ("mine:subprocess.getoutput", "an import path is"),
            ("mine:__class__", "an import path is"),
            ("mine:__init__", "an import path is"),
            ("mines:own", "would run code of mines"),
            ("theirs:borrowed", "would run code of theirs"),
        ):
            with pytest.raises(KinfolkError, match=words):
                given(path)
    with allowing(["mine", "theirs"]):
        assert given("mine:borrowed")() == 1
    with pytest.raises(KinfolkError, match="would run code of mine,"):
        given("mine:own")


def test_the_working_directory_takes_the_place_of_nothing_that_is_installed(canary, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", os.getcwd())])
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "wanted.py").write_text(
        "try:\n    import canary\nexcept ImportError: pass\ndef own(): return 1\n"
    )
    monkeypatch.syspath_prepend(str(installed))
    Path("wanted.py").write_text(HIT.format(hit=str(canary)))
    with allowing(["wanted"]):
        assert FIELDS["local.schedule"]("wanted:own")() == 1
    assert not canary.exists()
    # Nor what Kinfolk's own modules import.
    with pytest.raises(KinfolkError):
        FIELDS["model.name"]("kinfolk.canary:hit")
    assert not canary.exists()
    # A folder without any code in it stands for no module that lies where one works.
    (installed / "mine").mkdir()
    Path("mine.py").write_text("def own(): return 2\n")
    with allowing(["mine"]):
        assert FIELDS["local.schedule"]("mine:own")() == 2
    assert "" not in sys.path


def offer(place: Path) -> None:
    """A package that offers a schedule, installed in a folder."""
    info = place / "offer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kinfolk.schedules]\nhalf = offer:half\n")
    (place / "offer.py").write_text("def half(at, of): return 0.5\ndef other(at, of): return 1.0\n")


def test_an_installed_package_offers_what_it_names_and_no_more(canary, tmp_path, monkeypatch):
    with pytest.raises(KinfolkError, match="would run code of offer"):
        FIELDS["local.schedule"]("offer:half")
    offer(tmp_path / "installed")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    for field in ("local.schedule", "local.step_schedule"):
        assert FIELDS[field]("offer:half")(0, 1) == 0.5
    for field, path in (
        ("local.schedule", "offer:other"),
        ("local.loss", "offer:half"),
        ("model.name", "offer:half"),
    ):
        with pytest.raises(KinfolkError, match="would run code of offer"):
            FIELDS[field](path)


@pytest.mark.parametrize("entry", ["", ".", None])
def test_a_folder_that_one_works_in_has_installed_nothing(canary, monkeypatch, entry):
    offer(Path.cwd())
    monkeypatch.setattr(sys, "path", [os.getcwd() if entry is None else entry, *sys.path])
    with pytest.raises(KinfolkError, match="would run code of offer"):
        FIELDS["local.schedule"]("offer:half")


def test_every_setting_that_takes_a_path_has_a_group():
    assert set(GROUPS) == set(FIELDS)


@pytest.mark.parametrize("module", ["", ".", "a.", ".a", "a:b", "a b", "a/b", "a,b", "*", "a.*", "a\n"])
def test_what_is_no_module_cannot_be_allowed(module):
    with pytest.raises(KinfolkError, match=r"--allow-import.*name a module"):
        allow_imports(module)
    assert not allowed._ALLOWED


def test_an_allowance_ends_with_its_block_whatever_happens():
    kinfolk.allow_imports("always")
    with suppress(ZeroDivisionError), allowing(["sometimes"]):
        assert allowed.allowed("sometimes.more")
        with allowing(["sometimes"]):
            pass
        assert allowed.allowed("sometimes")
        raise ZeroDivisionError
    assert not allowed.allowed("sometimes")
    assert allowed.allowed("always")


def test_what_is_handed_over_in_python_needs_no_word():
    def given(out, y):
        return (out - y).square()

    from kinfolk.by_path import path_of

    path = path_of(functools.partial(given), "mine", of=given)
    assert find_loss(path).name == path
