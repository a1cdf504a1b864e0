"""Engine of a deployment: requests go to sites by a carrier, and what comes back is believed of nobody.

A request has one deadline, by the monotonic clock. Sites that fail are asked again until it has passed; one
that has missed it is away: later requests do not wait for it, and it is taken back when it answers again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.codec import decode, encode, head
from kinfolk.deploy.agreement import Agreement
from kinfolk.deploy.carrier import Carrier, patiently
from kinfolk.deploy.letters import Said, contradict
from kinfolk.deploy.mail import proven
from kinfolk.deploy.post import NONSENSE, Post
from kinfolk.deploy.room import ANY, Rooms
from kinfolk.deploy.site import LEFT, NOT_BEGUN, TOO_LONG
from kinfolk.deploy.store import TOLD, Course
from kinfolk.engines import rpc
from kinfolk.engines.loop import message_for
from kinfolk.engines.memory import Memories, Sent
from kinfolk.engines.rpc import Header
from kinfolk.engines.wire import LINE, ROOM, checked, room_for, rows_of
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import Watch
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.task import PeerTask, Table, Task
from kinfolk.types import Client, Message, Stack

# Seconds between two looks at sites that are away, and that such a look may take.
LOOK, GLANCE = 5.0, 2.0
# Bytes of the proof that somebody told two stories, at most.
PROOF = 1 << 13


class Remote:
    """Performs requests by messages to sites, seen from the lead."""

    name, in_process, chunked = "remote", False, False

    def __init__(
        self,
        carrier: Carrier,
        agreement: Agreement,
        table: Table,
        memories: Memories,
        attempt: int = 0,
        seconds: float = 600.0,
        tell: Watch = lambda event, facts: None,
        rooms: Rooms = ANY,
        keep_proofs: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.carrier, self.agreement, self.table, self.memories = carrier, agreement, table, memories
        self.seconds, self.tell_people = seconds, tell
        self.device = torch.device("cpu")
        self.note = f"remote: {len(agreement.rows)} sites, {seconds:g} s for a request"
        # Numbers of requests and marks of states only grow, over all attempts at a run.
        self._number = attempt << 32
        self.course = Course(mark=attempt << 32)
        self.away: dict[Client, float] = {}  # since when, and when they were looked for last
        self._saved: list[int] = [0, 0]  # marks of the last two checkpoints
        self._rejected: dict[Client, str] = {}
        self.rooms, self.keep_proofs = rooms, keep_proofs
        self.exposed: dict[Client, tuple[Said, Said]] = {}  # who told two stories, with the proof
        self._names = {id(task): name for name, task in table.items()}
        memories.far = self

    # What the coordinator asks of an engine

    def claims(self, who: Sequence[Client]) -> Mapping[Client, int]:
        """How many training rows each site has said that it has."""
        return {c: self.agreement.rows[c]["train"] for c in who}

    def owners(self) -> Mapping[Client, str]:
        """Whose each site is that is not its own, as all sites have checked."""
        return self.agreement.owners

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request, one client each, in order of names whatever the order of arrival."""
        task = self.table[request.task]
        assert isinstance(task, Task)
        header = {"do": "ask", "task": request.task, **rpc.pack_context(context)}
        bodies = {who: message_for(request, who) for who in sorted(request.to)}
        for who, data, back in self._in_order(bodies, header, room_for(task.reply)):
            try:
                if "declined" not in back:
                    yield Stack.of({who: (rows_of(back), decode(data)[0])})
            except KinfolkError as error:
                self._rejected[who] = str(error)

    def swap(self, swap: PeerTask, among: tuple[Client, ...], context: RoundContext) -> Sent:
        """Pass sealed letters on from site to site; whoever has not written takes no part."""
        header = {"swap": self._names[id(swap)], **rpc.pack_context(context)}
        post = Post(among, self.rooms)
        self._collect(post, {c: ({}, {}) for c in among}, {**header, "do": "send"})
        header |= {"letters": str(self._number)}
        if swap.alike:
            told = {**header, "do": "echo", "among": json.dumps(post.wrote)}
            self._collect(post, post.stubs(), told)
        told = {**header, "do": "receive", "exposed": self._proofs()}
        bodies, own = _parted(post.all())
        for who, _, back in self._in_order(bodies, told, ROOM + PROOF * len(among), own):
            self._hear_of_liars(back.get("exposed", "{}"))
            for peer, reason in _refused(back).items():
                if peer not in among:
                    continue
                why = f"its letter to {who} is {reason}"
                before = self._rejected.get(peer)
                self._rejected[peer] = f"{before}; {why}" if before else why
        return post.sent

    def _collect(self, post: Post, requests: Mapping[Client, rpc.Packed], header: Header) -> None:
        room = self.rooms.letters + ROOM + 2 * LINE * len(post.among)
        bodies, own = _parted(requests)
        for who, data, back in self._in_order(bodies, header, room, own):
            try:
                post.take(who, data, back)
            except KinfolkError as error:
                self._rejected[who] = str(error)

    def _hear_of_liars(self, proofs: str) -> None:
        """Who told others two stories has no part in what follows: its own signatures prove it."""
        for who, (one, other) in proven(proofs, self.agreement.keys).items():
            if who in self.exposed or one.place.get("run") != self.agreement.run:
                continue
            self.exposed[who] = one, other
            to = " and ".join(said.place["to"] for said in (one, other))
            part, where = contradict(self.agreement.keys[who], one, other), one.place["swap"]
            told = f"told {to} two stories ({part} in {where}), as its signatures prove; it is excluded"
            self._rejected[who] = told
            self.tell_people("warning", {"text": f"{who} {told}"})
            self.keep_proofs(self._proofs())

    def _proofs(self) -> str:
        return json.dumps({who: [said.plain() for said in both] for who, both in self.exposed.items()})

    def hand_over(
        self, word: str, bodies: Mapping[Client, Message], own: Mapping[Client, Header], context: RoundContext
    ) -> dict[Client, Header]:
        """Send each site something to keep; what those who have taken it say of it."""
        header = {"do": word, **rpc.pack_context(context)}
        return {who: back for who, _, back in self._in_order(bodies, header, ROOM, own) if "taken" in back}

    def take_rejected(self) -> dict[Client, str]:
        """Whose messages could not be used since the last call, and why."""
        found, self._rejected = self._rejected, {}
        return found

    def close(self) -> None:
        """Nothing to give back: sites wait for the next request, or the next lead."""

    # What the memories ask of those who hold them

    def tell(self, word: str) -> None:
        """A new state begins, or what was made in it counts for nothing; sites hear of it when asked."""
        mark = self.course.mark
        if word == "snapshot":
            self.course = replace(self.course, mark=mark + 1)
        else:
            self._rewind(mark - 1)

    def fetch(self) -> dict[Client, Message]:
        """In place of memories, which stay at the sites: the mark by which each can come back to its own."""
        self._saved = [*self._saved[1:], self.course.mark]
        self.course = replace(self.course, oldest=self._saved[0])
        return {who: {"mark": torch.tensor(self.course.mark)} for who in self.agreement.rows}

    def hand_out(self, memories: Mapping[Client, Message]) -> dict[Client, Message]:
        """Go back to the state that a checkpoint has marked; without one, to the beginning."""
        marks = [m["mark"] for m in memories.values() if isinstance(m.get("mark"), Tensor)]
        at = int(marks[0]) if marks else 0
        self._saved = [at, at]
        self._rewind(at)
        return {}

    def _rewind(self, after: int) -> None:
        if after < self.course.mark:
            known = (*self.course.rewinds, (after, self.course.mark))
            self.course = replace(self.course, rewinds=known[-TOLD:])

    # How sites are asked

    def _in_order(
        self,
        bodies: Mapping[Client, Message],
        header: Header,
        room: int,
        own: Mapping[Client, Header] | None = None,
    ) -> Iterator[tuple[Client, bytes, Header]]:
        """Ask, and give what was answered in the order of `bodies`; what is no answer is noted."""
        self._number += 1
        stand = {"token": self.agreement.run, "number": str(self._number)}
        header = {**header, **stand, "course": self.course.text()}
        requests = {
            who: encode(body, {**header, **(own or {}).get(who, {}), "to": who})
            for who, body in bodies.items()
            if who not in self.exposed
        }
        self._rejected.update(dict.fromkeys(set(bodies) - set(requests), "is excluded"))
        self._look_for_the_away()
        came: dict[Client, tuple[bytes, Header]] = {}
        waiting = list(requests)
        for who, data in self._asked(requests):
            if data is not None:
                try:
                    came[who] = data, self._sound(data, {"from": who, **stand}, room)
                except KinfolkError as error:
                    self._rejected[who] = str(error)
                    waiting.remove(who)
            else:
                waiting.remove(who)
            while waiting and waiting[0] in came:
                first = waiting.pop(0)
                yield first, *came.pop(first)

    def _sound(self, data: bytes, expected: Header, room: int) -> Header:
        if head(data, room).get("error") == TOO_LONG:
            raise KinfolkError("site", expected["from"], "does not take a request of this size")
        back = checked(data, expected, room)
        if "error" in back:
            kind = back["error"] if back["error"].isidentifier() else "an error"
            raise KinfolkError("site", expected["from"], f"failed: {kind}; its own log tells why")
        return back

    def _asked(self, requests: Mapping[Client, bytes]) -> Iterator[tuple[Client, bytes | None]]:
        """Everybody's answer as it comes, None for whoever has none by the deadline; each exactly once."""
        there = {who: data for who, data in requests.items() if who not in self.away}
        for who in requests:
            if who in self.away:
                self._rejected[who] = "is away"
                yield who, None
        for who, answer in patiently(self.carrier, there, self.seconds, self._begins_anew):
            if answer is None:
                self.missed(who, f"has not answered within {self.seconds:g} s", "late")
            elif _error(answer) == LEFT:
                self.missed(who, LEFT, "left")
                answer = None
            yield who, answer

    def missed(self, who: Client, why: str, how: str) -> None:
        """Nobody waits for a site any more, which is "late" or has "left", until it is back."""
        self.away[who] = time.monotonic()
        self._rejected[who] = why
        told = f"{who} {why}; the run goes on without it until it is back"
        self.tell_people("warning", {"text": told, how: who})

    def _begins_anew(self, who: Client, answer: bytes, seconds: float) -> bool:
        """Whether a site was started anew; it is sent the agreement, and is to be asked once more."""
        anew = _error(answer) == NOT_BEGUN
        if anew:
            begin(self.carrier, self.agreement, [who], seconds)
        return anew

    def _look_for_the_away(self) -> None:
        """Take back those who answer again. It costs a glance, now and then."""
        now = time.monotonic()
        due = [who for who, last in self.away.items() if now - last > LOOK]
        if not due:
            return
        lost = begin(self.carrier, self.agreement, due, GLANCE)
        for who in due:
            if who in lost:
                self.away[who] = time.monotonic()
            else:
                del self.away[who]
                self.tell_people("warning", {"text": f"{who} is back", "back": who})


