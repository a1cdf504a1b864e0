import importlib.util

import numpy as np
import pandas as pd
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.huggingface import read_flower
from kinfolk.federation.own_data.loaded import federate

absent = importlib.util.find_spec("flwr_datasets") is None
needs = pytest.mark.skipif(absent, reason="needs the package flwr-datasets: the extra flower")


@pytest.fixture
def federated(tmp_path, monkeypatch):
    """A federated data set out of a file: the package itself asks the network for nothing then."""
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from flwr_datasets import FederatedDataset

    frame = pd.DataFrame(
        {"user": np.arange(24) % 3 * 10, "a": np.arange(24.0), "b": 1.5, "label": np.arange(24) % 4}
    )
    frame.to_parquet(tmp_path / "all.parquet")

    def make(partitioner, **options):
        return FederatedDataset(
            dataset="parquet",
            partitioners={"train": partitioner},
            data_files=str(tmp_path / "all.parquet"),
            cache_dir=str(tmp_path / "cache"),
            **options,
        )

    return make


@needs
def test_partitions_are_clients(federated):
    found = read_flower(federated(4), "label")
    assert [*found.clients] == ["client-000", "client-001", "client-002", "client-003"]
    assert found.feature_names == ("user", "a", "b")
    rows = np.concatenate([np.column_stack([x, y]) for x, y in found.clients.values()])
    assert sorted(rows[:, 1].tolist()) == [*range(24)]  # every row once, with its own label
    assert (rows[:, 3] == rows[:, 1] % 4).all()
    assert federate(found).classes == 4
    for i, (x, _) in enumerate(found.clients.values()):
        assert x[:, 1].tolist() == federated(4).load_partition(i)["a"][:]


@needs
def test_natural_ids_name_the_clients(federated):
    from flwr_datasets.partitioner import NaturalIdPartitioner

    found = read_flower(federated(NaturalIdPartitioner("user"), shuffle=False), "label", client="user")
    assert [*found.clients] == ["0", "10", "20"]
    assert found.feature_names == ("a", "b")
    assert found.clients["10"][0][:, 0].tolist() == [*range(1, 24, 3)]


@needs
def test_faults_are_told(federated):
    with pytest.raises(KinfolkError, match=r"split = 'test': has no partitioner; known: train"):
        read_flower(federated(4), "label", split="test")
    with pytest.raises(KinfolkError, match=r"label = 'labels': no such column; did you mean 'label'"):
        read_flower(federated(4), "labels")
    with pytest.raises(
        KinfolkError, match=r"client = 'user': partition 0 holds \d ids; partition by this column"
    ):
        read_flower(federated(4, shuffle=False), "label", client="user")
    with pytest.raises(KinfolkError, match=r"client = 'usr': no such column; did you mean 'user'"):
        read_flower(federated(4), "label", client="usr")
