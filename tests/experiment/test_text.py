"""A small text federation in every engine, with the methods that make rows of their own."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.experiment.record import read_scores
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import load, override

ALPHABET = "".join(map(chr, range(32, 127)))
METHODS = {
    "fedavg": {},
    "mdicfl": {"k": 2, "pseudo.samples": 1, "pseudo.sampler": "text", "start.name": "random_partition"},
    "slfed_similar": {
        "images.kind": "text",
        "images.count": 20,
        "images.search_steps": 12,
        "local_rounds": 2,
    },
}


@pytest.fixture
def spec(tmp_path, monkeypatch):
    """Six pages of two invented languages: one has letters only, the other figures."""
    rng = np.random.default_rng(0)
    names = [f"{'ab'[k % 2]}b:{k}" for k in range(6)]
    letters = {0: "abcdefgh ", 1: "01234567 "}
    pages = ["".join(rng.choice(list(letters[k % 2]), 160)) for k in range(6)]
    order = np.argsort(names)
    np.savez(
        tmp_path / "manuals.npz",
        text=np.array([ALPHABET.index(c) for k in order for c in pages[k]], np.uint8),
        offset=np.arange(7) * 160, client=np.array(names)[order],
        language=np.array([name[:2] for name in names])[order], alphabet=np.array(ALPHABET),
    )  # fmt: skip
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    path = tmp_path / "spec.toml"
    path.write_text(
        """
        [data]
        name = "manuals"
        clients = 0
        groups = 2
        shift = "source"
        partition = "natural"
        test = "local"
        window = 5
        stride = 3
        [model]
        name = "char_lstm"
        hidden = 8
        layers = 1
        [local]
        batch = 20
        lr = 1.0
        [run]
        rounds = 3
        """
    )
    return path


@pytest.mark.parametrize("name", METHODS)
def test_engines_agree_on_text(name, spec, tmp_path):
    found = {}
    for engine in ("loop", "batched", "wire"):
        changes = {"engine.name": engine, "algorithm.name": name}
        changes |= {f"algorithm.{key}": value for key, value in METHODS[name].items()}
        frame = read_scores(run(override(load(spec), changes), tmp_path / engine).folder)
        found[engine] = frame.set_index(["round", "client", "model", "score"])["value"].sort_index()
    loop = found.pop("loop")
    assert loop.notna().all()
    for other in found.values():
        assert list(other.index) == list(loop.index)
        assert other.to_numpy() == pytest.approx(loop.to_numpy(), rel=1e-4, abs=1e-5)
