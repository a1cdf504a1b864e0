"""Four clinics, one CSV file each: is one model for all better than one of their own?

python examples/own_data.py
"""

from pathlib import Path

from torch import nn

import kinfolk

CLINICS = Path(__file__).parent / "clinics"


def main() -> None:
    """Look at the data, then compare three methods over two seeds."""
    clinics, report = kinfolk.load_own(CLINICS)
    print(report.balance)
    methods = ["local", "fedavg", "fedavg_tuned"]
    print(kinfolk.compare(lambda: nn.Linear(3, 2), clinics, methods, rounds=5, seeds=2))


if __name__ == "__main__":
    main()
