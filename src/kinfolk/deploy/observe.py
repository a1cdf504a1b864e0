"""How a deployed run stands, for machines: health, status as JSON, metrics as Prometheus reads them.

Nothing here says anything of a site's rows, models or groups: rounds, bytes, seconds and who was late.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from kinfolk.experiment.run import Watch
from kinfolk.types import Client

PREFIX = "kinfolk_"
# What stands on a page: (its type, the text).
Page = Callable[[], tuple[str, str]]


class Observed:
    """What a run's events add up to. Its `watch` hands every event on.

    >>> seen = Observed("first", [Client("north"), Client("south")])
    >>> seen.watch("round", {"round": 3, "answered": 2, "cohort": 2, "seconds": {"update": 1.5}})
    >>> seen.status()["round"], seen.metrics().splitlines()[1]
    (3, 'kinfolk_round{run="first"} 3')
    """

    def __init__(self, run: str, sites: list[Client], then: Watch = lambda event, facts: None) -> None:
        self.run, self.sites, self.then = run, sites, then
        self._lock = threading.Lock()
        self._began = self._heard = time.monotonic()
        self._facts: dict[str, Any] = {
            "round": 0,
            "rounds": 0,
            "answered": 0,
            "cohort": 0,
            "state": "running",
        }
        self._bytes: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, float] = {}
        self._away, self._left = set[str](), set[str]()
        self._late: dict[str, int] = {}

    def watch(self, event: str, facts: dict[str, Any]) -> Any:
        """Take an event in."""
        with self._lock:
            self._heard = time.monotonic()
            if event == "round":
                self._facts |= {
                    key: facts[key] for key in ("round", "rounds", "answered", "cohort") if key in facts
                }
                for kind, ways in facts.get("bytes", {}).items():
                    for way, count in ways.items():
                        self._bytes[kind, way] = self._bytes.get((kind, way), 0) + int(count)
                for phase, seconds in facts.get("seconds", {}).items():
                    self._seconds[phase] = self._seconds.get(phase, 0.0) + float(seconds)
            elif "late" in facts:  # a site has missed a deadline
                self._away.add(facts["late"])
                self._late[facts["late"]] = self._late.get(facts["late"], 0) + 1
            elif "left" in facts:
                self._left.add(facts["left"])
            elif "back" in facts:
                self._away.discard(facts["back"])
                self._left.discard(facts["back"])
            elif event == "end":
                self._facts["state"] = str(facts.get("status", "finished"))
        return self.then(event, facts)

    def status(self) -> dict[str, Any]:
        """How the run stands."""
        with self._lock:
            now = time.monotonic()
            gone = {**dict.fromkeys(self._away, "away"), **dict.fromkeys(self._left, "left")}
            sites = {site: gone.get(site, "here") for site in sorted(self.sites)}
            spent = {"seconds": self._seconds.copy(), "late": self._late.copy()}
            sent = {f"{kind}.{way}": count for (kind, way), count in self._bytes.items()}
            times = {"running_for": now - self._began, "heard_of": now - self._heard}
            return {"run": self.run, **self._facts, "sites": sites, "bytes": sent, **spent, **times}

    def metrics(self) -> str:
        """The same in the text format of Prometheus."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        told, own = self.status(), {"run": self.run}
        yield from _series("round", "gauge", [(own, told["round"])])
        yield from _series("clients_answered", "gauge", [(own, told["answered"])])
        yield from _series("clients_asked", "gauge", [(own, told["cohort"])])
        here = [({**own, "site": site}, int(at == "here")) for site, at in told["sites"].items()]
        yield from _series("site_here", "gauge", here)
        late = [({**own, "site": site}, told["late"].get(site, 0)) for site in told["sites"]]
        yield from _series("deadlines_missed_total", "counter", late)
        sent = [
            ({**own, "kind": kind, "way": way}, count)
            for key, count in told["bytes"].items()
            for kind, _, way in [key.rpartition(".")]
        ]
        yield from _series("bytes_total", "counter", sent)
        spent = [({**own, "phase": phase}, seconds) for phase, seconds in told["seconds"].items()]
        yield from _series("seconds_total", "counter", spent)


def _series(name: str, kind: str, values: Sequence[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    if values:
        yield f"# TYPE {PREFIX}{name} {kind}"
    for labels, value in values:
        told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{PREFIX}{name}{{{told}}} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Endpoint:
    """Serves pages on one port until it is closed: /health, /status and /metrics of a run, or those given.

    On this machine alone, unless `host` says otherwise. A page without a text is not to be had at the moment.

    >>> from urllib.request import urlopen
    >>> with Endpoint(Observed("first", [Client("north")]), 0) as endpoint:
    ...     json.loads(urlopen(f"http://127.0.0.1:{endpoint.port}/status").read())["sites"]
    {'north': 'here'}
    """

    def __init__(
        self,
        seen: Observed | None,
        port: int,
        host: str = "127.0.0.1",
        given: Mapping[str, Page] | None = None,
    ) -> None:
        pages: dict[str, Page] = dict(given or {})
        if seen is not None:
            pages |= {
                "/health": lambda: ("text/plain", "ok\n"),
                "/status": lambda: ("application/json", json.dumps(seen.status())),
                "/metrics": lambda: ("text/plain; version=0.0.4", seen.metrics()),
            }

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the name that http.server looks for
                page = pages.get(self.path)
                kind, text = page() if page else ("text/plain", "no such page\n")
                self.send_response(404 if page is None else 200 if text else 503)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *given: Any) -> None:
                """Looking is not worth a line."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
