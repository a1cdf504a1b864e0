"""The memories of a run's clients, and the journal of what they must never forget.

The journal is a file of its own in the run folder. A row is on the disk before anything that follows from it
leaves a client; no void round, no rewinding and no checkpoint touches it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from kinfolk.engines.memory import Added, Memories
from kinfolk.experiment.attack import given
from kinfolk.experiment.build import Parts
from kinfolk.experiment.record import disk_errors
from kinfolk.private import private_file, private_folder
from kinfolk.script import NeverForgets, Remembers, client_tasks
from kinfolk.types import Client, map_leaves


def make_memories(parts: Parts, device: torch.device, folder: Path | None = None) -> Memories:
    """Empty memories on a device; with a folder, they know and write its journal.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> make_memories(build_parts(Experiment()), torch.device("cpu"))
    {}
    """
    algorithm = parts.algorithm
    remember = algorithm.init_client if isinstance(algorithm, Remembers) else lambda who: {}
    marked = parts.attack.with_flag(remember, given(client_tasks(algorithm))) if parts.attack else remember
    lasting = algorithm.lasting if isinstance(algorithm, NeverForgets) else ()
    memories = Memories(lambda who: map_leaves(lambda t: t.to(device), marked(who)), lasting)
    if folder is not None:
        journal = Journal(folder)
        memories.journal = journal.append
        memories.recall(journal.read())
    return memories


class Journal:
    """Rows that clients have added, one line each, in `answered.jsonl` of the run folder.

    >>> import tempfile
    >>> row = torch.tensor([[1, 255]], dtype=torch.uint8)
    >>> with tempfile.TemporaryDirectory() as run:
    ...     Journal(Path(run)).append([(Client("ann"), "log", row)])
    ...     Journal(Path(run)).read()
    [('ann', 'log', tensor([[  1, 255]], dtype=torch.uint8))]
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / "answered.jsonl"

    def append(self, rows: Added) -> None:
        """Write rows, and come back when the disk has them."""
        lines = [
            json.dumps({"client": who, "entry": entry, "row": bytes(row).hex()})
            for who, entry, new in rows
            for row in new.cpu().numpy()
        ]
        with disk_errors("run", self.path.parent):
            private_folder(self.path.parent)
            # A line that a crash has torn ends here.
            torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
            with open(self.path, "ab", opener=private_file) as file:
                file.write(("\n" * torn + "".join(line + "\n" for line in lines)).encode())
                file.flush()
                os.fsync(file.fileno())

    def read(self) -> Added:
        """All rows; a line that a crash has torn is left out, as nothing that follows from it has left."""
        with disk_errors("run", self.path.parent):
            text = self.path.read_text(errors="replace") if self.path.exists() else ""
        found: Added = []
        for line in text.split("\n"):
            try:
                facts = json.loads(line)
                row = torch.frombuffer(bytearray.fromhex(facts["row"]), dtype=torch.uint8)
                found.append((Client(facts["client"]), str(facts["entry"]), row[None]))
            except (ValueError, KeyError, TypeError):
                continue
        return found
