"""How many clients of honest federations would count for fewer rows than they have, by what the limit is.

python benchmarks/row_spread.py [--seeds 3]

prints for each federation, over seeds: clients, rows of the largest client in medians, its share of all rows,
and how many clients in all are cut at 10 medians, by `GuardSpec` (10 to 50) and at 50;
last, how many hold more than a quarter of all rows. Most federations are natural ones, with the clients that
published data name; KINFOLK_DATA says where these lie. A federation whose data are not there is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import Tensor

from kinfolk.engines.cohort import GuardSpec
from kinfolk.errors import KinfolkError
from kinfolk.experiment.spec import load, override
from kinfolk.federation.sources import build
from kinfolk.streams import Seed

OWN = ("data.clients=0", "data.partition=natural", "data.shift=none", "data.test=local")
# LEAF draws its synthetic clients' rows log-normal with deviation 2, and adds 50.
LEAF = ("data.name=leaf_synthetic", "data.shift=none", "data.test=local", "data.ragged=2", "data.rows=403")
FEDERATIONS = {
    "digits": ("digits",),
    "digits-skewed": ("digits-skewed",),
    "fesem/femnist": ("fesem/femnist",),
    "fesem/celeba": ("fesem/celeba",),
    "mnist by writer": ("digits", "data.name=mnist", *OWN),
    "wisdm": ("digits", "data.name=wisdm", *OWN),
    "sensors/watch-har": ("sensors/watch-har",),
    "landmine": ("digits", "data.name=landmine", *OWN),
    "heart_disease": ("digits", "data.name=heart_disease", *OWN),
    "text/manuals": ("text/manuals",),
    "slfed/cifar10-dist3-small": ("slfed/cifar10-dist3-small",),
    **{f"LEAF's spread, {n}": ("digits", *LEAF, f"data.clients={n}") for n in (30, 100, 1000)},
}


def counts(name: str, seed: int) -> Tensor:
    """The training rows of each client; of LEAF's spread with the 50 that are added."""
    base, *changes = FEDERATIONS[name]
    rows = build(override(load(Path(base)), changes).data, Seed(seed)).splits["train"].counts()
    return rows + 50 * ("LEAF" in name)


def main() -> None:
    """Print a line for each federation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    print(f"{'federation':26} clients  medians  share  over 10  GuardSpec  over 50  over a quarter")
    for name in FEDERATIONS:
        try:
            drawn = [counts(name, seed) for seed in seeds]
        except KinfolkError as error:
            print(f"{name:26} {error}")
            continue
        cut = [0, 0, 0, 0]
        for rows in drawn:
            over = [float(times * int(rows.median())) for times in (10, GuardSpec().cap(len(rows)), 50)]
            for i, most in enumerate([*over, float(rows.sum()) / 4]):
                cut[i] += int((rows > most).sum())
        times = max(float(rows.max() / rows.median()) for rows in drawn)
        share = max(float(rows.max() / rows.sum()) for rows in drawn)
        line = f"{name:26} {len(drawn[0]):7} {times:8.1f} {share:6.2f}"
        print(f"{line} {cut[0]:8} {cut[1]:10} {cut[2]:8} {cut[3]:15}", flush=True)


if __name__ == "__main__":
    main()
