"""What plays a run at a Flower server: the lead, over messages of Flower's grid.

Flower 1.41 hands a message to a node when the node asks, and a node that has none asks every 3 seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.flower_order import Order
from kinfolk.deploy.flower_site import packed, unpacked
from kinfolk.deploy.flower_start import KIT
from kinfolk.deploy.play import play
from kinfolk.types import Client

# Seconds between two looks for replies, and between two looks for nodes that were started anew.
POLL, NODES = 0.2, 3.0
# Less is no time at all for a message: a node may look for one only after 3 seconds.
LEAST = 8.0

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, as an admin has ordered it."""
    card = Card.read(Path(os.environ[KIT]))
    order = Order.taken(context.run_config, card)
    play(order.run, order.spec, order.sites, Calls(grid, card), order.resume, order.seconds)


class Calls:
    """A carrier by messages of Flower, to the nodes whose keys are in the server's kit and to no others."""

    def __init__(self, grid: Grid, card: Card) -> None:
        self.grid = grid
        self.sites = {key.strip(): Client(site) for site, key in (card.nodes or {}).items()}

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`. Flower raises for no site: a reply may be an error, or never come."""
        seconds = max(seconds, LEAST)
        until, nodes = time.monotonic() + seconds, self.nodes()
        for who in [who for who in requests if who not in nodes]:
            yield who, ConnectionError("is not connected")
        there = [who for who in requests if who in nodes]
        waiting = self._pushed({who: requests[who] for who in there}, nodes, seconds) if there else {}
        looked = time.monotonic()
        while waiting and time.monotonic() < until:
            for reply in list(self.grid.pull_messages(list(waiting))):
                who = waiting.pop(reply.metadata.reply_to_message_id)
                # An error of Flower's making comes from node 1: whose it is, what it answers tells.
                yield who, RuntimeError(reply.error.reason) if reply.has_error() else unpacked(reply)
            if time.monotonic() - looked > NODES:
                looked, now = time.monotonic(), self.nodes()
                # What a node had taken is lost with it, and no error comes of that if it is soon back.
                anew = {who for who, at in now.items() if at != nodes.get(who)}
                for number in [number for number, who in waiting.items() if who in anew]:
                    yield waiting.pop(number), ConnectionError("its node was started anew")
            time.sleep(POLL)

    def nodes(self) -> dict[Client, tuple[int, str]]:
        """Node and start of every site that is connected."""
        found: list[Any] = list(self.grid.get_nodes())
        known = {self.sites.get(one.public_key.decode().strip()): one for one in found}
        return {who: (one.node_id, one.last_activated_at) for who, one in known.items() if who}

    def _pushed(
        self, requests: Mapping[Client, bytes], nodes: Mapping[Client, tuple[int, str]], seconds: float
    ) -> dict[str, Client]:
        """Send; who is to answer which message. Without a `ttl` one would be kept for 12 hours."""
        messages = [
            Message(packed(data), nodes[who][0], "query", ttl=seconds) for who, data in requests.items()
        ]
        numbers = self.grid.push_messages(messages)
        return {number: who for number, who in zip(numbers, requests, strict=True) if number}
