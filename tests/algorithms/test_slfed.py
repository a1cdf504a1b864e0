"""SLFed: what a round comes to, who hears what, and what bad letters can and can not do."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from kinfolk.algorithms.slfed import SLFed, due, partners
from kinfolk.contract import toy
from kinfolk.contract.compare import unsound
from kinfolk.engines.one import perform
from kinfolk.errors import KinfolkError
from kinfolk.learning.stand_in import predicted
from kinfolk.script import Ask, Exchange, play
from kinfolk.shares.refusals import Refusals, no_refusals
from kinfolk.streams import Seed, Turn
from kinfolk.task import Peer, Swap
from kinfolk.trust.alike import listed
from kinfolk.trust.book import known, opinions
from kinfolk.types import Client

NAMES = tuple(map(Client, "abcdefghi"))
STEPS = (
    "begin",
    "images",
    "counts",
    "opinions",
    "requests",
    "accepts",
    "confirm",
    "shares",
    "ready",
    "verdict",
    "again",
    "responses",
)
EASY = {"images": "noise", "images_count": 30}


@pytest.fixture(scope="module")
def nine():
    return toy.grouped((12,) * 9, side=8, noise=0.5, names=NAMES, turned=[0, 0, 0, 0, 0, 1, 1, 1, 1])


@pytest.fixture(scope="module")
def learner(nine):
    return toy.learner("tiny_cnn", nine)


@pytest.fixture(scope="module")
def past(nine, learner):
    """Four rounds without trouble."""
    return Film(SLFed(learner, **EASY), nine, 4)


class Film:
    """Rounds with everybody's memory after each request, from the start or from where another film ends.

    In the last round `tamper` changes letters, `gone` names who is missing and `repeat` what happens twice.
    """

    def __init__(self, algorithm, federation, rounds, past=None, tamper=None, gone=None, repeat=()):
        self.after, self.requests, self.answers = {}, [], []
        with toy.staged(algorithm, federation) as stage:
            state = (
                past.state
                if past
                else algorithm.init(toy.first_model(algorithm), federation.clients, Seed(0))
            )
            stage.engine.memories.update(past.memories if past else {})
            for number in range(past.rounds if past else 0, rounds):
                turn = Turn(Seed(0), number, federation.clients)
                last = number == rounds - 1

                def act(request, turn=turn, last=last):
                    name = request.task if isinstance(request, Ask) else request.swap
                    if last and gone and name in gone:
                        who = tuple(sorted(set(federation.clients) - gone[name]))
                        request = (
                            Ask(name, tuple(c for c in request.to if c in who))
                            if isinstance(request, Ask)
                            else Exchange(name, who)
                        )
                    if last and tamper and name in tamper and isinstance(request, Exchange):
                        swap = stage.engine.table[name]
                        bad = Swap(lambda m, me: tamper[name](swap.send(m, me), m, me), swap.receive)
                        stage.engine.swap(bad, request.among, turn)
                        answer = None
                    else:
                        answer = stage.perform(request, turn)
                    if last and name in repeat:
                        stage.perform(request, turn)
                    self.requests.append(request)
                    self.answers.append(answer)
                    self.after[turn.round, name] = dict(stage.engine.memories)
                    return answer

                state, self.info = play(algorithm.round(state, federation.clients, turn), act)
            self.bytes = stage.ledger.take()[0]
            self.state, self.memories, self.rounds = state, dict(stage.engine.memories), rounds

    def lists(self, number, step="ready", word="verdict"):
        """Whom each client asks in the end, or at an earlier step: {client: {member: sigma}}."""
        found = {}
        for who, memory in self.after[number, step].items():
            asked = memory.get("asked")
            if asked is not None and int(asked[word]):
                places = asked["mask"].nonzero()[:, 0].tolist()
                found[who] = {NAMES[i]: float(asked["sigma"][i]) for i in places}
        return found


def flat(model):
    return np.concatenate([t.double().numpy().ravel() for t in model.values() if t.is_floating_point()])


def check_pams(film, number, but=(), tolerance=1e-6):
    """Every PAM is (M_A + sum sigma M_i) / (1 + sum sigma), or the own model where nobody was asked."""
    models = {c: flat(m["model"]) for c, m in film.after[number, "confirm"].items()}
    lists, summed = film.lists(number), 0
    for who in set(NAMES) - set(but):
        pam = flat(film.after[number, "responses"][who]["pam"])
        members = lists.get(who, {})
        whole = models[who] + sum(sigma * models[c] for c, sigma in members.items())
        np.testing.assert_allclose(pam, whole / (1 + sum(members.values())), rtol=tolerance, atol=tolerance)
        summed += bool(members)
    return summed


@pytest.mark.parametrize("scheme", ["plain", "layerwise", "additive64", "shamir61"])
def test_a_pam_is_the_scaled_mean_by_every_scheme(nine, learner, past, scheme):
    algorithm = SLFed(learner, shares=scheme, waves=3 if scheme == "layerwise" else 1, **EASY)
    film = Film(algorithm, nine, 6, past)
    assert sum(check_pams(film, number) for number in (4, 5)) > 8
    counts = [m["pam"]["norm1.num_batches_tracked"] for m in film.memories.values()]
    assert all(c.dtype == torch.int64 for c in counts)
    assert all(int(m["refused"].sum()) == 0 for m in film.memories.values())


def test_batch_norm_buffers_are_averaged_and_training_starts_from_the_pam(nine, learner, past):
    film = Film(SLFed(learner, **EASY), nine, 5, past)
    who, members = next(iter(film.lists(4).items()))
    models, pam = film.after[4, "confirm"], film.after[4, "responses"][who]["pam"]
    parts = [(1.0, who), *((sigma, c) for c, sigma in members.items())]
    whole = sum(s * models[c]["model"]["norm1.running_var"].double() for s, c in parts)
    torch.testing.assert_close(pam["norm1.running_var"].double(), whole / sum(s for s, _ in parts))
    turn = Turn(Seed(0), 4, NAMES)
    trained = perform(learner.train(), {"model": pam}, {}, nine, who, turn)[0]["model"]
    np.testing.assert_allclose(flat(film.memories[who]["model"]), flat(trained), rtol=1e-6)
    np.testing.assert_array_equal(flat(film.memories[who]["pam"]), flat(pam))


def test_nothing_reaches_a_coordinator_and_letters_go_to_those_they_are_for(nine, learner, past):
    letters = []

    def note(sent, memory, me):
        letters.extend((me.name, to, tuple(payload)) for to, payload in sent.items())
        return sent

    film = Film(SLFed(learner, **EASY), nine, 5, past, tamper=dict.fromkeys(STEPS, note))
    for request, answer in zip(film.requests, film.answers, strict=True):
        if isinstance(request, Ask):
            assert (request.shared, request.each, request.fold, answer.body) == ({}, None, None, {})
        else:
            assert answer is None
    assert film.info == {}
    assert film.bytes["train"] == {"down": 0, "up": 0}
    assert film.state.joined.tolist() == [1] * 9
    turn, lists = Turn(Seed(0), 4, NAMES), film.lists(4)
    direct = {(a, b) for a in NAMES for b in partners(Peer(a, turn), 2)}
    fellows = {(a, b) for who in lists.values() for a in who for b in who if a != b}
    for sender, to, keys in letters:
        if keys[0] in ("images", "yours", "opinions"):
            assert (sender, to) in direct
        elif keys[0].isdigit():  # shares, by the requester's place
            assert (sender, to) in fellows
        elif "sum" in keys:
            assert sender in lists[to]
    assert {keys[0] for _, _, keys in letters} >= {"images", "yours", "opinions", "sigma", "id", "word"}


def test_links_go_both_ways_and_follow_from_seed_round_and_name():
    turns = [Turn(Seed(s), r, NAMES) for s, r in ((0, 0), (0, 0), (0, 1), (1, 0))]
    links = [{c: partners(Peer(c, turn), 2) for c in NAMES} for turn in turns]
    assert links[0] == links[1]
    assert links[0] != links[2] != links[3] != links[0]
    for who, near in links[0].items():
        assert len(near) >= 2
        assert who not in near
        assert all(who in links[0][other] for other in near)


def test_similarity_is_that_of_histograms_and_both_ends_agree(nine, learner):
    film = Film(SLFed(learner, **EASY), nine, 1)
    before, after = film.after[0, "dream"], film.after[0, "counts"]

    def seen(model_of, images_of):
        images = before[images_of]["images"]
        labels = predicted(learner, before[model_of]["model"], images, -1.0, 1.0).numpy()
        return np.bincount(labels, minlength=4).astype(float)

    def cosine(a, b):
        return a @ b / np.sqrt((a @ a) * (b @ b))

    turn = Turn(Seed(0), 0, NAMES)
    for a in NAMES:
        for b in partners(Peer(a, turn), 2):
            alike = (cosine(seen(a, a), seen(b, a)) + cosine(seen(a, b), seen(b, b))) / 2
            assert float(after[a]["book"]["sum"][NAMES.index(b)]) == pytest.approx(alike)
        assert int(after[a]["book"]["met"].sum()) == len(partners(Peer(a, turn), 2))


def test_everybody_is_known_by_the_fourth_round_and_lists_are_at_most_half(nine, learner):
    two, one = (Film(SLFed(learner, direct=ds, **EASY), nine, 5) for ds in (2, 1))
    doubts = []
    for film in (two, one):
        memories = film.after[4, "opinions"].values()
        doubts.append(np.mean([opinions(m["book"]).u[known(m["book"])].mean() for m in memories]))
    assert all(int(known(m["book"]).sum()) == 8 for m in two.after[3, "opinions"].values())
    assert any(int(known(m["book"]).sum()) < 8 for m in one.after[1, "opinions"].values())
    for number in range(5):
        for memory in two.after[number, "opinions"].values():
            assert int(memory["asked"]["mask"].sum()) <= int(known(memory["book"]).sum()) // 2
    assert doubts[0] < doubts[1]


def test_who_is_absent_is_left_out_of_the_lists_and_hurts_nobody(nine, learner, past):
    gone = {step: {"c"} for step in (*STEPS, "dream", "train")}
    film = Film(SLFed(learner, **EASY), nine, 5, past, gone=gone)
    wanted = [m["asked"] for c, m in film.after[4, "opinions"].items() if c != "c"]
    again = [c for c, m in film.after[4, "accepts"].items() if c != "c" and int(m["asked"]["word"]) == 2]
    assert any(int(asked["mask"][2]) for asked in wanted)  # somebody wanted to ask it
    assert again  # and asked a shorter list anew
    assert check_pams(film, 4, but="c") >= len(again)
    assert "c" not in {member for who in film.lists(4).values() for member in who}
    assert film.memories["c"] is past.memories["c"]  # it slept


VANISH = {
    "before it shared": ("shares", "ready", "verdict", "again", "responses"),
    "after it shared": ("ready", "verdict", "again", "responses"),
    "before it answered": ("responses",),
}


def keeps_its_own(film, number, who):
    own = film.after[number, "confirm"][who]["model"]
    return np.array_equal(flat(film.after[number, "responses"][who]["pam"]), flat(own))


@pytest.mark.parametrize("when", VANISH)
@pytest.mark.parametrize("scheme", ["additive64", "shamir61"])
def test_a_member_that_vanishes_after_it_accepted(nine, learner, past, scheme, when):
    """No answer has left: once more without it. Too late, or too few: the own model, or Shamir's sum."""
    film = Film(SLFed(learner, shares=scheme, **EASY), nine, 5, past, gone={s: {"c"} for s in VANISH[when]})
    accepted, tried = film.lists(4, "accepts", "word"), film.lists(4)
    touched = {who for who, members in accepted.items() if "c" in members} - {"c"}
    assert touched
    for who in touched:
        long_enough, stays = len(accepted[who]) > 3, scheme == "shamir61" and when != "before it shared"
        if when == "before it answered":
            assert tried[who] == accepted[who]
            assert keeps_its_own(film, 4, who) is not (stays and long_enough)
        elif stays and long_enough:  # three of four are enough, and all four models are in the sum
            assert tried[who] == accepted[who]
        elif long_enough:
            assert tried[who].keys() == accepted[who].keys() - {"c"}
        else:
            assert who not in tried
        assert when == "before it answered" or who in tried or keeps_its_own(film, 4, who)
    late = {who for who in touched if keeps_its_own(film, 4, who)} if when == "before it answered" else set()
    assert check_pams(film, 4, but={"c", *late}) > 0
    blamed = any(int(film.memories[who]["refused"][2]) for who in touched)
    assert blamed or (when == "before it answered" and scheme == "shamir61")


