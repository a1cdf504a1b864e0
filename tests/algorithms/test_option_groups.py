"""Groups of options: a field that is a frozen dataclass, in TOML, on the command line and in Python."""

from dataclasses import dataclass
from typing import Literal

import pytest
from option_variants import others, variants

from kinfolk.algorithms import build_algorithm, options_of
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.options import check_options, flat_options, option_values, with_options
from kinfolk.allowed import allow_imports
from kinfolk.contract import toy
from kinfolk.errors import KinfolkError, at_least
from kinfolk.experiment.build import build_parts, title
from kinfolk.experiment.compare import parse_algorithm
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.experiment.spec import check, differences, dump, load, override, parse, run_id


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Begin:
    name: Literal["warm", "drawn"] = "warm"
    epochs: int = 5
    rate: float = 0.5
    inner: Inner = Inner()

    def __post_init__(self):
        at_least("algorithm.begin.epochs", self.epochs, 1)


@dataclass(frozen=True)
class Grouped(FedAvg):
    """With a group of options."""

    k: int = 3
    begin: Begin = Begin(epochs=2)


allow_imports(__name__)
NAME = f"{__name__}:Grouped"
LEARNER = toy.learner("mlp", toy.alike())


def test_options_of_a_group_have_dotted_names_and_the_defaults_of_the_algorithm():
    usual = {
        "weights": "size", "aggregate.name": "mean", "aggregate.trim": 0.1, "aggregate.attackers": 1,
        "aggregate.chosen": 1, "aggregate.clip": 1.0, "k": 3, "begin.name": "warm", "begin.epochs": 2,
        "begin.rate": 0.5, "begin.inner.depth": 1,
    }  # fmt: skip
    assert options_of(Grouped) == option_values(Grouped(LEARNER)) == usual


@pytest.mark.parametrize(
    "spec",
    [
        parse(f'[algorithm]\nname = "{NAME}"\n[algorithm.begin]\nname = "drawn"\nrate = 2'),
        parse(f'[algorithm]\nname = "{NAME}"\nbegin.name = "drawn"\nbegin.rate = 2'),
        override(
            Experiment(), [f"algorithm.name={NAME}", "algorithm.begin.name=drawn", "algorithm.begin.rate=2"]
        ),
        override(Experiment(), [f"algorithm.name={NAME}", 'algorithm.begin={name = "drawn", rate = 2}']),
        Experiment(algorithm=parse_algorithm(f"{NAME},begin.name=drawn,begin.rate=2", Experiment())),
        check(Experiment(algorithm=AlgorithmSpec(NAME, {"begin": {"name": "drawn", "rate": 2}}))),
    ],
    ids=["table", "dotted", "set", "set a table", "command line", "Python"],
)
def test_however_a_group_is_written_it_is_the_same_experiment(spec):
    made = build_parts(spec).algorithm
    assert made.begin == Begin("drawn", 2, 2.0)
    assert spec.algorithm.options == {"begin.name": "drawn", "begin.rate": 2}
    assert title(spec) == "Grouped begin.name=drawn begin.rate=2"
    assert parse(dump(spec)) == spec
    assert run_id(parse(dump(spec))) == run_id(spec)
    bare = Experiment(algorithm=AlgorithmSpec(NAME))
    assert differences(bare, spec)[0] == 'algorithm.begin.name: not set there, "drawn" here'


def test_a_file_changes_single_options_of_a_group_of_the_file_it_extends(tmp_path):
    (tmp_path / "a.toml").write_text(f'[algorithm]\nname = "{NAME}"\n[algorithm.begin]\nepochs = 7\nrate = 2')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n[algorithm.begin]\nrate = 3')
    assert load(tmp_path / "b.toml").algorithm.options == {"begin.epochs": 7, "begin.rate": 3}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"begin.epoch": 1}, "begin.epoch = 1: grouped has no such option; did you mean 'begin.epochs'?"),
        ({"epochs": 1}, "algorithm.epochs = 1: grouped has no such option; did you mean 'begin.epochs'?"),
        ({"begin": "drawn"}, "begin = 'drawn': is a group of options; set one of begin.name, begin.epochs"),
        ({"begin.name": "cold"}, "algorithm.begin.name = 'cold': choose one of 'warm', 'drawn'"),
        ({"begin.epochs": 1.5}, "algorithm.begin.epochs = 1.5: give a whole number"),
        ({"begin": {"rate": "x"}}, "algorithm.begin.rate = 'x': give a finite number"),
        ({"begin.epochs": 0}, "algorithm.begin.epochs = 0: give 1 or more"),
        ({"begin.inner.depths": 0}, "did you mean 'begin.inner.depth'?"),
    ],
)  # fmt: skip
def test_errors_name_the_whole_field(options, said):
    with pytest.raises(KinfolkError) as caught:
        with_options(Grouped, LEARNER, check_options("grouped", Grouped, options))
    assert said in str(caught.value)


def test_a_name_that_is_no_word_is_refused_in_a_group_too():
    with pytest.raises(KinfolkError, match=r'algorithm.begin."a b" = 1: name an option with letters'):
        parse('[algorithm.begin]\n"a b" = 1')


def test_a_group_in_a_group_is_reached():
    assert build_algorithm(NAME, LEARNER, {"begin.inner.depth": 4}).begin == Begin(epochs=2, inner=Inner(4))
    assert flat_options({"begin": {"inner": {"depth": 4}}}) == {"begin.inner.depth": 4}


def test_the_contract_tries_the_options_of_groups():
    assert ("begin.name", "drawn") in list(others(Grouped))
    assert variants(Grouped, {"k": 2})["begin.name=drawn"] == {"k": 2, "begin.name": "drawn"}
