"""Takes tasks from a SuperLink or a SuperNode and runs what is installed here, as a SuperExec would not.

A SuperExec unpacks the app that came with a run and starts it, at the server and at every node, for each
message in a process of its own. Here the app that came is not unpacked: of it the settings are read, no code.
One process answers all messages, one after another, as a SuperNode hands them out.

The calls are those of Flower 1.41.0's own SuperExec and apps; its interface for them is not a public one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.error import Error
from flwr.common.config import get_fused_config_from_fab
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_from_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.flower_start import KIT, RUNTIME

# Seconds between two looks for a task.
LOOK = 0.2
_PROTECTED = ("/flwr.proto.Runtime/AcquireTask",)


class Worker:
    """Serves one SuperLink or SuperNode, which is on this machine, with one installed app."""

    def __init__(self, card: Card, port: int, app: Callable[..., Any]) -> None:
        self.app, self.server = app, card.part == "server"
        self.address = f"127.0.0.1:{port}"
        self.certificates = card.file("ca.crt").read_bytes() if self.server else None
        self.secret = card.file("superexec.secret").read_bytes()

    def client(self, who: str, *interceptors: Any) -> RuntimeHttpClient:
        """A client of the runtime; it tries again for as long as nobody is there."""
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=not self.server,
            root_certificates=self.certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=who), *interceptors],
            retry_invoker=make_simple_http_retry_invoker(),
        )

    def serve(self) -> None:
        """Take tasks and do them, for as long as whoever has started this process is there."""
        parent = os.getppid()
        signed = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_PROTECTED)
        client = self.client("SuperExec", signed)
        kind = TaskType.SERVER_APP if self.server else TaskType.CLIENT_APP
        request = AcquireTaskRequest(supported_task_types=[kind])
        while True:
            try:
                token = client.AcquireTask(request).token
                if not token:
                    time.sleep(LOOK)
                elif self.server:
                    self.play(token)
                else:
                    self.answer(token)
            except (KeyboardInterrupt, RunNotRunningException):  # so Flower tells that a run was stopped
                if os.getppid() != parent:  # and so it tells of that
                    return
                print("a run was stopped", flush=True)
            except Exception as error:  # whatever was wrong with one, the next task may be sound
                print(f"a task was lost ({type(error).__name__}: {error})", flush=True)
                time.sleep(LOOK)

    @contextmanager
    def task(self, who: str, token: str) -> Iterator[RuntimeHttpClient]:
        """A client for one task, which is alive for as long as it is held."""
        client = self.client(who, RuntimeTokenHttpInterceptor(token))
        beat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        beat.start()
        try:
            yield client
        finally:
            if beat.is_running:
                beat.stop()
            client.close()

    def answer(self, token: str) -> None:
        """Answer one message by the app; why it cannot is told by the kind of error alone."""
        with self.task("flwr-clientapp", token) as client:
            message, context, _, _ = pull_task_input(client)
            status, told = SubStatus.COMPLETED, ""
            try:
                reply = self.app(message=message, context=context)
            except Exception as error:
                print(f"a message was not answered ({type(error).__name__}: {error})", flush=True)
                status, told = SubStatus.FAILED, type(error).__name__
                reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told), reply_to=message)
            push_message(client, reply, context)
            push_task_output(client, context, status, told)

    def play(self, token: str) -> None:
        """Play one run by the app."""
        with self.task("flwr-serverapp", token) as client:
            told = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = told.task_id, told.run.run_id
            TaskIdentity.node_id = told.context.node_id
            context, run = context_from_proto(told.context), run_from_proto(told.run)
            context.run_config = get_fused_config_from_fab(fab_from_proto(told.fab).content, run)
            grid = HttpGrid(self.address, False, self.certificates, token=token)
            grid.set_run(run)
            output = PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            try:
                self.app(grid, context)
            except Exception as error:
                print(f"run {run.run_id} has failed ({type(error).__name__}: {error})", flush=True)
                output = PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=str(error)[:500])
            finally:
                grid.close()
            client.PushTaskOutput(output)


def register(card: Card) -> None:
    """Tell the SuperLink the keys of all sites' nodes; it forgets none."""
    client = control(card)
    try:
        for site, key in (card.nodes or {}).items():
            try:
                client.RegisterNode(RegisterNodeRequest(public_key=key.encode(), name=site))
            except httpx.HTTPStatusError as error:
                if "already" not in error.response.text.lower():
                    raise
    finally:
        client.close()


def control(card: Card, patient: bool = True) -> ControlHttpClient:
    """A client of what a SuperLink has for users; it is here, or at the end of a tunnel from here."""
    return ControlHttpClient.from_server_address(
        server_address=f"127.0.0.1:{card.port}",
        insecure=False,
        root_certificates=card.file("ca.crt").read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        retry_invoker=make_simple_http_retry_invoker() if patient else None,
    )


def main(app: str = "") -> None:
    """`python -m kinfolk.deploy.flower_worker PARENT`, with the kit in the environment."""
    start_parent_process_monitor(int(sys.argv[1]))
    card = Card.read(Path(os.environ[KIT]))
    if card.part == "server":
        register(card)
    module = app or f"kinfolk.deploy.flower_{'lead' if card.part == 'server' else 'site'}"
    Worker(card, int(os.environ[RUNTIME]), import_module(module).app).serve()


if __name__ == "__main__":
    main()
