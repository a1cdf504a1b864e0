"""What no two deployed runs have in common, and the law or the sum that holds instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import federated, sites_of, spec_of

from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override
from kinfolk.experiment.state import to_message
from kinfolk.types import leaves


def end_of(spec: Any, folder: Path) -> torch.Tensor:
    """All numbers of the models of a deployed run, in a row."""
    rows = federated(spec)
    carrier = Threads({who: site.answer for who, site in sites_of(rows).items()})
    try:
        return flat(lead(spec, folder, carrier, list(rows.clients), seconds=120).state)
    finally:
        carrier.close()


def flat(state: Any) -> torch.Tensor:
    return torch.cat(
        [t.flatten().double() for _, _, t in leaves(to_message(state)[0]) if t.is_floating_point()]
    )


def test_noise_of_local_privacy_is_drawn_at_sites_and_has_its_size(tmp_path: Path):
    """A mean of eight clients with equal rows, each with noise of multiplier x 2 x clip on every number."""
    clip, multiplier = 0.5, 3.0
    settings = ("privacy.mode=local", f"privacy.clip={clip}", f"privacy.noise={multiplier}", "guard.norm=1e9")
    spec = override(spec_of("fedavg", rounds=1), settings)
    one, other = (end_of(spec, tmp_path / name) for name in ("one", "other"))
    expected = multiplier * 2 * clip / 8**0.5
    between = (one - other)[(one - other) != 0]
    assert len(between) > 15_000
    assert float(between.std()) == pytest.approx(2**0.5 * expected, rel=0.05)
    assert abs(float(between.mean())) < 5 * 2**0.5 * expected / len(between) ** 0.5


@pytest.mark.parametrize("scheme", ["additive64", "shamir61"])
def test_masks_are_other_ones_and_their_sum_is_the_same(scheme: str, tmp_path: Path):
    """What is carried differs from run to run; the sum of shares is that of `loop`, bit for bit."""
    spec = override(spec_of("fedavg", rounds=2), (f"secure_sums.scheme={scheme}",))
    theirs = flat(run(spec, tmp_path / "loop").state)
    assert torch.equal(end_of(spec, tmp_path / "one"), theirs)
    assert torch.equal(end_of(spec, tmp_path / "other"), theirs)
