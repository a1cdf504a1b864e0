"""The `[data]` table of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DataSpec:
    """Which data, dealt to whom. One field per key of the `[data]` table.

    >>> DataSpec(clients=8).rows
    60
    """

    # Where rows come from: a name in `SOURCES`.
    name: str = "digits"
    # Number of clients; with the partition "natural" that many are drawn, 0: all.
    clients: int = 24
    # Training rows of each client; their mean when `ragged` is above 0. 0: all rows there are, under
    # partitions that use no row twice. "natural", "dirichlet_split" and "dist0" to "dist3" do not ask.
    rows: int = 60
    # Number of known groups; without a shift all clients are one group whatever stands here.
    groups: int = 4
    # What sets the groups apart: a name in `SHIFTS` ("none", "rotation", "label_swap", "source", ...).
    shift: str = "rotation"
    # How rows are dealt to the clients of a group: a name in `PARTITIONS` ("iid", "dirichlet",
    # "natural", ...).
    partition: str = "dirichlet"
    # Concentration of the Dirichlet distribution: the smaller, the fewer classes a client sees.
    alpha: float = 100.0
    # What `alpha` counts: "total", shared out over the classes (alpha / C each), or "each" class; under
    # "dirichlet_split" over the clients of a group.
    alpha_means: str = "total"
    # Which rows a client is tested on: a name in `TEST_SPLITS` ("local", "group", "global").
    test: str = "group"
    # Fraction of a client's training rows held out for validation.
    valid: float = 0.0
    # Fraction of the pool kept for tests where no test rows are published; under "local" also test rows
    # per training row; with the partition "natural" the fraction of each client's rows.
    test_fraction: float = 0.25
    # Spread of the number of rows per client (sigma of a log-normal); 0: all equal.
    ragged: float = 0.0
    # Seed of the data; -1: the seed of the run.
    seed: int = -1
    # Pieces of the rows sorted by label that each client gets under "shards".
    shards: int = 2
    # Fewest rows of a client under "natural" (others are left out) and "dirichlet_split" (drawn again).
    min_rows: int = 1
    # Factor on the row counts of "dist0" to "dist3", for pools smaller than CIFAR-10's.
    scale_rows: float = 1.0
    # Test rows of each client under "local", if there are as many; 0: in proportion to its training rows.
    # Under "group" the most, as many of each class; 0: all. Of synthetic rows, the number under every rule.
    test_rows: int = 0
    # Noise: under the shift "noise" group g gets g times this fraction of the range of values; in "linear"
    # the deviation of y.
    noise: float = 0.1
    # Under the shift "contrast" group g has this to the power of g of the contrast.
    contrast: float = 0.6
    # Channels of "multi_source": 1, all grey, or 3, with SVHN in its colours.
    channels: int = 1
    # Features of synthetic rows ("gaussians", "linear", "leaf_synthetic").
    features: int = 60
    # Classes of synthetic rows ("gaussians", "leaf_synthetic").
    classes: int = 10
    # Typical distance of two class means ("gaussians") or of two groups' weights ("linear").
    separation: float = 3.0
    # Alpha of "leaf_synthetic", a variance: how far the weights of one client's model differ from another's.
    leaf_alpha: float = 1.0
    # Beta of "leaf_synthetic", a variance: how far the clients' rows differ.
    leaf_beta: float = 1.0
    # Where "own" rows are: a store that `kinfolk data import` wrote, a folder of clients, or one table.
    path: str = ""
    # "own": the column of a table that says whose a row is.
    client_column: str = ""
    # "own": the column with the labels; empty: by its usual names.
    label_column: str = ""
    # "own": what to do about missing values: "refuse", "drop" (the row) or "median".
    missing: str = "refuse"
    # What follows says nothing of rows that are made on demand, whose fingerprint is how this table prints.

    # Characters of a row of "manuals".
    window: int = field(default=80, repr=False)
    # Characters from one row of a text to the next ("manuals", "shakespeare"); 0: rows do not overlap
    # ("manuals"), or all rows there are.
    stride: int = field(default=0, repr=False)
    # What follows a row of "manuals": the "next" character, or the next one of "every" character.
    targets: str = field(default="next", repr=False)
    # "own": the columns of a table that are features, in this order, with commas; empty: all but the label.
    columns: str = field(default="", repr=False)
    # "own": columns that become a column of 0 and 1 for each of their values.
    categorical: str = field(default="", repr=False)
    # "own": columns with dates, which become days since 1970-01-01; as "seen:month:weekday" these too.
    dates: str = field(default="", repr=False)
    # "own": what stands for a missing value: "mean", "median" or a number; empty: as `missing` says.
    fill: str = field(default="", repr=False)
    # "own": height and width that images are brought to, as "28x28"; empty: they are of one size.
    resize: str = field(default="", repr=False)
    # Columns (of images: channels) with mean 0 and deviation 1: "none"; by the statistics of each "client" or
    # "global" ones of all training rows; "auto": "global" for tables with named columns, else "none".
    standardize: str = field(default="auto", repr=False)
    # The same for numbers to predict; scores and predictions are in their own units. "auto": if rows are.
    standardize_target: str = field(default="auto", repr=False)
