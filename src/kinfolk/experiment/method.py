"""One method of a comparison, written in a line: its name, its options, and settings of its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinfolk.algorithms.options import flat_options
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import title
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.experiment.spec import as_value, override, values

# What no file is called by: separators of folders, and what a terminal or a shell would stumble over.
_NOT_IN_NAMES = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def file_name(text: str) -> str:
    """A text as the name of one file or folder, which leads nowhere else and is not too long for a disk.

    >>> file_name("fedprox-mu=0.5"), file_name("../../x"), len(file_name("a" * 300))
    ('fedprox-mu=0.5', '_._.._x', 120)
    """
    name = _NOT_IN_NAMES.sub("_", text)
    name = name if not name.startswith(".") else f"_{name[1:]}"
    if len(name.encode()) <= 180:  # a disk takes 255 bytes, and a seed and an ending follow
        return name
    return f"{name.encode()[:103].decode(errors='ignore')}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class Method:
    """A method as it is run: the whole spec, and which settings in it are the method's own.

    >>> parse_method("fedavg;local.lr=0.05", Experiment()).title
    'fedavg lr=0.05'
    """

    spec: Experiment
    own: Mapping[str, Any]

    @property
    def title(self) -> str:
        """What sets it apart in tables: the name, changed options and its own settings."""
        return title(self.spec, self.own)

    @property
    def folder(self) -> str:
        """The title as a name for files and folders."""
        return file_name(self.title.replace(" ", "-"))

    @property
    def line(self) -> str:
        """The method as `-a` takes it.

        >>> parse_method("fedprox,mu=0.5;local.lr=0.05", Experiment()).line
        'fedprox,mu=0.5;local.lr=0.05'
        """
        options = flat_options(self.spec.algorithm.options)
        head = {key: as_value(value) for key, value in options.items()}
        # Commas stand between options, so that a list must come after them.
        lists = {f"algorithm.{key}": head.pop(key) for key in options if "," in head[key]}
        own = lists | {name: as_value(value) for name, value in self.own.items()}
        first = ",".join([self.spec.algorithm.name, *(f"{key}={text}" for key, text in head.items())])
        return ";".join([first, *(f"{name}={text}" for name, text in own.items())])

    def having(self, changes: Mapping[str, Any]) -> Method:
        """The same method with other settings, each by its name (`local.lr`, `algorithm.mu`)."""
        spec = override(self.spec, changes)
        mine = [*self.own, *(name for name in changes if not name.startswith("algorithm."))]
        return Method(spec, {name: values(spec)[name] for name in dict.fromkeys(mine)})


def parse_algorithm(text: str, spec: Experiment) -> AlgorithmSpec:
    """An algorithm written as `name,option=value,...`; the spec's own options hold for its own algorithm.

    >>> parse_algorithm("fedprox,mu=0.5", Experiment())
    AlgorithmSpec(name='fedprox', options={'mu': 0.5})
    """
    name, *options = (part.strip() for part in text.split(","))
    if not all("=" in option for option in options):
        raise KinfolkError("algorithm", text, "write name,option=value, as in fedprox,mu=0.5")
    usual = spec.algorithm.options if name == spec.algorithm.name else {}
    bare = replace(spec, algorithm=AlgorithmSpec(name, dict(usual)))
    return override(bare, [f"algorithm.{option}" for option in options]).algorithm


def parse_method(text: str, spec: Experiment) -> Method:
    """A method written as `name,option=value;section.key=value;...`: settings after `;` are its own.

    >>> parse_method("fedavg;local.lr=0.05;local.clip=1", Experiment()).own
    {'local.lr': 0.05, 'local.clip': 1.0}
    >>> parse_method("fedavg;run.rounds=9", Experiment())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: -a 'fedavg;run.rounds=9' = 'run.rounds=9': is the same for every method; ...
    """
    head, *settings = (part.strip() for part in text.split(";"))
    named: dict[str, str] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        section, dot, key = name.partition(".")
        if not (equals and dot and key and value):
            raise KinfolkError(f"-a {text!r}", setting, "write section.key=value, as in local.lr=0.05")
        if section in ("data", "engine", "run"):
            remedy = "is the same for every method; set it for all with --set, or `settings` in Python"
            raise KinfolkError(f"-a {text!r}", setting, remedy)
        if name in named:
            raise KinfolkError(f"-a {text!r}", setting, "is set twice; leave one out")
        named[name] = value
    plain = Method(replace(spec, algorithm=parse_algorithm(head, spec)), {})
    return plain.having(named)
