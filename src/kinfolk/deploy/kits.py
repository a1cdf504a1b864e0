"""Kits: what every participant gets before it can take part, made by one command from one project file.

A kit is its engine's own (certificates, start scripts, address of the server; for Flower `flower_kits`) and
beside it, for a site, the two keys of its letters with the word of the federation's authority that they are
this site's. The authority's key stays with whoever has made the kits; nothing signed by another is believed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.deploy import flower_kits
from kinfolk.deploy.letters import Identity, Trust, bond
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.record import write_text
from kinfolk.private import private_folder
from kinfolk.types import Client

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_PERSON = re.compile(r"[A-Za-z0-9._-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_KEYS = ("name", "host", "port", "sites", "admins", "owners", "engine")
ENGINES = ("nvflare", "flower")
# All that a job may name at a site or the server: nothing of NVFlare's own examples, nothing of anybody else.
ALLOWED = (
    "nvflare.collab.runtime.executor.CollabExecutor",
    "nvflare.collab.runtime.controller.CollabController",
    "kinfolk.deploy.nvflare_site.Pipe",
    "kinfolk.deploy.nvflare_lead.Lead",
)
# Where NVFlare's server keeps what is stored, unless it is told otherwise: it is looked for, and replaced.
_SHARED = "/tmp/nvflare"  # nosec B108
# Which kit of a folder is the server's; NVFlare names it after its host, sites and people by their names.
CARD, KEY = "kinfolk.json", "site.key"


@dataclass(frozen=True)
class Project:
    """A federation of organisations, as its project file describes it.

    >>> Project.of({"name": "lungs", "host": "localhost", "sites": ["north"], "admins": ["a@b.org"]}).port
    8002
    """

    name: str
    host: str
    port: int
    sites: tuple[str, ...]
    admins: tuple[str, ...]
    owners: Mapping[str, str] = field(default_factory=dict)  # of sites that belong to somebody with others
    engine: str = "nvflare"

    @staticmethod
    def read(path: Path) -> Project:
        """The project in a TOML file."""
        try:
            return Project.of(tomllib.loads(path.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise KinfolkError("project", str(path), f"cannot be read ({error})") from error

    @staticmethod
    def of(told: Mapping[str, Any]) -> Project:
        """The project with these keys: name, host, port (8002), sites, admins, owners, engine."""
        for key in told:
            if key not in _KEYS:
                raise KinfolkError(f"project.{key}", told[key], near(key, _KEYS))
        port = told.get("port", 8002)
        if not isinstance(port, int) or not 0 < port < 1 << 16:
            raise KinfolkError("project.port", port, "give a port, as 8002")
        name, host = (_word(key, told.get(key), rule) for key, rule in (("name", _NAME), ("host", _HOST)))
        sites, admins = (
            _words(key, told.get(key), rule) for key, rule in (("sites", _NAME), ("admins", _PERSON))
        )
        if host in sites:
            raise KinfolkError("project.sites", host, "is the name of the server; give the site another")
        engine = told.get("engine", ENGINES[0])
        if engine not in ENGINES:
            raise KinfolkError("project.engine", engine, near(str(engine), ENGINES))
        owners = _owners(told.get("owners", {}), sites)
        return Project(name, host, port, sites, admins, owners, engine)

    def for_nvflare(self) -> dict[str, Any]:
        """The project as NVFlare's provisioning reads it."""
        server: dict[str, Any] = {
            "name": self.host,
            "type": "server",
            "org": "server",
            "fed_learn_port": self.port,
        }
        orgs = {site: _org(self.owners.get(site, site)) for site in self.sites}
        clients = [{"name": site, "type": "client", "org": orgs[site]} for site in self.sites]
        people = [
            {"name": who, "type": "admin", "org": "server", "role": "project_admin"} for who in self.admins
        ]
        builders = [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder"},
            {
                "path": "nvflare.lighter.impl.static_file.StaticFileBuilder",
                "args": {"config_folder": "config", "scheme": "grpc"},
            },
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ]
        people = [server, *clients, *people]
        return {
            "api_version": 3,
            "name": self.name,
            "description": self.name,
            "participants": people,
            "builders": builders,
        }


