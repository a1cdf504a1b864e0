"""Python habits: one object, methods as well as names, seeds by number, short texts, HTML, progress."""

from __future__ import annotations

import html
import inspect
import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import kinfolk
from kinfolk import methods
from kinfolk.algorithms import ALGORITHMS
from kinfolk.algorithms.fedprox import FedProx as FedProxClass
from kinfolk.authoring import Learner
from kinfolk.experiment.spec import parse
from kinfolk.progress import telling


def rows(clients=4):
    draw = torch.Generator().manual_seed(1)
    return {f"<b>{i}</b>": (torch.randn(20, 4, generator=draw), torch.arange(20) % 2) for i in range(clients)}


def linear():
    return nn.Linear(4, 2)


@dataclass(frozen=True)
class Mine(FedProxClass):
    """An algorithm of one's own."""

    learner: Learner
    rate: float = 0.5


OURS = kinfolk.Experiment(linear, rows(), rounds=2, settings={"engine.name": "loop"})


def spec_of(result):
    return parse((result.folder / "spec.toml").read_text()).algorithm


@pytest.mark.parametrize(
    ("given", "name", "options"),
    [
        ("fedprox,mu=0.5", "fedprox", {"mu": 0.5}),
        (kinfolk.FedProx, "fedprox", {}),
        (kinfolk.FedProx(mu=0.5), "fedprox", {"mu": 0.5}),
        (kinfolk.FedProx(mu=0.5)(weights="uniform"), "fedprox", {"mu": 0.5, "weights": "uniform"}),
        (
            kinfolk.FeSEM(k=2, start={"name": "random_partition"}),
            "fesem",
            {"k": 2, "start.name": "random_partition"},
        ),
        (FedProxClass, "fedprox", {}),
        (FedProxClass(None, mu=0.5), "fedprox", {"mu": 0.5}),
        (Mine, f"{__name__}:Mine", {}),
        (kinfolk.Method(Mine, rate=0.25), f"{__name__}:Mine", {"rate": 0.25}),
        (Mine(None, mu=0.5), f"{__name__}:Mine", {"mu": 0.5}),
    ],
    ids=str,
)
def test_names_methods_classes_and_instances_say_the_same(given, name, options):
    text = methods.written(given)
    assert text.split(",")[0] == name
    found = dict(part.split("=") for part in text.split(",")[1:])
    assert found == {key: str(value) for key, value in options.items()}


def test_a_method_runs_and_resumes_as_its_name_does(tmp_path):
    by_name = OURS.run("fedprox,mu=0.5", folder=tmp_path / "a")
    by_class = OURS.run(kinfolk.FedProx(mu=0.5), folder=tmp_path / "b")
    assert spec_of(by_name) == spec_of(by_class)
    assert torch.equal(by_name.state.model["weight"], by_class.state.model["weight"])
    mine = OURS.run(kinfolk.Method(Mine, rate=0.25), folder=tmp_path / "c")
    assert mine.title == "Mine rate=0.25"
    longer = kinfolk.Experiment(linear, rows(), rounds=3, settings=OURS.settings)
    assert longer.run(kinfolk.Method(Mine, rate=0.25), folder=tmp_path / "c", resume=True).rounds == 3


def test_what_is_no_algorithm_is_said_in_a_line():
    @dataclass(frozen=True)
    class Local(FedProxClass):
        """Nobody finds it again."""

    for wrong, line in [
        (3, "algorithm = 3: give a name, a method"),
        (int, "must be a dataclass"),
        (Local, "define the class at the top of a module"),
        ("fedprox,mu", "algorithm = 'fedprox,mu': write name,option=value"),
    ]:
        with pytest.raises(kinfolk.KinfolkError, match=line):
            OURS.run(wrong)


def test_every_algorithm_has_a_public_name():
    public = {name for name in kinfolk.__all__ if isinstance(getattr(kinfolk, name), methods.Method)}
    assert public == {kind.__name__ for kind in ALGORITHMS.values()}
    assert all(getattr(kinfolk, kind.__name__).kind is kind for kind in ALGORITHMS.values())


