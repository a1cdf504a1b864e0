"""A site: its rows, its memory, its keys and the tasks it has installed. Bytes come in, bytes go out.

Nothing that a request holds is run: it names a task that is installed here. Why a task failed is told by the
kind of error alone, as its text may hold rows; the site's own log has the rest.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from threading import Event, Lock

import torch

from kinfolk.codec import decode, encode
from kinfolk.deploy.agreement import Agreement, Introduction, taken, versions
from kinfolk.deploy.choosing import chosen
from kinfolk.deploy.letters import Identity, Trust
from kinfolk.deploy.mail import Mail
from kinfolk.deploy.own_model import keep_own
from kinfolk.deploy.room import AGREEMENT, Rooms
from kinfolk.deploy.store import Course, Store
from kinfolk.engines import one, rpc
from kinfolk.engines.asked import declined
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.rpc import Header
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.client_memory import make_memories
from kinfolk.experiment.ranks import table_of
from kinfolk.experiment.spec import parse
from kinfolk.federation.federation import Federation
from kinfolk.script import Ask, Complains, Rehearses
from kinfolk.streams import RoundContext
from kinfolk.task import Peer, PeerTask, Task
from kinfolk.types import Client, Message

log = logging.getLogger("kinfolk.site")
CPU = torch.device("cpu")
# A site that was started anew says this, and is sent the agreement once more.
NOT_BEGUN = "not begun"
TOO_LONG = "TooLong"
# A site that is about to end says this to whatever is new, so that nobody waits for it.
LEFT = "has left"


class Site:
    """What one organisation runs. `rows` is a federation of one; its memory survives in `folder`."""

    def __init__(
        self,
        who: Client,
        rows: Federation,
        folder: Path | None = None,
        identity: Identity | None = None,
        network: Network | None = None,
        trust: Trust | None = None,
    ) -> None:
        if rows.clients != (who,):
            raise KinfolkError("site", who, f"was given rows of {', '.join(rows.clients)}; give it its own")
        self.who, self.rows, self.folder, self.network = who, rows, folder, network
        self.identity, self.trust = identity or Identity.new(), trust
        self.begun: Begun | None = None
        self._lock = Lock()  # carriers call whenever they like
        self._leaving, self._goodbye = Event(), Event()

    def leave(self, seconds: float) -> bool:
        """Begin nothing new, and wait until the lead was told so; whether there was somebody to tell in time.

        What is being answered is finished, and what was answered is given again.
        """
        self._leaving.set()
        return self.begun is None or self.begun.over or self._goodbye.wait(seconds)

    def answer(self, data: bytes) -> bytes:
        """Do what a request says, once, and reply; whatever goes wrong is a reply too."""
        told: Header = {"from": self.who}
        with self._lock:
            try:
                if (refused := self.refusal(len(data))) is not None:
                    return refused
                message, header = decode(data)
                told |= {key: header[key] for key in ("token", "number") if key in header}
                if header.get("to") != self.who:
                    raise KinfolkError("message.to", header.get("to"), f"this is {self.who}")
                if self._leaving.is_set() and self._is_new(header):
                    self._goodbye.set()
                    return encode({}, {**told, "error": LEFT})
                if header["do"] in ("introduce", "begin"):
                    return encode({}, {**told, **self._met(header)})
                return self._answered(message, header, told)
            except Exception as error:
                log.warning("a request was refused", exc_info=error)
                return encode({}, {**told, "error": type(error).__name__})

    def refusal(self, size: int) -> bytes | None:
        """What is answered to a request of so many bytes instead of reading it, if it is too long."""
        room = max(AGREEMENT, self.begun.rooms.request) if self.begun else AGREEMENT
        if size <= room:
            return None
        log.warning("a request of %d bytes was refused unread: %d are allowed", size, room)
        return encode({}, {"from": self.who, "error": TOO_LONG})

    def _is_new(self, header: Header) -> bool:
        """Whether a request asks for more than was asked before; a run's models are taken all the same."""
        known = self.begun is not None and header.get("number") == str(self.begun.store.last)
        return not known and header["do"] != "deliver"

    def _met(self, header: Header) -> Header:
        """What sites and lead agree on is no secret, and whoever starts a run must know what to mend."""
        try:
            if header["do"] == "introduce":
                rules = header.get("standardize", "none"), header.get("standardize_target", "none")
                word, *of = (self.trust.bond, self.trust.owner, self.trust.name) if self.trust else ("",)
                own = Introduction.of(self.who, self.rows, self.identity.public, word, *rules, *of)
                return {"introduction": own.text()}
            if self.begun is None or self.begun.text != header["agreement"]:
                self.begun = Begun(self, header["agreement"])
            return {"ready": hashlib.sha256(self.begun.text.encode()).hexdigest()}
        except KinfolkError as error:
            log.warning("an agreement was refused", exc_info=error)
            return {"error": str(error)}

    def _answered(self, message: Message, header: Header, told: Header) -> bytes:
        begun, number = self.begun, int(header["number"])
        if begun is None or begun.agreement.run != header.get("token"):
            return encode({}, {**told, "error": NOT_BEGUN})
        store = begun.store
        if number == store.last:
            return store.reply
        if number < store.last:
            raise KinfolkError("message.number", number, f"comes after {store.last}")
        store.follow(Course.read(header["course"]))
        with arithmetic(CPU, begun.parts.spec.engine.precision):
            reply, facts, memory = begun.perform(message, header)
        data = encode(reply, {**told, **facts})
        store.keep(memory, number, data, begun.lasting(header))
        return data