def provision(project: Project, out: Path) -> dict[str, Path]:
    """Make the kits of a project in a folder; where each is, by name."""
    if out.exists() and any(out.iterdir()):
        raise KinfolkError("out", str(out), "holds something already; give a new folder")
    private_folder(out)
    work = out / "authority"  # with the keys that make kits: it stays where it is
    private_folder(work)
    authority = Identity.new()
    authority.save(work / "authority.key")
    kits = {name: out / name for name in (project.host, *project.sites, *project.admins)}
    if project.engine == "flower":
        given = project.host, project.port, project.sites, project.admins
        flower_kits.make(project.name, *given, authority, out)
    else:
        _by_nvflare(project, work, kits)
    for kit in kits.values():
        os.chmod(kit, 0o700)
    for site in project.sites:
        _vouched(kits[site], authority, project.name, site, project.owners.get(site, ""))
    return kits


def _by_nvflare(project: Project, work: Path, kits: Mapping[str, Path]) -> None:
    write_text(work / "project.json", json.dumps(project.for_nvflare()))  # JSON is YAML
    _nvflare("provision", "-p", str(work / "project.json"), "-w", str(work))
    for name, kit in kits.items():
        shutil.move(work / project.name / "prod_00" / name, kit)
    for name in (project.host, *project.sites):
        _lock_down(kits[name])


