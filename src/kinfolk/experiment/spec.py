"""An experiment as one TOML file: seven tables, every key typed, every unknown key an error.

An algorithm's groups of options are tables in its own, `[algorithm.start]`; a spec holds them by dotted name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from kinfolk.algorithms.options import flat_options
from kinfolk.configs import find_config, hint
from kinfolk.engines.choose import engine_names
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.record import plain
from kinfolk.experiment.sections import (
    CHOICES,
    NAMED,
    RANGES,
    SECTIONS,
    AlgorithmSpec,
    Experiment,
    LocalSpec,
    ModelSpec,
    RunSpec,
    describe,
    groups_of,
)
from kinfolk.federation.own_data.tables import TABLES
from kinfolk.federation.sources import DataSpec, check_spec

__all__ = [
    "AlgorithmSpec",
    "DataSpec",
    "EngineSpec",
    "Experiment",
    "LocalSpec",
    "ModelSpec",
    "RunSpec",
    "as_value",
    "check",
    "describe",
    "differences",
    "dump",
    "load",
    "override",
    "parse",
    "read_toml",
    "run_id",
    "values",
]

# A spec is a page of text. Whatever is larger or deeper is a mistake or an attack on the parser.
MOST_BYTES = 1 << 20
MOST_DEPTH = 4
MOST_FILES = 16  # that extend one another
# The parser's time grows with the square of the parts of a dotted key, so they are counted first.
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""")

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}

Tables = dict[str, dict[str, Any]]


def load(path: str | Path) -> Experiment:
    """Read an experiment file, or a packaged one by its name; each error is one line with a remedy.

    A file may begin with `extends = "other.toml"`, a file beside it, and then say only what differs. Own data
    (a store, a folder of clients, a table) stand for an experiment on them with all settings as usual.

    >>> load("digits").data.groups
    4
    >>> load("digitz.toml")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: spec = 'digitz.toml': no such file; did you mean 'digits'?
    """
    found = find_config(path)
    if found.is_dir() and any((found / name).is_file() for name in ("run.json", "compare.json")):
        raise KinfolkError("spec", str(found), "is a run folder; name its spec.toml, or own data")
    if found.is_dir() or found.suffix.lower() in TABLES:
        return check(Experiment(data=DataSpec("own", path=str(found))))
    return _build(_extended(found, ()))


