"""SLFed: where masks come from, what members never forget, and what a run does about both."""

import json
import shutil

import numpy as np
import pytest
import torch
from film import APART, EASY, NAMES, Film, check_pams, flat, learner, nine, past, slfed

from kinfolk.contract import toy
from kinfolk.errors import KinfolkError
from kinfolk.experiment import divergence
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.choice import chosen
from kinfolk.experiment.client_memory import Journal
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import AlgorithmSpec, EngineSpec, Experiment
from kinfolk.shares import secure_sum
from kinfolk.shares.context import Context
from kinfolk.shares.fixed_point import expand
from kinfolk.shares.rejections import Rejections, no_rejections
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client, leaves


def seeds_of(entropy):
    """Every seed that members send one another in the fifth round."""
    found = []

    def note(sent, memory, me):
        for message in sent.values():
            found.extend(bytes(share["seed"].tolist()) for share in message.values())
        return sent

    film = Film(
        slfed(learner(), shares__entropy=entropy, **EASY),
        nine(),
        5,
        past(),
        tamper={"shares": note},
        ask=APART,
    )
    return found, film


def test_masks_are_the_systems_and_sums_the_same(monkeypatch):
    (once, first), (again, second) = seeds_of("system"), seeds_of("system")
    assert len(once) == 24
    assert len({*once, *again}) == 48, "seeds repeat from run to run"
    (known, third), (repeated, _) = seeds_of("stream"), seeds_of("stream")
    assert known == repeated
    for who in NAMES:
        pams = [flat(film.memories[who]["pam"]) for film in (first, second, third)]
        assert np.array_equal(pams[0], pams[1])
        assert np.array_equal(pams[0], pams[2])
    drawn = []
    monkeypatch.setattr(secure_sum.os, "urandom", lambda n: drawn.append(n) or bytes([len(drawn) % 256] * n))
    seeds_of("system")
    assert drawn, "the operating system was not asked"


def test_seeds_of_the_stream_differ_by_round_requester_member_and_attempt():
    seen = set()
    for number in range(3):
        for me in "ab":
            peer = Peer(Client(me), RoundContext(Seed(0), number, NAMES))
            sums = slfed(learner(), shares__entropy="stream")._sums()
            session = sums.session(peer, Rejections(NAMES, no_rejections(9)))
            seen |= {session.scheme(Client(of), attempt).entropy(32) for of in "cd" for attempt in (0, 1)}
    assert len(seen) == 3 * 2 * 2 * 2


def test_a_mask_is_of_one_exchange_only():
    """The same seed gives another mask as soon as anything in the exchange differs."""
    layers = (("w", 4),)
    changed = [
        Context("ann", 1, ("bob", "cyd"), (0.5, 0.5), layers),
        Context("ann", 2, ("bob", "cyd"), (0.5, 0.5), layers),
        Context("dan", 1, ("bob", "cyd"), (0.5, 0.5), layers),
        Context("ann", 1, ("bob", "cyd", "dan"), (0.5, 0.5, 0.5), layers),
        Context("ann", 1, ("bob", "cyd"), (0.5, 0.4), layers),
        Context("ann", 1, ("bob", "cyd"), (0.6, 0.4), layers),  # the same total
        Context("ann", 1, ("bob", "cyd"), (0.5, 0.5), (("v", 4),)),
    ]
    masks = {expand(bytes(32), ctx, "bob", "cyd").tobytes() for ctx in changed}
    assert len(masks) == len(changed)


def test_members_remember_from_round_to_round_what_they_answered():
    """Nobody trains in the fifth round: in the sixth nobody shares its model a second time."""
    slept = Film(slfed(learner(), **EASY), nine(), 5, past(), gone={"train": set(NAMES)}, ask=APART)
    shared = {member for members in slept.lists(4).values() for member in members}
    assert len(shared) == 8
    film = Film(slfed(learner(), **EASY), nine(), 6, slept, ask=APART)
    assert not film.lists(5)
    assert check_pams(film, 5) == 0
    for who in shared:
        assert len(film.memories[who]["answered"]) == len(slept.memories[who]["answered"]) > 0
        assert (
            "since it became part of a sum in round 4"
            in slfed(learner()).complaints(film.memories[who], NAMES)[who]
        )
    trained = Film(
        slfed(learner(), **EASY), nine(), 6, Film(slfed(learner(), **EASY), nine(), 5, past(), ask=APART)
    )
    assert trained.lists(5)
    asked = trained.memories["c"]["request_log"]
    assert int(asked["round"][NAMES.index("b")]) == 4, "the request_log of an earlier round is gone"