def add_site(out: Path, site: str, owner: str = "") -> Path:
    """A kit for one more site, by the authority whose kits are in a folder; its server knows it at once.

    >>> add_site(Path("nowhere"), "west")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: kits = 'nowhere': holds no authority; name the folder that deploy init made
    """
    work = out / "authority"
    if (work / "ca.key").exists():
        remedy = "are for Flower, whose server knows its sites from the beginning; make new kits"
        raise KinfolkError("kits", str(out), remedy)
    try:
        told = json.loads((work / "project.json").read_text(encoding="utf-8"))
        federation, known = str(told["name"]), {one["name"] for one in told["participants"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        remedy = "holds no authority; name the folder that deploy init made"
        raise KinfolkError("kits", str(out), remedy) from error
    _word("sites", site, _NAME)
    if site in known or (out / site).exists():
        raise KinfolkError("site", site, "has a kit already; give the new one another name")
    client = {"name": site, "type": "client", "org": _org(owner or site)}
    write_text(work / "added.json", json.dumps(client))
    told_by = ("-p", str(work / "project.json"), "-w", str(work), "--add-client", str(work / "added.json"))
    _nvflare("provision", *told_by, "--force")
    newest = max((work / federation).glob("prod_*"))
    shutil.move(newest / site, out / site)
    shutil.rmtree(newest)  # certificates of the others once more, which nobody needs
    os.chmod(out / site, 0o700)
    _lock_down(out / site)
    _vouched(out / site, Identity.load(work / "authority.key"), federation, site, owner)
    # Last: what is in the project has its kit. The next one is added to this one.
    write_text(work / "project.json", json.dumps({**told, "participants": [*told["participants"], client]}))
    return out / site


def _org(owner: str) -> str:
    """An owner as NVFlare names organisations."""
    return re.sub("[^A-Za-z0-9_]", "_", owner)


def _vouched(kit: Path, authority: Identity, federation: str, site: str, owner: str = "") -> None:
    """The keys of a site's letters, with the authority's word whose they are."""
    own = Identity.new()
    own.save(kit / KEY)
    word = bond(authority, federation, site, own.public, owner)
    card = {"federation": federation, "site": site, "authority": authority.public, "bond": word}
    card |= {"owner": owner}
    write_text(kit / CARD, json.dumps(card, indent=1))


@dataclass(frozen=True)
class Kit:
    """A site's kit as it lies in a folder."""

    folder: Path
    site: Client
    trust: Trust
    identity: Identity

    @staticmethod
    def open(folder: Path) -> Kit:
        """The kit in a folder, with its own keys vouched for.

        >>> Kit.open(Path("nowhere"))
        Traceback (most recent call last):
        kinfolk.errors.KinfolkError: kit = 'nowhere': is no kit of a site: it has no kinfolk.json
        """
        try:
            told = json.loads((folder / CARD).read_text(encoding="utf-8"))
            words = [str(told[key]) for key in ("federation", "site", "authority", "bond")]
            owner = str(told.get("owner", ""))
        except FileNotFoundError as error:
            raise KinfolkError("kit", str(folder), f"is no kit of a site: it has no {CARD}") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KinfolkError("kit", str(folder / CARD), f"cannot be read ({error})") from error
        federation, site, authority, word = words
        identity, trust = Identity.load(folder / KEY), Trust(federation, authority, word, owner)
        if not trust.holds(site, identity.public, owner, word):
            remedy = "its keys are not those that the federation's authority vouches for; get a new kit"
            raise KinfolkError("kit", str(folder), remedy)
        return Kit(folder, Client(site), trust, identity)


def _owners(told: Any, sites: tuple[str, ...]) -> dict[str, str]:
    """Who owns each site that belongs to somebody with others."""
    if not isinstance(told, dict):
        raise KinfolkError("project.owners", told, "give a table: a name for each owner, and a list of sites")
    found: dict[str, str] = {}
    for owner, own in told.items():
        for site in _words(f"owners.{owner}", own, _NAME):
            if site not in sites:
                raise KinfolkError(f"project.owners.{owner}", site, near(site, sites))
            if site in found:
                raise KinfolkError(f"project.owners.{owner}", site, f"belongs to {found[site]} already")
            found[site] = str(owner)
    wrong = next((owner for owner in found.values() if owner in sites), None)
    if wrong:
        raise KinfolkError("project.owners", wrong, "is the name of a site; give the owner another")
    return found


def _lock_down(kit: Path) -> None:
    """What jobs may name there, and storage in the kit instead of a folder that all of a machine share."""
    usual = json.loads((kit / "local" / "resources.json.default").read_text(encoding="utf-8"))
    usual["class_allow_list"] = list(ALLOWED)
    # Logs of a site may hold rows. NVFlare sends those of errors to the server unless it is told not to.
    usual["allow_log_streaming"] = False
    for server in usual.get("servers", []):
        # An admin's command gives up after 5 s, and the server waits so long for a site that is dead: it must
        # answer before. NVFlare's own 10 s would leave every look unanswered while one site is away.
        server["admin_timeout"] = 4.0
        server["max_num_clients"] = 10_000  # who has a certificate may come; NVFlare refuses the 101st
    usual["components"] = [one for one in usual["components"] if ".logging." not in one["path"]]
    text = json.dumps(usual, indent=1)
    for name in ("jobs-storage", "snapshot-storage"):
        text = text.replace(f"{_SHARED}/{name}", str(kit.absolute() / name))
    write_text(kit / "local" / "resources.json", text)


def _nvflare(*words: str) -> str:
    """NVFlare's own command, as installed beside this Python."""
    command = Path(sys.executable).parent / "nvflare"
    if not command.exists():
        raise KinfolkError("nvflare", None, "is not installed; run pip install 'kinfolk[nvflare]'")
    done = subprocess.run([str(command), *words], capture_output=True, text=True)
    if done.returncode:
        told = " ".join((done.stderr or done.stdout).split())[-300:]
        raise KinfolkError("nvflare", words[0], f"has failed: {told}")
    return done.stdout


def _word(key: str, value: Any, rule: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not rule.fullmatch(value):
        raise KinfolkError(
            f"project.{key}", value, "use letters, digits and -" + (", as a@b.org" if rule is _PERSON else "")
        )
    return value


def _words(key: str, value: Any, rule: re.Pattern[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise KinfolkError(f"project.{key}", value, "give a list of names")
    words = tuple(_word(key, one, rule) for one in value)
    double = next((one for one in words if words.count(one) > 1), None)
    if double:
        raise KinfolkError(f"project.{key}", double, "stands there twice; every name is one participant")
    return words
