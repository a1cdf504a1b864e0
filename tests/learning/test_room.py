"""Networks that no machine could hold are one clear line, and are never made."""

from __future__ import annotations

import resource

import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.learning import room
from kinfolk.learning.models import MODELS, build_model

WIDTHS = [
    (name, option)
    for name, entry in MODELS.items()
    for option, default in entry.options.items()
    if isinstance(default, int | tuple) and not isinstance(default, bool)
]


def shape_for(name: str) -> tuple[int, ...]:
    entry = MODELS[name]
    return (3, 32, 32) if entry.least else (40,) * len(entry.axes) if entry.axes else (10,)


def options_for(name: str) -> dict[str, object]:
    return {"vocabulary": 90} if "vocabulary" in MODELS[name].options else {}


@pytest.mark.parametrize("width", [10**12, 2**62])
@pytest.mark.parametrize(("name", "option"), WIDTHS)
def test_a_huge_width_is_one_line_that_names_it(name: str, option: str, width: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(KinfolkError) as caught:
        build_model(name, shape_for(name), 10, options_for(name) | {option: width})
    assert f"{option} = {width}" in str(caught.value) or caught.value.field == f"model.{option}"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19, "KiB"


def test_what_a_network_takes_is_what_its_tensors_take(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model("mlp", (10,), 3, {"hidden": [50]})
    takes = room.COPIES * 4 * sum(p.numel() for p in model.parameters())
    monkeypatch.setattr(room, "machine_memory", lambda: takes)
    build_model("mlp", (10,), 3, {"hidden": [50]})
    monkeypatch.setattr(room, "machine_memory", lambda: takes - 1)
    with pytest.raises(KinfolkError, match=r"takes 2\.8 kB with hidden = \[50\], and 3 of it do not fit"):
        build_model("mlp", (10,), 3, {"hidden": [50]})


def test_many_layers_are_refused_before_they_are_made() -> None:
    with pytest.raises(KinfolkError, match=r"model\.hidden = .*more than 1000 layers"):
        build_model("mlp", (10,), 3, {"hidden": [2] * 1001})


@pytest.mark.parametrize("name", MODELS)
def test_measuring_draws_nothing(name: str) -> None:
    """First weights are what they were: they follow from the seed alone."""
    given = name, shape_for(name), 10, options_for(name)
    torch.manual_seed(3)
    one = build_model(*given)
    after = torch.random.get_rng_state()
    torch.manual_seed(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kinfolk.learning.models.check_fits", lambda *_: None)
        two = build_model(*given)
    assert torch.equal(after, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
