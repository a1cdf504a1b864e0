"""Four clinics, one CSV file each: is one model for all better than one of their own?

    python examples/own_data.py
"""

from pathlib import Path

from torch import nn

import kinfolk

CLINICS = Path(__file__).parent / "clinics"


def main() -> None:
    """Look at the data, then compare three methods over two seeds."""
    found = kinfolk.load_own(CLINICS)
    print(kinfolk.inspect(found).balance)
    clinics = kinfolk.federate(found)
    print(kinfolk.compare(lambda: nn.Linear(3, 2), clinics, ["local", "fedavg", "fedavg_tuned"], rounds=5, seeds=2))


if __name__ == "__main__":
    main()
