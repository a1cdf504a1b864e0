"""What a server, colluding clients and somebody on the line get: the sum, and nothing like a model."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, ks_2samp
from small_runs import SPEC, digits, go, saved
from summing import ADDITIVE, SHAMIR, first_state, flat, server, trained

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract import toy
from kinfolk.engines.memory import InProcess
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import override
from kinfolk.script import Ask
from kinfolk.secure_sums import holding
from kinfolk.secure_sums.holding import ABSENT, ANSWER, FIT, HELD, LIST, LOG, RESPONSE, UNWILLING, WHY
from kinfolk.secure_sums.member import MOST, exchanges, list_of
from kinfolk.secure_sums.spec import SecureSumsSpec
from kinfolk.shares.answer_log import empty_log
from kinfolk.shares.fixed_point import expand
from kinfolk.shares.prime_field import value_at
from kinfolk.shares.shamir import threshold_of
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client, leaves

FEDERATION = toy.ragged()
METHOD = FedAvg(toy.learner("mlp", FEDERATION))
NAMES = tuple(map(Client, ("ann", "bob", "cyd", "dan", "eve")))
# Some thirty such tests draw from the system's generator: chance fails one in thirty million runs.
UNLIKELY = 1e-9


def played_round(spec=ADDITIVE, before=None, state=None, number=0, **options):
    """(the stage, state after a round), with something done before each request."""
    with server(METHOD, FEDERATION, spec, **options) as stage:
        stage.before = before or stage.before
        return stage, stage.round(first_state(METHOD, FEDERATION) if state is None else state, number)


# A group of clients by hand, request by request.


def members(models, spec=ADDITIVE, number=7 * MOST, round=7):
    """Memories of clients that have trained and were told a list; the list."""
    ctx = list_of(number, 0, dict.fromkeys(models, 1.0), (("w", len(next(iter(models.values())))),))
    mask = torch.tensor([c in models for c in NAMES])
    told = {"mask": mask, "sigma": mask / mask.sum().double(), "number": torch.tensor(number)}
    told["group"] = torch.tensor(0)
    return {c: {LOG: empty_log(), HELD: {"w": torch.tensor(w)}, LIST: told} for c, w in models.items()}, ctx


def act(memories, name, spec=ADDITIVE, change=lambda sender, to, what: what, round=7):
    """An exchange among these clients: what was written by (sender, receiver)."""
    swap, context = exchanges(spec)[name], RoundContext(Seed(0), round, NAMES)
    mail = {(c, to): what for c in memories for to, what in swap.send(memories[c], Peer(c, context)).items()}
    for c in memories:
        inbox = {a: change(a, b, what) for (a, b), what in mail.items() if b == c}
        memories[c] = swap.receive(
            {a: what for a, what in inbox.items() if what is not None}, memories[c], Peer(c, context)
        )
    return mail


def summed(models, spec=ADDITIVE):
    """(answers by client, what travelled, the list) of one sum."""
    memories, ctx = members(models, spec)
    act(memories, "sums.open", spec)
    mail = act(memories, "sums.share", spec)
    act(memories, "sums.note", spec)
    found = {c: memory[ANSWER] for c, memory in memories.items()}
    answers = {c: {**one, "seen": one["seen"][: len(models)]} for c, one in found.items()}
    return answers, mail, ctx


def top_bytes(words: torch.Tensor, shift: int) -> np.ndarray:
    return ((words.numpy().view(np.uint64) >> np.uint64(shift)) & np.uint64(255)).astype(int)


def looks_random(words: torch.Tensor, bits: int = 64) -> bool:
    """Whether the highest byte of words is as even as that of a masked number, unlike that of a small one."""
    counts = np.bincount(top_bytes(words, bits - 8), minlength=256)
    return bool(chisquare(counts).pvalue > UNLIKELY)


WIDE = 4096  # numbers of a model: bytes by the thousand in one exchange
ONE = np.linspace(-3, 3, WIDE).tolist()


def world(victim: float):
    """Models of four with the same sum, whatever the victim's is."""
    shift = [victim] * WIDE
    return {"ann": shift, "bob": [-v for v in shift], "cyd": ONE, "dan": ONE}


