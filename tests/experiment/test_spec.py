"""The experiment file: what is written comes back, what is wrong is named."""

from __future__ import annotations

import time
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.engines.choose import engine_names
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import CHOICES, NAMED, RANGES, SECTIONS, groups_of
from kinfolk.experiment.spec import (
    AlgorithmSpec,
    DataSpec,
    EngineSpec,
    Experiment,
    LocalSpec,
    ModelSpec,
    RunSpec,
    check,
    describe,
    differences,
    dump,
    load,
    override,
    parse,
    run_id,
)

WHOLE = st.integers(1, 2**63 - 1)
FRACTION = st.floats(0, 1, exclude_min=True)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
NAME = st.text(min_size=1, max_size=8)
SCALAR = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
OWN = {field.name for field in fields(ModelSpec)}  # no options, whoever takes them
OPTIONS = st.dictionaries(
    st.from_regex(r"[a-zé_][a-z0-9_]{0,5}", fullmatch=True).filter(lambda key: key not in OWN),
    SCALAR | st.lists(SCALAR | st.lists(SCALAR, max_size=2), max_size=3),
    max_size=3,
)
FEW = st.dictionaries(st.from_regex(r"[a-z_]{1,4}", fullmatch=True), SCALAR, max_size=2)


def chosen(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from(list({**engine_names(), **CHOICES, **NAMED}[name]))


SPECS = st.builds(
    Experiment,
    data=st.builds(
        DataSpec, clients=st.integers(4, 10**6), rows=st.integers(1, 10**9), alpha=POSITIVE, seed=WHOLE
    ),
    model=st.builds(ModelSpec, NAME, OPTIONS),
    local=st.builds(
        LocalSpec, epochs=WHOLE, steps=WHOLE, batch=WHOLE, lr=POSITIVE, decay=FRACTION, clip=POSITIVE,
        optimiser=chosen("local.optimiser"), loss=chosen("local.loss"),
        schedule=chosen("local.schedule"), loss_options=FEW,
    ),
    algorithm=st.builds(AlgorithmSpec, NAME, OPTIONS),
    engine=st.builds(EngineSpec, name=chosen("engine.name"), chunk=WHOLE, memory=POSITIVE),
    run=st.builds(
        RunSpec, rounds=WHOLE, participation=FRACTION, seed=WHOLE, quorum=FRACTION, target_score=NAME,
        metrics=st.lists(NAME, max_size=2),
        target=st.floats(allow_nan=False, allow_infinity=False),
    ),
)  # fmt: skip


@given(SPECS)
def test_a_dump_is_parsed_back(spec: Experiment) -> None:
    text = dump(spec)
    assert parse(text) == spec == check(spec)
    assert dump(parse(text)) == text
    assert override(spec, []) == spec
    # An independent reading of the same text finds the same values.
    tables = tomllib.loads(text)
    assert tables["local"]["lr"] == spec.local.lr
    assert {k: v for k, v in tables["model"].items() if k not in OWN} == spec.model.options


@given(SPECS, SPECS)
def test_identity_follows_from_content(a: Experiment, b: Experiment) -> None:
    assert (run_id(a) == run_id(b)) == (dump(a) == dump(b)) == (differences(a, b) == [])
    assert len(run_id(a)) == 12
    assert int(run_id(a), 16) >= 0


def test_every_setting_counts_for_the_identity() -> None:
    changes = [
        "engine.name=loop",
        "engine.chunk=4",
        "run.rounds=21",
        "data.alpha=1",
        "algorithm.k=2",
        "local.lr=1",
    ]
    assert len({run_id(override(Experiment(), [change])) for change in changes} | {run_id(Experiment())}) == 7


def test_order_of_keys_and_whole_numbers_do_not_count() -> None:
    a = parse("[local]\nlr = 1\nbatch = 2\n[model]\nb = 1\na = 2")
    b = parse("model.a = 2\nmodel.b = 1\n[local]\nbatch = 2\nlr = 1.0")
    assert run_id(a) == run_id(b)
    assert a == b


def test_an_empty_file_is_all_defaults() -> None:
    assert parse("") == Experiment() == check(Experiment())


def test_every_setting_is_explained_and_of_a_plain_type() -> None:
    table = {name: (default, meaning) for name, default, meaning in describe()}
    inner = {f"{s}.{name}": kind for s, outer in SECTIONS.items() for name, kind in groups_of(outer).items()}
    for section, kind in {**SECTIONS, **inner}.items():
        for key, hint in get_type_hints(kind).items():
            if f"{section}.{key}" in inner:
                continue
            default, meaning = table.pop(f"{section}.{key}")
            assert meaning.endswith("."), f"{section}.{key} has no comment"
            assert hint in (str, int, float, bool, list[str], tuple[str, ...], dict[str, Any])
            assert type(default) is (get_origin(hint) or hint)
    assert table == {}


def test_bounds_name_real_settings() -> None:
    known = {name for name, _, _ in describe()}
    named = {name for *_, names in RANGES for name in names.split()}
    assert named | set(CHOICES) | set(NAMED) | set(engine_names()) <= known


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[locl]\nlr = 1", ["locl", "no such section", "'local'"]),
        ("[local]\nlearn = 1", ["local.learn = 1", "no such setting"]),
        ("[run]\nround = 1", ["run.round = 1", "did you mean 'rounds'?"]),
        ("[data]\nclient = 1", ["data.client = 1", "did you mean 'clients'?"]),
        ("lr = 0.1", ["lr = 0.1", "[local]"]),
        ("local = 3", ["local = 3", "[local]"]),
        ("[[local]]\nlr = 1", ["local", "must be a table"]),
        ('[local]\nlr = "0.1"', ["local.lr = '0.1'", "is text; give a number"]),
        ("[local]\nlr = true", ["local.lr = True", "is true or false; give a number"]),
        ("[local]\nbatch = true", ["local.batch = True", "give a whole number"]),
        ("[local]\nbatch = 2.0", ["local.batch = 2.0", "is a number; give a whole number"]),
        ("[local]\noptimiser = 1", ["local.optimiser = 1", "give text"]),
        ("[local]\nlr = [1]", ["local.lr = [1]", "is a list"]),
        ("[local]\nlr = {a = 1}", ["local.lr", "give a number"]),
        ("[local]\nlr = 2020-01-01", ["local.lr", "something else; give a number"]),
        ("[local]\nlr = nan", ["local.lr = nan", "finite"]),
        ("[local]\nlr = inf", ["local.lr = inf", "finite"]),
        ("[local]\nlr = 1e999", ["local.lr", "finite"]),
        ("[local]\nlr = 0", ["local.lr = 0.0", "above 0"]),
        ("[local]\nlr = -1.5", ["local.lr = -1.5", "above 0"]),
        ("[local]\nbatch = 0", ["local.batch = 0", "1 or more"]),
        ("[local]\nepochs = 0", ["local.epochs = 0", "local.steps"]),
        ("[local]\nepochs = -1\nsteps = 3", ["local.epochs = -1"]),
        ("[local]\nsteps = -1", ["local.steps = -1"]),
        ("[local]\nmomentum = -0.1", ["local.momentum = -0.1"]),
        ("[local]\nmomentum = 1", ["local.momentum = 1.0", "below 1"]),
        ("[local]\nweight_decay = -1", ["local.weight_decay = -1.0"]),
        ("[local]\nclip = -1", ["local.clip = -1.0"]),
        ("[local]\ndecay = 0", ["local.decay = 0.0"]),
        ('[local]\noptimiser = "sgdd"', ["local.optimiser = 'sgdd'", "sgd, adam"]),
        ('[local]\nloss = "l2"', ["local.loss", "cross_entropy"]),
        ('[engine]\nname = "fast"', ["engine.name", "batched"]),
        ('[engine]\ndevice = "tpu"', ["engine.device", "cuda"]),
        ('[engine]\nprecision = "half"', ["engine.precision", "tf32"]),
        ("[engine]\nchunk = -1", ["engine.chunk = -1"]),
        ("[engine]\nmemory = -0.5", ["engine.memory = -0.5"]),
        ("[run]\nparticipation = 0", ["run.participation = 0.0"]),
        ("[run]\nparticipation = 1.01", ["run.participation = 1.01", "at most 1"]),
        ("[run]\nrounds = 0", ["run.rounds = 0"]),
        ("[run]\nevaluate_every = 0", ["run.evaluate_every = 0"]),
        ("[run]\nseed = -1", ["run.seed = -1"]),
        ("[run]\nquorum = 1.5", ["run.quorum = 1.5"]),
        ("[run]\nabsent = 1", ["run.absent = 1.0"]),
        ('[run]\nsplit = "train"', ["run.split = 'train'", "test, valid"]),
        ('[data]\nname = "digit"', ["data.name = 'digit'", "did you mean 'digits'?"]),
        ("[data]\nclients = 0", ["data.clients = 0"]),
        ('[model]\nname = ""', ["model.name = ''", "give a name"]),
        ("[model.options]\nwide = 3", ["model.options", "straight under [model]"]),
        ("[model]\nwide = [{a = 1}]", ["model.wide", "straight under [model]"]),
        ("[model]\nwhen = 2020-01-01", ["model.when", "give a number, text"]),
        ("[model]\nlimit = inf", ["model.limit = inf", "finite"]),
        ('[model]\n"a b" = 1', ['model."a b" = 1', "letters, digits and _"]),
        ('[local]\n"a\\nb" = 1', ['local."a\\nb" = 1', "no such setting"]),
        ('["a\\nb"]', ['"a\\nb"', "no such section"]),
        ("[local]\nlr = 0.1\nlr = 0.2", ["not TOML", "line 3, column 9, the end"]),
        ("[local]\nlr = 0.1\nlr = 0.2\n", ["not TOML", "line 3, column 9)"]),
        ("[local]\nlr == 0.1", ["not TOML", "line 2, column 5"]),
        ("[local\nlr = 0.1", ["not TOML", "line 1"]),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text: str, words: list[str]) -> None:
    with pytest.raises(KinfolkError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_steps_can_stand_in_for_epochs() -> None:
    assert parse("[local]\nepochs = 0\nsteps = 3").local.steps == 3


@pytest.mark.parametrize(
    "text",
    [
        "model.a = " + "[" * 4 + "1" + "]" * 4,
        "model.a = " + "[" * 100_000,
        "model.a = " + "[" * 50_000 + "]" * 50_000,
        "model.a = " + "{a = " * 50_000 + "1" + "}" * 50_000,
        "model." + "a." * 20 + "b = 1",
        "a." * 500_000 + "b = 1",
        "model.x = {" + "a . " * 200_000 + "b = 1}",
        "['a'" + "." + ".".join(['"b"'] * 200_000) + "]",
        "[" + "a." * 500 + "b]\n" + "c = 1\n" * 100_000,
        "model.a = " + "9" * 20,
        "model.a = -" + "9" * 20,
        "model.a = " + "9" * 500_000,
        "model.a = 0x" + "f" * 500_000,
        "local.lr = 0x" + "f" * 500_000,
        "model.a = [[" + "9" * 20 + "]]",
        "a" * 1_000_000,
        "\"'" * 500_000,
        "a " * 500_000,
        "#" * (1 << 20) + "\n",
        "# " + "é" * (1 << 19),
    ],
    ids=lambda text: text[:16],
)
def test_bombs_are_refused_quickly(text: str) -> None:
    start = time.process_time()  # not the clock: other work on the machine is not ours
    with pytest.raises(KinfolkError) as caught:
        parse(text)
    assert time.process_time() - start < 5
    assert len(str(caught.value)) < 300


def test_the_largest_integers_and_the_deepest_lists_that_fit() -> None:
    spec = parse(f"[model]\na = [[{2**63 - 1}]]\nb = {-(2**63)}")
    assert spec.model.options == {"a": [[2**63 - 1]], "b": -(2**63)}


def test_override_takes_toml_and_falls_back_to_text() -> None:
    changes = [
        "local.lr=0.05", " run.rounds = 7 ", "local.lr=1", "model.name=cnn", "model.wide=[1, 2]",
        "model.on=true", 'model.note="a=b"', "model.path=data/x=1", "model.two=1\nrun.seed = 3",
        "model.empty=",
    ]  # fmt: skip
    spec = override(Experiment(), changes)
    assert spec.local.lr == 1.0
    assert spec.run == replace(Experiment().run, rounds=7)
    assert spec.model == ModelSpec(
        "cnn",
        {
            "wide": [1, 2],
            "on": True,
            "note": "a=b",
            "path": "data/x=1",
            "two": "1\nrun.seed = 3",
            "empty": "",
        },
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ("local.lr", "section.key=value"),
        ("lr=1", "section.key=value"),
        (".lr=1", "section.key=value"),
        ("local.=1", "section.key=value"),
        ("=1", "section.key=value"),
        ("locl.lr=1", "did you mean 'local'?"),
        ("local.lrr=1", "did you mean 'lr'?"),
        ("local.lr.x=1", 'local."lr.x" = 1: no such setting'),
        ("local.lr=fast", "local.lr = 'fast': is text; give a number"),
        ("local.lr=True", "is text; give a number"),
        ("local.lr=-1", "above 0"),
        ("model.a=" + "[" * 5 + "1" + "]" * 5, "nested deeper"),
        ("model.a=" + "[" * 50_000, "nested deeper"),
        ("model.a=" + "9" * 30, "64 bits"),
        ("model.a=" + "9" * 9000, "64 bits"),
        ("model.a=" + "x" * (1 << 20), "larger than"),
        ("model.a=\udcff", "UTF-8"),
        ("model.a.b=1", "letters, digits and _"),
    ],
    ids=lambda text: text[:16].replace("\udcff", "?"),
)
def test_wrong_overrides_are_named(change: str, word: str) -> None:
    with pytest.raises(KinfolkError) as caught:
        override(Experiment(), [change])
    assert word in str(caught.value)


