"""SLFed: spoilt models recover, partners are of the cohort, sigma is s, tellers are weighed as asked for."""

import numpy as np
import pytest
import torch
from film import EASY, NAMES, Film, check_pams, flat, learner, nine, slfed

from kinfolk.algorithms import ALGORITHMS, build_algorithm
from kinfolk.algorithms.options import option_values
from kinfolk.algorithms.slfed.comparison import partners
from kinfolk.algorithms.slfed.personal_models import finite_or
from kinfolk.algorithms.slfed.slfed import SLFedSimilar
from kinfolk.algorithms.slfed.trust import known, opinions
from kinfolk.contract import toy
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.shares.options import ShareOptions
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client

PLAIN = {"shares__scheme": "plain", **EASY}


def spoilt(film, *keys):
    """The same film, at whose end some models of c are NaN."""
    who = Client("c")

    def nan(model):
        return {n: t * float("nan") if t.is_floating_point() else t for n, t in model.items()}

    film.memories[who] = {**film.memories[who], **{key: nan(film.memories[who][key]) for key in keys}}
    return film


@pytest.mark.parametrize("keys", [("model",), ("model", "pam")])
@pytest.mark.parametrize("mixes", ["trained", "pam"])
def test_a_model_that_became_nan_is_left_behind(keys, mixes):
    """It goes on from what its last training began with; if that is spoilt too, from the common first."""
    method = slfed(learner(), mixes=mixes, **PLAIN)
    before = Film(method, nine(), 3)
    last = flat(before.memories["c"]["pam"] if keys == ("model",) else learner().first)
    film = Film(method, nine(), 5, spoilt(before, *keys))
    np.testing.assert_array_equal(flat(film.after[3, "begin"]["c"]["model"]), last)
    for number in (3, 4):
        assert check_pams(film, number) > 3
    for memory in film.memories.values():
        assert np.isfinite(flat(memory["model"])).all()
        assert np.isfinite(flat(memory["pam"])).all()
    told = method.complaints(film.after[3, "begin"]["c"], NAMES)
    # As published the model that counts is the trained one; read literally it is the PAM, which was sound.
    if mixes == "trained" or keys != ("model",):
        assert told["c"] == "model of 'c': is not finite; it goes on from its last that was"
    assert method.complaints(film.after[4, "begin"]["c"], NAMES) == {}


def test_a_sum_that_is_not_finite_is_not_trained_on():
    method = slfed(learner(), **PLAIN)
    held = spoilt(Film(method, nine(), 3), "pam").memories["c"]
    begun = method.tasks()["train"].start({}, held, None)
    np.testing.assert_array_equal(flat(begun["model"]), flat(held["model"]))


def test_rounds_alone_recover_as_well():
    method = slfed(learner(), local_rounds=8, **PLAIN)
    before = Film(method, nine(), 2)
    last = before.memories["c"]["pam"]
    begun = method.tasks()["local_train"].start({}, spoilt(before, "model").memories["c"], None)
    np.testing.assert_array_equal(flat(begun["model"]), flat(last))
    film = Film(method, nine(), 3, before)
    assert np.isfinite(flat(film.memories["c"]["model"])).all()