def test_a_second_try_has_fresh_seeds_and_what_was_void_is_never_answered(nine, learner, past):
    """Of both tries the shares are kept: no seed is used twice, and c's void exchange has no answer."""
    seeds, answers = {"shares": [], "again": []}, []

    def note(step):
        def look(sent, memory, me):
            for letter in sent.values():
                seeds[step] += [bytes(share["seed"].tolist()) for share in letter.values() if "seed" in share]
            return sent if (me.name, step) != ("c", "shares") else {}

        return look

    def heard(sent, memory, me):
        answers.extend((me.name, to) for to in sent)
        return sent

    film = Film(
        SLFed(learner, **EASY), nine, 5, past,
        tamper={"shares": note("shares"), "again": note("again"), "responses": heard},
    )  # fmt: skip
    every = seeds["shares"] + seeds["again"]
    assert seeds["again"]
    assert len(set(every)) == len(every)
    tried, accepted = film.lists(4), film.lists(4, "accepts", "word")
    assert any(len(tried[who]) < len(accepted[who]) for who in tried)
    assert set(answers) == {(member, who) for who, members in tried.items() for member in members}
    assert check_pams(film, 4) == len(tried)


def test_without_retries_a_member_that_vanishes_costs_the_sum(nine, learner, past):
    film = Film(SLFed(learner, retries=0, **EASY), nine, 5, past, gone={"again": {"c"}})
    accepted = film.lists(4, "accepts", "word")
    touched = {who for who, members in accepted.items() if "c" in members}
    assert touched
    assert all(keeps_its_own(film, 4, who) for who in touched)
    assert not any(keeps_its_own(film, 4, who) for who in set(accepted) - touched - {"c"})