def test_differences_are_named_both_ways() -> None:
    a, b = parse("[algorithm]\nmu = 0.1"), parse('[algorithm]\nname = "ifca"\nk = 2\n[run]\nrounds = 3')
    assert differences(a, b) == [
        'algorithm.name: "fedavg" there, "ifca" here',
        "algorithm.mu: 0.1 there, not set here",
        "run.rounds: 20 there, 3 here",
        "algorithm.k: not set there, 2 here",
    ]


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        (Experiment(local=LocalSpec(batch=True)), "local.batch = True"),
        (Experiment(local=LocalSpec(lr="1")), "local.lr = '1'"),  # type: ignore[arg-type]
        (Experiment(model=ModelSpec("mlp", {"name": "cnn"})), "model.name"),
        (Experiment(model=ModelSpec("mlp", {"a": None})), "model.a"),
        (Experiment(model=ModelSpec("mlp", {"a": 2**64})), "64 bits"),
        (Experiment(run=RunSpec(seed=2**63)), "64 bits"),
        (Experiment(run=RunSpec(rounds=0)), "run.rounds = 0"),
    ],
)
def test_experiments_made_in_python_are_checked(spec: Experiment, word: str) -> None:
    with pytest.raises(KinfolkError) as caught:
        check(spec)
    assert word in str(caught.value)