def spec(**settings):
    """Nine clients for a run."""
    return toy.spec_of(
        slfed(learner(), shares__min_members=2, **EASY), {"rounds": 6, "evaluate_every": 6, **settings}
    )


class Killed(Exception):
    pass


def killed_after(number):
    def watch(event, facts):
        if event == "round" and facts["round"] == number:
            raise Killed

    return watch


def go(spec, folder, **more):
    return run(spec, folder, federation=nine(), network=learner().module, **more)


def tensors(result):
    return {(c, k, n): t for c, m in sorted(result.memories.items()) for k, n, t in leaves(m)}


@pytest.mark.slow
def test_a_resumed_run_knows_what_was_answered_and_ends_alike(tmp_path):
    whole = go(spec(checkpoint_every=3), tmp_path / "whole")
    with pytest.raises(Killed):
        go(spec(checkpoint_every=3), tmp_path / "killed", watch=killed_after(5))
    journal = Journal(tmp_path / "killed").read()
    rounds = {int.from_bytes(bytes(row[0][:8].tolist()), "little") for _, _, row in journal}
    assert rounds >= {4}, "answers of the rounds after the checkpoint are not on the disk"
    resumed = go(spec(checkpoint_every=3), tmp_path / "killed", resume=True)
    mine, theirs = tensors(resumed), tensors(whole)
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert (tmp_path / "killed" / "answered.jsonl").read_text() == (
        tmp_path / "whole" / "answered.jsonl"
    ).read_text()


@pytest.mark.slow
def test_a_kill_between_the_note_and_the_answer_changes_nothing(tmp_path, monkeypatch):
    """Some of the answers of a round are noted, none has left; and all are noted, some may have left."""
    whole = tensors(go(spec(checkpoint_every=3), tmp_path / "whole"))
    append = Journal.append
    for name, kept in (("torn", 1), ("noted", 99)):
        calls = []

        def dying(journal, rows, calls=calls, kept=kept):
            calls.append(rows)
            append(journal, rows[:kept] if len(calls) == 2 else rows)
            if len(calls) == 2:
                raise Killed

        monkeypatch.setattr(Journal, "append", dying)
        with pytest.raises(Killed):
            go(spec(checkpoint_every=3), tmp_path / name)
        monkeypatch.setattr(Journal, "append", append)
        mine = tensors(go(spec(checkpoint_every=3), tmp_path / name, resume=True))
        assert list(mine) == list(whole)
        assert all(torch.equal(mine[key], whole[key]) for key in mine)


def test_a_run_that_starts_again_from_nothing_knows_what_was_answered(tmp_path):
    """Killed before its first checkpoint, and then asked for other sums over the same models."""
    go(spec(), tmp_path / "first")
    room = tmp_path / "second"
    room.mkdir()
    lines = (tmp_path / "first" / "answered.jsonl").read_text().splitlines()
    assert len(lines) > 9
    facts = [json.loads(line) for line in lines]
    # As if other exchanges had been answered: the end of a row is the exchange.
    other = [{**one, "row": one["row"][:-64] + "0" * 64} for one in facts]
    (room / "answered.jsonl").write_text("".join(json.dumps(one) + "\n" for one in other) + '{"torn')
    result = go(spec(), room, resume=True)
    assert all(len(m["answered"]) >= 1 for m in result.memories.values() if len(m.get("answered", "")))
    exchanges = {bytes(row[40:].tolist()) for m in result.memories.values() for row in m["answered"]}
    assert bytes(32) in exchanges
    again = {(one["client"], one["row"][:16]) for one in facts}
    new = [json.loads(line) for line in (room / "answered.jsonl").read_text().splitlines()[len(lines) + 1 :]]
    assert not {(one["client"], one["row"][:16]) for one in new} & again, "a second answer in one round"


