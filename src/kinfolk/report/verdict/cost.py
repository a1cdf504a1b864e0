"""What a method costs: bytes and seconds, beside FedAvg or the cheapest method with one model for all."""

from __future__ import annotations

import math

from kinfolk.report.against import Row
from kinfolk.report.read import human_bytes, power
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.sentence import ABOUT_EQUAL, Sentence, say, times

BYTES, SECONDS = "bytes_per_client_round", "seconds_per_round"


def cost_sentences(known: Evidence, chosen: Row) -> list[Sentence]:
    """Bytes and seconds of the chosen method, beside those of the reference and of the dearest."""
    reference = reference_row(known, chosen)
    return [*_bytes(known, chosen, reference), *_seconds(known, chosen, reference)]


def reference_row(known: Evidence, chosen: Row) -> Row:
    """FedAvg; or else the cheapest with one model for all, or the cheapest of all."""
    told = [row for row in known.rows if not math.isnan(row[BYTES])] or [chosen]
    fedavg = [row for row in told if row["algorithm"] == "fedavg"]
    one = [row for row in told if known.kind(row) == "one"]
    return min(fedavg or one or told, key=lambda row: float(row[BYTES]))


def _bytes(known: Evidence, chosen: Row, reference: Row) -> list[Sentence]:
    mine, base = float(chosen[BYTES]), float(reference[BYTES])
    if math.isnan(mine):
        return []
    name, numbers = str(chosen["algorithm"]), {"bytes": mine, "reference": base}
    text = f"{name} sends {human_bytes(mine)} per client and round" if mine else f"{name} sends nothing"
    if chosen["algorithm"] != reference["algorithm"] and base:
        other = f"{reference['algorithm']} ({human_bytes(base)})"
        text += (
            f", {times(mine / base)} {other}"
            if mine
            else f"; {reference['algorithm']} sends {human_bytes(base)}"
        )
        text += "" if mine else " per client and round"
    dearest = max(
        (row for row in known.rows if not math.isnan(row[BYTES])), key=lambda row: float(row[BYTES])
    )
    most = float(dearest[BYTES])
    if dearest["algorithm"] not in (name, reference["algorithm"]) and most > ABOUT_EQUAL * max(mine, base):
        text += f"; {dearest['algorithm']} sends most, {human_bytes(most)}"
        numbers["most"] = most
    return [say("bytes", f"{text}.", "plain", **numbers)]


def _seconds(known: Evidence, chosen: Row, reference: Row) -> list[Sentence]:
    mine, base = float(chosen[SECONDS]), float(reference[SECONDS])
    if math.isnan(mine):
        return []
    text = f"A round of {chosen['algorithm']} takes {seconds(mine)}"
    if chosen["algorithm"] != reference["algorithm"] and base > 0:
        text += f", {times(mine / base, 'long')} one of {reference['algorithm']} ({seconds(base)})"
    text += ": computing on the machine of these runs, without any network."
    return [say("seconds", text, "plain", seconds=mine, reference=base)]


def seconds(spent: float) -> str:
    """A time in the unit that suits it.

    >>> seconds(0.0074), seconds(2.345), seconds(150.0), seconds(1e-7)
    ('7.4 ms', '2.3 s', '2.5 min', '1.0e-4 ms')
    """
    if spent >= 100:
        return f"{spent / 60:.2g} min" if spent < 6000 else f"{spent / 3600:.3g} h"
    if spent >= 1:
        return f"{spent:.2g} s"
    return f"{1000 * spent:.2g} ms" if spent >= 1e-4 or not spent else f"{power(1000 * spent, 1)} ms"
