"""Who may import whom, and what nobody may: the arrows between rooms, pickles and global generators."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinfolk

ROOT = Path(kinfolk.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
CORE = {"types", "task", "script", "fold", "streams", "errors"}
EVERYTHING = {p.stem for p in ROOT.iterdir() if p.is_dir() or p.suffix == ".py"} - {"__pycache__"}

# What people call from Python.
PYTHON = ("api", "methods", "own_experiment", "trained", "watching")
# The room of a module is the first word after `kinfolk`. A room may import itself and what stands here.
MAY_IMPORT = {
    "types": set(),
    "errors": {"types"},
    "streams": {"types"},
    "task": {"types", "streams"},
    "fold": {"types"},
    "script": {"types", "task", "fold", "streams"},
    "codec": {"types", "errors"},
    "scores": set(),
    "allowed": {"errors"},
    "by_path": {"allowed", "errors"},
    "lock": {"errors", "private"},
    "private": set(),
    "unpack": set(),
    "live": {"scores"},
    "progress": {"live"},
    "markup": set(),
    "configs": {"errors"},
    "learning": {"types", "task", "streams", "errors", "scores", "by_path"},
    "clustering": {"types", "errors", "streams"},
    "federation": {"types", "streams", "errors", "private", "unpack"},
    "shares": {"types", "errors", "task"},
    "secure_sums": CORE | {"shares"},
    "authoring": CORE | {"shares", "learning", "scores", "engines"},
    "attacks": CORE | {"learning", "engines"},
    "algorithms": CORE | {"by_path", "learning", "clustering", "shares"},
    "privacy": CORE | {"algorithms", "learning"},
    "engines": CORE | {"codec", "learning", "federation"},
    "experiment": EVERYTHING
    - {"advice", "deploy", "report", "cli", "contract", *PYTHON, "papers", "__init__"},
    "deploy": EVERYTHING - {"advice", "report", "cli", "contract", *PYTHON, "papers", "__init__"},
    "report": {"errors", "experiment", "live", "lock", "markup", "privacy", "scores"},
    "advice": EVERYTHING - {"cli", "contract", *PYTHON, "papers", "__init__"},
    "contract": EVERYTHING - {"advice", "cli", "report", *PYTHON, "papers", "__init__"},
    **{room: EVERYTHING - {"cli", "papers", "__init__"} for room in PYTHON},
    "cli": EVERYTHING - {"papers", "__init__"},
    "papers": EVERYTHING - {"__init__"},
    "__init__": EVERYTHING - {"cli", "papers"},
    "__main__": {"cli", "papers"},
}
# What algorithms may know of one another: the blocks they are built of; a package also knows its own modules.
SHARED_BY_ALGORITHMS = ("kinfolk.algorithms.blocks",)
# Rooms that see records only, as files: not even by a detour may they reach torch.
WITHOUT_TORCH = ("report", "trained")
# Where runs are read back.
RECORDS = tuple(
    f"kinfolk.experiment.{name}" for name in ("record", "picture_files", "forms", "conduct_files")
)
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "jsonpickle", "yaml"}
DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal"),
    *("bernoulli", "multinomial", "poisson", "manual_seed", "seed", "set_rng_state", "fork_rng"),
}
DRAWS_IN_PLACE = {"uniform_", "normal_", "random_", "bernoulli_", "exponential_", "geometric_", "log_normal_"}
SEEDED_NUMPY = {"Generator", "PCG64", "SeedSequence"}
# Where torch's global generators are lent and given back.
LENDER = "streams"


def name_of(path: Path) -> str:
    words = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


MODULES = {name_of(path): path for path in SOURCES}


def room_of(module: str) -> str:
    words = module.split(".")
    return words[1] if len(words) > 1 else "__init__"


def imports(tree: ast.AST, module: str) -> Iterator[str]:
    """Every module that is imported anywhere in the code, by its full name."""
    package = module if MODULES.get(module, ROOT).name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*home, node.module] if node.module else home)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in MODULES or base in ("torch", "kinfolk") else base


def forbidden_arrows(tree: ast.AST, module: str) -> list[str]:
    room, wrong = room_of(module), []
    for target in imports(tree, module):
        if target.split(".")[0] != "kinfolk":
            continue
        other = room_of(target)
        if other != room and other not in MAY_IMPORT[room]:
            wrong.append(target)
        if room == "report" and other == "experiment" and target not in RECORDS:
            wrong.append(target)
        # Speed has one door: what its `__init__` names.
        if target.startswith("kinfolk.engines.fast.") and not module.startswith("kinfolk.engines.fast"):
            wrong.append(target)
        alone = room == "algorithms" and module != "kinfolk.algorithms" and other == room
        if alone and not (target + ".").startswith(tuple(f"{p}." for p in _known_to(module))):
            wrong.append(target)
    return wrong


def _known_to(module: str) -> tuple[str, ...]:
    """The packages that an algorithm may import: the shared blocks, and its own if it is in one."""
    own = module.split(".")[:3]
    inside = module.count(".") > 2 or MODULES.get(module, ROOT).name == "__init__.py"
    return (*SHARED_BY_ALGORITHMS, ".".join(own)) if inside else SHARED_BY_ALGORITHMS


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text; empty where it is anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def pickles(tree: ast.AST, module: str) -> list[str]:
    wrong = [name for name in imports(tree, module) if name.split(".")[0] in PICKLES]
    for node in ast.walk(tree):
        called = dotted(node.func) if isinstance(node, ast.Call) else ""
        if called in ("torch.load", "torch.save", "eval", "exec", "__import__"):
            wrong.append(called)
        if called.endswith(("np.load", "numpy.load", "read_pickle", "to_pickle")):
            wrong.append(called)
        # A Connection's `send` and `recv` pickle; `send_bytes` and `recv_bytes` do not.
        mine = module.endswith(("engines.workers", "engines.rpc"))
        if mine and called.endswith((".send", ".recv")):
            wrong.append(called)
    return wrong


def global_draws(tree: ast.AST, module: str) -> list[str]:
    wrong = [n for n in imports(tree, module) if n.startswith("torch.random")]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random"):
            wrong.append(f"from {node.module}")
        if isinstance(node, ast.Attribute):
            home, _, word = dotted(node).rpartition(".")
            # As a type, `np.random.Generator` is welcome; `np.random.default_rng()` draws its own seed.
            # To look at a global generator is not to draw from it.
            if home in ("np.random", "numpy.random") and word not in {*SEEDED_NUMPY, "get_state"}:
                wrong.append(dotted(node))
            if home == "random" and word != "getstate":
                wrong.append(dotted(node))
        if not isinstance(node, ast.Call) or any(k.arg == "generator" for k in node.keywords):
            continue
        home, _, word = dotted(node.func).rpartition(".")
        draws = home.split(".")[0] == "torch" and word in DRAWS and room_of(module) != LENDER
        unseeded = isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS_IN_PLACE
        if draws or unseeded:
            wrong.append(ast.unparse(node.func))
    return wrong


def reached(module: str, seen: set[str] | None = None) -> set[str]:
    """Everything that importing a module imports, packages on the way included."""
    seen = set() if seen is None else seen
    words = module.split(".")
    for name in (".".join(words[: i + 1]) for i in range(len(words))):
        if name in seen:
            continue
        seen.add(name)
        if name in MODULES:
            for target in _at_once(ast.parse(MODULES[name].read_text()), name):
                reached(target, seen)
    return seen


def _at_once(tree: ast.Module, module: str) -> Iterator[str]:
    """What is imported when the module is: not what stands inside a function or for type checks."""
    outside = [
        node
        for node in tree.body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not (isinstance(node, ast.If) and dotted(node.test).endswith("TYPE_CHECKING"))
    ]
    return imports(ast.Module(outside, []), module)


def test_every_room_has_its_rule():
    rooms = {room_of(module) for module in MODULES}
    assert rooms <= set(MAY_IMPORT), "a new room: say here what it may import"
    assert len(MODULES) > 40


@pytest.mark.parametrize("check", [forbidden_arrows, pickles, global_draws], ids=lambda c: c.__name__)
def test_no_module_breaks_the_rules(check):
    broken = {m: wrong for m, p in MODULES.items() if (wrong := check(ast.parse(p.read_text()), m))}
    assert broken == {}


def test_some_rooms_do_not_reach_torch():
    for module in MODULES:
        if room_of(module) in WITHOUT_TORCH:
            heavy = {name.split(".")[0] for name in reached(module)} & {"torch", "sklearn"}
            assert not heavy, f"{module} imports {heavy}"


def test_the_core_knows_no_networks():
    for room in ("types", "script", "task", "fold", "streams"):
        found = set(imports(ast.parse((ROOT / f"{room}.py").read_text()), f"kinfolk.{room}"))
        assert not {"torch.nn", "torch.func", "torch.autograd"} & found, room


@pytest.mark.parametrize(
    ("check", "module", "code"),
    [
        (forbidden_arrows, "kinfolk.types", "from kinfolk.streams import Seed"),
        (forbidden_arrows, "kinfolk.algorithms.new", "from kinfolk.federation.federation import Federation"),
        (forbidden_arrows, "kinfolk.algorithms.new", "from kinfolk.algorithms.fedavg import FedAvg"),
        (forbidden_arrows, "kinfolk.algorithms.new", "from .fedavg import FedAvg"),
        (forbidden_arrows, "kinfolk.algorithms.new", "def f():\n    import kinfolk.engines.loop"),
        (forbidden_arrows, "kinfolk.engines.new", "from kinfolk import algorithms"),
        (forbidden_arrows, "kinfolk.engines.new", "from kinfolk.engines.fast.trace import Traces"),
        (forbidden_arrows, "kinfolk.engines.new", "from kinfolk.engines.fast import capture"),
        (forbidden_arrows, "kinfolk.engines.new", "from ..algorithms import fedavg"),
        (forbidden_arrows, "kinfolk.report.new", "from kinfolk.experiment.run import run"),
        (forbidden_arrows, "kinfolk.experiment.new", "import kinfolk.cli"),
        (pickles, "kinfolk.codec", "import pickle"),
        (pickles, "kinfolk.codec", "def f():\n    from pickle import loads"),
        (pickles, "kinfolk.codec", "torch.load(path)"),
        (pickles, "kinfolk.codec", "np.load(path, allow_pickle=True)"),
        (pickles, "kinfolk.engines.workers", "pipe.recv()"),
        (global_draws, "kinfolk.fold", "import random\nrandom.random()"),
        (global_draws, "kinfolk.fold", "from random import choice"),
        (global_draws, "kinfolk.fold", "np.random.seed(1)"),
        (global_draws, "kinfolk.fold", "np.random.normal(size=3)"),
        (global_draws, "kinfolk.fold", "np.random.default_rng()"),
        (global_draws, "kinfolk.fold", "torch.randn(3)"),
        (global_draws, "kinfolk.fold", "torch.manual_seed(3)"),
        (global_draws, "kinfolk.fold", "torch.zeros(3).uniform_(0, 1)"),
    ],
)
def test_the_rules_have_teeth(check, module, code):
    assert check(ast.parse(code), module)


def test_the_rules_let_good_code_pass():
    tree = ast.parse("x = torch.rand(3, generator=g)\ny: np.random.Generator\nimport json")
    assert not global_draws(tree, "kinfolk.fold")
    assert not pickles(tree, "kinfolk.fold")
    assert not forbidden_arrows(ast.parse("from kinfolk.types import Stack"), "kinfolk.fold")
