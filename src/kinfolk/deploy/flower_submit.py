"""What an admin asks of a Flower server: runs, and how they and the sites stand.

A Flower run is an app with settings. Ours is a page of settings that names what is installed everywhere; even
that is not unpacked (see `flower_worker`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kinfolk.deploy.flower_kits import CARD, Card
from kinfolk.deploy.flower_order import KEYS, Order
from kinfolk.deploy.flower_start import needed
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump

_APP = """
[project]
name = "kinfolk-run"
version = "1.0.0"
description = "Settings of a run; what they are for is installed where it runs."
license = "Apache-2.0"
[tool.flwr.app]
publisher = "kinfolk"
[tool.flwr.app.components]
serverapp = "kinfolk.deploy.flower_lead:app"
clientapp = "kinfolk.deploy.flower_site:app"
[tool.flwr.app.config]
"""


def for_flower(kit: Path) -> bool:
    """Whether a kit is one for Flower.

    >>> for_flower(Path("nowhere"))
    False
    """
    return (kit / CARD).exists()


@contextmanager
def session(kit: Path) -> Iterator[Session]:
    """A session of the admin whose kit it is."""
    card = Card.read(kit)
    if card.part != "admin":
        raise KinfolkError("kit", str(kit), "is no kit of a person; name the folder of an admin's kit")
    needed()
    from kinfolk.deploy.flower_worker import control

    opened = Session(card, control(card, patient=False))
    try:
        opened.get_system_info()
    except Exception as error:
        opened.close()
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = (
            f"the server cannot be reached with it ({reason}); run this on its machine, or through a tunnel"
        )
        raise KinfolkError("kit", str(kit), f"{remedy} to its port {card.port}") from error
    try:
        yield opened
    finally:
        opened.close()


@dataclass
class Session:
    """What is asked of a server, by the names that NVFlare's session has for it."""

    card: Card
    client: Any

    def get_system_info(self) -> SimpleNamespace:
        """The sites that are connected, and when each was heard of last."""
        from flwr.proto.control_pb2 import ListNodesRequest

        found = self.client.ListNodes(ListNodesRequest())
        # A node beats every so often, and is there until it has missed two beats.
        there = [
            SimpleNamespace(name=one.name, last_connect_time=one.online_until - 2 * one.heartbeat_interval)
            for one in found.nodes_info
            if one.status == "online" and one.name
        ]
        # A server that was started anew goes on with its runs: to whoever asks it is the same.
        return SimpleNamespace(client_info=there, server_info=SimpleNamespace(start_time=""))

    def start(
        self, spec: Experiment | None, run: str, sites: Sequence[str], resume: bool, seconds: float
    ) -> str:
        """Order a run; the number that Flower gives it."""
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        order = Order(run, dump(spec) if spec else "", tuple(map(str, sites)), resume, seconds)
        data = fab(order.signed(self.card))
        request = StartRunRequest(fab=fab_to_proto(Fab(sha256(data).hexdigest(), data, {})))
        answer = self.client.StartRun(request)
        if not answer.HasField("run_id"):
            raise KinfolkError("run", run, "was not taken; see the log of the server")
        return str(answer.run_id)

    def list_jobs(self) -> list[dict[str, Any]]:
        """All runs, the latest first, as Flower lists them. It knows only whether they have ended."""
        from flwr.proto.control_pb2 import ListRunsRequest

        return [_job(one) for one in self.client.ListRuns(ListRunsRequest()).run_dict.values()]

    def get_job_meta(self, job: str) -> dict[str, Any]:
        """How one run stands."""
        from flwr.proto.control_pb2 import ListRunsRequest

        found = self.client.ListRuns(ListRunsRequest(run_id=int(job))).run_dict
        return _job(found[int(job)]) if int(job) in found else {}

    def get_client_job_status(self) -> list[dict[str, Any]]:
        """Who takes part in which run: every node that is there in every run, as all get their messages.

        A node without any is listed too, with no run.
        """
        runs = ["", *(job["job_id"] for job in self.list_jobs())]
        there = [one.name for one in self.get_system_info().client_info]
        return [{"client_name": name, "job_id": run} for name in there for run in runs]

    def abort_job(self, job: str) -> None:
        """End a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        self.client.StopRun(StopRunRequest(run_id=int(job)))

    def close(self) -> None:
        """Hang up."""
        self.client.close()


def fab(settings: dict[str, str]) -> bytes:
    """An app of Flower that is settings alone."""
    from flwr.cli.build import build_fab_from_files

    # A string of JSON is one of TOML.
    told = "".join(f"{key} = {json.dumps(settings[key])}\n" for key in KEYS)
    data: bytes = build_fab_from_files({"pyproject.toml": (_APP + told).encode()})[0]
    return data


def _job(run: Any) -> dict[str, Any]:
    status = ":".join(word for word in (run.status.status, run.status.sub_status) if word)
    return {"job_id": str(run.run_id), "status": status.upper(), "details": run.status.details}