@pytest.mark.parametrize("spec", [ADDITIVE, SHAMIR], ids=lambda spec: spec.scheme)
def test_two_worlds_of_the_same_sum_look_alike(spec):
    bits = 64 if spec is ADDITIVE else 61
    seen = []
    for victim in (0.0, 5.0):
        answers, _, ctx = summed(world(victim), spec)
        total = spec.make().reconstruct(answers, ctx)
        np.testing.assert_allclose(total, np.array(ONE) / 2, atol=1e-6)
        for answer in answers.values():
            assert looks_random(answer["sum"], bits)
        # Beside the total: the victim's answer, and how it goes with each other one.
        own = answers["ann"]["sum"]
        seen.append([own, *(own - answers[c]["sum"] for c in ("bob", "cyd", "dan"))])
    for a, b in zip(*seen, strict=True):
        assert ks_2samp(a.numpy(), b.numpy()).pvalue > UNLIKELY
    # What would be noticed: the same numbers without a mask.
    bare = [torch.tensor(np.rint(np.array([v] * WIDE) / 4 * 2**32).astype(np.int64)) for v in (0.0, 5.0)]
    assert ks_2samp(*(t.numpy() for t in bare)).pvalue < UNLIKELY
    assert not looks_random(bare[1])


@pytest.mark.parametrize("colluders", [("cyd",), ("cyd", "dan"), ("bob", "cyd", "dan")])
def test_masks_that_colluders_know_are_not_all_unless_nobody_else_is_left(colluders):
    """additive64: a server and members that give it every seed they sent and got."""
    answers, mail, ctx = summed(world(5.0))
    left = answers["ann"]["sum"].numpy().view(np.uint64).copy()
    for c in colluders:
        got, sent = mail["ann", c]["share"]["seed"], mail[c, "ann"]["share"]["seed"]
        left += expand(got.numpy().tobytes(), ctx, "ann", c)
        left -= expand(sent.numpy().tobytes(), ctx, c, "ann")
    bare = torch.from_numpy(left.view(np.int64))
    if len(colluders) < len(answers) - 1:
        assert looks_random(bare)
    else:  # what no sum can hide
        np.testing.assert_allclose(bare.double() * 2.0**-32 * 4, 5.0, atol=1e-6)


def test_fewer_shares_than_the_threshold_tell_nothing_and_as_many_tell_all():
    """shamir61: a server and members that give it the victim's shares."""
    _, mail, ctx = summed(world(5.0), SHAMIR)
    t = threshold_of(len(ctx.members))

    def guess(who):
        points = [ctx.place(c) + 1 for c in who]
        values = []
        for c in who:
            share = mail["ann", c]["share"]
            if "seed" in share:
                words = expand(share["seed"].numpy().tobytes(), ctx, "ann", c)
                values.append(words % np.uint64(2**61 - 1))
            else:
                values.append(share["part"].numpy().view(np.uint64))
        return torch.from_numpy(value_at(values, points, 0).view(np.int64))

    others = [c for c in ctx.members if c != "ann"]
    assert len(others) == t == 3
    assert looks_random(guess(others[: t - 1]), 61)
    np.testing.assert_allclose(guess(others).double() * 2.0**-24 * 4, 5.0, atol=1e-5)


# Whole rounds.


FEW = 4  # numbers in a row that nobody has by chance


def forms(model, start, share: float) -> set[bytes]:
    """What a client's numbers look like as bytes: as they are, doubled, weighted and as fixed-point."""
    found = set()
    for name, leaf in model.items():
        values, before = (t.double().flatten().numpy() for t in (leaf, start[name]))
        for i in range(0, len(values) - FEW + 1, FEW):
            some = values[i : i + FEW]
            # What has not moved, everybody has.
            if np.abs(some - before[i : i + FEW]).min() > 1e-6 and np.abs(some).min() > 1e-3:
                whole = [np.rint(np.ldexp(share * some, bits)).astype(np.int64) for bits in (24, 32)]
                kinds = [some.astype(np.float32), some, share * some, *whole]
                found |= {kind.tobytes() for kind in kinds}
    assert len(found) > 100
    return found