def _parted(
    packed: Mapping[Client, rpc.Packed],
) -> tuple[dict[Client, Message], dict[Client, Header]]:
    """Messages, and what stands in the header of each."""
    bodies = {who: body for who, (body, _) in packed.items()}
    return bodies, {who: own for who, (_, own) in packed.items()}


def _error(answer: bytes) -> str:
    """What a site says is wrong, in a word; empty if it says nothing of the kind."""
    try:
        return head(answer).get("error", "") if len(answer) <= ROOM else ""
    except KinfolkError:
        return ""


def _refused(back: Header) -> dict[Client, str]:
    """Whose letters a site has not taken, and why; a site that says it in no known way has said nothing.

    >>> _refused({"refused": '{"ann": "torn"}'}), _refused({"refused": "["})
    ({'ann': 'torn'}, {})
    """
    try:
        return {Client(who): str(why)[:80] for who, why in json.loads(back.get("refused", "{}")).items()}
    except NONSENSE:
        return {}


def begin(carrier: Carrier, agreement: Agreement, who: Sequence[Client], seconds: float) -> dict[Client, str]:
    """Send the agreement; who has not taken it, and why."""
    text = agreement.text()
    header = {"do": "begin", "agreement": text, "token": agreement.run}
    lost = dict.fromkeys(who, f"has not answered within {seconds:g} s")
    for c, data in patiently(carrier, {c: encode({}, {**header, "to": c}) for c in who}, seconds):
        if data is None:
            continue
        try:
            back = checked(data, {"from": c}, ROOM)
            if "ready" in back:
                del lost[c]
            else:
                lost[c] = back.get("error", "gave no answer")
        except KinfolkError as error:
            lost[c] = str(error)
    return lost
