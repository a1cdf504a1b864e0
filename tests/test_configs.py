"""Every packaged configuration is sound; those of the papers say what was printed and have a small twin."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from kinfolk.configs import config_lines, config_names, find_config, find_paper
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import Experiment, dump, load, parse
from kinfolk.federation.datasets.catalogue import where
from kinfolk.federation.sources import SOURCES

ROOT = Path(__file__).parents[1]
CONFIGS = {name: find_config(name) for name in config_names()}
OURS = ("slfed/groups-cifar10",)  # the paper has no federation of known groups
SEQUENCES = ("text/", "sensors/")  # no paper's
PAPERS = sorted(
    n
    for n in CONFIGS
    if "/" in n and not n.endswith("-small") and n not in OURS and not n.startswith(SEQUENCES)
)
DATA = ROOT.parent / "shared" / "data"

CIFAR = ("resnet18", 60, 1, 0.1, 50)
# clients, rows, groups made by, dealt by, alpha; network; rounds, epochs, learning rate, batch.
PRINTED = {
    "fesem/femnist": (0, None, "none", "natural", None, "femnist_cnn_small", None, 5, 0.003, 10),
    "fesem/celeba": (0, None, "none", "natural", None, "celeba_cnn", None, 10, 0.03, 10),
    "mdicfl/rotated-mnist": (48, 1000, "rotation", "dirichlet", 100, "lenet", 30, 2, 0.1, 50),
    "mdicfl/multi-source-digits": (48, 1000, "source", "dirichlet", 100, "lenet", 30, 3, 0.1, 50),
    **{
        f"mdicfl/swapped-rotated-cifar10{end}": (*(48, 5000, "rotation_swap", "dirichlet", alpha), *CIFAR)
        for end, alpha in (("-alpha3", 3), ("-alpha10", 10), ("", 100))
    },
    **{
        f"slfed/cifar10-dist{d}": (50, None, "none", f"dist{d}", None, "resnet18", 100, None, None, None)
        for d in range(4)
    },
    "slfed/imagenet32-dirichlet06": (100, 520, "none", "fed_dc", 0.6, "resnet18", 200, None, None, None),
    "slfed/imagenet32-dirichlet03": (100, 520, "none", "fed_dc", 0.3, "resnet18", 200, None, None, None),
}


def values(spec: Experiment) -> tuple[object, ...]:
    data, local = spec.data, spec.local
    return (
        *(data.clients, data.rows, data.shift, data.partition, data.alpha),
        *(spec.model.name, spec.run.rounds, local.epochs, local.lr, local.batch),
    )


def test_every_paper_configuration_is_here_and_says_what_was_printed():
    assert set(PAPERS) == set(PRINTED)
    for name in PAPERS:
        said = values(load(CONFIGS[name]))
        assert (
            tuple(s if p is not None else None for s, p in zip(said, PRINTED[name], strict=True))
            == (PRINTED[name])
        )


@pytest.mark.parametrize("name", PAPERS)
def test_every_paper_configuration_has_a_smaller_twin_of_the_same_kind(name):
    whole, small = load(CONFIGS[name]), load(CONFIGS[name + "-small"])
    for field in ("shift", "groups", "partition", "alpha", "alpha_means", "test", "test_fraction"):
        assert getattr(small.data, field) == getattr(whole.data, field), field
    assert small.data.clients > 0
    assert small.data.clients < whole.data.clients or whole.data.clients == 0
    assert small.run.rounds < whole.run.rounds
    assert small.model.name == whole.model.name


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_config_builds(name, monkeypatch):
    if "KINFOLK_DATA" not in os.environ and DATA.is_dir():
        monkeypatch.setenv("KINFOLK_DATA", str(DATA))
    spec = load(CONFIGS[name])
    assert parse(dump(spec)) == spec
    if absent := [one for one in SOURCES[spec.data.name].files if where(one) is None]:
        pytest.skip(f"no {', '.join(absent)} here")
    try:
        parts = build_parts(spec)
    except KinfolkError as error:
        if name == "slfed/cifar10-dist3" and error.field == "data.scale_rows":
            pytest.skip("this copy of CIFAR-10 is smaller than the published one")
        raise
    assert len(parts.federation.clients) == spec.data.clients or spec.data.clients == 0


def test_names_work_anywhere_and_paths_stay_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("digits") == load(find_config("digits"))
    assert load("mdicfl/rotated-mnist").data.clients == 48
    (tmp_path / "digits.toml").write_text("[data]\nclients = 5")
    assert load("digits.toml").data.clients == 5, "what ends in .toml is a path"
    assert load("digits").data.clients == 24
    (tmp_path / "mine").write_text("[data]\nclients = 7")
    assert load("mine").data.clients == 7
    assert find_paper("fesem").is_file()
    assert find_paper("my/paper.toml") == Path("my/paper.toml")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("digit", "no such file or configuration; did you mean 'digits'?"),
        ("rotated-mnist", "did you mean 'mdicfl/rotated-mnist'?"),
        ("configs/digits.toml", "no such file; did you mean 'digits'?"),
        ("elsewhere/mdicfl/rotated-mnsit.toml", "did you mean 'mdicfl/rotated-mnist'?"),
        ("zzz", "`kinfolk list configs` names the packaged ones"),
        ("fesem/reproduce", "no such file or configuration"),
    ],
)
def test_a_name_that_there_is_not_gets_the_nearest_ones(given, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KinfolkError, match=re.escape(line)):
        load(given)


def test_every_configuration_says_in_a_sentence_what_it_is(kinfolk):
    lines = dict(config_lines())
    assert set(lines) == set(CONFIGS)
    assert all(len(line) > 20 and line.endswith((".", "?")) for line in lines.values()), lines
    code, out, _ = kinfolk("list", "configs")
    assert code == 0
    assert all(name in out for name in ("digits", "mdicfl/rotated-mnist", "slfed/cifar10-dist0"))
    assert "digits-skewed" not in kinfolk("list")[1], "a page of its own"
    code, _, err = kinfolk("reproduce", "fesm")
    assert (code, err) == (2, "error: paper = 'fesm': did you mean 'fesem'?\n")