def test_a_void_round_does_not_take_answers_back(tmp_path):
    """In the fourth round nobody's training is usable, but sums were answered before that."""
    algorithm = slfed(learner(), shares__min_members=2, **EASY)
    with toy.coordinated(algorithm, nine()) as coordinator:
        memories, state = coordinator.engine.memories, algorithm.init(learner().first, NAMES, Seed(0))
        rows = []
        memories.journal = rows.extend
        for number in range(4):
            memories.snapshot()
            before = {who: len(memories[who].get("answered", "")) for who in NAMES}
            state = toy.play_one(algorithm, state, NAMES, coordinator, RoundContext(Seed(0), number, NAMES))
        answered = {who: len(memories[who]["answered"]) for who in NAMES}
        assert sum(answered.values()) > sum(before.values())
        memories.rollback()
        assert {who: len(memories[who]["answered"]) for who in NAMES} == answered
        assert len(rows) == sum(answered.values())


def test_the_journal_is_written_before_answers_leave(tmp_path):
    seen = []
    algorithm = slfed(learner(), shares__min_members=2, **EASY)

    def watching(engine):
        swap = engine.swap

        def noted(one, among, context):
            if one is engine.table["responses"]:
                held = {who: len(engine.memories[who].get("answered", "")) for who in among}
                seen.append((sum(held.values()), len(Journal(tmp_path).read())))
            return swap(one, among, context)

        engine.swap = noted
        engine.memories.journal = Journal(tmp_path).append
        return engine

    toy.play_rounds(algorithm, nine(), rounds=4, wrap=watching, score=False)
    assert all(held == written for held, written in seen)
    assert seen[-1][0] > 0


def test_public_masks_are_warned_of_and_stay_in_one_process(tmp_path):
    def parts(engine, entropy="stream", shares="additive64"):
        options = {"shares.entropy": entropy, "shares.scheme": shares}
        return build_parts(
            Experiment(algorithm=AlgorithmSpec("slfed", options), engine=EngineSpec(engine, "cpu"))
        )

    assert chosen(parts("loop", "system"), None).warning == ""
    assert slfed(learner()).shares.entropy == "system"
    for engine in ("loop", "batched"):
        assert "NO MODEL IS HIDDEN" in chosen(parts(engine), None).warning
        assert chosen(parts(engine, shares="plain"), None).warning == ""  # there is nothing to hide
    for engine in ("workers", "wire"):
        with pytest.raises(
            KinfolkError, match=f"algorithm.shares.entropy = 'stream': .* engine '{engine}' leaves"
        ):
            chosen(parts(engine), None)
    public = toy.spec_of(slfed(learner(), shares__entropy="stream", **EASY), {"rounds": 1})
    heard = []
    go(public, tmp_path / "run", watch=lambda event, facts: heard.append((event, facts)))
    assert any(
        "NO MODEL IS HIDDEN" in str(facts.get("warning")) for event, facts in heard if event == "engine"
    )
    assert any("NO MODEL IS HIDDEN" in line.get("text", "") for line in read_audit(tmp_path / "run"))
    assert len(read_rounds(tmp_path / "run")) == 2
    shutil.rmtree(tmp_path / "run")


@pytest.mark.slow
def test_a_run_that_goes_back_takes_back_no_answer(tmp_path, monkeypatch):
    """Models and memories are those of round 4 again, and the rounds after it are new ones."""
    look = divergence.look

    def diverges_in_round_5(trace, round, *given):
        look(trace, round, *given)  # of a toy that hardly learns; what it says of that is not used
        made_up = {"round": 5, "kind": "loss", "text": "made up", "clients": []}
        trace.diverged = made_up if round == 5 else {}

    monkeypatch.setattr(divergence, "look", diverges_in_round_5)
    held = {}

    def watch(event, facts):
        if event == "round":
            lines = (tmp_path / "r" / "answered.jsonl").read_text() if facts["round"] > 4 else ""
            kept = [row for c in NAMES for row in facts["memories"][c].get("answered", [])]
            held[facts["round"]] = len(lines.splitlines()), len(kept)

    go(spec(evaluate_every=1, on_divergence="rollback", rounds=8), tmp_path / "r", watch=watch)
    done = [line for line in read_audit(tmp_path / "r") if line["event"] == "rollback"]
    assert [(line["round"], line["to"]) for line in done] == [(5, 4)]
    assert held[5][0] == held[5][1] > held[4][1], "what was answered in round 5 is known after it was undone"
    rows = (tmp_path / "r" / "answered.jsonl").read_text().splitlines()
    assert held[8] == (len(rows), len(rows))
