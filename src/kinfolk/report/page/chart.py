"""What a chart of the report is, and how charts speak to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

# The names of the clients that the reader has picked, in every chart alike; nobody: all are shown.
PICKED: dict[str, Any] = {"name": "picked", "value": []}
# Mark what belongs to a client by the field `client`; then it fades while others are picked.
IS_PICKED = "length(picked) == 0 || indexof(picked, datum.client) >= 0"


@dataclass(frozen=True)
class Chart:
    """One figure of the report: a Vega-Lite specification, and the same numbers as a table.

    >>> frame = pd.DataFrame({"client": ["ann", "bob"], "accuracy": [0.5, 0.75]})
    >>> Chart("clients", "Accuracy of each client", {"mark": "bar"}, frame, "Bob has more.").rounds
    ()
    """

    name: str  # of its files and its place in the page: lower case and hyphens
    title: str
    spec: Mapping[str, Any]  # Vega-Lite, without a theme; its data inline under `data.values` or `datasets`
    table: pd.DataFrame  # what a reader sees who cannot see the picture
    says: str  # in one or two sentences, with numbers: the text in place of the picture
    notes: tuple[str, ...] = ()  # what was left out or put together
    rounds: Sequence[int] = ()  # the values that the page's slider gives to the parameter `round`


def opacity(shown: float = 0.9, faded: float = 0.12) -> dict[str, Any]:
    """The opacity of marks of clients: those that are not picked fade.

    >>> opacity()["value"]
    0.12
    """
    return {"condition": {"test": IS_PICKED, "value": shown}, "value": faded}


def round_parameter(rounds: Sequence[int]) -> dict[str, Any]:
    """The parameter `round` of a chart that shows one round at a time; the last one is shown first.

    >>> round_parameter([0, 5, 10])
    {'name': 'round', 'value': 10}
    """
    return {"name": "round", "value": rounds[-1]}
