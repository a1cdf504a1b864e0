"""The library as an engineer meets it: a network of one's own, clients of one's own, a table."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import kinfolk
from kinfolk.experiment.spec import parse


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def two_kinds(clients: int = 6, rows: int = 60) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients of even number go by the first feature, the others by the second."""
    draw = np.random.default_rng(0)
    found = {}
    for i in range(clients):
        x = draw.normal(size=(rows, 4)).astype("float32")
        found[f"site-{i}"] = (x, (x[:, i % 2] > 0).astype("int64"))
    return found


def test_compare_tells_personal_from_common_models(tmp_path):
    table = kinfolk.compare(
        Small, two_kinds(), ["local", "fedavg"], rounds=15, seeds=2, folder=tmp_path / "c"
    )
    frame = table.frame.set_index("algorithm")
    # The two kinds disagree on half of all rows, so one linear model cannot be right for both.
    assert frame.loc["local", "macro"] > frame.loc["fedavg", "macro"] + 0.05
    assert "local" in str(table)
    assert table.figure(tmp_path / "f.png").stat().st_size > 10_000


def test_a_module_that_is_ready_is_the_start_of_every_seed():
    network = Small()
    starts = [kinfolk.run(network, two_kinds(), rounds=1, seed=seed) for seed in (0, 1)]
    assert all(torch.isfinite(result.state.model["fc.weight"]).all() for result in starts)
    again = kinfolk.run(network, two_kinds(), rounds=1, seed=0)
    assert torch.equal(again.state.model["fc.weight"], starts[0].state.model["fc.weight"])


def test_data_sets_and_pairs_are_the_same():
    pairs = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in two_kinds().values()]
    sets = [TensorDataset(x, y) for x, y in pairs]
    by_pair, by_set = (kinfolk.run(Small, given, rounds=2).state.model for given in (pairs, sets))
    assert all(torch.equal(by_pair[name], by_set[name]) for name in by_pair)


def test_settings_are_taken_as_they_are():
    settings = {
        "local.lr": np.float32(0.5),
        "run.quorum": 0.0,
        "local.drop_last": False,
        "engine": {"name": "loop"},
    }
    spec = parse(
        (kinfolk.run(Small, two_kinds(2), rounds=1, settings=settings).folder / "spec.toml").read_text()
    )
    assert (spec.local.lr, spec.local.drop_last, spec.engine.name) == (0.5, False, "loop")
    with pytest.raises(kinfolk.KinfolkError, match=r"local\.lr = \[0\.1\]"):
        kinfolk.run(Small, two_kinds(2), rounds=1, settings={"local.lr": (0.1,)})
    with pytest.raises(kinfolk.KinfolkError, match=r"name it as section\.key"):
        kinfolk.run(Small, two_kinds(2), rounds=1, settings={"lr": 0.1})


def test_regression_finds_the_line():
    draw = np.random.default_rng(1)
    slope = np.array([1.0, -2.0, 0.5], dtype="float32")
    clients = []
    for _ in range(4):
        x = draw.normal(size=(100, 3)).astype("float32")
        clients.append((x, (x @ slope).astype("float32")))
    result = kinfolk.run(lambda: nn.Linear(3, 1), clients, rounds=15, settings={"local.lr": 0.05})
    assert result.summary["centre"]["mse"]["macro"] < 1e-3
    found = result.state.model["weight"].squeeze().numpy()
    np.testing.assert_allclose(found, slope, atol=0.02)


def test_a_target_stops_early():
    result = kinfolk.run(
        Small, two_kinds(), "local", rounds=50, settings={"run.target": 0.7, "run.target_score": "accuracy"}
    )
    assert result.reason == "accuracy reached 0.7"
    assert result.rounds < 50


def test_settings_reach_the_run():
    result = kinfolk.run(
        Small, two_kinds(), rounds=1, settings={"engine.name": "wire", "local.optimiser": "adam"}
    )
    assert '"engine": "wire' in (result.folder / "run.json").read_text()


GOOD = np.zeros((5, 4), dtype="float32")
LABELS = np.array([0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([(np.full((5, 4), np.nan, dtype="float32"), LABELS)], ["client-000", "nan"]),
        ([(np.full((5, 4), np.inf, dtype="float32"), LABELS)], ["client-000", "inf"]),
        ([(GOOD, LABELS), (GOOD[:0], LABELS[:0])], ["client-001", "rows"]),
        ([(GOOD, LABELS - 1)], ["client-000", "-1"]),
        ([(GOOD, LABELS[:3])], ["client-000", "3"]),
        ([(GOOD, LABELS), (GOOD[:, :2], LABELS)], ["client-001"]),
        ([], ["client"]),
    ],
)
def test_bad_rows_name_the_client(clients, words, tmp_path):
    with pytest.raises(kinfolk.KinfolkError) as caught:
        kinfolk.run(Small, clients, rounds=1, folder=tmp_path / "r")
    assert all(word.lower() in str(caught.value).lower() for word in words), str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "r").exists()


def test_labels_outside_the_classes_and_names_given_twice():
    with pytest.raises(kinfolk.KinfolkError, match="ann"):
        kinfolk.from_arrays({"ann": (GOOD, LABELS + 5)}, classes=3)
    with pytest.raises(kinfolk.KinfolkError, match="1"):
        kinfolk.from_arrays({1: (GOOD, LABELS), "1": (GOOD, LABELS)})


def test_a_network_of_the_wrong_width_is_refused():
    with pytest.raises(kinfolk.KinfolkError, match="2 classes"):
        kinfolk.run(lambda: nn.Linear(4, 3), two_kinds(), rounds=1)