class Begun:
    """A run that a site takes part in: what it has agreed to, built here from what is installed here."""

    def __init__(self, site: Site, text: str) -> None:
        self.text, self.who, self.identity = text, site.who, site.identity
        self.agreement = Agreement.read(text)
        self._check(site)
        shell = self.agreement.federation()
        self.parts: Parts = self._built(shell, site.network)
        self._check_secrets()
        self.clients, self.table = shell.clients, table_of(self.parts)
        self.rooms = Rooms.of(self.parts)
        self.rows = taken(site.rows, self.agreement.outline)
        self.folder = site.folder / self.agreement.run if site.folder else None
        self.store = Store(self.who, make_memories(self.parts, CPU, self.folder), self.folder)
        self.store.load()
        self.mail = Mail(self.who, self.identity, self.agreement.keys, self.rooms, self.folder)
        self.over = False  # whether the lead has said that the run has ended

    def _check(self, site: Site) -> None:
        """Refuse an agreement that is not about this site as it is."""
        told, here = self.agreement, versions()
        name = told.run
        if not (name.isascii() and name.isalnum() and len(name) <= 64):
            raise KinfolkError("run", name, "is no name of a run; use letters and digits")
        if dict(told.versions) != here:
            wrong = next(what for what in here if told.versions.get(what) != here[what])
            remedy = f"site {self.who} has {wrong} {here[wrong]}, the run needs {told.versions.get(wrong)}"
            raise KinfolkError("site", self.who, f"{remedy}; install the same")
        if told.keys.get(self.who) != site.identity.public:
            raise KinfolkError("site", self.who, "is known by other keys than it has; provision it again")
        for peer, key in told.keys.items() if site.trust else ():
            owner, word = told.owners.get(peer, ""), told.bonds.get(peer, "")
            if not site.trust.holds(peer, key, owner, word):  # type: ignore[union-attr]
                raise KinfolkError(
                    "site", peer, "has keys or an owner that the federation's authority does not vouch for"
                )
        if dict(told.rows.get(self.who, {})) != dict(Introduction.of(self.who, site.rows, "").rows):
            raise KinfolkError("site", self.who, "has other rows than it had when the run was agreed on")

    def _built(self, shell: Federation, network: Network | None) -> Parts:
        """What the spec names, out of what is here. The lead has built it too: what fails is about this site.

        A spec may name any path: what is there, or next to it, is told to nobody.
        """
        spec = parse(self.agreement.spec)
        try:
            return build_parts(spec, shell, network)
        except KinfolkError as error:
            log.warning("a run cannot be built here", exc_info=error)
            cause = error.__cause__
            if isinstance(cause, ImportError) and cause.name:
                told = f"has no {cause.name}, which {error.field} needs; install it there"
                raise KinfolkError("site", self.who, told) from None
            told = f"cannot build this run because of {error.field}; its own log tells why"
            raise KinfolkError("site", self.who, told) from None

    def _check_secrets(self) -> None:
        """In a deployment no secret follows from the run's seed, which everybody knows."""
        algorithm = self.parts.algorithm
        setting = algorithm.public_secrets() if isinstance(algorithm, Rehearses) else ""
        if setting:
            key, _, value = setting.partition("=")
            raise KinfolkError(
                key, value, "no mask is secret, and the sites are not one process; use 'system'"
            )

    def perform(self, message: Message, header: Header) -> tuple[Message, Header, Message | None]:
        """(reply, what stands in its header, the new memory if it changes)."""
        context = rpc.unpack_context(header, self.clients)
        if header["do"] == "ask":
            return self._ask(message, header["task"], context)
        if header["do"] in ("deliver", "choose"):
            return self._take(message, header, context)
        swap = self.table.get(header["swap"])
        if not isinstance(swap, PeerTask):
            raise KinfolkError("message.swap", header["swap"], "is no exchange of this run")
        return self._exchange(swap, message, header, context)

    def lasting(self, header: Header) -> bool:
        """Whether a reply must survive a kill: masks are drawn anew, and nobody is told two stories."""
        swap = self.table.get(header.get("swap", ""))
        return header["do"] in ("send", "echo") and isinstance(swap, PeerTask) and bool(swap.alike)

    def _ask(
        self, message: Message, name: str, context: RoundContext
    ) -> tuple[Message, Header, Message | None]:
        task = self.table.get(name)
        if not isinstance(task, Task):
            raise KinfolkError("message.task", name, "is no task of this run")
        facts = {"rows": str(one.train_rows(self.rows, self.who))}
        if declined(task, Ask(name, (self.who,), message)):
            return {}, {**facts, "declined": "yes"}, None  # why is nobody else's concern
        reply, kept = one.perform(task, message, self.store.memory, self.rows, self.who, context)
        return reply, facts, kept

    def _take(
        self, message: Message, header: Header, context: RoundContext
    ) -> tuple[Message, Header, Message | None]:
        """Keep this client's own models; a newcomer chooses among those of all groups first."""
        told, new = {"taken": "yes"}, header["do"] == "choose"
        if new:
            best = chosen(self, message["centres"], context)
            message = {"model": {name: t[best] for name, t in message["centres"].items()}}
            # Which group it is says something of the rows, and no noise is in it.
            told |= {} if self.parts.privacy else {"group": str(best)}
        if self.folder:
            keep_own(self, self.folder, message, header["facts"], context, alone=new)
        self.over = True
        return {}, told, None

    def _exchange(
        self, swap: PeerTask, message: Message, header: Header, context: RoundContext
    ) -> tuple[Message, Header, Message | None]:
        """A step of an exchange: write letters, show signatures to one another, take in what came."""
        number = header["number"] if header["do"] == "send" else header["letters"]
        place = {
            "run": self.agreement.run, "round": header["round"], "swap": header["swap"], "letters": number
        }  # fmt: skip
        if header["do"] == "send":
            written = swap.send(self.store.memory, Peer(self.who, context))
            return *self.mail.write(swap, written, place), None
        arrived = rpc.unpack_several(message, header)
        if header["do"] == "echo":
            among = map(Client, json.loads(header["among"]))
            return *self.mail.echo(arrived, among, place), None
        self.mail.learn(header.get("exposed", "{}"))
        inbox, refused = self.mail.read(swap, arrived, place)
        memory = swap.receive(inbox, self.store.memory, Peer(self.who, context))
        self._complain(memory)
        return {}, {"refused": json.dumps(refused), "exposed": self.mail.proofs()}, memory

    def _complain(self, memory: Message) -> None:
        """Whose messages the algorithm itself could not use: for this site's log."""
        algorithm = self.parts.algorithm
        if isinstance(algorithm, Complains):
            for peer, reason in algorithm.complaints(memory, self.clients).items():
                log.warning("a message of %s was refused: %s", peer, reason)