def test_check_makes_plain_values() -> None:
    spec = check(Experiment(local=LocalSpec(lr=1), model=ModelSpec("mlp", {"wide": (1, (2,))})))
    assert type(spec.local.lr) is float
    assert spec.model.options == {"wide": [1, [2]]}


def test_load_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_bytes(b"\xef\xbb\xbf[local]\r\nlr = 0.5 # \xc3\xa9\r\n")
    assert load(path).local.lr == load(str(path)).local.lr == 0.5


def test_files_that_can_not_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, word: str) -> None:
        with pytest.raises(KinfolkError) as caught:
            load(path)
        assert word in str(caught.value)
        assert "\n" not in str(caught.value)

    refused(tmp_path / "none.toml", "no such file")
    assert load(tmp_path).data == DataSpec("own", path=str(tmp_path)), "a folder is somebody's own data"
    (tmp_path / "run.json").write_text("{}")
    refused(tmp_path, "is a run folder")
    (tmp_path / "folder.toml").write_text('extends = "."')
    refused(tmp_path / "folder.toml", "is a folder")
    refused(Path("/dev/zero"), "larger than")
    path = tmp_path / "spec.toml"
    path.write_bytes(b"[local]\nlr = 0.1 # \xff")
    refused(path, "byte 19 is not UTF-8")
    path.write_bytes(b"[local]\nlr = \n")
    refused(path, "line 2, column 6")
    refused(path, "spec.toml")
    path.write_bytes(b"# " + "é".encode() * (1 << 19))
    refused(path, "larger than")
    path.write_bytes(b"\x80\x04cos\nsystem\n.")
    refused(path, "not UTF-8")

    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", deny)
    refused(path, "Permission denied")


