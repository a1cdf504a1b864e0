"""The memories of a run's clients, and the journal of what they must never forget.

The journal is a file of its own in the run folder. A row is on the disk before anything that follows from it
leaves a client; no void round, no rewinding and no checkpoint touches it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kinfolk.engines.memory import Added, Memories
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Parts
from kinfolk.experiment.record import disk_errors
from kinfolk.experiment.secure_sums import is_on
from kinfolk.private import private_file, private_folder
from kinfolk.script import NeverForgets, Remembers, client_tasks
from kinfolk.secure_sums.holding import LOG, first_memory
from kinfolk.types import Client, Message, map_leaves


def make_memories(parts: Parts, device: torch.device, folder: Path | None = None) -> Memories:
    """Empty memories on a device; with a folder, they know and write its journal.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> make_memories(build_parts(Experiment()), torch.device("cpu"))
    {}
    """
    algorithm = parts.algorithm
    remember = algorithm.init_client if isinstance(algorithm, Remembers) else lambda who: {}
    marked = parts.attack.with_flag(remember, client_tasks(algorithm)) if parts.attack else remember
    lasting = algorithm.lasting if isinstance(algorithm, NeverForgets) else ()
    if is_on(parts.spec.secure_sums):
        marked, lasting = first_memory(marked), (*lasting, LOG)
    memories = Memories(lambda who: map_leaves(lambda t: t.to(device), marked(who)), lasting)
    if folder is not None:
        journal = Journal(folder)
        memories.journal = journal.append
        memories.recall(journal.read())
    return memories


def check_journal(folder: Path, saved: Mapping[Client, Message], lasting: Sequence[str]) -> None:
    """Refuse a journal that lacks what the memories in a checkpoint hold: later answers may be lost as well.

    >>> check_journal(Path("nowhere"), {}, ("log",))
    """
    if not lasting:
        return
    known = {(who, entry, bytes(row)) for who, entry, new in Journal(folder).read() for row in new.numpy()}
    held = {
        (who, entry, bytes(row))
        for who, memory in saved.items()
        for entry in lasting
        if isinstance(rows := memory.get(entry), Tensor)
        for row in rows.cpu().numpy()
    }
    if held - known:
        path = Journal(folder).path
        remedy = f"lacks {len(held - known)} answers that the checkpoint knows of; restore it, or start again"
        raise KinfolkError("run", str(path), f"{remedy} in another folder")


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
