"""Fetching from a server of our own on this machine: whole, cut short, altered, refused, not there."""

import hashlib
import http.server
import threading
from collections import Counter
from dataclasses import replace

import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets import fetch as module
from kinfolk.federation.datasets.catalogue import CATALOGUE, Remote, find, known
from kinfolk.federation.datasets.fetch import fetch

TRAIN = "".join(f"{d}," * 16 + f"{d}\n" for d in range(10)).encode() * 900
TEST = b"1," * 16 + b"3\n"
FILES = {"/pendigits.tra": TRAIN, "/pendigits.tes": TEST}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        self.asked, self.cut, self.packing = Counter(), set(), set()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked[self.path] += 1
        self.server.packing.add(self.headers["Accept-Encoding"])
        body = FILES.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.path in self.server.cut else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def offer(server, monkeypatch):
    """Put pendigits' two files on our server, with the digests given."""

    def put(train: str, test: str = "", port: int = 0) -> None:
        base = f"http://127.0.0.1:{port or server.server_address[1]}"
        remote = tuple(
            Remote(f"{base}/{n}", n, d) for n, d in (("pendigits.tra", train), ("pendigits.tes", test))
        )
        monkeypatch.setitem(CATALOGUE, "pendigits", replace(known("pendigits"), remote=remote))

    return put


@pytest.mark.parametrize("progress", [False, True])
def test_files_arrive_checked_and_can_be_loaded(server, offer, tmp_path, progress, capsys):
    offer("md5:" + hashlib.md5(TRAIN).hexdigest())
    said = []
    paths = fetch("pendigits", tmp_path / "deep" / "root", progress, said.append)
    folder = tmp_path / "deep" / "root" / "pendigits"
    assert paths == [folder / "pendigits.tra", folder / "pendigits.tes"]
    assert [path.read_bytes() for path in paths] == [TRAIN, TEST]
    assert sorted(folder.iterdir()) == sorted(paths)
    assert server.packing == {"identity"}
    assert len(said) == 1
    assert "pendigits.tes: fetched; no published checksum" in said[0]
    assert hashlib.sha256(TEST).hexdigest() in said[0]
    assert len(find("pendigits", tmp_path / "deep" / "root").y) == 9001
    out, err = capsys.readouterr()
    assert out == ""
    assert ("pendigits.tra" in err) == progress


def test_what_is_there_and_right_is_not_asked_for_again(server, offer, tmp_path):
    offer(sha256(TRAIN))
    fetch("pendigits", tmp_path, False, lambda line: None)
    said = []
    fetch("pendigits", tmp_path, False, said.append)
    assert server.asked == {"/pendigits.tra": 1, "/pendigits.tes": 1}
    assert "was there already" in said[0]
    # A file that is there and wrong is replaced.
    (tmp_path / "pendigits" / "pendigits.tra").write_bytes(TRAIN[:99])
    fetch("pendigits", tmp_path, False, lambda line: None)
    assert server.asked["/pendigits.tra"] == 2
    assert (tmp_path / "pendigits" / "pendigits.tra").read_bytes() == TRAIN


def test_an_altered_file_is_not_kept(offer, tmp_path):
    offer(sha256(b"what was published"))
    with pytest.raises(
        KinfolkError, match=r"pendigits/pendigits\.tra': not used: what 127\.0\.0\.1:"
    ) as caught:
        fetch("pendigits", tmp_path, False)
    assert "has not the published sha256:" in str(caught.value)
    assert list((tmp_path / "pendigits").iterdir()) == []


def test_a_wrong_file_does_not_replace_what_was_there(server, offer, tmp_path):
    offer(sha256(b"older"))
    folder = tmp_path / "pendigits"
    folder.mkdir()
    (folder / "pendigits.tra").write_bytes(b"old")
    with pytest.raises(KinfolkError):
        fetch("pendigits", tmp_path, False)
    assert (folder / "pendigits.tra").read_bytes() == b"old"


@pytest.mark.parametrize("digest", [sha256(TRAIN), ""])
def test_a_file_cut_short_is_not_kept(server, offer, tmp_path, digest):
    server.cut.add("/pendigits.tra")
    offer(digest)
    with pytest.raises(
        KinfolkError, match=r"no whole file from 127\.0\.0\.1:\d+ \(.*cut short; put http://127"
    ):
        fetch("pendigits", tmp_path, False)
    assert list((tmp_path / "pendigits").iterdir()) == []


def test_a_file_that_is_not_there_names_host_and_status(offer, tmp_path, monkeypatch):
    offer("")
    monkeypatch.delitem(FILES, "/pendigits.tra")
    with pytest.raises(
        KinfolkError, match=r"data\.fetch = 'pendigits\.tra': 127\.0\.0\.1:\d+ answered 404; put"
    ):
        fetch("pendigits", tmp_path, False)


def test_offline_is_one_line_with_what_to_do_by_hand(offer, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 2.0)
    offer("", port=9)  # nobody answers here
    with pytest.raises(KinfolkError, match=r"no whole file from 127\.0\.0\.1:9 .*offline") as caught:
        fetch("pendigits", tmp_path, True)
    text = str(caught.value)
    assert "\n" not in text
    assert "http://127.0.0.1:9/pendigits.tra" in text
    assert str(tmp_path / "pendigits") in text


def test_a_folder_that_can_not_be_written_is_named(offer, tmp_path):
    offer("")
    (tmp_path / "pendigits").write_text("a file where the folder should be")
    with pytest.raises(KinfolkError, match=r"data\.folder = .*cannot be written"):
        fetch("pendigits", tmp_path, False)


@pytest.mark.parametrize("name", [n for n, entry in CATALOGUE.items() if not entry.remote])
def test_what_can_not_be_fetched_says_where_to_get_it(name, tmp_path):
    with pytest.raises(KinfolkError, match="cannot be fetched: ") as caught:
        fetch(name, tmp_path, False)
    assert CATALOGUE[name].note in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_an_error_with_the_nearest(tmp_path):
    with pytest.raises(KinfolkError, match="did you mean 'cifar10'"):
        fetch("cifar", tmp_path, False)