@pytest.mark.parametrize("step", STEPS)
def test_who_misses_a_single_exchange_hurts_only_those_who_asked_it(nine, learner, past, step):
    broken = Film(SLFed(learner, waves=2, **EASY), nine, 6, past, gone={step: {"c"}})
    asked_it = {who for who, members in broken.lists(5).items() if "c" in members}
    late = step in ("verdict", "again", "responses")
    assert check_pams(broken, 5, but={"c", *(asked_it if late else ())}) > 0
    assert not late or all(keeps_its_own(broken, 5, who) for who in asked_it)
    for memory in broken.memories.values():
        assert unsound(memory) == ""


def _images(change):
    return {"images": lambda sent, m, me: {to: {"images": change(p["images"])} for to, p in sent.items()}}


def _entry(step, key, change):
    return {step: lambda sent, m, me: {to: {**p, key: change(p[key])} for to, p in sent.items()}}


def _naming(place):
    def change(mask):
        mask = mask.clone()
        mask[place] = True
        return mask

    return change


def _only_the_first_two(mask):
    return mask & (mask.cumsum(0) <= 2)


def _torn(letter, key="salt"):
    """Every share of a letter with a bit changed."""
    return {i: {**share, key: share[key] ^ 1} for i, share in letter.items()}


BAD = {
    "images of NaN": _images(lambda t: t.float() * float("nan")),
    "images of one colour": _images(torch.zeros_like),
    "the same image many times": _images(lambda t: t[:1].expand_as(t).clone()),
    "images of a colour each": _images(lambda t: t[..., :1, :1].expand_as(t).clone()),
    "images out of range": _images(lambda t: t.int() + 256),
    "images of another shape": _images(lambda t: t[:, :, :4]),
    "fewer images": _images(lambda t: t[:3]),
    "no images at all": {"images": lambda sent, m, me: {to: {} for to in sent}},
    "a negative count": _entry("counts", "yours", lambda t: t - torch.tensor([99, 0, 0, 0])),
    "counts of more images": _entry("counts", "mine", lambda t: t + 1),
    "counts of other classes": _entry("counts", "mine", lambda t: torch.cat([t, t])),
    "opinions beyond one": _entry("opinions", "opinions", lambda t: t * 2),
    "opinions that do not sum to one": _entry("opinions", "opinions", lambda t: t * 0.9),
    "opinions of NaN": _entry("opinions", "opinions", lambda t: t * float("nan")),
    "opinions of more peers": _entry("opinions", "opinions", lambda t: torch.cat([t, t], 1)),
    "a list with the requester": _entry("requests", "mask", _naming(0)),
    "a list with strangers": _entry("requests", "mask", lambda t: torch.cat([t, t])),
    "fewer than three members": _entry("requests", "mask", _only_the_first_two),
    "a sigma of nearly all": _entry("requests", "total", lambda t: t * 0 + 1),
    "a sigma of NaN": _entry("requests", "sigma", lambda t: t * float("nan")),
    "a list that changes after it was accepted": _entry("confirm", "total", lambda t: t + 0.5),
    "a share that was altered": {"shares": lambda sent, m, me: {to: _torn(p) for to, p in sent.items()}},
    "a share of another exchange": {
        "shares": lambda sent, m, me: {to: _torn(p, "exchange") for to, p in sent.items()}
    },
    "a report of nobody": _entry("ready", "lost", lambda t: t[:2]),
    "a verdict of another list": _entry("verdict", "total", lambda t: t + 0.5),
    "a verdict that is no word": _entry("verdict", "word", lambda t: t.double()),
    "an answer of noise": _entry("responses", "sum", lambda t: t + 1),
    "an answer of another length": _entry("responses", "sum", lambda t: t[:-1]),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_letters_are_refused_by_name_and_cost_nobody_else_the_round(nine, learner, past, bad):
    changes = {
        step: (lambda sent, m, me, change=change: change(sent, m, me) if me.name == "a" else sent)
        for step, change in BAD[bad].items()
    }
    film = Film(SLFed(learner, **EASY), nine, 5, past, tamper=changes)
    hurt = {c: int(m["refused"][0]) for c, m in film.memories.items() if c != "a"}
    assert sum(hurt.values()) > 0, "nobody refused anything of a"
    told = {c: SLFed(learner).complaints(m, NAMES).get("a", "") for c, m in film.memories.items()}
    assert all(bool(told[c]) == (count > 0) for c, count in hurt.items())
    assert all("'a'" in line for c, line in told.items() if line), "the peer is named"
    others = [int(m["refused"][1:].sum()) for c, m in film.memories.items() if c != "a"]
    if not bad.startswith("an answer"):
        assert sum(others) == 0, "somebody else was refused"
    for memory in film.memories.values():
        assert unsound(memory) == ""
    lists = film.lists(4)
    late = bad.startswith("an answer")
    touched = {"a", *(who for who, members in lists.items() if late and "a" in members)}
    assert check_pams(film, 4, but=touched | set(_left_alone(film))) > 0


def _left_alone(film):
    """Those whose request ended without a sum; they keep their own model."""
    models = film.after[4, "confirm"]
    for who in film.lists(4):
        pam = flat(film.after[4, "responses"][who]["pam"])
        if who == "a" and np.array_equal(pam, flat(models[who]["model"])):
            yield who


def test_a_second_request_in_a_round_is_refused(nine, learner, past):
    film = Film(SLFed(learner, **EASY), nine, 5, past, repeat=("requests",))
    assert sum(int(m["refused"].sum()) for m in film.memories.values()) > 0
    assert check_pams(film, 4) == len(film.lists(4)) > 0  # the first is answered as if nothing had been


def test_a_model_beyond_the_range_of_shares_is_not_shared(nine, learner, past):
    def blow_up(sent, memory, me):
        if me.name == "a":
            memory["model"] = {n: t * 1e9 if t.is_floating_point() else t for n, t in memory["model"].items()}
        return sent

    film = Film(SLFed(learner, **EASY), nine, 5, past, tamper={"confirm": blow_up})
    accepted, tried = film.lists(4, "accepts", "word"), film.lists(4)
    touched = {who for who, members in accepted.items() if "a" in members}
    assert touched
    for who in touched - {"a"}:  # without it, or not at all
        assert who not in tried or tried[who].keys() == accepted[who].keys() - {"a"}
    assert check_pams(film, 4, but={"a"}) == len(set(tried) - {"a"}) > 0
    assert "beyond the range" in SLFed(learner).complaints(film.memories["a"], NAMES)["a"]


def test_images_are_made_anew_every_few_rounds_and_at_once_by_newcomers(nine, learner):
    algorithm = SLFed(learner, gan_every=2, **EASY)
    film = Film(algorithm, nine, 3)
    asked = [r.task for r in film.requests if isinstance(r, Ask)]
    assert asked == ["practise", "dream", "train", "train", "dream", "train"]
    first, kept, new = (film.after[number, "train"]["a"]["images"] for number in range(3))
    assert torch.equal(first, kept)
    assert not torch.equal(first, new)
    outcome = toy.play_rounds(
        SLFed(learner, gan_every=9, **EASY),
        nine,
        "batched",
        rounds=3,
        absent=lambda turn, who: who == "d" and turn.round == 0,
    )
    assert outcome.memories["d"]["images"].shape == first.shape
    assert int(outcome.memories["d"]["book"]["met"].sum()) > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"direct": 0}, "direct"),
        ({"images_count": 1}, "images_count"),
        ({"low": 1.0}, "high"),
        ({"waves": 0}, "waves"),
        ({"gan_growth": 0.5}, "gan_growth"),
        ({"gan_rows": -1}, "gan_rows"),
        ({"local_rounds": -1}, "local_rounds"),
        ({"retries": -1}, "retries"),
        ({"share_bits": -1}, "share_bits"),
    ],
)
def test_options_out_of_range_are_refused(learner, options, field):
    with pytest.raises(KinfolkError, match=field):
        SLFed(learner, **options)


