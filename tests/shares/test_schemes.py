"""All ways of sharing give the same sum; shares that should hide do; what is wrong is refused by name."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from sharing import LAYERS, SECURE, answers, context, exchange, forged, inbox, models

from kinfolk.codec import decode as from_bytes
from kinfolk.codec import encode as to_bytes
from kinfolk.errors import KinfolkError
from kinfolk.shares import SCHEMES
from kinfolk.shares.additive import Additive64
from kinfolk.shares.context import Context
from kinfolk.shares.layerwise import Layerwise
from kinfolk.shares.plain import Plain
from kinfolk.shares.request_log import RequestLog, empty_request_log
from kinfolk.shares.shamir import Shamir61
from kinfolk.shares.vector import to_tree, to_vector
from kinfolk.streams import Seed
from kinfolk.types import nbytes

RESNET18 = 11_173_962 + 9_600  # parameters and float buffers


@pytest.mark.parametrize("n", [2, 3, 4, 25])
@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_every_scheme_gives_the_sum(name, n):
    scheme = SCHEMES[name](min_members=2) if name in ("additive64", "shamir61") else SCHEMES[name]()
    ctx = context(n)
    vectors = models(ctx)
    sent = exchange(scheme, ctx, vectors)
    # What travels can travel: through bytes and back.
    sent = {s: {r: from_bytes(to_bytes(share))[0] for r, share in got.items()} for s, got in sent.items()}
    found = scheme.reconstruct(answers(scheme, ctx, sent), ctx)
    expected = np.sum([0.4 * v.numpy() for v in vectors.values()], axis=0)
    assert found.dtype == torch.float64
    loss = n * 2.0 ** -(scheme.bits + 1) if hasattr(scheme, "bits") else 0
    assert np.abs(found.numpy() - expected).max() <= loss + 1e-12


@settings(max_examples=25)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=4, max_size=4), st.floats(0.01, 1))
def test_secure_sums_err_by_rounding_only(values, sigma):
    ctx = context(4, (("w", 4),), sigma)
    vectors = {m: torch.tensor(values).roll(i) for i, m in enumerate(ctx.members)}
    for scheme in (Additive64(), Shamir61()):
        found = scheme.reconstruct(answers(scheme, ctx, exchange(scheme, ctx, vectors, sigma)), ctx)
        for k, value in enumerate(found.tolist()):
            exact = sum(Fraction(float(v[k]) * sigma) for v in vectors.values())
            assert abs(Fraction(value) - exact) <= Fraction(4, 2 ** (scheme.bits + 1))


def test_error_at_25_members_and_a_large_spread():
    ctx, scheme = context(25, (("w", 400),)), Additive64()
    vectors = models(ctx, scale=2000.0)
    found = scheme.reconstruct(answers(scheme, ctx, exchange(scheme, ctx, vectors)), ctx)
    exact = [sum(Fraction(v.tolist()[k] * 0.4) for v in vectors.values()) for k in range(400)]
    worst = max(abs(Fraction(v) - e) for v, e in zip(found.tolist(), exact, strict=True))
    print("largest error, n = 25:", float(worst))
    assert 0 < worst <= Fraction(25, 2**33)


@pytest.mark.parametrize("kind", SECURE)
def test_shares_of_a_constant_look_random(kind):
    ctx = context(5, (("w", 8000),))
    sent = exchange(
        kind(entropy=Seed(3).numpy("shares").bytes), ctx, {m: torch.ones(8000) for m in ctx.members}
    )
    looks = 0
    for shares in sent.values():
        for share in shares.values():
            if "part" in share:
                data = share["part"].numpy().view(np.uint8).reshape(-1, 8)
                # Of 61 bits the lowest seven bytes are full.
                counts = np.bincount(data[:, :7].ravel(), minlength=256)
                assert chisquare(counts).pvalue > 1e-5
                looks += 1
    assert looks >= 5
    plain = np.bincount(torch.ones(8000).double().numpy().view(np.uint8), minlength=256)
    assert chisquare(plain).pvalue < 1e-9  # the test has teeth


@pytest.mark.parametrize("kind", SECURE)
def test_seeds_are_fresh_and_named_streams_repeat(kind):
    ctx, v = context(4), models(context(4))["m00"]
    once, again = (kind().split(v, 0.4, "m00", ctx.members, ctx) for _ in range(2))
    assert not torch.equal(once["m00"]["part"], again["m00"]["part"])
    first, second = (
        kind(entropy=Seed(3).numpy("share", 2, "m00").bytes).split(v, 0.4, "m00", ctx.members, ctx)
        for _ in range(2)
    )
    assert all(torch.equal(first[m][k], second[m][k]) for m in first for k in first[m])
    with pytest.raises(KinfolkError, match="entropy of 'm00'"):
        kind(entropy=bytes).split(v, 0.4, "m00", ctx.members, ctx)


@pytest.mark.parametrize(
    "change",
    [{"round": 3}, {"requester": "bea"}, {"sigma": (0.4, 0.4, 0.4, 0.3)}, {"layers": (("other", 11),)}],
)
@pytest.mark.parametrize("kind", SECURE)
def test_masks_belong_to_one_exchange_even_if_the_seeds_are_drawn_again(kind, change):
    """Were it otherwise, the differences of what two exchanges show were those of two models."""
    ctx, v = context(4), models(context(4))["m00"]
    kept = {}
    for one in (ctx, replace(ctx, **change)):
        scheme = kind(entropy=Seed(3).numpy("the same again").bytes)
        shares = scheme.split(v, 0.4, "m00", one.members, one)
        kept[one] = shares["m00"]["part"]
        seeds = [share["seed"] for share in shares.values() if "seed" in share]
        assert torch.equal(seeds[0], kept.setdefault("seed", seeds[0]))  # or the test has no teeth
    assert not (kept[ctx] == kept[replace(ctx, **change)]).any()


def test_layerwise_pieces_are_multiples_and_the_kept_one_counts():
    ctx, v = context(4), models(context(4))["m01"]
    for layers, pieces in (("tensor", 3), ("module", 2)):
        scheme = Layerwise(layers, entropy=Seed(3).numpy("cuts").bytes)
        shares = scheme.split(v, 0.4, "m01", ctx.members, ctx)
        ratios = torch.stack([shares[m]["part"] / (0.4 * v) for m in ctx.members])
        assert torch.allclose(ratios.sum(0), torch.ones_like(v))
        assert (ratios > 0).all()
        assert len({tuple(column.round(decimals=9).tolist()) for column in ratios.T}) == pieces
    sent = exchange(Layerwise(entropy=Seed(4).numpy("cuts").bytes), ctx, models(ctx))
    whole = sum(0.4 * w for w in models(ctx).values())
    without = sum(sent[s][r]["part"] for s in sent for r in sent if s != r)
    off = (without - whole).norm() / whole.norm()
    print("layer-wise sum without the kept share is off by", round(float(off), 2))
    assert off > 0.15
    with pytest.raises(KinfolkError, match="layers"):
        Layerwise("row")


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_missing_message_is_named_and_a_stranger_is_let_be(name):
    scheme, ctx = SCHEMES[name](), context(3)
    sent = exchange(scheme, ctx, models(ctx))
    got = answers(scheme, ctx, sent)
    less = {m: r for m, r in got.items() if m != "m01"}
    with pytest.raises(KinfolkError, match="message of 'm01': is missing"):
        scheme.reconstruct(less, ctx)
    strange = {**got, "eve": got["m00"], "zoe": {"sum": 3}}
    if hasattr(scheme, "bits"):  # a whole response, hash and all
        strange["eve"] = forged(got["m00"], "eve", ctx, inbox(sent, "m00"), lambda s: s)
    assert torch.equal(scheme.reconstruct(strange, ctx), scheme.reconstruct(got, ctx))
    if name != "plain":
        with pytest.raises(KinfolkError, match="message of 'm02': is missing"):
            scheme.respond({s: sent[s]["m00"] for s in ("m00", "m01")}, "m00", ctx)
    among = scheme.respond({**inbox(sent, "m00"), "eve": sent["m00"]["m00"]}, "m00", ctx)
    assert torch.equal(among["sum"], got["m00"]["sum"])


@pytest.mark.parametrize("kind", SECURE)
def test_shares_of_another_round_and_repeated_seeds_are_refused(kind):
    scheme, ctx, later = kind(), context(4), context(4, round=3)
    old, new = exchange(scheme, ctx, models(ctx)), exchange(scheme, later, models(ctx))
    with pytest.raises(KinfolkError, match="share of 'm02': belongs to another exchange"):
        scheme.respond({**inbox(new, "m01"), "m02": old["m02"]["m01"]}, "m01", later)
    got = {**answers(scheme, later, new), "m02": answers(scheme, ctx, old)["m02"]}
    with pytest.raises(KinfolkError, match="response of 'm02': belongs to another exchange"):
        scheme.reconstruct({m: got[m] for m in ("m00", "m01", "m02", "m03")[: scheme.needs(4)]}, later)
    # Two members whose generators are in the same state.
    twins = {m: kind(entropy=Seed(1).numpy("same").bytes) for m in ("m00", "m01")}
    sent = {**new, **{m: twins[m].split(models(ctx)[m], 0.4, m, later.members, later) for m in twins}}
    if kind is Additive64:  # the twins' second seeds meet at m02
        with pytest.raises(KinfolkError, match="share of 'm01': has the seed of 'm00'"):
            scheme.respond(inbox(sent, "m02"), "m02", later)


@pytest.mark.parametrize("kind", SECURE)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("part", torch.zeros(11)),
        ("part", torch.zeros(3, dtype=torch.int64)),
        ("salt", torch.zeros(31, dtype=torch.uint8)),
        ("commitments", torch.zeros(1, 32, dtype=torch.uint8)),
        ("extra", torch.zeros(1)),
        ("exchange", None),
    ],
)
def test_malformed_shares_are_refused(kind, key, value):
    ctx, scheme = context(4), kind()
    sent = exchange(scheme, ctx, models(ctx))
    with pytest.raises(KinfolkError, match="share of 'm00'"):
        scheme.respond({**inbox(sent, "m00"), "m00": {**sent["m00"]["m00"], key: value}}, "m00", ctx)


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_bad_models_are_refused_with_the_member_named(name):
    scheme, ctx = SCHEMES[name](), context(3)
    good = models(ctx)["m00"]
    bad = good.clone()
    bad[4] = float("nan")
    cases = [(bad, 0.4), (good[1:], 0.4), (good.long(), 0.4), (good, float("nan")), (good, 0.41)]
    for vec, sigma in cases:
        with pytest.raises(KinfolkError, match="of 'm00'"):
            scheme.split(vec, sigma, "m00", ctx.members, ctx)
    with pytest.raises(KinfolkError, match="'eve': is not in the list of 'ann'"):
        scheme.split(good, 0.4, "eve", ctx.members, ctx)
    with pytest.raises(KinfolkError, match="members at 'm00'"):
        scheme.split(good, 0.4, "m00", ctx.members[:2], ctx)


@pytest.mark.parametrize("kind", SECURE)
def test_what_secure_schemes_refuse(kind):
    scheme, ctx = kind(), context(3)
    good = models(ctx)["m00"]
    with pytest.raises(KinfolkError, match="fewer than 3 members"):
        scheme.split(good, 0.4, "m00", ("m00", "m01"), context(2))
    heavy = Context("ann", 2, ctx.members, (0.7, 0.1, 0.4), LAYERS)
    with pytest.raises(KinfolkError, match=r"sigma of 'm00' = 0.7: exceeds 0.5 of the sum 1.2"):
        scheme.split(good, 0.7, "m00", ctx.members, heavy)
    for sigma in ((0.5, 0.5, 1e-12), (0.5, 0.5, 0.0), (0.5, 0.5, 0.4)):
        uneven = Context("ann", 2, ctx.members, sigma, LAYERS)
        with pytest.raises(KinfolkError, match=r"sigma of 'ann' = .* counts as 2\.\d+ members, 3 are needed"):
            scheme.split(good, 0.5, "m00", ctx.members, uneven)
    for value in (2.0**14 / 0.4 * 1.001, -1e30):
        vec = good.clone()
        vec[2] = value
        with pytest.raises(KinfolkError, match=r"model of 'm00' = .* beyond the range"):
            scheme.split(vec, 0.4, "m00", ctx.members, ctx)
    edge = torch.full_like(good, -(2.0**14))
    vectors = dict.fromkeys(ctx.members, edge)
    wide = Context("ann", 2, ctx.members, (1.0,) * 3, LAYERS)
    found = scheme.reconstruct(answers(scheme, wide, exchange(scheme, wide, vectors, 1.0)), wide)
    assert (found == -3 * 2.0**14).all()
    with pytest.raises(KinfolkError, match="overflow"):
        kind(limit=2.0**36).split(good, 0.4, "m00", ctx.members, ctx)


def test_a_request_log_gives_nobody_two_sums():
    known = ("ann", "dan", *(f"m{i:02}" for i in range(4)))
    nothing = RequestLog(known, empty_request_log(6))
    ctx, shorter = context(4), context(3)
    assert ctx.id != shorter.id != context(3, sigma=0.5).id
    with pytest.raises(KinfolkError, match=r"request of 'ann' = \['m03'\]: names peers that nobody knows"):
        RequestLog(known[:-1], empty_request_log(5)).admit(ctx, "m00")
    with pytest.raises(KinfolkError, match="'dan': is not in the list"):
        nothing.admit(ctx, "dan")
    request_log = nothing.admit(ctx, "m00")
    with pytest.raises(KinfolkError, match="second in this round"):
        request_log.admit(shorter, "m00")
    void = request_log.abort(ctx)
    for call in (lambda: void.answer(ctx), lambda: void.abort(ctx), lambda: void.admit(ctx, "m00")):
        with pytest.raises(KinfolkError, match="request of 'ann'"):
            call()
    retried = void.admit(shorter, "m00")
    with pytest.raises(KinfolkError, match="not open"):
        retried.answer(ctx)
    with pytest.raises(KinfolkError, match="was aborted"):
        retried.abort(shorter).admit(context(3, sigma=0.1), "m00")
    done = retried.answer(shorter)
    with pytest.raises(KinfolkError, match="was answered"):
        done.admit(context(3, sigma=0.1), "m00")
    later = done.admit(context(3, round=3), "m00")
    with pytest.raises(KinfolkError, match="is old"):
        later.admit(context(4, round=1), "m00")
    other = Context("dan", 2, ctx.members, (0.4,) * 4, LAYERS)
    both = later.admit(other, "m00")
    assert {who for who in known if both.of(who).state} == {"ann", "dan"}


@pytest.mark.parametrize(
    ("members", "sigma", "round", "match"),
    [
        (("ann", "bob"), (1.0, 1.0), 0, "must not name the requester"),
        (("cyd", "bob"), (1.0, 1.0), 0, "sorted"),
        (("bob", "bob"), (1.0, 1.0), 0, "without repetition"),
        ((), (), 0, "not empty"),
        (("bob",), (float("nan"),), 0, "sigma of 'ann'"),
        (("bob",), (-1.0,), 0, "sigma of 'ann'"),
        (("bob",), (0.5, 0.5), 0, "sigma of 'ann'"),
        (("bob",), (1.0,), -1, "round of 'ann'"),
    ],
)
def test_bad_requests(members, sigma, round, match):
    with pytest.raises(KinfolkError, match=match):
        Context("ann", round, members, sigma, LAYERS)


@pytest.mark.parametrize("name", sorted(SCHEMES))
@pytest.mark.parametrize("n", [3, 4, 25])
def test_traffic_is_what_is_sent(name, n):
    scheme, ctx = SCHEMES[name](), context(n)
    sent = exchange(scheme, ctx, models(ctx, dtype=torch.float32))
    travelled = [share for s, shares in sent.items() for r, share in shares.items() if r != s]
    travelled += answers(scheme, ctx, sent).values()
    assert sum(map(nbytes, travelled)) == scheme.traffic(n, ctx.size)


def test_traffic_of_a_resnet18():
    traffic = {name: kind().traffic(25, RESNET18) / 1e9 for name, kind in SCHEMES.items()}
    print({name: round(value, 2) for name, value in traffic.items()})
    assert traffic["additive64"] <= 2.3
    assert traffic["layerwise"] == pytest.approx(27.9, abs=0.1)
    assert traffic["shamir61"] < traffic["layerwise"]
    assert traffic["plain"] < traffic["additive64"]


def test_a_model_as_a_vector_and_back():
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    tree = dict(net.state_dict())
    vec, layers = to_vector(tree)
    assert sum(length for _, length in layers) == len(vec) == 6 + 2 + 4 * 2
    assert "1.num_batches_tracked" not in dict(layers)
    parts = dict(zip(dict(layers), vec.split([length for _, length in layers]), strict=True))
    back = to_tree(vec.double() * 2, tree)
    for name, leaf in tree.items():
        if name in parts:
            assert torch.equal(parts[name], leaf.flatten())
            assert torch.equal(back[name], 2 * leaf)
            assert back[name].dtype == leaf.dtype
        else:
            assert torch.equal(back[name], leaf)
    with pytest.raises(KinfolkError, match="vector"):
        to_tree(vec[1:], tree)
    with pytest.raises(KinfolkError, match="no floating-point"):
        to_vector({"n": torch.tensor(1)})


def test_plain_shows_each_model_to_the_requester():
    ctx = context(3)
    sent = exchange(Plain(), ctx, models(ctx))
    assert torch.allclose(answers(Plain(), ctx, sent)["m01"]["sum"], 0.4 * models(ctx)["m01"])
    assert set(sent["m01"]) == {"m01"}