def test_a_file_extends_another_and_says_only_what_differs(tmp_path):
    (tmp_path / "whole.toml").write_text(
        '[data]\nclients = 7\nrows = 9\n[algorithm]\nname = "fedprox"\nmu = 0.3\n[run]\nrounds = 4'
    )
    (tmp_path / "part.toml").write_text('extends = "whole.toml"\n[data]\nclients = 5')
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/other.toml").write_text('extends = "../part.toml"\n[algorithm]\nname = "fedavg"')
    part, other = load(tmp_path / "part.toml"), load(tmp_path / "deep/other.toml")
    assert (part.data.clients, part.data.rows, part.run.rounds) == (5, 9, 4)
    assert part.algorithm.options == {"mu": 0.3}
    assert other.algorithm == AlgorithmSpec("fedavg")  # another method does not take over the options
    assert (other.data.clients, other.run.rounds) == (5, 4)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('extends = "a.toml"', "leads back to itself"),
        ("extends = 3", "extends = 3: give the name"),
        ('extends = "none.toml"', "no such file"),
        ('extends = "."', "is a folder"),
    ],
)
def test_an_extension_that_leads_nowhere_is_one_line(tmp_path, text, line):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(KinfolkError, match=line):
        load(tmp_path / "a.toml")


def test_a_text_setting_may_look_like_a_number() -> None:
    for changes in ({"model.output": "0"}, ["model.output=0"], ['model.output="0"']):
        assert override(Experiment(), changes).model.output == "0"
    with pytest.raises(KinfolkError, match=r"local\.epochs = 'two'"):
        override(Experiment(), {"local.epochs": "two"})


