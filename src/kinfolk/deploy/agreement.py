"""What sites and the lead agree on before anything is trained; no row is part of it.

Each site introduces itself: whose rows it holds, of what form, how many, which versions it runs and which
keys are its own. The lead names the first site that does not fit and why, or sends the same agreement to all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import torch

from kinfolk.errors import KinfolkError
from kinfolk.experiment.outline import Outline, outline_from
from kinfolk.federation.federation import SPLITS, Federation, Split
from kinfolk.federation.scaling import Told, scaling_of, with_scaling
from kinfolk.types import Client, Rows, map_rows

# Messages of another protocol are not understood here; it changes with what messages hold or mean.
PROTOCOL = 2
# What is the same at all sites.
FORM = ("feature_names", "shape", "inputs", "targets", "scale", "recipe")
# Rows are float32; the moments of numbers within its range stay within that of doubles.
LARGEST = float(torch.finfo(torch.float32).max)


def versions() -> dict[str, str]:
    """What must be the same everywhere for the bits to be, as far as it is installed.

    >>> sorted(versions())
    ['kinfolk', 'protocol', 'torch']
    """
    return {
        "protocol": str(PROTOCOL),
        "kinfolk": version("kinfolk"),
        "torch": torch.__version__.split("+")[0],
    }


@dataclass(frozen=True)
class Introduction:
    """What a site says of itself: never a row; of rows how many, and their moments where the spec asks."""

    who: Client
    outline: Outline
    rows: Mapping[str, int]  # how many, by split
    key: str  # its public keys, which its provisioning bound to its name
    versions: Mapping[str, str]
    bond: str  # the authority's word that these keys are this site's; empty in one process
    told: Told  # of its training rows, where all are to be standardised alike
    owner: str = ""  # whose it is, by the same word of the authority; empty: its own
    federation: str = ""  # that its kit is of, with a mark of its authority; empty in one process

    @staticmethod
    def of(
        who: Client,
        rows: Federation,
        key: str,
        bond: str = "",
        by: str = "none",
        target: str = "none",
        owner: str = "",
        federation: str = "",
    ) -> Introduction:
        """The introduction of a site that holds these rows, which the spec wants standardised so.

        >>> from kinfolk.federation.own_data.arrays import from_arrays
        >>> own = from_arrays({"ann": (torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0]))})
        >>> Introduction.of(Client("ann"), own, "").rows
        {'train': 4, 'valid': 0, 'test': 1}
        """
        counts = {name: split.count(0) for name, split in rows.splits.items()}
        rows_of = {s: counts.get(s, 0) for s in SPLITS}
        return Introduction(
            who,
            Outline.of(rows),
            rows_of,
            key,
            versions(),
            bond,
            Told.of(rows, by, target),
            owner,
            federation,
        )

    def text(self) -> str:
        """As JSON."""
        plain = {
            name: getattr(self, name)
            for name in ("who", "rows", "key", "bond", "versions", "owner", "federation")
        }
        return json.dumps({**plain, "outline": asdict(self.outline), "told": self.told.to_list()})

    @staticmethod
    def read(text: str) -> Introduction:
        """An introduction out of `text`, every part of it checked; what is none is refused.

        >>> Introduction.read("[]")
        Traceback (most recent call last):
        kinfolk.errors.KinfolkError: introduction: cannot be read (list indices must be integers or slice...
        """
        try:
            told = json.loads(text)
            rows = {split: _count(told["rows"][split]) for split in SPLITS}
            words = {str(k): str(v) for k, v in told["versions"].items()}
            outline = outline_from(told["outline"])
            own = Told.from_list(told["told"])
            return Introduction(
                Client(str(told["who"])),
                outline,
                rows,
                str(told["key"]),
                words,
                str(told["bond"]),
                own,
                str(told["owner"]),
                str(told["federation"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KinfolkError(
                "introduction", None, f"cannot be read ({error}); is it a site of ours?"
            ) from error


@dataclass(frozen=True)
class Agreement:
    """What all have agreed on: the spec, whose rows there are and of what form, and everybody's keys."""

    run: str  # a name that no other run has
    spec: str  # as TOML
    outline: Outline
    rows: Mapping[Client, Mapping[str, int]]
    keys: Mapping[Client, str]
    bonds: Mapping[Client, str]  # the authority's word about each of the keys
    versions: Mapping[str, str]
    owners: Mapping[Client, str] = field(default_factory=dict)  # of sites that are not their own

    def text(self) -> str:
        """As JSON; equal agreements give equal text."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def read(text: str) -> Agreement:
        """The agreement behind `text`, which a site has from the lead."""
        try:
            told = json.loads(text)
            rows = {Client(c): {s: _count(n[s]) for s in SPLITS} for c, n in told["rows"].items()}
            keys, bonds = ({Client(c): str(k) for c, k in told[what].items()} for what in ("keys", "bonds"))
            outline = outline_from(told["outline"])
            words = {str(k): str(v) for k, v in told["versions"].items()}
            owners = {Client(c): str(owner) for c, owner in told["owners"].items()}
            return Agreement(str(told["run"]), str(told["spec"]), outline, rows, keys, bonds, words, owners)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise KinfolkError(
                "agreement", None, f"cannot be read ({error}); is the lead of this version?"
            ) from error

    def federation(self) -> Federation:
        """A federation with these clients and counts, and not one row: what all build their networks on."""
        counts = {s: torch.tensor([0, *(self.rows[c][s] for c in self.outline.clients)]) for s in SPLITS}
        none, each = torch.zeros(0, dtype=torch.int64), torch.arange(len(self.outline.clients))
        shell = self.outline.without_rows()
        splits = {s: Split(n.cumsum(0), none, each) for s, n in counts.items()}
        x, y = (map_rows(lambda t: t[:0], rows) for rows in (shell.x, shell.y))
        return replace(shell, x=x, y=y, splits=splits, maker=Elsewhere(self.outline))


@dataclass(frozen=True)
class Elsewhere:
    """In place of rows that are at a site: one row of zeros, enough to build a network for."""

    outline: Outline

    def __call__(self, i: int) -> Mapping[str, tuple[Rows, Rows]]:
        """The stand-in rows of client number `i`."""
        shell = self.outline.without_rows()
        x, y = (map_rows(lambda t: t[:1], rows) for rows in (shell.x, shell.y))
        return dict.fromkeys(SPLITS, (x, y))


def agree(introductions: Sequence[Introduction], text: str, run: str) -> Agreement:
    """The agreement of these sites on a spec, or an error that names a site and what is different there."""
    known = sorted(introductions, key=lambda one: one.who)
    if not known:
        raise KinfolkError("sites", 0, "nobody is here; start the sites, then submit again")
    names = [one.who for one in known]
    double = next((a for a, b in pairwise(names) if a == b), None)
    if double is not None:
        raise KinfolkError("site", double, "two sites have this name; give one of them a kit of its own")
    here = versions()
    for one in known:
        for what, value in here.items():
            if one.versions.get(what) != value:
                told = f"runs {what} {one.versions.get(what)}, the lead {value}; install the same"
                raise KinfolkError("site", one.who, told)
        if not one.rows["train"]:
            raise KinfolkError("site", one.who, "has no training rows; give it some, or leave it out")
        _check_moments(one)
    _one_federation(known)
    outline = common([one.outline for one in known], tuple(names))
    shell = replace(outline.without_rows(), scale=outline.scale)
    scaling = scaling_of([one.told for one in known], shell)
    outline = replace(outline, scaling=scaling, scale=None if scaling and scaling.pixels else outline.scale)
    rows = {one.who: dict(one.rows) for one in known}
    keys, bonds = {one.who: one.key for one in known}, {one.who: one.bond for one in known}
    owners = {one.who: one.owner for one in known if one.owner}
    return Agreement(run, text, outline, rows, keys, bonds, here, owners)


def _one_federation(known: Sequence[Introduction]) -> None:
    """Refuse a kit of another federation than that of most."""
    usual = _usual([one.federation for one in known])
    for one in known:
        if one.federation != usual:
            told = f"has a kit of {one.federation or 'none'}, others one of {usual or 'none'}; give it theirs"
            raise KinfolkError("site", one.who, told)


def _usual(values: Sequence[Any]) -> Any:
    """What most have; of equally many, the first."""
    return max(values, key=values.count)


def _check_moments(one: Introduction) -> None:
    """Refuse moments that no rows of this site's number and form can have: they scale the rows of all."""
    n, shape = one.rows["train"], one.outline.shape
    for told, count, columns in (
        (one.told.rows, n * math.prod(shape[1:]), shape[0] if shape else 0),
        (one.told.targets, n, one.outline.outputs),
    ):
        if told is None:
            continue
        fits = told.count == count and len(told.mean) == len(told.squares) == columns
        if not fits or (told.squares < 0).any() or (abs(told.mean) > LARGEST).any():
            raise KinfolkError(
                "site", one.who, "tells moments that its rows cannot have; install the same version"
            )


def taken(rows: Federation, outline: Outline) -> Federation:
    """A site's rows as all have agreed to take them: everybody's classes, and the scaling of all."""
    rows = _with_classes(rows, outline)
    return rows if outline.scaling is None else with_scaling(rows, outline.scaling)


def _with_classes(rows: Federation, outline: Outline) -> Federation:
    if rows.class_names == outline.class_names or not rows.class_names:
        return replace(rows, classes=outline.classes, class_names=outline.class_names)
    place = torch.tensor([outline.class_names.index(name) for name in rows.class_names])
    y = map_rows(lambda t: torch.where(t < 0, t, place[t.clamp(min=0)]), rows.y)
    return replace(rows, y=y, classes=outline.classes, class_names=outline.class_names)


def common(outlines: Sequence[Outline], clients: tuple[Client, ...]) -> Outline:
    """The outline of all sites together: columns and forms are the same, classes are those of any."""
    forms = [tuple(getattr(o, what) for what in FORM) for o in outlines]
    like = forms.index(_usual(forms))
    first, kinds = outlines[like], {bool(o.classes) for o in outlines}
    for other, who in zip(outlines, clients, strict=True):
        for what in FORM:
            here, there = getattr(first, what), getattr(other, what)
            if here != there:
                name, most = what.replace("_", " "), clients[like]
                told = f"its {name} are {_short(there)}, those of {most} {_short(here)}"
                raise KinfolkError("site", who, f"{told}; they must be the same")
    if len(kinds) > 1:
        who = next(
            c for c, o in zip(clients, outlines, strict=True) if bool(o.classes) != bool(first.classes)
        )
        raise KinfolkError("site", who, "predicts numbers where others predict classes, or the reverse")
    named = {bool(o.class_names) for o in outlines}
    if len(named) > 1:
        who = next(c for c, o in zip(clients, outlines, strict=True) if not o.class_names)
        raise KinfolkError("site", who, "its classes are numbers, those of others have names; name them all")
    same = all(o.class_names == first.class_names for o in outlines)
    names = first.class_names if same else tuple(sorted({n for o in outlines for n in o.class_names}))
    classes = len(names) if names else max(o.classes for o in outlines)
    outputs = classes if first.classes else first.outputs
    return replace(
        first, clients=clients, classes=classes, outputs=outputs, class_names=names, name="deployed"
    )


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 10**9:
        raise ValueError(f"{value!r} is no count of rows")
    return value


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
