"""SLFed: what a round comes to, who hears what, and what its options mean."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from film import EASY, NAMES, STEPS, Film, check_pams, check_passed_on, flat, learner, nine, past, slfed

from kinfolk.algorithms import build_algorithm
from kinfolk.algorithms.slfed.comparison import partners
from kinfolk.algorithms.slfed.peer_lists import listed
from kinfolk.algorithms.slfed.probe_images import ImageOptions, predicted
from kinfolk.algorithms.slfed.trust import known, opinions
from kinfolk.codec import decode, encode
from kinfolk.contract import checks, toy
from kinfolk.contract.compare import message_difference
from kinfolk.engines.one import perform
from kinfolk.errors import KinfolkError
from kinfolk.script import Ask
from kinfolk.shares.options import ShareOptions
from kinfolk.shares.rejections import Rejections, no_rejections
from kinfolk.shares.secure_sum import SecureSum
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client


@pytest.mark.parametrize("scheme", ["plain", "layerwise", "additive64", "shamir61"])
def test_a_pam_is_the_scaled_mean_by_every_scheme(scheme):
    film = Film(slfed(learner(), shares__scheme=scheme, **EASY), nine(), 6, past())
    summed = sum(check_pams(film, number) for number in (4, 5))
    if scheme in ("plain", "layerwise"):
        assert summed > 8
    else:  # one sum for each model, and the members have it too
        assert summed >= 3
        assert sum(check_passed_on(film, number) for number in (4, 5)) > 4
    counts = [m["pam"]["norm1.num_batches_tracked"] for m in film.memories.values()]
    assert all(c.dtype == torch.int64 for c in counts)
    assert all(int(m["rejected"].sum()) == 0 for m in film.memories.values())


@pytest.mark.parametrize("scheme", ["plain", "layerwise", "additive64", "shamir61"])
def test_requesters_that_are_served_in_turns_get_the_same_sums(scheme, monkeypatch):
    """As a simulation does where all messages at once would not fit into its memory."""
    whole = Film(slfed(learner(), shares__scheme=scheme, **EASY), nine(), 6, past())
    monkeypatch.setattr(SecureSum, "waves", lambda self, peers, longest: 3)
    turns = Film(slfed(learner(), shares__scheme=scheme, **EASY), nine(), 6, past())
    assert [r.swap for r in turns.requests if not isinstance(r, Ask)].count("next") == 2 * 2
    for who in NAMES:
        for key in ("pam", "model"):
            np.testing.assert_array_equal(flat(turns.memories[who][key]), flat(whole.memories[who][key]))
        assert turns.memories[who].keys() == whole.memories[who].keys()


def test_only_so_much_is_sent_at_once():
    resnet18 = 11_173_962 + 9_600
    one, many = (SecureSum(ShareOptions("plain"), numbers) for numbers in (1000, resnet18))
    assert (one.waves(50), many.waves(6), many.waves(50)) == (1, 1, 5)
    # A model that is part of one sum only is sent once, whatever the number of requesters.
    assert SecureSum(ShareOptions("additive64"), resnet18).waves(50) == 1
    assert SecureSum(ShareOptions("plain"), 10**12).waves(50) == 50


def test_batch_norm_buffers_are_averaged_and_training_starts_from_the_pam():
    film = Film(slfed(learner(), **EASY), nine(), 5, past())
    who, members = next(iter(film.lists(4).items()))
    models, pam = film.after[4, "confirm"], film.after[4, "responses"][who]["pam"]
    parts = [(1.0, who), *((sigma, c) for c, sigma in members.items())]
    whole = sum(s * models[c]["model"]["norm1.running_var"].double() for s, c in parts)
    torch.testing.assert_close(
        pam["norm1.running_var"].double(), whole / sum(s for s, _ in parts), rtol=1e-5, atol=1e-6
    )
    context = RoundContext(Seed(0), 4, NAMES)
    trained = perform(learner().train(), {"model": pam}, {}, nine(), who, context)[0]["model"]
    np.testing.assert_allclose(flat(film.memories[who]["model"]), flat(trained), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(flat(film.memories[who]["pam"]), flat(pam))


def test_nothing_reaches_a_coordinator_and_letters_go_to_those_they_are_for():
    messages = []

    def note(sent, memory, me):
        messages.extend((me.name, to, tuple(payload)) for to, payload in sent.items())
        return sent

    film = Film(slfed(learner(), **EASY), nine(), 5, past(), tamper=dict.fromkeys(STEPS, note))
    for request, answer in zip(film.requests, film.answers, strict=True):
        if isinstance(request, Ask):
            assert (request.shared, request.each, request.fold, answer.body) == ({}, None, None, {})
        else:
            assert answer is None
    assert film.info == {}
    assert film.bytes["train"] == {"down": 0, "up": 0}
    assert film.state.joined.tolist() == [1] * 9
    context, lists = RoundContext(Seed(0), 4, NAMES), film.lists(4)
    direct = {(a, b) for a in NAMES for b in partners(Peer(a, context), 2)}
    fellows = {(a, b) for who in lists.values() for a in who for b in who if a != b}
    for sender, to, keys in messages:
        if keys[0] in ("images", "yours", "opinions"):
            assert (sender, to) in direct
        elif keys[0].isdigit():  # shares, by the requester's place
            assert (sender, to) in fellows
        elif "seen" in keys:
            assert sender in lists[to]
        elif "sum" in keys:  # passed on
            assert to in lists[sender]
    assert {keys[0] for _, _, keys in messages} >= {"images", "yours", "opinions", "mask", "id", "word"}


def test_links_go_both_ways_and_follow_from_seed_round_and_name():
    turns = [RoundContext(Seed(s), r, NAMES) for s, r in ((0, 0), (0, 0), (0, 1), (1, 0))]
    links = [{c: partners(Peer(c, context), 2) for c in NAMES} for context in turns]
    assert links[0] == links[1]
    assert links[0] != links[2] != links[3] != links[0]
    for who, near in links[0].items():
        assert len(near) >= 2
        assert who not in near
        assert all(who in links[0][other] for other in near)


@pytest.mark.parametrize("compare", ["counts", "images"])
def test_similarity_is_that_of_predictions_and_both_ends_agree(compare):
    method = toy.learner("mlp", nine())  # to the other network all noise is of one class
    film = Film(slfed(method, compare=compare, **EASY), nine(), 1)
    before, after = film.after[0, "generate_images"], film.after[0, "counts"]

    def seen(model_of, images_of):
        images = before[images_of]["images"]
        return predicted(method, before[model_of]["model"], images, -1.0, 1.0).numpy()

    def agree(a, b):
        if compare == "images":
            return sum(one == other for one, other in zip(a, b, strict=True)) / len(a)
        a, b = (np.bincount(labels, minlength=4).astype(float) for labels in (a, b))
        return a @ b / np.sqrt((a @ a) * (b @ b))

    context = RoundContext(Seed(0), 0, NAMES)
    for a in NAMES:
        for b in partners(Peer(a, context), 2):
            both = (agree(seen(a, a), seen(b, a)) + agree(seen(a, b), seen(b, b))) / 2
            assert float(after[a]["trust"]["sum"][NAMES.index(b)]) == pytest.approx(both)
            assert after[a]["trust"]["sum"][NAMES.index(b)] == after[b]["trust"]["sum"][NAMES.index(a)]
        assert int(after[a]["trust"]["met"].sum()) == len(partners(Peer(a, context), 2))
    assert len({round(float(v), 9) for m in after.values() for v in m["trust"]["sum"]}) > 5


@pytest.mark.parametrize(("compare", "kind", "size"), [("counts", "int64", 4), ("images", "uint8", 30)])
def test_what_was_seen_is_kept_as_agreed_and_can_be_stored(compare, kind, size):
    """As in a checkpoint of somebody who went away between two exchanges."""
    film = Film(slfed(learner(), compare=compare, **EASY), nine(), 1, gone={"counts": {"c"}})
    held = film.after[0, "counts"]["c"]
    assert set(held["seen"]) == {"c", *partners(Peer(Client("c"), RoundContext(Seed(0), 0, NAMES)), 2)}
    assert all(t.dtype == getattr(torch, kind) and t.shape == (size,) for t in held["seen"].values())
    again, _ = decode(encode(held))
    assert message_difference(again, held, 0) == ""
    assert "seen" not in film.after[0, "counts"]["a"]


def test_engines_agree_on_what_is_seen_image_by_image():
    """With a network to which noise is of several classes, so that similarities differ."""
    checks.check_engines_agree(lambda learner: slfed(learner, compare="images", **EASY), "mlp")


def test_what_is_compared_is_one_of_two():
    assert build_algorithm("slfed", learner(), {}).compare == "counts"
    assert build_algorithm("slfed", learner(), {"compare": "images"}).compare == "images"
    with pytest.raises(KinfolkError, match=r"algorithm.compare = 'rows': choose one of 'counts', 'images'"):
        build_algorithm("slfed", learner(), {"compare": "rows"})


def test_everybody_is_known_by_the_third_round_and_lists_are_at_most_half():
    two, one = (Film(slfed(learner(), direct=ds, **EASY), nine(), 5) for ds in (2, 1))
    doubts = []
    for film in (two, one):
        memories = film.after[4, "opinions"].values()
        doubts.append(np.mean([opinions(m["trust"]).u[known(m["trust"])].mean() for m in memories]))
    assert all(int(known(m["trust"]).sum()) == 8 for m in two.after[2, "opinions"].values())
    assert any(int(known(m["trust"]).sum()) < 8 for m in one.after[1, "opinions"].values())
    for number in range(5):
        for memory in two.after[number, "opinions"].values():
            assert int(memory["asked"]["mask"].sum()) <= int(known(memory["trust"]).sum()) // 2
    assert doubts[0] < doubts[1]


def test_images_are_made_anew_every_few_rounds_and_at_once_by_newcomers():
    algorithm = slfed(learner(), images__every=2, **EASY)
    film = Film(algorithm, nine(), 3)
    asked = [r.task for r in film.requests if isinstance(r, Ask)]
    assert asked == ["local_train", "generate_images", "train", "train", "generate_images", "train"]
    first, kept, new = (film.after[number, "train"]["a"]["images"] for number in range(3))
    assert torch.equal(first, kept)
    assert not torch.equal(first, new)
    outcome = toy.play_rounds(
        slfed(learner(), images__every=9, **EASY),
        nine(),
        "batched",
        rounds=3,
        absent=lambda context, who: who == "d" and context.round == 0,
    )
    assert outcome.memories["d"]["images"].shape == first.shape
    assert int(outcome.memories["d"]["trust"]["met"].sum()) > 0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"direct": 0}, "direct"),
        ({"images__count": 1}, "algorithm.images.count"),
        ({"images__low": 1.0}, "high"),
        ({"images__growth": 0.5}, "growth"),
        ({"images__every": 0}, "every"),
        ({"images__means_of": 2}, r"algorithm.images.means_of = 2: .*3"),
        ({"gan__rows": -1}, "gan.rows"),
        ({"local_rounds": -1}, "local_rounds"),
        ({"shares__retries": -1}, "retries"),
        ({"shares__bits": -1}, "algorithm.shares.bits"),
    ],
)
def test_options_out_of_range_are_refused(options, field):
    with pytest.raises(KinfolkError, match=field):
        slfed(learner(), **options)


def test_literally_the_pam_is_mixed_as_it_was_before_training():
    film = Film(slfed(learner(), mixes="pam", shares__scheme="plain", **EASY), nine(), 5)
    for number in range(1, 5):
        before = film.after[number - 1, "train"]
        for who, memory in film.after[number, "begin"].items():
            np.testing.assert_array_equal(flat(memory["model"]), flat(before[who]["pam"]))
        check_pams(film, number)
    usual = Film(slfed(learner(), shares__scheme="plain", **EASY), nine(), 2)
    begun = [one.after[1, "begin"]["a"]["model"] for one in (film, usual)]
    assert not np.array_equal(*map(flat, begun))
    np.testing.assert_array_equal(flat(begun[1]), flat(usual.after[0, "train"]["a"]["model"]))


def test_what_is_trained_in_rounds_alone_is_not_taken_back_for_a_pam():
    film = Film(slfed(learner(), mixes="pam", local_rounds=4, shares__scheme="plain", **EASY), nine(), 6)
    for number in (3, 4):  # the second round of meetings, and the first in which models are asked for
        for who, memory in film.after[number, "begin"].items():
            trained = flat(film.after[number - 1, "train"][who]["model"])
            np.testing.assert_array_equal(flat(memory["model"]), trained)
            assert not np.array_equal(trained, flat(film.after[number - 1, "begin"][who]["model"]))
    before = film.after[4, "train"]
    assert all(
        np.array_equal(flat(memory["model"]), flat(before[who]["pam"]))
        for who, memory in film.after[5, "begin"].items()
    )


@pytest.mark.parametrize("tell", ["all", "direct"])
def test_what_is_told_is_of_own_contacts_or_of_everybody_known(tell):
    seen = []

    def note(sent, memory, me):
        met, whom = memory["trust"]["met"] > 0, known(memory["trust"])
        seen.append(int((whom & ~met).sum()))
        for message in sent.values():
            told = message["opinions"][2] < 1
            assert told.tolist() == (whom if tell == "all" else met).tolist()
        return sent

    Film(slfed(learner(), trust__tell=tell, direct=1, **EASY), nine(), 3, tamper={"opinions": note})
    assert sum(seen) > 0, "nobody was known by hearsay alone"


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"shares__scheme": "layerwise", "shares__layers": "module"}, {"layers": "module"}),
        ({"shares__scheme": "additive64"}, {"bits": 32, "limit": 2.0**14}),
        ({"shares__scheme": "shamir61"}, {"bits": 24}),
        (
            {"shares__scheme": "additive64", "shares__bits": 20, "shares__limit": 99.0},
            {"bits": 20, "limit": 99.0},
        ),
    ],
)
def test_options_reach_the_scheme(options, kind):
    peer = Peer(Client("a"), RoundContext(Seed(0), 0, NAMES))
    sums = slfed(learner(), shares__retries=2, **options)._sums()
    session = sums.session(peer, Rejections(NAMES, no_rejections(9)))
    scheme = session.scheme(Client("b"), 0)
    assert {key: getattr(scheme, key) for key in kind} == kind
    assert session.retries == 2


def test_the_systems_entropy_gives_the_same_sums():
    known_draws, unknown = (
        Film(slfed(learner(), shares__entropy=entropy, **EASY), nine(), 3) for entropy in ("stream", "system")
    )
    for who in NAMES:
        np.testing.assert_array_equal(
            flat(known_draws.memories[who]["pam"]), flat(unknown.memories[who]["pam"])
        )


@pytest.mark.parametrize(("every", "growth"), [(1, 1.0), (3, 1.0), (3, 1.5), (4, 2.0), (2, 1.1), (1, 50.0)])
def test_images_get_rarer_by_a_factor(every, growth):
    images = ImageOptions(every=every, growth=growth)
    wanted, at, gap = [], Fraction(0), Fraction(every)
    while at < 200:
        wanted.append(int(at))
        at, gap = at + gap, gap * Fraction(growth)
    assert [r for r in range(200) if images.due(r)] == wanted


def test_rounds_alone_have_two_halves_and_then_lists_are_by_similarity():
    """Half of them nobody is met, in the other half nobody is asked; images are made from the half on."""
    options = {
        "trust__rank": "similarity",
        "local_rounds": 4,
        "images__every": 3,
        "shares__min_members": 1,
        "shares__max_share": 1.0,
    }
    options |= {"shares__scheme": "plain", "images__kind": "back_search", "images__count": 20}
    film = Film(slfed(toy.learner("mlp", nine()), **options), nine(), 6)
    by_round = {r: {name for number, name in film.after if number == r} for r in range(6)}
    assert by_round[0] == by_round[1] == {"local_train"}
    assert [r for r in range(6) if "generate_images" in by_round[r]] == [2, 5]
    for number in (2, 3):
        assert not film.lists(number)
        assert check_pams(film, number) == 0
    for number in (4, 5):
        check_pams(film, number)
        for memory in film.after[number, "opinions"].values():
            whom = listed(memory["trust"], NAMES, "similarity")
            assert memory["asked"]["mask"].tolist() == [c in whom for c in NAMES]
    assert sum(len(film.lists(number)) for number in (4, 5)) > 0
    # Alone, what is scored as the PAM is the model before the round's training.
    before, after = (film.after[number, "local_train"]["a"] for number in (0, 1))
    np.testing.assert_array_equal(flat(after["pam"]), flat(before["model"]))
