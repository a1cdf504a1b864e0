"""Flower's own commands as Kinfolk starts them: they end with whoever has started them, and a SuperLink
answers those who are not on its machine on nothing but what nodes need.

Flower 1.41 serves nodes, users and apps on one port, and asks users for no login: whoever reached the paths
for users could start and stop runs, and register nodes.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# What nodes ask for. A path is what a route is found by: nothing is decoded or made shorter afterwards.
NODES = "/v1/fleet/"


class Gate:
    """Lets everybody ask what nodes ask, and nobody else from elsewhere anything."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "lifespan" or may_pass(scope.get("path", ""), scope.get("client")):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})


def may_pass(path: str, client: tuple[str, int] | None) -> bool:
    """Whether somebody at an address may ask for a path.

    >>> [may_pass(path, ("10.0.0.9", 1)) for path in ("/v1/fleet/pull-messages", "/v1/control/start-run")]
    [True, False]
    >>> may_pass("/v1/control/start-run", ("127.0.0.1", 1))
    True
    """
    if path.startswith(NODES):
        return True
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def main() -> None:
    """`python -m kinfolk.deploy.flower_engine PARENT superlink|supernode WORDS...`."""
    from flwr.supercore.app_utils import start_parent_process_monitor

    parent, which, *words = sys.argv[1:]
    sys.argv = [f"flower-{which}", *words]
    start_parent_process_monitor(int(parent))
    if which == "superlink":
        from flwr.superlink import extensions
        from flwr.superlink.cli.flower_superlink import flower_superlink
        from starlette.middleware import Middleware

        # The hook by which Flower's own additions to a SuperLink bring middleware, the outermost first.
        extensions.get_middleware = lambda: (Middleware(Gate),)
        flower_superlink()
    else:
        from flwr.supernode.cli.flower_supernode import flower_supernode

        flower_supernode()


if __name__ == "__main__":
    main()
