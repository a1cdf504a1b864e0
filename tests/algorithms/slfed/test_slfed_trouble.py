"""SLFed: what members that vanish and bad messages can and can not do."""

import numpy as np
import pytest
import torch
from film import APART, EASY, NAMES, STEPS, Film, check_pams, flat, learner, nine, past, slfed

from kinfolk.contract.compare import unsound
from kinfolk.shares.secure_sum import SecureSum


def test_who_is_absent_is_left_out_of_the_lists_and_hurts_nobody():
    gone = {step: {"c"} for step in (*STEPS, "generate_images", "train")}
    film = Film(slfed(learner(), **EASY), nine(), 5, past(), gone=gone)
    wanted = [m["asked"] for c, m in film.after[4, "opinions"].items() if c != "c"]
    again = [c for c, m in film.after[4, "accepts"].items() if c != "c" and int(m["asked"]["word"]) == 2]
    assert any(int(asked["mask"][2]) for asked in wanted)  # somebody wanted to ask it
    assert again  # and asked a shorter list anew
    assert check_pams(film, 4, but="c") >= len(again)
    assert "c" not in {member for who in film.lists(4).values() for member in who}
    assert film.memories["c"] is past().memories["c"]  # it slept


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
def test_a_member_that_vanishes_after_it_accepted(scheme, when):
    """No answer has left: once more without it. Too late, or too few: the own model, or Shamir's sum."""
    gone = {s: {"c"} for s in VANISH[when]}
    film = Film(slfed(learner(), shares__scheme=scheme, **EASY), nine(), 5, past(), gone=gone, ask=APART)
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
        elif long_enough and scheme == "additive64":
            assert tried[who].keys() == accepted[who].keys() - {"c"}
        else:
            assert who not in tried
        assert when == "before it answered" or who in tried or keeps_its_own(film, 4, who)
    late = {who for who in touched if keeps_its_own(film, 4, who)} if when == "before it answered" else set()
    assert check_pams(film, 4, but={"c", *late}) > 0
    blamed = any(int(film.memories[who]["rejected"][2]) for who in touched)
    assert blamed or (when == "before it answered" and scheme == "shamir61")


def test_a_second_try_has_fresh_seeds_and_what_was_void_is_never_answered():
    """Of both tries the shares are kept: no seed is used twice, and c's void exchange has no answer."""
    seeds, answers = {"shares": [], "again": []}, []

    def note(step):
        def look(sent, memory, me):
            for message in sent.values():
                seeds[step] += [
                    bytes(share["seed"].tolist()) for share in message.values() if "seed" in share
                ]
            return sent if (me.name, step) != ("c", "shares") else {}

        return look

    def heard(sent, memory, me):
        answers.extend((me.name, to) for to in sent)
        return sent

    film = Film(
        slfed(learner(), **EASY), nine(), 5, past(), ask=APART,
        tamper={"shares": note("shares"), "again": note("again"), "responses": heard},
    )  # fmt: skip
    every = seeds["shares"] + seeds["again"]
    assert seeds["again"]
    assert len(set(every)) == len(every)
    tried, accepted = film.lists(4), film.lists(4, "accepts", "word")
    assert any(len(tried[who]) < len(accepted[who]) for who in tried)
    assert set(answers) == {(member, who) for who, members in tried.items() for member in members}
    assert check_pams(film, 4) == len(tried)


def test_without_retries_a_member_that_vanishes_costs_the_sum():
    algorithm = slfed(learner(), shares__retries=0, **EASY)
    film = Film(algorithm, nine(), 5, past(), gone={"again": {"c"}}, ask=APART)
    accepted = film.lists(4, "accepts", "word")
    touched = {who for who, members in accepted.items() if "c" in members}
    assert touched
    assert all(keeps_its_own(film, 4, who) for who in touched)
    assert not any(keeps_its_own(film, 4, who) for who in set(accepted) - touched - {"c"})


@pytest.mark.parametrize("step", [*STEPS, "next"])
def test_who_misses_a_single_exchange_hurts_only_those_who_asked_it(step, monkeypatch):
    monkeypatch.setattr(SecureSum, "waves", lambda self, peers, longest: 2)
    broken = Film(slfed(learner(), **EASY), nine(), 6, past(), gone={step: {"c"}})
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


def _torn(message, key="salt"):
    """Every share of a message with a bit changed."""
    return {i: {**share, key: share[key] ^ 1} for i, share in message.items()}


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
    "a sigma of nearly all": _entry(
        "requests", "sigma", lambda t: t * torch.where(t.cumsum(0) > t.max(), 0.1, 1)
    ),
    "a sigma of one member alone": _entry(
        "requests", "sigma", lambda t: t * torch.where(t.cumsum(0) > t.max(), 0, 1)
    ),
    "a sigma of two members alone": _entry(
        "requests", "sigma", lambda t: t * torch.where(t.cumsum(0) > 2.1 * t.max(), 1e-12, 1)
    ),
    "a sigma above one": _entry("requests", "sigma", lambda t: t * 9),
    "a sigma of NaN": _entry("requests", "sigma", lambda t: t * float("nan")),
    "weights that change after the list was accepted": _entry("confirm", "sigma", lambda t: t * 0.9),
    "a share that was altered": {"shares": lambda sent, m, me: {to: _torn(p) for to, p in sent.items()}},
    "a share of another exchange": {
        "shares": lambda sent, m, me: {to: _torn(p, "exchange") for to, p in sent.items()}
    },
    "a report of nobody": _entry("ready", "lost", lambda t: t[:2]),
    "a verdict of another list": _entry("verdict", "sigma", lambda t: t * 0.9),
    "a list that is tried again and not shorter": {
        "verdict": lambda sent, m, me: {
            to: {**p, "word": torch.tensor(2), "sigma": p["sigma"] * 0.9} for to, p in sent.items()
        }
    },
    "a verdict that is no word": _entry("verdict", "word", lambda t: t.double()),
    "an answer of noise": _entry("responses", "sum", lambda t: t + 1),
    "an answer of another length": _entry("responses", "sum", lambda t: t[:-1]),
}