def test_a_comparison_of_seeds_by_number(tmp_path):
    found = OURS.compare([kinfolk.FedAvg(), "local"], seeds=[4, 1], folder=tmp_path / "c")
    runs = json.loads((tmp_path / "c/compare.json").read_text())["runs"]
    assert runs == ["fedavg-seed4", "fedavg-seed1", "local-seed4", "local-seed1"]
    assert set(found.frame["seeds"]) == {2}
    alone = OURS.run("local", seed=4, folder=tmp_path / "alone")
    assert alone.summary == next(r for r in found.results if r.folder.name == "local-seed4").summary
    with pytest.raises(kinfolk.KinfolkError, match="a comparison is there already; add resume=True"):
        OURS.compare(["local"], folder=tmp_path / "c")
    again = OURS.compare(["fedavg", "local"], seeds=[4, 1], folder=tmp_path / "c", resume=True)
    assert again.frame.drop(columns="seconds_per_round").equals(found.frame.drop(columns="seconds_per_round"))


@pytest.mark.parametrize("seeds", [0, [], [0, 0], [-1], [1.5], "3", True])
def test_seeds_that_are_none_are_refused_in_the_words_of_python(seeds):
    with pytest.raises(kinfolk.KinfolkError, match=r"^seeds = "):
        OURS.compare(["local"], seeds=seeds)
    with pytest.raises(kinfolk.KinfolkError, match=r"^seeds = "):
        OURS.choose_k(seeds=seeds)


class Tags(HTMLParser):
    """Every tag that is opened must be closed, and none may come from a client's name."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.words = [], set(), []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_results_are_short_lines_and_whole_tables(tmp_path):
    result = OURS.run("local", folder=tmp_path / "r")
    assert re.fullmatch(
        r"<Result: local, 2 rounds done, accuracy [\d.]+% \(personal\), folder '.*/r'>", repr(result)
    )
    compared = OURS.compare(["local", "fedavg"], seeds=2, folder=tmp_path / "c")
    assert repr(compared).startswith("<Comparison: 4 runs of local, fedavg, folder '")
    choice = OURS.choose_k("ifca", ks=[1, 2], rounds=1, seeds=[3, 5], folder=tmp_path / "k")
    assert repr(choice).startswith("<KChoice: k = ")
    grouped = OURS.run("ifca,k=2", folder=tmp_path / "g")
    placed = kinfolk.assign(grouped.folder, rows(2), network=linear)
    assert repr(placed) == f"<Placed: 2 newcomers in {len(set(placed.groups.values()))} groups>"
    for thing, words in [
        (result, ["personal", "Accuracy", "worst client", "local: 2 rounds done"]),
        (compared, ["algorithm", "fedavg", "±"]),
        (choice, ["K", "stability", choice.reason]),
        (placed, ["newcomer", "<b>0</b>"]),
    ]:
        page = thing._repr_html_()
        found = Tags(page)
        assert found.seen <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
        assert all(word in " ".join(found.words) for word in words), page
    assert html.escape("<b>0</b>") in placed._repr_html_()


def test_the_object_passes_everything_on():
    for name in ("run", "compare", "choose_k"):
        method, function = getattr(kinfolk.Experiment, name), getattr(kinfolk, name)
        theirs = list(inspect.signature(function).parameters.values())
        assert inspect.signature(method).parameters[theirs[2].name].default == theirs[2].default
    assert repr(OURS) == "<Experiment: 4 clients, 2 rounds, engine.name='loop'>"
    with pytest.raises(TypeError, match="seedz"):
        OURS.run("local", seedz=3)
    seen = []
    result = OURS.run("local", on_round=lambda facts: seen.append(facts["round"]) or "stop")
    assert (seen, result.reason) == ([1], "1 rounds done; a callback said stop")


def test_progress_is_shown_if_asked_for_and_silent_if_nobody_watches(capsys):
    OURS.run("local")
    OURS.run("local", progress=False)
    assert capsys.readouterr() == ("", "")
    OURS.run("local", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "engine: loop" in err


def test_in_a_notebook_one_line_is_written_again_and_again(capsys, monkeypatch):
    monkeypatch.setattr("kinfolk.progress.Console", lambda stderr: _Notebook())
    OURS.run("local")
    err = capsys.readouterr().err
    lines = err.split("\n")
    assert "\r" in err
    assert re.search(r"local: 2/2 \[#{20}\] accuracy [\d.]+% \(personal\), 0 s left", err)
    assert lines[-1] == "", "what comes next begins on a line of its own"


class _Notebook:
    is_jupyter, is_terminal = True, False


def test_the_bar_knows_all_runs():
    with telling(10, quiet=True) as teller:
        for name in ("a", "b"):
            listen = teller.watch(name)
            listen("engine", {"rounds": 5, "note": "", "why": "", "warning": ""})
            listen("round", {"round": 5, "rounds": 5})
    assert (teller.done, teller.total) == (10, 10)