def of_clients(models, start) -> set[bytes]:
    """Those of all clients."""
    shares = (models.size.double() / models.size.sum()).tolist()
    each = [forms(models.row(c)["model"], start, w) for c, w in zip(models.clients, shares, strict=True)]
    return set().union(*each)


@pytest.fixture
def drawn(monkeypatch):
    """Every seed and salt that anybody draws."""
    found: list[bytes] = []
    made = SecureSumsSpec.make

    def entropy(count):
        found.append(os.urandom(count))
        return found[-1]

    monkeypatch.setattr(SecureSumsSpec, "make", lambda spec: replace(made(spec), entropy=entropy))
    return found


@pytest.mark.parametrize("engine", ["loop", "wire"])
def test_no_model_and_no_seed_is_in_what_the_server_gets(engine, drawn):
    first = METHOD.learner.first
    models = trained(METHOD, FEDERATION, "update", {"model": first})
    stage, _ = played_round(engine=engine)
    got = b"".join(t.contiguous().numpy().tobytes() for _, s in stage.seen for *_, t in leaves(s.body))
    secrets = of_clients(models, first).union(drawn)
    assert len(drawn) == 8 * (7 + 8)  # seeds to the others, salts for all
    assert not [s for s in secrets if s in got]
    assert set(stage.seen[0][1].body) == {FIT}  # of training comes that it is done, and in range
    # The search finds what is there: with plain means all models are.
    plain = b"".join(t.contiguous().numpy().tobytes() for *_, t in leaves(models.body))
    assert sum(s in plain for s in secrets) > 100


def test_a_run_folder_holds_no_client_model_and_no_seed(tmp_path, drawn):
    spec = override(SPEC, ["secure_sums.scheme=additive64"])
    parts = build_parts(spec, digits(spec.data, spec.run.seed))
    first = parts.learner.first
    models = trained(parts.algorithm, parts.federation, "update", {"model": first})
    mean = go(tmp_path / "run", "secure_sums.scheme=additive64", "run.rounds=1").state.model
    everything = b"".join(p.read_bytes() for p in sorted((tmp_path / "run").rglob("*")) if p.is_file())
    assert len(drawn) == 4 * (3 + 4)
    secrets = of_clients(models, first).union(drawn, {s.hex().encode() for s in drawn})
    assert not [s for s in secrets if s in everything]
    assert [s for s in forms(mean, first, 1.0) if s in everything]  # the mean is there, and found
    memory = saved(tmp_path / "run")[1]["memory"]
    assert {key.rpartition(".")[2] for key in memory} == {LOG.rpartition(".")[2]}


def without(c):
    return [x for x in FEDERATION.clients if x != c]


def mean_of(who):
    models = trained(METHOD, FEDERATION, "update", {"model": METHOD.learner.first}).at(who)
    weights = models.size.double() / models.size.sum()
    return sum(w * flat(models.row(c)["model"]) for w, c in zip(weights, models.clients, strict=True))


def gone(who, since):
    """A client that does not answer from some request on."""
    past = []

    def before(stage, request):
        name = getattr(request, "task", "") or getattr(request, "swap", "")
        past.append(name)
        if since in past:
            stage.coordinator.excluded = {who}

    return before


def test_who_vanishes_before_sharing_is_left_out_of_the_sum():
    stage, after = played_round(before=gone("finn", "sums.list"))
    assert float((flat(after.model) - mean_of(without("finn"))).abs().max()) < 1e-6
    assert [facts["client"] for facts in stage.told("left_out")] == ["finn"]
    assert stage.asked.count("sums.share") == 2


def test_who_vanishes_after_sharing_voids_an_additive_sum_and_not_one_with_a_threshold():
    stage, after = played_round(ADDITIVE, before=gone("finn", "sums.note"))
    assert torch.equal(flat(after.model), flat(METHOD.learner.first))
    assert "message of 'finn': is missing" in stage.told("no_sum")[0]["reason"]
    stage, after = played_round(SHAMIR, before=gone("finn", "sums.note"))
    assert float((flat(after.model) - mean_of(FEDERATION.clients)).abs().max()) < 1e-5  # finn's model too
    assert not stage.told("no_sum")