def test_files_that_extend_one_another_in_a_circle_under_other_names(tmp_path):
    inner = tmp_path / "x"
    inner.mkdir()
    (inner / "a.toml").write_text('extends = "../x/a.toml"')
    with pytest.raises(KinfolkError, match="leads back to itself"):
        load(inner / "a.toml")
    (inner / "b.toml").write_text('extends = "./././c.toml"')
    (inner / "c.toml").symlink_to(inner / "b.toml")
    with pytest.raises(KinfolkError, match="leads back to itself"):
        load(inner / "b.toml")


def test_sixteen_files_may_extend_one_another_and_no_more(tmp_path):
    for number in range(20):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"\n')
    (tmp_path / "20.toml").write_text("[local]\nlr = 0.25\n")
    assert load(tmp_path / "5.toml").local.lr == 0.25
    with pytest.raises(KinfolkError, match="more than 16 in a row"):
        load(tmp_path / "4.toml")


@pytest.mark.parametrize("name", ["x" * 5000, "x/" * 4000, "\\u0000", "\\ud7ff" * 300])
def test_a_name_that_no_file_can_have_is_one_line(tmp_path, name):
    (tmp_path / "a.toml").write_text(f'extends = "{name}"')
    with pytest.raises(KinfolkError) as caught:
        load(tmp_path / "a.toml")
    assert str(caught.value).splitlines() == [str(caught.value)]
    assert len(str(caught.value)) < 300
