"""Which of several kernels serves a layer: the fastest in a trial, written down so that a run can follow it.

Two kernels round differently, so a run that is resumed must take those it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


class KernelChoices:
    """The kernel that each kind of call was given, by a text that names the call.

    >>> kernels = KernelChoices()
    >>> kernels.pick("conv 3x3", ("slow", "fast"), lambda: {"slow": 2.0, "fast": 1.0})
    'fast'
    >>> kernels.chosen
    {'conv 3x3': 'fast'}
    >>> kernels.follow({"conv 3x3": "slow"})
    >>> kernels.pick("conv 3x3", ("slow", "fast"), lambda: {"slow": 2.0, "fast": 1.0})
    'slow'
    """

    def __init__(self) -> None:
        self.chosen: dict[str, str] = {}
        self.milliseconds: dict[str, dict[str, float]] = {}  # of every trial: what was measured

    def pick(self, call: str, usable: Sequence[str], trial: Callable[[], Mapping[str, float]]) -> str:
        """The kernel for a call: as chosen before if it can be used here, else the fastest in a trial."""
        if self.chosen.get(call) not in usable:
            took = self.milliseconds[call] = dict(trial())
            self.chosen[call] = min(took, key=took.__getitem__)
        return self.chosen[call]

    def follow(self, chosen: Mapping[str, str]) -> None:
        """Choose as a run did before."""
        self.chosen.update(chosen)


# Of this process: trials take time, and another run on the same device would find the same.
KERNELS = KernelChoices()
