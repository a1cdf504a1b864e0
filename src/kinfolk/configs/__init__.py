"""The experiment files that come with the package, by name: `digits`, `mdicfl/rotated-mnist`.

They lie beside this module, so that a name works wherever Kinfolk is installed.
"""

from __future__ import annotations

import difflib
import itertools
import re
from pathlib import Path

from kinfolk.errors import KinfolkError, near

CONFIGS = Path(__file__).parent
# A paper's tables stand beside its experiments; they are no experiment.
_TABLES = "reproduce"


def config_names() -> list[str]:
    """The names of all packaged experiments.

    >>> [name for name in config_names() if "/" not in name]
    ['demo', 'digits', 'digits-skewed']
    """
    files = (path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.toml"))
    return sorted(path.as_posix() for path in files if path.name != _TABLES)


def find_config(name: str | Path) -> Path:
    """The file of a packaged experiment, or the path as it stands if it is one.

    What ends in `.toml` is a path. Anything else is a name; a file of that name is taken if there is no such
    experiment.

    >>> find_config("mdicfl/rotated-mnist").name, find_config("mine.toml").name
    ('rotated-mnist.toml', 'mine.toml')
    >>> find_config("digts")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: spec = 'digts': no such file or configuration; did you mean 'digits'?
    """
    text = Path(name).as_posix()
    known = config_names()
    if text in known:
        return CONFIGS / f"{text}.toml"
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    raise KinfolkError("spec", text, f"no such file or configuration; {hint(text)}")


def hint(text: str) -> str:
    """The packaged experiment whose name is nearest to what was given, or how to list them.

    >>> hint("configs/digits.toml")
    "did you mean 'digits'?"
    >>> hint("nowhere.toml")
    '`kinfolk list configs` names the packaged ones'
    """
    known = config_names()
    # Whole names first; then the last part alone, for who leaves out the paper or gives a path.
    bare = text.removesuffix(".toml").removeprefix("configs/")
    last = {name.split("/")[-1]: name for name in reversed(known)}
    close = difflib.get_close_matches(bare, known, n=1)
    close = close or [last[one] for one in difflib.get_close_matches(bare.split("/")[-1], last, n=1)]
    return f"did you mean {close[0]!r}?" if close else "`kinfolk list configs` names the packaged ones"


def find_paper(name: str) -> Path:
    """The file that says how a paper's tables are made again: a packaged paper's, or the path as it stands.

    >>> find_paper("fesem").parent.name
    'fesem'
    >>> find_paper("fesm")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: paper = 'fesm': did you mean 'fesem'?
    """
    known = sorted(path.parent.name for path in CONFIGS.glob(f"*/{_TABLES}.toml"))
    if name in known:
        return CONFIGS / name / f"{_TABLES}.toml"
    if not name.endswith(".toml"):
        raise KinfolkError("paper", name, near(name, known))
    return Path(name)


def config_lines() -> list[tuple[str, str]]:
    """(name, what it is) of every packaged experiment: the sentence at the head of its file.

    >>> dict(config_lines())["slfed/cifar10-dist3-small"]
    'A reduced twin of cifar10-dist3.toml.'
    """
    return [(name, _sentence(CONFIGS / f"{name}.toml")) for name in config_names()]


def _sentence(path: Path) -> str:
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    # A sentence ends before a capital; "et al. 2022" goes on.
    return re.split(r"(?<=[.?]) (?=[A-Z])", " ".join(line.lstrip("# ") for line in lines))[0]
