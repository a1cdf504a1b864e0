"""Optimisers against torch.optim over many steps, alone and on stacks of models."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import go
from torch.func import vmap

from kinfolk.errors import KinfolkError
from kinfolk.learning import optim
from kinfolk.learning.optim import SGD, Adagrad, Adam, AdamW, RMSprop, SumGradients, build_optimiser, clip
from kinfolk.types import Tree

SHAPES = {"w": (4, 3), "b": (3,), "scale": ()}
OPTIMISERS = [
    (SGD(), lambda p: torch.optim.SGD(p, lr=0.05)),
    (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    (SGD(0.5, 0.01), lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, weight_decay=0.01)),
    (SGD(weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1)),
    (SGD(0.9, 0.01, True), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01, nesterov=True)),
    (AdamW(weight_decay=0.2), lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.2)),
    (Adagrad(weight_decay=0.1), lambda p: torch.optim.Adagrad(p, lr=0.05, weight_decay=0.1)),
    (RMSprop(weight_decay=0.1), lambda p: torch.optim.RMSprop(p, lr=0.05, weight_decay=0.1)),
    (Adam(), lambda p: torch.optim.Adam(p, lr=0.05)),
    (Adam((0.5, 0.9), 1e-3, 0.1), lambda p: torch.optim.Adam(p, 0.05, (0.5, 0.9), 1e-3, 0.1)),
]


def tree(seed: int, lead: tuple[int, ...] = ()) -> Tree:
    draw = np.random.default_rng(seed)
    return {n: torch.from_numpy(np.asarray(draw.normal(size=(*lead, *s)))) for n, s in SHAPES.items()}


@pytest.mark.parametrize(("ours", "theirs"), OPTIMISERS, ids=lambda o: repr(o) if hasattr(o, "init") else "")
def test_twenty_steps_equal_torch(ours, theirs):
    params = tree(0)
    leaves = [torch.nn.Parameter(p.clone()) for p in params.values()]
    reference = theirs(leaves)
    state = ours.init(params)
    for step in range(20):
        # A gradient that depends on where we are, so that errors feed back.
        grads = {n: p**3 + g for (n, p), g in zip(params.items(), tree(step + 1).values(), strict=True)}
        for leaf, g in zip(leaves, tree(step + 1).values(), strict=True):
            leaf.grad = leaf.detach() ** 3 + g
        reference.step()
        before = {n: p.clone() for n, p in params.items()}
        moved, state = ours.update(params, grads, state, step, 0.05, 7)
        assert all(torch.equal(params[n], before[n]) for n in params), "arguments are not written to"
        params = moved
    for p, leaf in zip(params.values(), leaves, strict=True):
        torch.testing.assert_close(p, leaf.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("ours", [o for o, _ in OPTIMISERS] + [SumGradients()], ids=repr)
def test_a_stack_of_models_goes_like_each_alone(ours):
    together, rows = tree(0, (5,)), torch.arange(1.0, 6)
    alone = [{n: p[i] for n, p in together.items()} for i in range(5)]
    states = [ours.init(p) for p in alone]
    state = ours.init(together)
    for step in range(4):
        grads = tree(step + 1, (5,))
        together, state = ours.update(together, grads, state, step, 0.1, rows)
        for i in range(5):
            mine = {n: g[i] for n, g in grads.items()}
            alone[i], states[i] = ours.update(alone[i], mine, states[i], step, 0.1, float(rows[i]))
    for i in range(5):
        assert all(torch.equal(together[n][i], p) for n, p in alone[i].items())
        assert list(states[i]) == list(state)
        for key in state:
            assert all(torch.equal(state[key][n][i], t) for n, t in states[i][key].items())


@pytest.mark.parametrize("ours", [o for o, _ in OPTIMISERS], ids=repr)
@pytest.mark.parametrize("counted", [False, True], ids=["step on the host", "step on the device"])
def test_a_stack_may_have_a_rate_for_each_model(ours, counted):
    together, rates = tree(0, (3,)), torch.tensor([0.1, 0.0, 0.3], dtype=torch.float64)
    alone = [{n: p[i] for n, p in together.items()} for i in range(3)]
    states, state = [ours.init(p) for p in alone], ours.init(together)
    for step in range(4):
        grads = tree(step + 1, (3,))
        number = torch.tensor(step) if counted else step
        together, state = ours.update(together, grads, state, number, rates, 1)
        for i in range(3):
            mine = {n: g[i] for n, g in grads.items()}
            alone[i], states[i] = ours.update(alone[i], mine, states[i], step, float(rates[i]), 1)
    rounding = 1e-6 if counted else 1e-12  # on a device the corrections are float32
    for i in range(3):
        for n, p in alone[i].items():
            torch.testing.assert_close(together[n][i], p, rtol=rounding, atol=rounding)


def test_a_state_is_made_of_zeros_and_not_shared():
    params = tree(0)
    for ours, _ in OPTIMISERS:
        for part in ours.init(params).values():
            assert list(part) == list(params)
            assert not any(t.any() for t in part.values())
    assert SGD().init(params) == {}


def test_sum_gradients_weighs_batches_by_rows_and_moves_nothing():
    params = tree(0)
    rule = SumGradients()
    state = rule.init(params)
    for step, rows in enumerate((3, 1, 6)):
        same, state = rule.update(params, tree(step + 1), state, step, 0.5, rows)
        assert same is params
    for name in params:
        by_hand = sum(rows * tree(i + 1)[name].numpy() for i, rows in enumerate((3, 1, 6)))
        np.testing.assert_allclose(state["sum"][name], by_hand, rtol=1e-12)


@settings(deadline=None)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(-6, 6))
def test_clip_equals_torch(seed, limit, power):
    grads = {n: g * 10**power for n, g in tree(seed).items()}
    leaves = [torch.nn.Parameter(g.clone()) for g in grads.values()]
    for leaf, g in zip(leaves, grads.values(), strict=True):
        leaf.grad = g.clone()
    torch.nn.utils.clip_grad_norm_(leaves, limit)
    clipped = clip(grads, limit)
    norm = np.sqrt(sum(float((g**2).sum()) for g in clipped.values()))
    assert norm <= limit * (1 + 1e-9)
    for g, leaf in zip(clipped.values(), leaves, strict=True):
        # Torch divides by the norm plus 1e-6, we by the norm itself.
        torch.testing.assert_close(g, leaf.grad, rtol=1e-5 + 2e-6 / max(limit, 1e-6), atol=1e-12)
    assert list(clipped) == list(grads)


def test_clip_lets_short_gradients_pass_and_survives_zero():
    grads = {"w": torch.tensor([0.3, 0.4])}
    assert torch.equal(clip(grads, 0.5)["w"], grads["w"])
    assert torch.equal(clip(grads, 9.0)["w"], grads["w"])
    assert torch.equal(clip({"w": torch.zeros(2)}, 1.0)["w"], torch.zeros(2))


def test_clip_goes_by_client_under_vmap():
    stacked = {n: torch.stack([g * 10.0**i for i in range(3)]) for n, g in tree(0).items()}
    together = vmap(lambda g: clip(g, 2.0))(stacked)
    for i in range(3):
        alone = clip({n: g[i] for n, g in stacked.items()}, 2.0)
        for n in alone:
            torch.testing.assert_close(together[n][i], alone[n], rtol=1e-12, atol=0)


def test_a_name_in_the_registry_is_made_with_its_own_options():
    settings = {"momentum": 0.5, "weight_decay": 0.1, "lr": 3.0}
    assert build_optimiser("sgd", settings) == SGD(0.5, 0.1)
    assert build_optimiser("adam", settings) == Adam(weight_decay=0.1)
    with pytest.raises(KinfolkError, match=r"local\.optimiser = 'sdg'.*'sgd'"):
        build_optimiser("sdg", settings)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_the_recipe_adds_an_optimiser_in_one_place(tmp_path, engine):
    """As docs/extend/recipes.md has it: every weight moves by the learning rate or not at all."""
    page = (Path(__file__).parents[2] / "docs" / "extend" / "recipes.md").read_text()
    code = re.search(r"```python\n(.*?)```", page.split("## An optimiser")[1], re.DOTALL)
    try:
        exec(code[1], {})
        words = ("local.optimiser=signsgd", "local.lr=0.0625", "data.clients=1", "data.groups=1")
        words += ("local.batch=99",)
        before, after = (
            go(tmp_path / f"{rounds}", *words, f"run.rounds={rounds}", f"engine.name={engine}").state.model
            for rounds in (1, 2)
        )
    finally:
        del optim.OPTIMISERS["signsgd"]
    for name, leaf in after.items():
        step = (leaf - before[name]).abs()
        assert ((step - 0.0625).abs() < 1e-6).logical_or(step == 0).all(), name
        assert step.any(), name