def test_literally_the_pam_is_mixed_as_it_was_before_training(nine, learner):
    film = Film(SLFed(learner, mixes="pam", shares="plain", **EASY), nine, 5)
    for number in range(1, 5):
        before = film.after[number - 1, "train"]
        for who, memory in film.after[number, "begin"].items():
            np.testing.assert_array_equal(flat(memory["model"]), flat(before[who]["pam"]))
        check_pams(film, number)
    usual = Film(SLFed(learner, shares="plain", **EASY), nine, 2)
    begun = [one.after[1, "begin"]["a"]["model"] for one in (film, usual)]
    assert not np.array_equal(*map(flat, begun))
    np.testing.assert_array_equal(flat(begun[1]), flat(usual.after[0, "train"]["a"]["model"]))


@pytest.mark.parametrize("tell", ["all", "direct"])
def test_what_is_told_is_of_own_contacts_or_of_everybody_known(nine, learner, tell):
    seen = []

    def note(sent, memory, me):
        met, whom = memory["book"]["met"] > 0, known(memory["book"])
        seen.append(int((whom & ~met).sum()))
        for letter in sent.values():
            told = letter["opinions"][2] < 1
            assert told.tolist() == (whom if tell == "all" else met).tolist()
        return sent

    Film(SLFed(learner, tell=tell, direct=1, **EASY), nine, 3, tamper={"opinions": note})
    assert sum(seen) > 0, "nobody was known by hearsay alone"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"shares": "layerwise", "layers": "module"}, {"granularity": "module"}),
        ({"shares": "additive64"}, {"bits": 32, "limit": 2.0**14}),
        ({"shares": "shamir61"}, {"bits": 24}),
        ({"shares": "additive64", "share_bits": 20, "share_limit": 99.0}, {"bits": 20, "limit": 99.0}),
    ],
)
def test_options_reach_the_scheme(learner, options, kind):
    peer = Peer(Client("a"), Turn(Seed(0), 0, NAMES))
    desk = SLFed(learner, retries=2, **options)._desk(peer, Refusals(NAMES, no_refusals(9)))
    scheme = desk.scheme(Client("b"), 0)
    assert {key: getattr(scheme, key) for key in kind} == kind
    assert desk.retries == 2


