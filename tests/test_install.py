"""Kinfolk as people install it: wheel and sdist are built and installed, and work outside a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kinfolk.configs import CONFIGS

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
# Nothing is fetched: the setuptools of the development environment builds, the dependencies are there.
BUILD = ("wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation")
SDIST = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"

pytestmark = pytest.mark.slow


def call(*words: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    whole = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=whole, capture_output=True, text=True, timeout=600
    )


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of what is released, with its sdist, its wheel, and the wheel made from the sdist."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=unwanted)
    done(call(sys.executable, "-c", SDIST, cwd=tree))
    (sdist,) = (tree / "dist").glob("kinfolk-*.tar.gz")
    done(call(*PIP, *BUILD, "--wheel-dir", "from-tree", ".", cwd=tree))
    done(call(*PIP, *BUILD, "--wheel-dir", "from-sdist", sdist, cwd=tree))
    return tree


@pytest.fixture(scope="module")
def site(built, tmp_path_factory):
    """A folder into which the wheel is installed, without its dependencies."""
    folder = tmp_path_factory.mktemp("site")
    (wheel,) = (built / "from-sdist").glob("kinfolk-*.whl")
    words = ("install", "--quiet", "--no-deps", "--no-index", "--target", folder, wheel)
    done(call(*PIP, *words, cwd=folder))
    return folder


def test_wheel_and_sdist_hold_the_same_files_and_every_configuration(built):
    (a,), (b,) = ((built / name).glob("*.whl") for name in ("from-tree", "from-sdist"))
    names = set(zipfile.ZipFile(a).namelist())
    assert names == set(zipfile.ZipFile(b).namelist())
    files = {str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.toml")}
    assert len(files) > 30
    assert {f"kinfolk/configs/{name}" for name in files} <= names
    assert "kinfolk/py.typed" in names
    page = ("page.html", "page.js", "page.css", "vendor/vega.min.js", "vendor/LICENSES.md")
    assert {f"kinfolk/report/page/assets/{name}" for name in page} <= names
    assert not [name for name in names if name.startswith(("tests", "configs", "benchmarks"))]


def test_the_installed_command_runs_compares_and_reproduces_outside_a_clone(site, tmp_path):
    def kinfolk(*words: object) -> subprocess.CompletedProcess[str]:
        paths = {"PYTHONPATH": str(site), "KINFOLK_DATA": str(tmp_path / "none")}
        return call(sys.executable, "-m", "kinfolk", *words, cwd=tmp_path, **paths)

    where = "import kinfolk; print(kinfolk.__file__, kinfolk.__version__)"
    assert str(site) in done(call(sys.executable, "-c", where, cwd=tmp_path, PYTHONPATH=str(site)))
    few = ("--set", "run.rounds=1", "--set", "data.clients=4")
    assert "accuracy" in done(kinfolk("run", "digits", *few, "--out", "r"))
    table = done(
        kinfolk("compare", "digits", "-a", "local", "-a", "fedavg", "--seeds", 1, *few, "--out", "c")
    )
    assert "fedavg" in table
    assert "mdicfl/rotated-mnist" in done(kinfolk("list", "configs"))
    # The paper's table on the embedded digits, since no other data are here.
    table = ("--small", "--table", "rotated-mnist-alpha3", "--row", "Local", "--seeds", 1, "--out", "p")
    embedded = [
        word for one in ("data.name=digits", "data.rows=20", "model.name=mlp") for word in ("--set", one)
    ]
    assert "Rotated MNIST" in done(kinfolk("reproduce", "fesem", *table, *few, *embedded))
    missing = kinfolk("run", "mdicfl/rotated-mnist")
    assert missing.returncode == 2
    assert "mnist" in missing.stderr
    assert "no such file or configuration" not in missing.stderr
