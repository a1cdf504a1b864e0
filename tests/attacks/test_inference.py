"""Membership inference and inversion beside computations of their own, and where they must know nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from kinfolk.attacks.inference.inversion import analytic, gradient_of, optimised, recovery
from kinfolk.attacks.inference.membership import attack_scores, confidence, row_losses, success
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.infer import SHARED, SINGLE, _updated, inversions, invert, membership, views
from kinfolk.experiment.spec import override, parse
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss

SPEC = parse(
    """
[data]
clients = 6
rows = 24
groups = 2
test = "local"
test_rows = 24
[model]
name = "mlp"
hidden = [16]
[engine]
name = "batched"
device = "cpu"
[run]
rounds = 2
pictures = "none"
"""
)


def counted(members: np.ndarray, others: np.ndarray) -> float:
    """The area by its definition: how often a member is ahead, ties half."""
    ahead = members[:, None] > others[None]
    return float((ahead + 0.5 * (members[:, None] == others[None])).mean())


@pytest.mark.parametrize("shift", [0.0, 0.7, -1.5])
def test_the_area_is_the_share_of_pairs_in_order_and_members_are_counted_at_one_percent(shift):
    draw = np.random.default_rng(3)
    members, others = np.round(draw.normal(shift, 1, 300), 1), np.round(draw.normal(0, 1, 200), 1)
    found = success(members, others)
    assert found.auc == pytest.approx(counted(members, others), abs=1e-12)
    # At most 2 of 200 others may be taken for members.
    bounds = [b for b in np.unique(np.r_[members, others]) if (others >= b).sum() <= 2]
    assert found.tpr == max((members >= b).mean() for b in bounds)


def test_an_attack_that_knows_nothing_has_the_error_that_is_told():
    draw = np.random.default_rng(0)
    found = [success(draw.normal(size=40), draw.normal(size=60)) for _ in range(150)]
    areas = np.array([one.auc for one in found])
    assert abs(areas.mean() - 0.5) < 4 * found[0].error / 12
    assert areas.std() == pytest.approx(found[0].error, rel=0.3)


def test_confidence_is_the_log_odds_of_the_right_class():
    logits, y = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, 0.0]], dtype=torch.float64), torch.tensor([0, 2])
    right = logits.softmax(1)[torch.arange(2), y]
    got = confidence(nn.functional.cross_entropy(logits, y, reduction="none"), "cross_entropy")
    assert torch.allclose(got, (right / (1 - right)).log())
    assert torch.equal(confidence(torch.tensor([2.0]), "mse"), torch.tensor([-2.0]))
    assert confidence(torch.tensor([0.0, 800.0]), "cross_entropy").isfinite().all()


def test_scores_are_those_of_the_papers():
    draw = torch.Generator().manual_seed(0)
    own, before, *others = (torch.randn(9, generator=draw, dtype=torch.float64) for _ in range(6))
    found = attack_scores(own, before, others)
    held = np.stack([one.numpy() for one in others])
    spread = np.sqrt(held.var(0, ddof=1).mean())
    assert np.allclose(found["calibrated"], own - before)
    assert np.allclose(found["likelihood"], norm(held.mean(0), spread).logcdf(own.numpy()))
    assert set(attack_scores(own, None, others[:1])) == {"loss"}


def test_rows_of_a_model_that_never_saw_them_are_not_told_from_others():
    parts = build_parts(override(SPEC, ["data.rows=80", "data.test_rows=80"]))
    learner, rows = parts.learner, parts.federation
    sides = []
    for split in ("train", "test"):
        x, y = rows.take(torch.cat([rows.splits[split].rows(i) for i in range(6)]))
        sides.append(confidence(row_losses(learner, learner.first, x, y), "cross_entropy").numpy())
    found = success(*sides)
    assert abs(found.auc - 0.5) < 4 * found.error


def test_members_of_an_overtrained_model_are_found_more_than_of_a_shared_one(tmp_path):
    spec = override(SPEC, ["local.epochs=40", "run.rounds=1"])
    found = {(row["view"], row["attack"]): row for row in membership(*views(spec, tmp_path / "run"))}
    assert {attack for view, attack in found if view == SINGLE} == {"loss", "calibrated", "likelihood"}
    assert all(row["members"] == row["others"] == 6 * 24 for row in found.values())
    alone, together = found[SINGLE, "loss"]["auc"], found[SHARED, "loss"]["auc"]
    assert alone > 0.6
    assert alone > together


def test_what_is_seen_is_what_was_sent_and_what_is_served(tmp_path):
    parts, seen = views(SPEC, tmp_path / "run")
    mean = {
        n: torch.stack([one[n] for one in seen.single.values()]).mean(0) for n in parts.learner.first
    }  # clients have equally many rows
    for who in parts.federation.clients:
        for name, leaf in mean.items():
            assert torch.allclose(seen.shared[who][name], leaf, atol=1e-5)
            assert not torch.equal(seen.before[who][name], seen.shared[who][name])


def test_one_row_is_read_off_the_first_layer_whatever_the_number_of_steps():
    parts = build_parts(SPEC)
    for steps in (1, 5):
        found = {one.attack: one for one in invert(parts, parts.federation.clients[0], 1, steps)}
        exact = found["analytic"]
        assert torch.allclose(exact.made, exact.true, atol=1e-3)
        assert (exact.found, exact.psnr > 50, exact.chance_psnr < 25) == (1.0, True, True)


def test_the_update_that_is_inverted_is_the_gradient_by_autograd():
    parts = build_parts(SPEC)
    learner, rows = parts.learner, parts.federation.splits["train"].rows(0)[:8]
    after = _updated(learner, parts.federation, parts.federation.clients[0], rows, 1, parts.seed)
    got = gradient_of(learner.first, after, learner.names, learner.lr, 1)
    x, y = parts.federation.take(rows)
    model = {n: t.clone().requires_grad_() for n, t in learner.first.items()}
    learner.loss.row_loss(learner.apply(model, x), y).mean().backward()
    for name in learner.names:
        assert torch.allclose(got[name].float(), model[name].grad, atol=1e-4)
        assert float(model[name].grad.norm()) > 1e-2


def test_rows_of_a_network_that_starts_with_no_linear_layer_are_not_read_off():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    learner = Learner(network, find_loss("cross_entropy"), 10)
    assert analytic(learner, learner.first, (1, 8, 8), 1) is None


def test_optimised_rows_are_nearer_than_guesses_and_a_wrong_gradient_gives_none():
    parts = build_parts(SPEC)
    (one,) = (o for o in invert(parts, parts.federation.clients[0], 4, 1) if o.attack == "optimised")
    assert one.found == 1.0
    assert one.psnr > one.chance_psnr + 6
    learner, draw = parts.learner, torch.Generator().manual_seed(0)
    noise = {n: torch.randn(t.shape, generator=draw) for n, t in learner.first.items()}
    x, y = parts.federation.take(parts.federation.splits["train"].rows(0)[:4])
    pool, _ = parts.federation.take(parts.federation.splits["test"].row[:200])
    made = optimised(learner, learner.first, noise, y, tuple(x.shape[1:]), (0.0, 1.0), draw, rounds=50)
    assert recovery(x, made, pool, (0.0, 1.0)).found <= 0.5


def test_psnr_is_in_decibels_of_the_span_and_each_row_is_matched_once():
    true = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    made = torch.tensor([[0.9, 1.1], [0.1, 0.1]])
    found = recovery(true, made, torch.tensor([[5.0, 5.0]]), (0.0, 2.0))
    # Squared errors of 0.01, 0.01 and, of the row for which nothing is left, (0.1² + 0.9²) / 2.
    want = np.mean([10 * np.log10(4 / e) for e in (0.01, 0.01, 0.41)])
    assert found.psnr == pytest.approx(want, abs=1e-4)


def test_equal_seeds_give_equal_reconstructions():
    one, two = (inversions(SPEC, [2], [1], [0]) for _ in range(2))
    assert all(torch.equal(a.made, b.made) for a, b in zip(one, two, strict=True))
