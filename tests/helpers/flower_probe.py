"""A server app that writes down what Flower does when things go wrong; its sites are quick, slow and gone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from kinfolk.deploy.flower_site import packed

# Seconds that Flower is given for an answer; the slow site takes longer.
PATIENCE = 12.0
VARIABLE = "KINFOLK_PROBE"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask everybody; then, for a moment only, the one who is still at it."""
    nodes: dict[str, int] = {}
    while len(nodes) < 3:
        nodes = {one.name: one.node_id for one in grid.get_nodes()}
        time.sleep(0.5)
    asked = {who: Message(packed(b"hello"), node, "query") for who, node in nodes.items()}
    began = time.monotonic()
    replies = {
        one.metadata.reply_to_message_id: one
        for one in grid.send_and_receive(asked.values(), timeout=PATIENCE)
    }
    told = {"ttl": asked["quick"].metadata.ttl, "seconds": time.monotonic() - began}
    for who, message in asked.items():
        reply = replies.get(message.metadata.message_id)
        told[who] = _told(reply, nodes[who]) if reply is not None else None
    short = Message(packed(b"hello"), nodes["slow"], "query", ttl=2.0)
    told["short"] = [_told(one, nodes["slow"]) for one in grid.send_and_receive([short], timeout=PATIENCE)]
    Path(os.environ[VARIABLE]).write_text(json.dumps(told))


def _told(reply: Message, node: int) -> list[object]:
    """(whether it comes from that node, from which, the code of the error in it)."""
    source = reply.metadata.src_node_id
    return [source == node, source, reply.error.code if reply.has_error() else 0]