def _extended(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The tables of a file laid over those of the file it extends."""
    here = Path(os.path.realpath(path)) if "\0" not in str(path) else path  # by whatever way it was named
    if here in above:
        raise KinfolkError("extends", str(path), "leads back to itself; take it out of one of the files")
    if len(above) == MOST_FILES:
        raise KinfolkError(
            "extends", str(path), f"is one of more than {MOST_FILES} in a row; join some of them"
        )
    tables = read_toml(path)
    base = tables.pop("extends", None)
    if base is None:
        return tables
    if not isinstance(base, str):
        raise KinfolkError("extends", base, "give the name of another experiment file")
    whole = _extended(path.parent / base, (*above, here))
    for section, table in tables.items():
        old = whole.get(section, {})
        if not (isinstance(old, dict) and isinstance(table, dict)):
            whole[section] = table
        elif "name" in table and section in ("model", "algorithm"):
            whole[section] = table  # the old options are another's
        else:
            whole[section] = {**flat_options(old), **flat_options(table)}
    return whole


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked, with the same one-line errors as an experiment's."""
    return _read(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            raise KinfolkError("spec", str(path), "is a folder; name a TOML file")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise KinfolkError("spec", str(path), f"no such file; {hint(str(path))}") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise KinfolkError("spec", str(path), f"cannot be read ({reason})") from error
    if len(data) > MOST_BYTES:
        raise _too_large(str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        remedy = f"byte {error.start} is not UTF-8; save it as UTF-8 text"
        raise KinfolkError("spec", str(path), remedy) from error


def parse(text: str, source: str = "spec") -> Experiment:
    """The experiment that TOML text describes; `source` names the text in errors.

    >>> parse("[local]\\nlr = 1").local.lr
    1.0
    >>> parse("[local]\\nbatchs = 1")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: local.batchs = 1: no such setting; did you mean 'batch'?
    """
    return _build(_read(text, source))


def override(spec: Experiment, changes: Sequence[str] | Mapping[str, Any]) -> Experiment:
    """The same experiment with some settings changed, each written as `section.key=value`, or values by name.

    >>> override(Experiment(), {"local.lr": 0.05}).local.lr
    0.05
    >>> override(Experiment(), ["local.lr=0.05", "algorithm.name=ifca", "algorithm.k=2"]).algorithm
    AlgorithmSpec(name='ifca', options={'k': 2})
    """
    tables = _tables(spec)
    named = changes if isinstance(changes, Mapping) else dict(map(_change, changes))
    for name, value in named.items():
        section, dot, key = (part.strip() for part in name.partition("."))
        if not (dot and section and key):
            raise KinfolkError("setting", name, "name it as section.key, as in local.lr")
        given = _value(value, f"{section}.{key}") if isinstance(value, str) else plain(value)
        if isinstance(value, str) and not isinstance(given, str) and _is_text(section, key):
            given = value.strip()  # a name such as 0, which is no number here
        tables.setdefault(section, {})[key] = given
    return _build(tables)


def _is_text(section: str, key: str) -> bool:
    return section in SECTIONS and get_type_hints(SECTIONS[section]).get(key) is str


def _change(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (equals and "." in name.strip().strip(".")):
        raise KinfolkError("--set", text, "write section.key=value, as in local.lr=0.05")
    return name.strip(), value


def dump(spec: Experiment) -> str:
    """The experiment as TOML text, every value written out: `parse` gives it back.

    >>> print(dump(Experiment(model=ModelSpec("cnn", {"wide": [4, 8]}))).split("\\n\\n")[1])
    [model]
    name = "cnn"
    output = ""
    weights = ""
    fresh = []
    train = []
    lora.rank = 0
    lora.alpha = 16.0
    lora.layers = ["*"]
    wide = [4, 8]
    """
    parts = []
    for section, table in _tables(spec).items():
        lines = [f"{_dotted(key)} = {_toml(value)}" for key, value in table.items()]
        parts.append("\n".join([f"[{section}]", *lines, ""]))
    return "\n".join(parts)


def run_id(spec: Experiment) -> str:
    """A name for the run that follows from every resolved value of its spec.

    >>> run_id(Experiment()) == run_id(parse("")) != run_id(parse("run.seed = 1"))
    True
    """
    return hashlib.sha256(dump(spec).encode()).hexdigest()[:12]


def differences(there: Experiment, here: Experiment) -> list[str]:
    """One line for each setting that is not the same in two experiments.

    >>> differences(Experiment(), override(Experiment(), ["local.lr=0.05"]))
    ['local.lr: 0.1 there, 0.05 here']
    """
    a, b = ({name: _toml(value) for name, value in values(spec).items()} for spec in (there, here))
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    return [f"{n}: {a.get(n, 'not set')} there, {b.get(n, 'not set')} here" for n in names]


def check(spec: Experiment) -> Experiment:
    """An experiment made in Python, checked as if it came from a file.

    >>> check(Experiment(local=LocalSpec(lr=-1)))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: local.lr = -1.0: give a number above 0
    """
    return _build(_tables(spec))


def _too_large(source: str) -> KinfolkError:
    return KinfolkError(source, None, f"is larger than {MOST_BYTES} bytes; a spec is a page of text")


def _read(text: str, source: str) -> dict[str, Any]:
    """Parse TOML, refusing first what would only keep the parser busy."""
    if len(text.encode(errors="replace")) > MOST_BYTES:
        raise _too_large(source)
    if _LONG_KEY.search(text):
        raise KinfolkError(source, None, "has a key of more than 64 parts; settings are section.key")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}, the end"
        reason = str(error).replace("at end of document", end)
        raise KinfolkError(source, None, f"is not TOML: {reason}") from error
    except RecursionError as error:
        raise KinfolkError(source, None, f"is nested deeper than {MOST_DEPTH} levels") from error
    except ValueError as error:  # thousands of digits
        raise KinfolkError(source, None, "holds an integer beyond 64 bits") from error


def _value(text: str, name: str) -> Any:
    """A value from the command line: TOML if it is TOML, else the text as it stands."""
    try:
        table = _read(f"value = {text}", name)
    except KinfolkError as error:
        if isinstance(error.__cause__, tomllib.TOMLDecodeError):
            return text.strip()
        raise
    return table["value"] if len(table) == 1 else text.strip()


def _build(tables: Mapping[str, Any]) -> Experiment:
    """Check every name, type and range, and make the experiment."""
    _bounded(tables)
    for section, table in tables.items():
        if section not in SECTIONS:
            home = [name for name, kind in SECTIONS.items() if section in {f.name for f in fields(kind)}]
            hint = f"write it under [{home[0]}]" if home else near(section, SECTIONS)
            shown = None if isinstance(table, dict) else table
            raise KinfolkError(_key(section), shown, f"no such section; {hint}")
        if not isinstance(table, dict):
            raise KinfolkError(section, table, f"must be a table; write [{section}] and its keys below")
    built = {section: _section(section, kind, tables.get(section, {})) for section, kind in SECTIONS.items()}
    spec = Experiment(**built)
    _check_ranges(spec)
    return spec


def _section(section: str, kind: type[Any], table: Mapping[str, Any]) -> Any:
    groups = groups_of(kind)  # tables whose keys are known
    inner: dict[str, dict[str, Any]] = {name: {} for name in groups}
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name not in groups}
    known = [name for name in hints if name != "options"]
    free: dict[str, dict[str, Any]] = {key: {} for key in known if get_origin(hints[key]) is dict}
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    grouped = section == "algorithm"  # the one table all of whose options may come in groups
    for key, value in _flat(table, None if grouped else free).items():
        group, dot, rest = key.partition(".")
        if group in groups:
            if not dot and not isinstance(value, Mapping):
                raise KinfolkError(
                    f"{section}.{group}", value, f"is a table; write its keys under [{section}.{group}]"
                )
            inner[group] |= {rest: value} if dot else value
            continue
        name = f"{section}.{_dotted(key) if grouped or group in free else _key(key)}"
        if key in free:
            raise KinfolkError(name, value, f"is a table; write [{section}.{key}] and its keys below")
        if group in free:
            if not rest.isidentifier():
                raise KinfolkError(name, value, "name an option with letters, digits and _")
            free[group][rest] = _option(name, value)
        elif key in known:
            values[key] = _typed(name, value, hints[key])
        elif "options" not in hints:
            raise KinfolkError(name, value, f"no such setting; {near(key, known)}")
        elif not all(part.isidentifier() for part in (key.split(".") if grouped else [key])):
            raise KinfolkError(name, value, "name an option with letters, digits and _")
        else:
            options[key] = _option(name, value)
    values |= {group: dict(sorted(given.items())) for group, given in free.items()}
    values |= {name: _section(f"{section}.{name}", groups[name], part) for name, part in inner.items()}
    return kind(**values, options=options) if "options" in hints else kind(**values)


def _flat(table: Mapping[str, Any], groups: Mapping[str, Any] | None) -> dict[str, Any]:
    """A table with groups of options by dotted name: all that are tables, or those of `groups` alone."""
    if groups is None:
        return flat_options(table)
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flat_options({key: value}) if key in groups else {key: value}
    return flat


def _typed(name: str, value: Any, kind: type[Any]) -> Any:
    """The value, if it is of this kind; a whole number is a number, true is not 1, a text alone is a list."""
    made = get_origin(kind)
    if made in (list, tuple):
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise KinfolkError(name, value, f"give a list, as [{value!r}]")
        return made(_typed(name, item, get_args(kind)[0]) for item in items)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        found = _WORDS.get(type(value), "something else")
        raise KinfolkError(name, value, f"is {found}; give {_WORDS[kind]}")
    if kind is float and not math.isfinite(value):
        raise KinfolkError(name, value, "give a finite number")
    if kind is str and not _writable(value):
        raise KinfolkError(name, value, "give text that UTF-8 can write")
    return value


def _option(name: str, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_option(name, inner) for inner in value]
    if isinstance(value, dict):
        section = name.split(".")[0]
        raise KinfolkError(name, value, f"is a table; write its keys straight under [{section}]")
    if type(value) not in _WORDS:
        raise KinfolkError(name, value, "give a number, text, true, false or a list of them")
    return _typed(name, value, type(value))


def _writable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _bounded(tables: Mapping[str, Any]) -> None:
    """Refuse deep nesting and huge integers, without recursion and without printing them."""
    level: list[tuple[str, Any]] = [("", tables)]
    for _ in range(MOST_DEPTH + 1):
        inner: list[tuple[str, Any]] = []
        for name, value in level:
            if isinstance(value, Mapping):
                inner += [(f"{name}.{_key(key)}".lstrip("."), v) for key, v in value.items()]
            elif isinstance(value, list | tuple):
                inner += [(name, v) for v in value]
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise KinfolkError(name, f"{value.bit_length()} bits", "give an integer of at most 64 bits")
        level = inner
    if level:
        raise KinfolkError(level[0][0][:80], None, f"is nested deeper than {MOST_DEPTH} levels")


def _check_ranges(spec: Experiment) -> None:
    check_spec(spec.data)
    found = values(spec)
    for name, known in {**engine_names(), **CHOICES}.items():
        if found[name] not in known:
            raise KinfolkError(name, found[name], f"give one of {', '.join(known)}")
    for name, known in NAMED.items():
        if found[name] not in known and ":" not in found[name]:
            hint = near(found[name], known)
            hint = hint if hint.startswith("known") else f"{hint} known: {', '.join(known)}"
            remedy = f"{hint}; or give an import path, 'package.module:name'"
            raise KinfolkError(name, found[name], remedy)
    for holds, remedy, names in RANGES:
        for name in names.split():
            if not holds(found[name]):
                raise KinfolkError(name, found[name], remedy)
    if spec.local.epochs < 1 and spec.local.steps < 1:
        raise KinfolkError("local.epochs", spec.local.epochs, "give 1 or more, or local.steps of 1 or more")


def _tables(spec: Experiment) -> Tables:
    """The tables of a spec, options beside the named keys and sorted, so that equal specs look alike."""
    tables: Tables = {}
    for section, kind in SECTIONS.items():
        part = getattr(spec, section)
        table = {f.name: getattr(part, f.name) for f in fields(kind)}
        for group in groups_of(kind):
            inner = table.pop(group)
            table |= {f"{group}.{f.name}": getattr(inner, f.name) for f in fields(inner)}
        options = table.pop("options", {})
        for group in [key for key, value in table.items() if isinstance(value, dict)]:
            place = list(table).index(group)
            inside = {f"{group}.{key}": value for key, value in sorted(table.pop(group).items())}
            items = list(table.items())
            table = dict([*items[:place], *inside.items(), *items[place:]])
        for key, value in sorted((flat_options(options) if section == "algorithm" else options).items()):
            if key in table:
                raise KinfolkError(f"{section}.{key}", value, "is not an option; set the field of that name")
            table[key] = value
        tables[section] = table
    return tables


def values(spec: Experiment) -> dict[str, Any]:
    """Every setting of a spec by its dotted name.

    >>> values(Experiment())["local.lr"]
    0.1
    """
    return {f"{s}.{key}": value for s, table in _tables(spec).items() for key, value in table.items()}


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _toml(key)


def _dotted(key: str) -> str:
    """A key as TOML writes it; each part of an option's dotted name is a key."""
    return ".".join(map(_key, key.split(".")))


def as_value(value: Any) -> str:
    """A value as the command line takes it: as in TOML, but text without quotes.

    >>> as_value("sgd"), as_value(True), as_value(0.05)
    ('sgd', 'true', '0.05')
    """
    return value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, str):
        # JSON's escapes are TOML's too; DEL is the one control letter that JSON lets through.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
