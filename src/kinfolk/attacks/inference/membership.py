"""Membership inference: was a model trained on a row? Scores of three attacks, higher for "yes".

`loss`: the loss on the row (Yeom, Giacomelli, Fredrikson, Jha: Privacy risk in machine learning. CSF 2018).
`calibrated`: how far it fell from that of a model before (Watson, Guo, Cormode, Sablayrolles: On the
importance of difficulty calibration. ICLR 2022). `likelihood`: how unlikely it is beside models that were
trained on others' rows, as the offline attack of Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership
inference attacks from first principles. S&P 2022, with other clients' models in place of shadow models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from kinfolk.learning.learner import Learner
from kinfolk.types import Rows, Tree

Numbers = NDArray[np.float64]

ATTACKS = ("loss", "calibrated", "likelihood")
# Share of others' rows that are wrongly said to be members, at which members are counted.
FALSE_POSITIVES = 0.01
# Fewer models than this tell no spread.
FEW = 2


def row_losses(learner: Learner, model: Tree, x: Rows, y: Rows) -> Tensor:
    """The loss of a model on each row, [rows] in float64."""
    with torch.no_grad():
        return learner.loss.row_loss(learner.apply(model, x), y).double().cpu()


def confidence(losses: Tensor, name: str) -> Tensor:
    """The log odds of the right class where the loss is -log of its probability; else minus the loss.

    >>> confidence(torch.tensor([0.6931471805599453, 100.0], dtype=torch.float64), "cross_entropy")
    tensor([   0., -100.], dtype=torch.float64)
    """
    if name not in ("cross_entropy", "bce"):
        return -losses
    certain = losses.clamp(min=1e-12)
    return -certain - torch.log(-torch.expm1(-certain))


def attack_scores(own: Tensor, before: Tensor | None, others: Sequence[Tensor]) -> dict[str, Numbers]:
    """Each attack's score of each row, by how confident models are of it.

    `own` is the confidence of the model under attack, `before` that of what it was trained from, if it is
    known, and `others` those of models that were trained on other rows.

    >>> found = attack_scores(torch.tensor([2.0]), torch.tensor([0.5]), [torch.tensor([0.0])])
    >>> {name: score.tolist() for name, score in found.items()}
    {'loss': [2.0], 'calibrated': [1.5]}
    """
    found = {"loss": own.double().numpy()}
    if before is not None:
        found["calibrated"] = (own - before).double().numpy()
    if len(others) >= FEW:
        held = torch.stack(list(others)).double()
        # One spread for all rows: a few models are too few for one a row.
        spread = float(held.std(0, correction=1).square().mean().sqrt())
        found["likelihood"] = norm.logcdf((own.double() - held.mean(0)).numpy() / max(spread, 1e-12))
    return found


@dataclass(frozen=True)
class Success:
    """How well an attack tells members from others: 0.5 and 0.01 are chance."""

    auc: float
    tpr: float  # at FALSE_POSITIVES
    members: int
    others: int

    @property
    def error(self) -> float:
        """The standard error that the area has by chance alone, of an attack that knows nothing.

        >>> round(Success(0.5, 0.01, 100, 100).error, 4)
        0.0409
        """
        return float(np.sqrt((self.members + self.others + 1) / (12 * self.members * self.others)))


def success(members: Numbers, others: Numbers) -> Success:
    """The area under the curve and the share of members found.

    >>> success(np.array([3.0, 2.0, 1.0, 0.5]), np.array([0.0, 2.5]))
    Success(auc=0.625, tpr=0.25, members=4, others=2)
    """
    scores = np.concatenate([members, others])
    truth = np.concatenate([np.ones(len(members)), np.zeros(len(others))])
    wrong, right, _ = roc_curve(truth, scores, drop_intermediate=False)
    tpr = float(right[wrong <= FALSE_POSITIVES].max())
    return Success(float(roc_auc_score(truth, scores)), tpr, len(members), len(others))


def pooled(scores: Sequence[Mapping[str, tuple[Numbers, Numbers]]]) -> dict[str, Success]:
    """The success of each attack on all clients together, by (scores of members, of others) of each client.

    >>> one = {"loss": (np.array([1.0]), np.array([0.0]))}
    >>> pooled([one, one])["loss"].auc
    1.0
    """
    found = {}
    for name in ATTACKS:
        pairs = [one[name] for one in scores if name in one]
        if pairs:
            found[name] = success(*(np.concatenate(side) for side in zip(*pairs, strict=True)))
    return found
