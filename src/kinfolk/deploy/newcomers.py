"""A site whose kit was made later gets a model of a run at once, also while the run goes on.

It is sent the models of all groups, chooses by the rule by which the method assigns newcomers, and keeps the
chosen one; what it tells is the number of its group, and not even that under differential privacy. It trains
in no round of the run: whose rows a run has is agreed on before it begins.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kinfolk.deploy.agreement import Agreement, Introduction, common, versions
from kinfolk.deploy.carrier import Carrier
from kinfolk.deploy.delivery import facts_of
from kinfolk.deploy.lead import agreed, introductions
from kinfolk.deploy.remote import Remote, begin
from kinfolk.engines.memory import Memories
from kinfolk.errors import KinfolkError
from kinfolk.experiment.kept_models import KeptModels
from kinfolk.experiment.record import write_json
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Message

# Who came later, and the group of each, in the run folder.
FILE = "newcomers.json"


def welcome(
    folder: Path, carrier: Carrier, sites: Sequence[Client], seconds: float = 600.0
) -> dict[Client, int | None]:
    """Give newcomers a model of the run in a folder; the group of each, None where there is none to tell.

    Of a run that goes on it is the newest that a checkpoint holds.
    """
    agreement, kept = agreed(folder), KeptModels(folder)
    round = kept.round("last")
    centres, groups = kept.common(round)
    data = replace(kept.spec.data, standardize="none", standardize_target="none")
    # Rows are standardised by the moments of those who were there first: new ones are not asked for.
    met = introductions(carrier, sites, replace(kept.spec, data=data), seconds)
    grown = joined(agreement, met)
    lost = begin(carrier, grown, sites, seconds)
    for who, why in lost.items():
        raise KinfolkError("site", who, f"cannot join: {why}")
    remote = Remote(carrier, grown, {}, Memories(lambda who: {}), seconds=seconds)
    context = RoundContext(Seed(kept.spec.run.seed), round, grown.outline.clients)
    own = {"facts": json.dumps({**facts_of(folder), "scores": []})}
    bodies: dict[Client, Message] = {who: {"centres": centres} for who in sites}
    have = remote.hand_over("choose", bodies, dict.fromkeys(sites, own), context)
    missing = sorted(set(sites) - set(have))
    if missing:
        why = remote.take_rejected().get(missing[0], "has not answered")
        raise KinfolkError("site", missing[0], f"has no model yet: it {why}")
    found = {who: _number(back.get("group", ""), groups) for who, back in have.items()}
    known = json.loads((folder / FILE).read_text()) if (folder / FILE).exists() else {}
    write_json(folder / FILE, {**known, **{c: {"group": g, "round": round} for c, g in found.items()}})
    return found


def joined(agreement: Agreement, new: Sequence[Introduction]) -> Agreement:
    """The agreement of a run with newcomers beside its sites, under a name of its own.

    They must have its columns, and none but its classes; of a class that they lack they may be served all the
    same.
    """
    run, here = agreement.outline, versions()
    like = replace(run, scale=run.pixels, scaling=None, clients=())
    for one in new:
        if one.who in agreement.rows:
            raise KinfolkError(
                "site", one.who, "is a site of this run from the beginning; it has its model at the end"
            )
        wrong = next((what for what, value in here.items() if one.versions.get(what) != value), None)
        if wrong:
            told = f"runs {wrong} {one.versions.get(wrong)}, the run {here[wrong]}; install the same"
            raise KinfolkError("site", one.who, told)
        if not one.rows["train"]:
            raise KinfolkError("site", one.who, "has no training rows, so nothing to choose a group by")
        both = common([like, one.outline], (Client("the run"), one.who))
        strange = sorted(set(both.class_names) - set(run.class_names))
        if strange or both.classes > run.classes:
            told = f"has the class {strange[0]!r}" if strange else f"has {one.outline.classes} classes"
            raise KinfolkError("site", one.who, f"{told}, which the run does not know; leave its rows out")
    rows, keys, bonds = (
        {**before, **{one.who: getattr(one, what) for one in new}}
        for before, what in ((agreement.rows, "rows"), (agreement.keys, "key"), (agreement.bonds, "bond"))
    )
    outline = replace(run, clients=tuple(sorted(rows)))
    owners = {**agreement.owners, **{one.who: one.owner for one in new if one.owner}}
    grown = replace(agreement, run=secrets.token_hex(8), outline=outline, rows=rows, keys=keys)
    return replace(grown, bonds=bonds, owners=owners)


def _number(told: str, groups: Sequence[int]) -> int | None:
    """The run's number of the group that a site says it has chosen."""
    return groups[int(told)] if told.isdecimal() and len(told) < 9 and int(told) < len(groups) else None
