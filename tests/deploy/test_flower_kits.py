"""Kits for Flower, who may start runs, which paths the server answers; Flower need not be installed."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from deployed import spec_of

from kinfolk.deploy import flower_start
from kinfolk.deploy.flower_engine import Gate
from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.flower_order import Order
from kinfolk.deploy.flower_start import commands
from kinfolk.deploy.kits import Kit, Project, provision
from kinfolk.deploy.letters import Identity, bond
from kinfolk.deploy.local import local
from kinfolk.errors import KinfolkError

PROJECT = Project("trial", "fl.example.org", 8002, ("north", "south"), ("lead@trial.org",), engine="flower")


@pytest.fixture
def kits(tmp_path: Path) -> dict[str, Path]:
    return provision(PROJECT, tmp_path / "kits")


def test_what_is_secret_is_its_owners_alone_and_no_two_have_the_same(kits: dict[str, Path], tmp_path: Path):
    private = [path for path in (tmp_path / "kits").rglob("*") if path.suffix in (".key", ".secret")]
    assert len(private) == 11
    for path in (*private, *kits.values()):
        assert path.stat().st_mode & 0o077 == 0
    assert len({path.read_bytes() for path in private}) == len(private)
    # The key that vouches for servers is in no kit.
    assert not [path for name in kits for path in kits[name].rglob("ca.key")]


def test_the_server_has_a_certificate_for_its_host_and_its_own_machine(kits: dict[str, Path]):
    server = Card.read(kits["fl.example.org"])
    trusted = ssl.create_default_context(cafile=str(Card.read(kits["north"]).file("ca.crt")))
    assert len(trusted.get_ca_certs()) == 1
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        server.file("server.pem"), server.file("server.key")
    )
    shown = x509.load_pem_x509_certificate(server.file("server.pem").read_bytes())
    issuer = x509.load_pem_x509_certificate(server.file("ca.crt").read_bytes())
    shown.verify_directly_issued_by(issuer)
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "fl.example.org"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_the_server_knows_each_node_by_its_key(kits: dict[str, Path]):
    nodes = Card.read(kits["fl.example.org"]).nodes
    assert nodes is not None
    for site in PROJECT.sites:
        key = load_ssh_private_key(Card.read(kits[site]).file("node.key").read_bytes(), None)
        numbers = key.public_key().public_numbers()  # type: ignore[union-attr]
        assert _public_numbers(nodes[site]) == numbers
        assert Kit.open(kits[site]).site == site


def _public_numbers(text: str) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    return load_pem_public_key(text.encode()).public_numbers()  # type: ignore[union-attr]


def test_nothing_of_flower_that_runs_code_of_a_run_is_started(kits: dict[str, Path]):
    server = commands(Card.read(kits["fl.example.org"]), 8002)
    site = commands(Card.read(kits["north"]), 9000)
    assert (sorted(server), sorted(site)) == (["superlink", "worker"], ["supernode", "worker"])
    for words in (server["superlink"], site["supernode"]):
        # With the default, `subprocess`, Flower starts a SuperExec by itself.
        assert words[words.index("--isolation") + 1] == "process"
        assert "--superexec-auth-secret-file" in words
        assert "--insecure" not in words
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(
        server["superlink"]
    )
    assert site["supernode"][site["supernode"].index("--host") + 1] == "127.0.0.1"
    assert flower_start.QUIET == {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    with pytest.raises(KinfolkError, match="is an admin's"):
        commands(Card.read(kits["lead@trial.org"]), 0)


ORDER = Order("first", "[data]", ("north", "south"), seconds=60.0)


def test_an_order_of_an_admin_is_taken_once(kits: dict[str, Path]):
    server, admin = Card.read(kits["fl.example.org"]), Card.read(kits["lead@trial.org"])
    told = ORDER.signed(admin)
    taken = Order.taken(told, server)
    assert replace(taken, federation="", number="") == ORDER
    with pytest.raises(KinfolkError, match="counts once"):
        Order.taken(told, server)
    assert Order.taken(ORDER.signed(admin), server).run == "first"


def test_an_order_that_no_admin_has_signed_is_refused(kits: dict[str, Path], tmp_path: Path):
    server, admin = Card.read(kits["fl.example.org"]), Card.read(kits["lead@trial.org"])
    told = ORDER.signed(admin)
    stranger, other = Identity.new(), json.dumps({**json.loads(told["order"]), "run": "other"})
    north = Kit.open(kits["north"])
    forged: list[Mapping[str, str]] = [
        {},
        {**told, "order": other},
        {**told, "signature": "00" * 64},
        {**told, "signature": "no hex"},
        {**told, "by": "other@trial.org"},
        {**told, "key": stranger.public, "signature": stranger.sign(b"kinfolk order" + other.encode()).hex()},
        {**told, "key": stranger.public, "word": bond(stranger, "trial", admin.name, stranger.public)},
        # A site is vouched for as well, and may start nothing.
        {
            "order": other,
            "by": "north",
            "key": north.identity.public,
            "word": north.trust.bond,
            "signature": north.identity.sign(b"kinfolk order" + other.encode()).hex(),
        },
    ]
    for one in forged:
        with pytest.raises(KinfolkError, match="is not ordered by an admin"):
            Order.taken(one, server)
    elsewhere = provision(replace(PROJECT, name="other"), tmp_path / "elsewhere")
    with pytest.raises(KinfolkError, match="is not ordered by an admin"):
        Order.taken(ORDER.signed(Card.read(elsewhere["lead@trial.org"])), server)
    assert Order.taken(told, server).run == "first"


@pytest.mark.parametrize(
    ("path", "there", "elsewhere"),
    [
        ("/v1/fleet/pull-messages", 200, 200),
        ("/v1/control/start-run", 200, 404),
        ("/v1/control/register-node", 200, 404),
        ("/v1/runtime/acquire-task", 200, 404),
        ("/v1/fleet", 200, 404),
        ("/docs", 200, 404),
    ],
)
def test_the_server_answers_others_on_the_paths_of_nodes_alone(path: str, there: int, elsewhere: int):
    assert _asked(path, ("127.0.0.1", 7)) == there
    for client in (("10.1.2.3", 7), ("::ffff:10.1.2.3", 7), ("no address", 7), None):
        assert _asked(path, client) == elsewhere


def _asked(path: str, client: tuple[str, int] | None) -> int:
    told: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        told.append(message.get("status", 0))

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(Gate(app)({"type": "http", "path": path, "client": client}, receive, send))
    return told[0]


def test_another_flower_than_the_one_it_was_written_for_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flower_start, "version", lambda name: "1.42.0")
    with pytest.raises(KinfolkError, match=r"flower = '1\.42\.0': is not 1\.41\.0"):
        flower_start.needed()


def test_an_engine_that_there_is_not_is_refused_before_anything_is_made(tmp_path: Path):
    told = {"name": "trial", "host": "here", "sites": ["north"], "admins": ["a@b.org"], "engine": "flwr"}
    with pytest.raises(KinfolkError, match=r"project\.engine = 'flwr'"):
        Project.of(told)
    with pytest.raises(KinfolkError, match="engine = 'flwr'"):
        local(spec_of("fedavg"), tmp_path / "trial", 1.0, engine="flwr")
    assert not (tmp_path / "trial").exists()
