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
    """Ask everybody, and a node that there is not."""
    nodes: dict[str, int] = {}
    while len(nodes) < 3:
        nodes = {one.name: one.node_id for one in grid.get_nodes()}
        time.sleep(0.5)
    names = {**nodes, "nobody": 12345}
    asked = {who: Message(packed(b"hello"), node, "query") for who, node in names.items()}
    began = time.monotonic()
    replies = {
        one.metadata.reply_to_message_id: one
        for one in grid.send_and_receive(asked.values(), timeout=PATIENCE)
    }
    told = {"ttl": asked["quick"].metadata.ttl, "seconds": time.monotonic() - began}
    for who, message in asked.items():
        reply = replies.get(message.metadata.message_id)
        code = reply.error.code if reply is not None and reply.has_error() else 0
        told[who] = None if reply is None else [reply.metadata.src_node_id == names[who], code]
        told[f"{who} source"] = None if reply is None else reply.metadata.src_node_id
    Path(os.environ[VARIABLE]).write_text(json.dumps(told))
