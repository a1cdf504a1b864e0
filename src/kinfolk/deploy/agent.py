"""The door of a site: a Unix socket by which the engine's job process reaches the site's own process.

The job process is the engine's. It gives and gets bytes; rows, memory and keys are in the process behind
the socket, which only the same user can reach.
"""

from __future__ import annotations

import hashlib
import os
import socket
import socketserver
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

from kinfolk.errors import KinfolkError
from kinfolk.private import private_folder

# Where the job process of a site finds the socket; the start script of its engine hands it on.
VARIABLE = "KINFOLK_SITE"
# No message is larger; a peer that says otherwise is not ours.
LARGEST = 1 << 32
# Seconds without a byte after which a message that was begun is let go.
IDLE = 60.0
# Longer paths are none for a socket (108 bytes on Linux, 104 elsewhere).
_LONGEST_PATH = 100


class Agent:
    """Serves one site until it is closed; `refusal` is what is answered to a message of a size, unread.

    >>> with tempfile.TemporaryDirectory() as folder, Agent(bytes.upper, Path(folder) / "door") as agent:
    ...     ask(agent.path, b"hello", 5)
    b'HELLO'
    """

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        path: Path,
        refusal: Callable[[int], bytes | None] = lambda size: None,
    ) -> None:
        self.path = path
        _own_folder(path.parent)
        if _answers(path):
            raise KinfolkError("site", str(path.parent), "is running already; stop it first")
        with suppress(FileNotFoundError):
            path.unlink()  # a killed one has left it
        self._server = _Server(str(path), _handler(answer, refusal))
        os.chmod(path, 0o600)
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; what is being answered is finished first."""
        self._server.shutdown()
        self._server.server_close()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def ask(path: str | Path, data: bytes, seconds: float) -> bytes:
    """One message to the site behind a socket, and its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(seconds)
        door.connect(str(path))
        _put(door, data)
        return _take(door)


def socket_of(folder: Path) -> Path:
    """Where the socket of a site is whose files are in a folder.

    >>> socket_of(Path("/srv/kinfolk")).name
    'site.sock'
    """
    usual = folder.absolute() / "site.sock"
    if len(os.fsencode(usual)) <= _LONGEST_PATH:
        return usual
    short = hashlib.sha256(os.fsencode(usual)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"kinfolk-{os.getuid()}" / f"{short}.sock"


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


def _handler(
    answer: Callable[[bytes], bytes], refusal: Callable[[int], bytes | None]
) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(IDLE)
            # Whoever asked has gone, or never ends: they will ask again.
            with suppress(ConnectionError, TimeoutError):
                size = _size(self.request)
                instead = refusal(size)
                if instead is None:
                    _put(self.request, answer(_exactly(self.request, size)))
                    return
                _skip(self.request, size)
                _put(self.request, instead)

    return Handler


def _put(door: socket.socket, data: bytes) -> None:
    door.sendall(len(data).to_bytes(8, "big"))
    door.sendall(data)


def _take(door: socket.socket) -> bytes:
    return _exactly(door, _size(door))


def _size(door: socket.socket) -> int:
    size = int.from_bytes(_exactly(door, 8), "big")
    if size > LARGEST:
        raise ConnectionError(f"a message of {size} bytes is none of ours")
    return size


def _skip(door: socket.socket, size: int) -> None:
    """Let go of so many bytes: whoever writes them waits for an answer only then."""
    while size > 0:
        got = len(door.recv(min(size, 1 << 20)))
        if not got:
            raise ConnectionError("the other end has gone")
        size -= got


def _exactly(door: socket.socket, size: int) -> bytes:
    data = bytearray()  # of what has come: what is announced may never be sent
    while len(data) < size:
        got = door.recv(min(size - len(data), 1 << 20))
        if not got:
            raise ConnectionError("the other end has gone")
        data += got
    return bytes(data)


def _own_folder(folder: Path) -> None:
    """Make the folder of a socket; one where another user could put a socket of theirs is refused.

    Where paths are short, its name is known to all of a machine, and somebody else may have made it before.
    """
    private_folder(folder)
    mine, facts = os.getuid(), folder.stat()
    if {folder.lstat().st_uid, facts.st_uid} != {mine} or facts.st_mode & 0o022:
        raise KinfolkError("site", str(folder), "others can write there; remove it, or make it yours alone")


def _answers(path: Path) -> bool:
    """Whether somebody listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        try:
            door.connect(str(path))
        except OSError:
            return False
    return True
