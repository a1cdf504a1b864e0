"""What answers Flower's messages at a site: a thin pipe to the site's own process.

It holds no rows, no memory and no keys.
"""

from __future__ import annotations

import os

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from kinfolk.deploy.agent import VARIABLE, ask

# Longer than any deadline of the lead, which is the one that counts.
PATIENCE = 24 * 3600.0
KEY = "kinfolk"

app = ClientApp()


@app.query()
def pipe(message: Message, context: Context) -> Message:
    """One message of the lead, and the site's answer."""
    answer = ask(os.environ[VARIABLE], unpacked(message), PATIENCE)
    return Message(packed(answer), reply_to=message)


def packed(data: bytes) -> RecordDict:
    """Bytes as Flower carries them: an array of them, which travels in pieces."""
    return RecordDict({KEY: ArrayRecord({KEY: Array("uint8", (len(data),), "bytes", data)})})


def unpacked(message: Message) -> bytes:
    """The bytes in a message."""
    data: bytes = message.content.array_records[KEY][KEY].data
    return data
