"""Members that vanish, lie or are slandered: the sum stands where it can, and nobody is blamed unproved."""

import copy

import pytest
import torch
from sharing import SECURE, answers, context, exchange, forged, inbox, models

from kinfolk.errors import KinfolkError
from kinfolk.shares.additive import Additive64
from kinfolk.shares.commitments import make_response
from kinfolk.shares.fixed_point import to_words
from kinfolk.shares.messages import read_request, request_message
from kinfolk.shares.shamir import Shamir61, threshold_of
from kinfolk.streams import Seed


@pytest.mark.parametrize("n", [4, 7, 25])
def test_shamir_survives_those_who_vanish(n):
    ctx, scheme = context(n), Shamir61()
    got, t = answers(scheme, ctx, exchange(scheme, ctx, models(ctx))), threshold_of(n)
    expected = sum(0.4 * v for v in models(ctx).values())
    drawn = Seed(1).numpy("vanish", n).permutation(n)[:t]
    left = {m: got[m] for m in (ctx.members[i] for i in drawn)}
    assert torch.allclose(scheme.reconstruct(left, ctx), expected, rtol=0, atol=n * 2**-25)
    del left[next(iter(left))]
    with pytest.raises(KinfolkError, match="is missing"):
        scheme.reconstruct(left, ctx)


def test_shamir_does_without_a_wrong_response_where_it_can_be_found():
    """Of 5 responses 4 are needed: which is wrong shows by the range. Of 7, 5 are: it shows for sure."""
    for n, change in ((5, lambda s: s * 3 + 12345), (7, lambda s: s + 1)):
        ctx, scheme = context(n), Shamir61()
        sent = exchange(scheme, ctx, models(ctx))
        got = answers(scheme, ctx, sent)
        for liar in ctx.members:
            told = []
            lie = forged(got[liar], liar, ctx, inbox(sent, liar), change)
            found = scheme.reconstruct({**got, liar: lie}, ctx, told.append)
            assert torch.equal(found, scheme.reconstruct(got, ctx))
            assert [error.field for error in told] == [f"response of {liar!r}"]


def test_shamir_names_nobody_where_a_wrong_response_can_not_be_found():
    """Of 5 responses 4 are needed; a lie of a few units leaves every four within the range."""
    ctx, scheme = context(5), Shamir61()
    sent = exchange(scheme, ctx, models(ctx))
    got = answers(scheme, ctx, sent)
    lie = forged(got["m01"], "m01", ctx, inbox(sent, "m01"), lambda s: s + 1)
    told = []
    with pytest.raises(KinfolkError, match="do not fit together") as caught:
        scheme.reconstruct({**got, "m01": lie}, ctx, told.append)
    assert (caught.value.field, told) == ("responses", [])


def test_shamir_does_without_a_damaged_response():
    ctx, scheme, told = context(4), Shamir61(), []
    got = answers(scheme, ctx, exchange(scheme, ctx, models(ctx)))
    right = scheme.reconstruct(got, ctx)
    got["m02"]["sum"][0] += 1
    assert torch.equal(scheme.reconstruct(got, ctx, told.append), right)
    assert [error.field for error in told] == ["response of 'm02'"]


@pytest.mark.parametrize("kind", SECURE)
def test_altered_shares_and_responses_end_the_exchange(kind):
    ctx, scheme = context(5), kind()
    sent = exchange(scheme, ctx, models(ctx))
    got = answers(scheme, ctx, sent)
    for key in [k for k in sent["m01"]["m00"] if k != "exchange"]:
        bad = copy.deepcopy(inbox(sent, "m00"))
        bad["m01"][key].view(torch.uint8).view(-1)[3] ^= 1
        if key != "commitments":
            with pytest.raises(KinfolkError, match="share of 'm01' for 'm00'"):
                scheme.respond(bad, "m00", ctx)
    got["m02"]["sum"][0] += 1
    few = {m: got[m] for m in ctx.members[: scheme.needs(5)]}  # none of which can be done without
    with pytest.raises(KinfolkError, match="response of 'm02': was damaged"):
        scheme.reconstruct(few, ctx)


@pytest.mark.parametrize("kind", SECURE)
def test_a_roll_that_differs_between_members_is_seen(kind):
    ctx, scheme = context(5), kind()
    sent, other = exchange(scheme, ctx, models(ctx)), exchange(scheme, ctx, models(ctx))
    mixed = {**sent, "m03": {**sent["m03"], "m01": other["m03"]["m01"]}}  # whole, but of another splitting
    told = []
    try:
        scheme.reconstruct(answers(scheme, ctx, mixed), ctx, told.append)
    except KinfolkError as error:
        told.append(error)
    assert [error.field for error in told][-1] == "dispute of 'm01' and 'm03' over 'm03'"
    assert kind is Additive64 or len(told) == 2  # the share of the other splitting does not fit either


@pytest.mark.parametrize("kind", SECURE)
def test_a_lie_about_a_roll_blames_nobody(kind):
    """m01 says that it saw other commitments of m03, who is honest."""
    ctx, scheme, told = context(5), kind(), []
    sent = exchange(scheme, ctx, models(ctx))
    got = answers(scheme, ctx, sent)
    seen = copy.deepcopy(inbox(sent, "m01"))
    seen["m03"]["commitments"][0] ^= 1
    lie = make_response(to_words(got["m01"]["sum"]), seen, "m01", ctx)
    if kind is Additive64:
        with pytest.raises(KinfolkError, match="nobody is blamed") as caught:
            scheme.reconstruct({**got, "m01": lie}, ctx)
        told.append(caught.value)
    else:
        right = scheme.reconstruct(got, ctx)
        assert torch.equal(scheme.reconstruct({**got, "m01": lie}, ctx, told.append), right)
    assert [error.field for error in told] == ["dispute of 'm01' and 'm03' over 'm03'"]


def test_wrong_masks_make_an_impossible_sum():
    ctx, scheme = context(3), Additive64()
    sent = exchange(scheme, ctx, models(ctx))
    got = answers(scheme, ctx, sent)
    lie = forged(got["m00"], "m00", ctx, inbox(sent, "m00"), lambda s: s * 3 + 12345)
    with pytest.raises(KinfolkError, match="a share was wrong"):
        scheme.reconstruct({**got, "m00": lie}, ctx)


@pytest.mark.parametrize("sigma", [(1.001, 0.5), (-0.001, 0.5)])
def test_a_request_weighs_by_similarities_and_nothing_else(sigma):
    sent = request_message(torch.tensor([True, True]), torch.tensor(sigma).double())
    with pytest.raises(
        KinfolkError, match=r"sigma of 'bob' = .*: must lie in \[0, 1\], and be 0 off the list"
    ):
        read_request(sent, 2, "bob")
    fine = torch.tensor([1.0, 0.0]).double()
    assert torch.equal(read_request(request_message(torch.tensor([True, False]), fine), 2, "bob")[1], fine)
