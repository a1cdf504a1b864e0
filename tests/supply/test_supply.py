"""What Kinfolk is built of: locked by hashes, read for known weaknesses, listed in a bill of materials."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version

import pytest
import sbom
from audit import code_is_sound
from cyclonedx.output.json import JsonV1Dot6
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from pages import read

LOCKED = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.M
)
# Which build of torch is wanted is the machine's affair, and pip comes with Python.
UNLOCKED = {"torch", "pip"}


def pinned(text):
    return {
        canonicalize_name(name): number
        for name, number in re.findall(r"^([\w.-]+)==(\S+?)(?: \\)?$", text, re.M)
    }


def test_the_lock_has_every_pinned_version_with_its_hashes():
    lock = {
        canonicalize_name(one["name"]): one["version"] for one in LOCKED.finditer(read("requirements.lock"))
    }
    assert lock == pinned(read("requirements.lock")), "a version without a hash"
    wanted = pinned(read("constraints.txt"))
    assert {name: wanted[name] for name in wanted.keys() - UNLOCKED} == lock, (
        "constraints.txt has changed: make lock"
    )
    assert len(lock) > 80


def test_everything_that_development_installs_is_locked():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["docs"], *extras["hf"], *extras["report"], *extras["dev"]]
    names = {canonicalize_name(Requirement(text).name) for text in asked} - {"kinfolk"}
    brought = {below for name in names for below in sbom.closure(name)}
    lock = pinned(read("requirements.lock"))
    assert brought - UNLOCKED - lock.keys() == set()
    assert {"torch", "pytest", "sympy"} <= brought


@pytest.mark.slow
def test_the_setup_refuses_a_file_that_is_not_the_locked_one(tmp_path):
    (words,) = re.findall(
        r"^\t\$\(BIN\)/pip (install .*) --requirement requirements\.lock$", read("Makefile"), re.M
    )
    wheel = tmp_path / "toy-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("toy.py", "")
        file.writestr("toy-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
        file.writestr(
            "toy-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr("toy-1.dist-info/RECORD", "")

    def installs():
        pip = [sys.executable, "-m", "pip", *words.split(), "--no-index", "--find-links", str(tmp_path)]
        pip += ["--target", str(tmp_path / "site"), "-r", str(tmp_path / "lock")]
        return subprocess.run(pip, capture_output=True, text=True)

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "lock").write_text(f"toy==1 --hash=sha256:{digest}\n")
    assert installs().returncode == 0
    with zipfile.ZipFile(wheel, "a") as file:
        file.writestr("more.py", "")
    done = installs()
    assert done.returncode == 1
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr


def test_the_bill_lists_all_that_a_plain_installation_brings_and_no_more():
    made = sbom.bill()
    parts = {part.name: part.version for part in made.components}
    for text in tomllib.loads(read("pyproject.toml"))["project"]["dependencies"]:
        name = canonicalize_name(Requirement(text).name)
        assert parts[name] == version(name)
    assert "sympy" in parts, "what a dependency needs"
    assert not {"pytest", "zensical", "bandit", "kinfolk"} & parts.keys()
    above = {str(one.ref): {str(d.ref) for d in one.dependencies} for one in made.dependencies}
    root = str(made.metadata.component.bom_ref)
    assert len(above[root]) == len(tomllib.loads(read("pyproject.toml"))["project"]["dependencies"])
    text = JsonV1Dot6(made).output_as_string()
    assert '"bomFormat": "CycloneDX"' in text
    assert f'"pkg:pypi/numpy@{version("numpy")}"' in text


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\nsubprocess.call(input(), shell=True)",
        "import pickle\npickle.loads(b'')",
        "import torch\ntorch.load('x')",
        "import tempfile\ntempfile.mktemp()",
    ],
)
def test_bandit_with_our_settings_finds_a_planted_weakness(tmp_path, code):
    (tmp_path / "weak.py").write_text(code + "\n")
    assert not code_is_sound(str(tmp_path))


def test_asserts_are_no_finding(tmp_path):
    (tmp_path / "good.py").write_text("assert True\n")
    assert code_is_sound(str(tmp_path))