def flipped(what, key):
    share = dict(what["share"])
    share[key] = share[key].clone()
    share[key].view(torch.uint8).reshape(-1)[3] ^= 1
    return {**what, "share": share}


@pytest.mark.parametrize("key", ["seed", "salt", "commitments", "exchange"])
def test_a_share_that_is_altered_on_its_way_never_makes_a_wrong_sum(key, monkeypatch):
    carried, done = InProcess.carried, []

    def altered(self, mail):
        for (sender, to), what in carried(self, mail):
            once = (sender, to) == ("ada", "gus") and not done
            done.extend([1] * once)
            yield (sender, to), flipped(what, key) if once else what

    monkeypatch.setattr(InProcess, "carried", altered)
    stage, after = played_round()
    assert done
    told = stage.told("left_out")
    if key == "commitments":  # to somebody else's share: it comes out when answers are compared
        assert "dispute" in stage.told("no_sum")[0]["reason"]
        assert torch.equal(flat(after.model), flat(METHOD.learner.first))
        return
    # One says it of another: nobody can tell who is right, and who cannot answer is left out.
    assert [(f["client"], f["reason"]) for f in told] == [
        ("gus", "lacks a good share of ada, says nobody else")
    ]
    assert float((flat(after.model) - mean_of(without("gus"))).abs().max()) < 1e-6


@pytest.mark.parametrize("spec", [ADDITIVE, SHAMIR], ids=lambda spec: spec.scheme)
def test_an_answer_that_is_altered_makes_no_sum_or_is_left_out(spec):
    def before(stage, request):
        if getattr(request, "task", "") == "sums.answer.update":
            held = stage.memories["gus"]
            bent = {**held[ANSWER], "sum": held[ANSWER]["sum"] + 2**40}
            stage.memories["gus"] = {**held, ANSWER: bent}

    stage, after = played_round(spec, before=before)
    if spec is ADDITIVE:
        assert torch.equal(flat(after.model), flat(METHOD.learner.first))
        assert "was damaged on its way" in stage.told("no_sum")[0]["reason"]
    else:
        assert float((flat(after.model) - mean_of(FEDERATION.clients)).abs().max()) < 1e-5
        assert "'gus'" in stage.told("sum_fault")[0]["reason"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e9])
def test_a_model_out_of_range_is_not_shared_and_its_numbers_are_not_told(bad):
    def before(stage, request):
        if getattr(request, "swap", "") == "sums.open":
            held = stage.memories["cleo"]
            wrong = {n: t + bad for n, t in held[HELD].items()}
            stage.memories["cleo"] = {**held, HELD: wrong}

    stage, after = played_round(before=before)
    assert float((flat(after.model) - mean_of(without("cleo"))).abs().max()) < 1e-6
    told = stage.told("left_out")
    assert [(f["client"], f["reason"]) for f in told] == [("cleo", holding.REASONS[holding.UNFIT])]


@pytest.mark.parametrize("spec", [ADDITIVE, SHAMIR], ids=lambda spec: spec.scheme)
def test_who_knows_to_be_out_of_range_is_left_out_before_anybody_shares(spec):
    models = trained(METHOD, FEDERATION, "update", {"model": METHOD.learner.first})
    sizes = {float(flat(models.row(c)["model"]).abs().max()): c for c in models.clients}
    *_, second, largest = sorted(sizes)
    stage, after = played_round(replace(spec, limit=(second + largest) / 2))
    told = [(facts["client"], facts["reason"]) for facts in stage.told("left_out")]
    assert told == [(sizes[largest], holding.REASONS[holding.UNFIT])]
    assert float((flat(after.model) - mean_of(without(sizes[largest]))).abs().max()) < 1e-5
    assert stage.asked.count("sums.share") == 1


# A server that asks more than it should.


def why(memories):
    return {c: int(memory[WHY]) for c, memory in memories.items()}


def told_again(memories, **change):
    for c, memory in memories.items():
        memories[c] = {k: v for k, v in memory.items() if k not in (RESPONSE, ANSWER, WHY)}
        memories[c][LIST] = {**memory[LIST], **change}


