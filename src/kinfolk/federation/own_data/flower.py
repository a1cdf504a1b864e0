"""A federated data set of the package flwr-datasets. Needs the extra `flower`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.errors import KinfolkError, near
from kinfolk.federation.federation import client_names
from kinfolk.federation.own_data.frame import split_part
from kinfolk.federation.own_data.gather import gather
from kinfolk.federation.own_data.huggingface import package, read_columns
from kinfolk.federation.own_data.loaded import LoadedClients
from kinfolk.federation.own_data.missing import check_missing


def read_flower(
    federated: Any, label: str, *, client: str | None = None, split: str = "train", missing: str = "refuse"
) -> LoadedClients:
    """The partitions of a `flwr_datasets.FederatedDataset`, each a client.

    `client` names a column that holds the client's id, as a natural partition has: it then names
    the clients and is no feature. Without it they are numbered. Features are chosen as for
    `read_huggingface`. Rows count from 1 over all partitions in order.

    >>> read_flower(None, label="label")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.federated = 'NoneType': give a flwr_datasets.FederatedDataset
    """
    check_missing(missing)
    if not hasattr(federated, "load_partition") or not hasattr(federated, "partitioners"):
        value = type(federated).__name__
        raise KinfolkError("data.federated", value, "give a flwr_datasets.FederatedDataset")
    if split not in federated.partitioners:
        raise KinfolkError("split", split, "has no partitioner; " + near(split, federated.partitioners))
    count = federated.partitioners[split].num_partitions
    partitions = [federated.load_partition(i, split) for i in range(count)]
    names = _names(partitions, client)
    for who, partition in zip(names, partitions, strict=True):
        if len(partition) == 0:
            raise KinfolkError(f"data.{who}", "0 rows", "leave this client out or give it rows")
    # Read as one, so that all clients agree on classes and colours.
    read = read_columns(package().concatenate_datasets(partitions), label, other=client)
    owner = pd.Series(np.repeat(np.array(names, dtype=object), [len(p) for p in partitions]))
    return gather(
        split_part(read.part, owner),
        kind="Flower federated data set",
        label=label,
        features=read.features,
        class_names=read.class_names,
        missing=missing,
        types=read.types,
        notes=[f"clients are the {count} partitions of {split!r}", *read.notes],
        scale=read.scale,
    )


def _names(partitions: Sequence[Any], client: str | None) -> list[str]:
    if client is None:
        return [*client_names(len(partitions), 3)]
    names = []
    for i, partition in enumerate(partitions):
        if client not in partition.column_names:
            raise KinfolkError("client", client, "no such column; " + near(client, partition.column_names))
        ids = partition.unique(client)
        if len(ids) != 1:
            remedy = f"partition {i} holds {len(ids)} ids; partition by this column, or leave client out"
            raise KinfolkError("client", client, remedy)
        names.append(str(ids[0]))
    if len(set(names)) < len(names):
        raise KinfolkError(
            "client", client, "two partitions hold the same id; leave client out to number them"
        )
    return names
