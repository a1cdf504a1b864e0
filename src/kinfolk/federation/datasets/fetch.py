"""Fetch a data set from its public location into the data folder, whole and checked or not at all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import Remote, data_root, known
from kinfolk.federation.datasets.files import checksum, corrupt

PATIENCE = 30.0  # seconds without an answer before a location counts as out of reach
_CHUNK = 1 << 16


class _Bar:
    """What pooch tells how far it is; drawn by rich."""

    def __init__(self, drawn: Any, name: str) -> None:
        self.total = 0  # set by pooch, once the length is known
        self._drawn, self._task = drawn, drawn.add_task(name, total=None)

    def update(self, count: int) -> None:
        """So many bytes more."""
        self._drawn.update(self._task, total=self.total or None, advance=count)

    def reset(self) -> None:
        """From the start."""
        self._drawn.reset(self._task)

    def close(self) -> None:
        """All there."""
        self._drawn.update(self._task, completed=self.total or None)


@contextmanager
def _bars(wanted: bool) -> Iterator[Any]:
    """A place for progress bars on the error stream, or None."""
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as drawn:
        yield drawn


@contextmanager
def _plain_errors(remote: Remote, folder: Path) -> Iterator[None]:
    """Turn what a refused, cut or corrupt download raises into one line: the host and what to do by hand."""
    from requests import HTTPError, RequestException

    by_hand = f"put {remote.url} into {folder} by hand, or try again later"
    host = urlsplit(remote.url).netloc
    try:
        yield
    except HTTPError as error:
        status = error.response.status_code if error.response is not None else "an error"
        raise KinfolkError("data.fetch", remote.name, f"{host} answered {status}; {by_hand}") from error
    except RequestException as error:
        reason = f"no whole file from {host} ({type(error).__name__}): offline, blocked or cut short"
        raise KinfolkError("data.fetch", remote.name, f"{reason}; {by_hand}") from error
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); free space or choose another folder"
        raise KinfolkError("data.folder", str(folder), reason) from error
    except ValueError as error:  # pooch: the checksum differs; it has thrown the file away
        wrong = f"what {host} sent has not the published {remote.digest}"
        raise corrupt(folder / remote.name, wrong, by_hand) from error


def _download(remote: Remote, folder: Path, bar: _Bar | None) -> Path:
    import pooch  # type: ignore[import-untyped]

    talk = pooch.get_logger()
    before, path = talk.level, folder / remote.name
    talk.setLevel(logging.WARNING)  # what it would tell is told here, in other words
    # As they are: a server that packs a .gz once more in passing would spoil its checksum.
    as_is = {"Accept-Encoding": "identity"}
    downloader = pooch.HTTPDownloader(
        progressbar=bar or False, chunk_size=_CHUNK, timeout=PATIENCE, headers=as_is
    )
    try:
        with _plain_errors(remote, folder):
            pooch.retrieve(
                remote.url, remote.digest or None, fname=path.name, path=folder, downloader=downloader
            )
    finally:
        talk.setLevel(before)
    return path


def fetch(
    name: str, root: Path | None = None, progress: bool = True, say: Callable[[str], None] = print
) -> list[Path]:
    """Download the files of a data set into its folder under `root`; a file that is there and right is kept.

    A file arrives under another name and takes its own once its checksum is right. Where no
    checksum is published, `say` tells so together with the sha256 of what came.

    >>> fetch("watch_har", Path("none"), progress=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.name = 'watch_har': cannot be fetched: seglearn publishes ...
    """
    entry, root = known(name), data_root() if root is None else Path(root)
    if not entry.remote:
        raise KinfolkError("data.name", name, f"cannot be fetched: {entry.note}")
    folder, paths = root / name, []
    with _bars(progress) as drawn:
        for remote in entry.remote:
            there = (folder / remote.name).is_file()
            path = _download(remote, folder, _Bar(drawn, remote.name) if drawn else None)
            if not remote.digest:
                state = "was there already" if there else "fetched"
                say(f"{remote.name}: {state}; no published checksum, sha256 is {checksum(path, 'sha256')}")
            paths.append(path)
    return paths