@pytest.mark.parametrize("spec", [ADDITIVE, SHAMIR], ids=lambda spec: spec.scheme)
def test_a_model_is_part_of_one_sum_only(spec):
    memories, _ = members(world(5.0), spec)
    for name in ("sums.open", "sums.share", "sums.note"):
        act(memories, name, spec)
    assert all(ANSWER in memory for memory in memories.values())
    fewer = {c: memory for c, memory in memories.items() if c != "dan"}
    mask = torch.tensor([c in fewer for c in NAMES])
    # The same round, and the next number of it.
    for number in (7 * MOST, 7 * MOST + 1):
        told_again(fewer, mask=mask, sigma=mask.double() / 3, number=torch.tensor(number))
        act(fewer, "sums.open", spec)
        assert set(why(fewer).values()) == {UNWILLING}
        assert not any(act(fewer, "sums.share", spec))
        act(fewer, "sums.note", spec)
        assert not any(ANSWER in memory for memory in fewer.values())
    # A round later it is the same model still.
    told_again(fewer, number=torch.tensor(8 * MOST))
    act(fewer, "sums.open", spec, round=8)
    assert set(why(fewer).values()) == {UNWILLING}


def test_the_sum_of_another_round_is_refused():
    memories, _ = members(world(5.0), number=6 * MOST)
    act(memories, "sums.open")
    assert set(why(memories).values()) == {UNWILLING}


def test_shares_of_another_sum_are_refused():
    old, _ = members(world(5.0), number=7 * MOST)
    act(old, "sums.open")
    mail = act(old, "sums.share")
    memories, _ = members(world(4.0), number=7 * MOST + 1)
    act(memories, "sums.open")
    act(memories, "sums.share", change=lambda a, b, what: mail[a, b] if a == "bob" else what)
    assert all(RESPONSE not in memory for c, memory in memories.items() if c != "bob")


@pytest.mark.parametrize(
    "sigma", [(1, 0, 0, 0), (0.5, 0.5, 0, 0), (0.6, 0.2, 0.1, 0.1)], ids=["one", "two", "most"]
)
def test_members_do_not_agree_to_weights_that_single_one_out(sigma):
    memories, _ = members(world(5.0))
    told_again(memories, sigma=torch.tensor([*sigma, 0.0]).double())
    act(memories, "sums.open")
    assert UNWILLING in why(memories).values()
    assert why(memories)["ann"] == UNWILLING


def test_void_rounds_and_rollbacks_do_not_take_the_note_back():
    with server(METHOD, FEDERATION) as stage:
        stage.memories.snapshot()
        first = stage.round(first_state(METHOD, FEDERATION))
        stage.memories.rollback()
        assert {len(stage.memories[c][LOG]) for c in FEDERATION.clients} == {1}
        # The same round among fewer: the one that is missing would be the difference.
        stage.before = gone("ada", "update")
        again = stage.round(first_state(METHOD, FEDERATION))
        assert not torch.equal(flat(first.model), flat(METHOD.learner.first))
        assert torch.equal(flat(again.model), flat(METHOD.learner.first))
        assert {f["reason"] for f in stage.told("left_out")} == {holding.REASONS[UNWILLING]}


def test_who_was_told_no_list_says_so():
    with server(METHOD, FEDERATION) as stage:
        context = RoundContext(Seed(0), 0, FEDERATION.clients)
        ready, none = (
            stage.coordinator.perform(Ask(task, FEDERATION.clients), context)
            for task in ("sums.ready", "sums.answer.update")
        )
    assert set(ready.tensor("why").tolist()) == {ABSENT}
    assert not any(bool(t.any()) for *_, t in leaves(none.body))


def test_seeds_are_fresh_in_every_sum():
    seeds = set()
    for _ in range(3):
        _, mail, _ = summed(world(5.0))
        seeds |= {bytes(what["share"]["seed"].tolist()) for what in mail.values()}
    assert len(seeds) == 3 * 4 * 3
    assert ADDITIVE.make().entropy is SHAMIR.make().entropy is os.urandom