DESK = STEPS[STEPS.index("requests") :]

# With compare = "images"; four classes.
BAD_CLASSES = {
    "classes of fewer images": _entry("counts", "yours", lambda t: t[:-1]),
    "classes of more images": _entry("counts", "mine", lambda t: torch.cat([t, t])),
    "a class beyond the last": _entry("counts", "yours", lambda t: t * 0 + 4),
    "a class of -1 as a byte": _entry("counts", "mine", lambda t: t * 0 - 1),
    "a class of -1": _entry("counts", "mine", lambda t: t.long() * 0 - 1),
    "classes that are floats": _entry("counts", "yours", lambda t: t.float()),
    "classes of NaN": _entry("counts", "mine", lambda t: t * float("nan")),
    "counts in place of classes": _entry("counts", "yours", lambda t: torch.bincount(t, minlength=4)),
    "classes of one side alone": {
        "counts": lambda sent, m, me: {to: {"mine": p["mine"]} for to, p in sent.items()}
    },
    "no classes at all": {"counts": lambda sent, m, me: {to: {} for to in sent}},
}


@pytest.mark.parametrize("bad", [*BAD, *BAD_CLASSES])
def test_bad_letters_are_refused_by_name_and_cost_nobody_else_the_round(bad):
    changes = {
        step: (lambda sent, m, me, change=change: change(sent, m, me) if me.name == "a" else sent)
        for step, change in {**BAD, **BAD_CLASSES}[bad].items()
    }
    compare = "images" if bad in BAD_CLASSES else "counts"
    ask = APART if next(iter(changes)) in DESK else None
    film = Film(slfed(learner(), compare=compare, **EASY), nine(), 5, past(), tamper=changes, ask=ask)
    hurt = {c: int(m["rejected"][0]) for c, m in film.memories.items() if c != "a"}
    assert sum(hurt.values()) > 0, "nobody refused anything of a"
    told = {c: slfed(learner()).complaints(m, NAMES).get("a", "") for c, m in film.memories.items()}
    assert all(bool(told[c]) == (count > 0) for c, count in hurt.items())
    assert all("'a'" in line for c, line in told.items() if line), "the peer is named"
    others = [int(m["rejected"][1:].sum()) for c, m in film.memories.items() if c != "a"]
    if not bad.startswith("an answer"):
        assert sum(others) == 0, "somebody else was refused"
    for memory in film.memories.values():
        assert unsound(memory) == ""
    lists = film.lists(4)
    late = bad.startswith("an answer")
    touched = {who for who, members in lists.items() if "a" in members} if late else {"a"}
    assert check_pams(film, 4, but=touched | set(_left_alone(film))) > 0


def _left_alone(film):
    """Those whose request ended without a sum; they keep their own model."""
    models = film.after[4, "confirm"]
    for who in film.lists(4):
        pam = flat(film.after[4, "responses"][who]["pam"])
        if who == "a" and np.array_equal(pam, flat(models[who]["model"])):
            yield who


def test_a_second_request_in_a_round_is_refused():
    for scheme in ("additive64", "plain"):
        film = Film(
            slfed(learner(), shares__scheme=scheme, **EASY),
            nine(),
            5,
            past(),
            repeat=("requests",),
            ask=APART,
        )
        # Who hides its model has taken up one request, and looks at no other.
        assert (sum(int(m["rejected"].sum()) for m in film.memories.values()) > 0) == (scheme == "plain")
        assert check_pams(film, 4) == len(film.lists(4)) > 0  # the first is answered as if nothing had been


def test_a_model_beyond_the_range_of_shares_is_not_shared():
    def blow_up(sent, memory, me):
        if me.name == "a":
            memory["model"] = {n: t * 1e9 if t.is_floating_point() else t for n, t in memory["model"].items()}
        return sent

    film = Film(slfed(learner(), **EASY), nine(), 5, past(), tamper={"confirm": blow_up}, ask=APART)
    accepted, tried = film.lists(4, "accepts", "word"), film.lists(4)
    touched = {who for who, members in accepted.items() if "a" in members}
    assert touched
    for who in touched - {"a"}:  # without it, or not at all
        assert who not in tried or tried[who].keys() == accepted[who].keys() - {"a"}
    assert check_pams(film, 4, but={"a"}) == len(set(tried) - {"a"}) > 0
    assert "beyond the range" in slfed(learner()).complaints(film.memories["a"], NAMES)["a"]