def test_the_systems_entropy_gives_the_same_sums(nine, learner):
    known_draws, unknown = (
        Film(SLFed(learner, entropy=entropy, **EASY), nine, 3) for entropy in ("stream", "system")
    )
    for who in NAMES:
        np.testing.assert_array_equal(
            flat(known_draws.memories[who]["pam"]), flat(unknown.memories[who]["pam"])
        )


@pytest.mark.parametrize(("every", "growth"), [(1, 1.0), (3, 1.0), (3, 1.5), (4, 2.0), (2, 1.1), (1, 50.0)])
def test_images_get_rarer_by_a_factor(every, growth):
    wanted, at, gap = [], Fraction(0), Fraction(every)
    while at < 200:
        wanted.append(int(at))
        at, gap = at + gap, gap * Fraction(growth)
    assert [r for r in range(200) if due(r, every, growth)] == wanted


def test_rounds_alone_have_two_halves_and_then_lists_are_by_similarity(nine):
    """Half of them nobody is met, in the other half nobody is asked; images are made from the half on."""
    options = {"rank": "similarity", "local_rounds": 4, "gan_every": 3, "min_members": 1, "max_share": 1.0}
    options |= {"shares": "plain", "images": "back_search", "images_count": 20}
    film = Film(SLFed(toy.learner("mlp", nine), **options), nine, 6)
    by_round = {r: {name for number, name in film.after if number == r} for r in range(6)}
    assert by_round[0] == by_round[1] == {"practise"}
    assert [r for r in range(6) if "dream" in by_round[r]] == [2, 5]
    for number in (2, 3):
        assert not film.lists(number)
        assert check_pams(film, number) == 0
    for number in (4, 5):
        check_pams(film, number)
        for memory in film.after[number, "opinions"].values():
            whom = listed(memory["book"], NAMES, "similarity")
            assert memory["asked"]["mask"].tolist() == [c in whom for c in NAMES]
    assert sum(len(film.lists(number)) for number in (4, 5)) > 0
    # Alone, what is scored as the PAM is the model before the round's training.
    before, after = (film.after[number, "practise"]["a"] for number in (0, 1))
    np.testing.assert_array_equal(flat(after["pam"]), flat(before["model"]))