def test_the_first_sound_tree_is_taken_by_numbers_alone():
    """As an engine batches it: each client of a call by its own numbers."""
    bad, good = torch.tensor([[1.0, float("nan")], [1.0, 2.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    whole = torch.arange(2)
    got = torch.vmap(finite_or)({"w": bad, "n": whole}, {"w": good, "n": whole + 5})
    assert got["w"].tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert got["n"].tolist() == [5, 1]


@pytest.mark.parametrize("share", [0.34, 0.67])
def test_partners_are_of_the_rounds_cohort(share):
    for number in range(12):
        context = RoundContext(Seed(4), number, NAMES, share)
        cohort = set(context.cohort)
        assert len(cohort) == round(share * 9)
        for who in NAMES:
            near = partners(Peer(who, context), 2)
            assert set(near) <= cohort - {who}
            assert len(near) >= min(2, len(cohort) - 1) if who in cohort else near == ()


@pytest.mark.parametrize("name", ["loop", "batched", "workers", "wire"])
def test_everybody_asked_meets_somebody_in_every_engine(name):
    """Of nine a third is asked; whoever is meets all it was linked with, which all can work out."""
    method = slfed(learner(), **PLAIN)
    end = toy.play_rounds(method, nine(), name, rounds=4, participation=0.34, score=False)
    wanted = np.zeros((9, 9))
    for number in range(4):
        context = RoundContext(Seed(0), number, NAMES, 0.34)
        for who in context.cohort:
            for other in partners(Peer(who, context), 2):
                wanted[NAMES.index(who), NAMES.index(other)] += 1
    assert wanted.sum() == 4 * 6  # three who all meet
    for i, who in enumerate(NAMES):
        met = end.memories[who]["trust"]["met"].numpy() if "trust" in end.memories[who] else np.zeros(9)
        np.testing.assert_array_equal(met, wanted[i])


def test_sigma_is_alpha_of_all_evidence_and_not_of_what_is_certain():
    film = Film(slfed(learner(), **EASY), nine(), 4)
    for number in (1, 3):
        for memory in film.after[number, "opinions"].values():
            trust = {key: leaf.numpy() for key, leaf in memory["trust"].items()}
            alpha, beta = (trust[k] + trust[f"told_{k}"] for k in ("alpha", "beta"))
            sigma = memory["asked"]["sigma"].numpy()
            np.testing.assert_allclose(sigma, alpha / (alpha + beta + 2), rtol=1e-12)
            met = trust["met"] > 0
            assert (sigma[met] < 0.95 * (alpha / (alpha + beta).clip(1e-9))[met]).all(), "told apart"
    # And what is summed is scaled by it.
    assert check_pams(film, 3) > 0


@pytest.mark.parametrize("weight", ["all", "direct"])
def test_a_teller_is_weighed_by_all_or_by_contacts_alone(weight):
    """The discount, written out anew for a round in which there was hearsay of tellers before."""
    heard = {}

    def note(sent, memory, me):
        heard.update({(me.name, to): message["opinions"].numpy() for to, message in sent.items()})
        return sent

    method = slfed(learner(), trust__teller_weight=weight, **PLAIN)
    film = Film(method, nine(), 4, tamper={"opinions": note})
    checked = 0
    for a, me in enumerate(NAMES):
        before, after = (film.after[3, step][me]["trust"] for step in ("counts", "opinions"))
        was = {key: leaf.numpy() for key, leaf in before.items()}
        told = np.zeros((2, 9))
        for b, teller in enumerate(NAMES):
            if (teller, me) not in heard:
                continue
            own = np.array([was["alpha"][b], was["beta"][b]])
            own += np.array([was["told_alpha"][b], was["told_beta"][b]]) if weight == "all" else 0
            checked += was["told_alpha"][b] > 0
            trust = own[0] / (own.sum() + 2)
            s, d, u = heard[teller, me]
            u = 1 - trust * (s + d)
            evidence = 2 * trust * np.array([s, d]) / u
            evidence[:, [a, b]] = 0
            told += evidence
        keeps = (was["met"] == 0) & (told.sum(0) == 0)
        for row, key in enumerate(("told_alpha", "told_beta")):
            np.testing.assert_allclose(after[key].numpy(), np.where(keeps, was[key], told[row]), rtol=1e-9)
    assert checked > 5, "no teller was known by hearsay too"


def test_lists_of_the_most_similar_have_one_name():
    kind = ALGORITHMS["slfed_similar"]
    method = build_algorithm("slfed_similar", learner(), {"shares.scheme": "plain"})
    assert kind is SLFedSimilar
    by_hand = slfed(
        learner(),
        images__kind="back_search",
        images__count=200,
        compare="images",
        trust__rank="similarity",
        local_rounds=12,
    )
    usual = build_algorithm("slfed", learner(), {})
    by_default, chosen, wanted = (option_values(one) for one in (usual, method, by_hand))
    changed = {k for k in chosen if by_default[k] != chosen[k]} - {"shares.scheme"}
    assert changed == {"images.kind", "images.count", "compare", "trust.rank", "local_rounds"}
    assert all(chosen[k] == wanted[k] for k in changed)
    assert build_algorithm("slfed_similar", learner(), {"local_rounds": 3}).local_rounds == 3


def test_defaults_of_slfed_stay_as_published():
    method = slfed(learner())
    assert (method.images.kind, method.images.count, method.images.every) == ("gan", 1000, 4)
    assert (method.gan.epochs, method.gan.rows) == (10, 2000)
    assert (method.compare, method.trust.rank, method.local_rounds) == ("counts", "uncertainty", 0)
    assert (method.trust.hearsay, method.trust.memory, method.trust.tell) == ("published", "recompute", "all")
    for options, wanted in (
        ({}, (3, 0.5)),
        ({"scheme": "shamir61"}, (3, 0.5)),
        ({"scheme": "plain"}, (1, 1.0)),
        ({"scheme": "plain", "min_members": 4, "max_share": 0.3}, (4, 0.3)),
    ):
        limits = ShareOptions(**options).limits
        assert (limits.min_members, limits.max_share) == wanted


def test_similar_peers_are_listed_where_the_published_lists_are_drawn_by_chance():
    """Two kinds of clients on a table: who calls the classes the other way round is not asked."""
    draw = np.random.default_rng(1)
    centres = draw.normal(size=(4, 6)) * 3
    rows, kinds = {}, {}
    for i, who in enumerate(NAMES):
        y = np.arange(40) % 4
        x = centres[y] + draw.normal(size=(40, 6))
        kinds[who] = i % 2
        rows[who] = (x.astype(np.float32), (3 - y) if i % 2 else y)
    federation = from_arrays(rows, classes=4)
    net = toy.learner("mlp", federation)
    few = {"shares__scheme": "plain", "images__count": 40, "local_rounds": 6, "images__search_steps": 30}
    film = Film(slfed(net, SLFedSimilar, **few), federation, 10)
    asked = [(who, c) for who, members in film.lists(9).items() for c in members]
    own = np.mean([kinds[a] == kinds[b] for a, b in asked])
    assert len(asked) > 5
    assert own > 0.9
    memory = film.memories["a"]
    assert memory["reach"].shape == (6,), "features of a table have ranges of their own"
    assert int(known(memory["trust"]).sum()) == 8
    assert float(opinions(memory["trust"]).s.max()) < 1


@pytest.mark.slow
def test_engines_agree_on_a_table_by_similarity():
    draw = np.random.default_rng(2)
    rows = {c: (5 * draw.normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3) for c in NAMES[:7]}
    federation = from_arrays(rows, classes=3)
    few = {"shares__scheme": "plain", "images__count": 20, "local_rounds": 2, "images__search_steps": 5}
    ends = [
        toy.play_rounds(
            slfed(toy.learner("mlp", federation), SLFedSimilar, **few), federation, name, 4, score=False
        )
        for name in ("loop", "batched", "workers", "wire")
    ]
    for end in ends[1:]:
        for c in federation.clients:
            assert torch.equal(end.memories[c]["reach"], ends[0].memories[c]["reach"])
            np.testing.assert_allclose(
                flat(end.memories[c]["pam"]), flat(ends[0].memories[c]["pam"]), rtol=1e-3, atol=1e-4
            )
