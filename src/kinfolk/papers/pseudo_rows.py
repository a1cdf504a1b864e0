"""The pseudo rows of an MD-ICFL run: how confident models are of them, and whether they copy any rows.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
Pseudo rows are those that the round after the last would make. To be far from all training rows says little
of rows that are mostly noise, since a copy under noise is far as well: correlations stand beside distances.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from kinfolk.algorithms import find_algorithm
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.mdicfl.output_distance import confidences
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.algorithms.mdicfl.state import State
from kinfolk.engines.choose import arithmetic
from kinfolk.errors import KinfolkError, at_least, near
from kinfolk.experiment.assign import fitted
from kinfolk.experiment.build import Network, Parts
from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.newcomers import open_run
from kinfolk.experiment.record import plain, write_text
from kinfolk.experiment.spec import dump, load
from kinfolk.experiment.state import from_message
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.learning.image_bytes import are_images, image_bytes
from kinfolk.learning.inputs import probabilities
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import plain_rows

SAMPLERS: tuple[str, ...] = get_args(get_type_hints(PseudoRows)["sampler"])
PUBLISHED = ("back_search", "generator")  # those of the paper, which make rows of numbers
# Held-out rows that are compared with training rows, and clients whose rows count where these have yet to be
# made; numbers of training rows that are held at a time.
MOST_HELD_OUT, MOST_CLIENTS, AT_A_TIME = 2000, 500, 1 << 24
# Which of the held-out rows' nearest distances counts as near.
NEAR = 0.01


def pseudo_rows(
    folder: str | Path, samplers: Sequence[str] = (), images: int = 3, network: Network | None = None
) -> dict[str, Any]:
    """What `look_at` finds in the newest checkpoint of an MD-ICFL run.

    >>> pseudo_rows("nowhere")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': is no run folder; name one that `kinfolk run` has written
    """
    parts, state, round, warnings = reopened(Path(folder), network)
    found = look_at(parts, state, round, samplers, images)
    return {"run": str(folder), "warnings": list(warnings), **found}


def reopened(folder: Path, network: Network | None = None) -> tuple[Parts, State, int, tuple[str, ...]]:
    """(parts, state, finished rounds, warnings) of an MD-ICFL run, on the best device of this machine."""
    name = load(folder / "spec.toml").algorithm.name if (folder / "spec.toml").exists() else "mdicfl"
    if find_algorithm(name) is not MDICFL:
        raise KinfolkError("run", str(folder), f"is a run of {name}; only mdicfl makes pseudo rows")
    trained = open_run(folder)
    parts = fitted(trained, build(trained.spec.data, Seed(trained.spec.run.seed)), network)
    loaded, _ = load_latest(folder / "checkpoints", dump(trained.spec))
    if loaded is None or loaded.facts["federation"] != parts.federation.fingerprint():
        raise KinfolkError("run", str(folder), "the data are not those the run began with")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    like = parts.algorithm.init(parts.learner.first, parts.federation.clients, parts.seed)
    state: State = from_message(like, loaded.tensors["state"], loaded.facts["state"], device)
    if not state.begun:
        remedy = f"has not split its clients in {loaded.number} rounds; run more rounds"
        raise KinfolkError("run", str(folder), remedy)
    return parts, state, loaded.number, trained.warnings


def look_at(
    parts: Parts, state: State, round: int, samplers: Sequence[str] = (), images: int = 3
) -> dict[str, Any]:
    """Plain facts about pseudo rows made with the run's own sampler, or with all that are named."""
    at_least("--images", images, 1)
    algorithm: Any = parts.algorithm
    for name in samplers:
        if name not in SAMPLERS:
            raise KinfolkError("--sampler", name, near(name, SAMPLERS))
    device = next(iter(state.centres.values())).device
    state = replace(state, shape=state.shape or parts.federation.shape)
    context = RoundContext(parts.seed, round, parts.federation.clients)
    found: dict[str, Any] = {
        "title": parts.title, "federation": parts.federation.name, "round": round, "k": algorithm.k,
        "classes": parts.federation.classes, "members": torch.bincount(state.member, minlength=algorithm.k),
        "samplers": {},
    }  # fmt: skip
    with arithmetic(device, parts.spec.engine.precision):
        held = parts.federation.among(parts.federation.clients[:MOST_CLIENTS])
        rows = plain_rows(held.take(_tested(held))[0]).to(device)
        if not rows.is_floating_point():
            raise KinfolkError(
                "run", parts.federation.name, "its rows are tokens, of which there are no images"
            )
        test = nearest(rows, held)
        found["test"] = {"rows": len(rows), "distance": test[0], "correlation": test[1]}
        found["training_rows"] = len(distinct_rows(held, "train"))
        for name in dict.fromkeys(samplers or [algorithm.pseudo.sampler]):
            maker: MDICFL = replace(algorithm, pseudo=replace(algorithm.pseudo, sampler=name))
            # What the other sampler has kept is not for this one.
            at = state if name == algorithm.pseudo.sampler else replace(state, kept={})
            x = maker.probe(at, context)[1].x
            images_ = pictures(x, images, maker.learner.outputs, (float(rows.amin()), float(rows.amax())))
            check = _copies(nearest(x.flatten(0, 1), held), test)
            found["samplers"][name] = {**_sure(maker, state, x), **check, "images": images_}
    told: dict[str, Any] = plain(found)
    return told


def _tested(federation: Federation) -> Tensor:
    """Some of the test rows, evenly chosen where there are very many."""
    rows = distinct_rows(federation, "test")
    if not len(rows):
        raise KinfolkError("data.test", federation.name, "nobody has test rows to compare with; give some")
    return rows[:: -(-len(rows) // MOST_HELD_OUT)]


def _sure(algorithm: MDICFL, state: State, x: Tensor) -> dict[str, Tensor]:
    """How sure models are: of rows of all clusters, and each of its own, class by class."""
    classes = algorithm.learner.outputs
    said = probabilities(algorithm.learner, state.centres, x.flatten(0, 1))
    said = said.reshape(len(said), *x.shape[:2], classes)
    by_class = confidences(said, algorithm.pseudo.labels(classes).to(x.device))
    own = said.diagonal(dim1=0, dim2=1).movedim(-1, 0)
    return {
        "confidence": by_class.mean(-1),  # [model, cluster of the rows]
        "by_class": by_class,  # [model, cluster of the rows, class]
        "own": own.reshape(len(own), classes, -1, classes).mean(2),  # [cluster, class asked for, class said]
    }


def nearest(rows: Tensor, federation: Federation) -> tuple[Tensor, Tensor]:
    """(Euclidean distance to the nearest training row, highest correlation with any) of each row.

    >>> from kinfolk.federation.own_data.arrays import from_arrays
    >>> ann = torch.tensor([[0.0, 1.0, 0.0], [3.0, 0.0, 0.0]]), torch.tensor([0, 1])
    >>> f = from_arrays({"ann": ann}, test={"ann": ann})
    >>> distance, correlation = nearest(torch.tensor([[0.0, 5.0, 0.0]]), f)
    >>> distance, round(float(correlation), 5)
    (tensor([4.]), 1.0)
    """
    rows = rows.flatten(1)
    shape = standard(rows)
    distance = torch.full((len(rows),), torch.inf, device=rows.device)
    correlation = -torch.ones_like(distance)
    for chunk in _training_rows(federation):
        others = chunk.to(rows.device)
        closeness = rows @ others.T - others.square().sum(1) / 2
        # Only who is nearest comes from products: they round a distance of nothing to one of 0.01 and more.
        winner = others[closeness.argmax(1)]
        distance = torch.minimum(distance, (rows - winner).norm(dim=1))
        correlation = torch.maximum(correlation, (shape @ standard(others).T).amax(1))
    return distance, correlation


def standard(rows: Tensor) -> Tensor:
    """Rows less their means, of length 1, so that products are correlations; zeros where a row is constant.

    >>> standard(torch.tensor([[1.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]]))
    tensor([[-0.5000,  0.5000, -0.5000,  0.5000],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    return torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)


def _copies(pseudo: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Pseudo rows' nearness, and how many are nearer than nearly all held-out rows."""
    bound, alike = test[0].quantile(NEAR), test[1].quantile(1 - NEAR)
    return {
        "distance": pseudo[0],
        "correlation": pseudo[1],
        "near": {"bound": bound, "share": (pseudo[0] < bound).double().mean()},
        "alike": {"bound": alike, "share": (pseudo[1] > alike).double().mean()},
    }


def distinct_rows(federation: Federation, split: str) -> Tensor:
    """The rows of the pool that anybody has in a split, each once.

    >>> from kinfolk.federation.spec import DataSpec
    >>> len(distinct_rows(build(DataSpec(clients=4, rows=10), Seed(0)), "train"))
    40
    """
    rows: Tensor = torch.unique(federation.splits[split].row)
    return rows


def _training_rows(federation: Federation) -> Iterator[Tensor]:
    """Training rows [some, numbers], as they are trained on."""
    size = max(1, plain_rows(federation.x)[0].numel())
    for rows in torch.split(distinct_rows(federation, "train"), max(1, AT_A_TIME // size)):
        yield plain_rows(federation.take(rows)[0]).flatten(1)


def pictures(x: Tensor, count: int, classes: int, range_: tuple[float, float]) -> list[Any]:
    """[K][C][count] images as bytes, channels last, 0 and 255 the ends of the range; empty if not images.

    >>> pictures(torch.tensor([[[[[-9.0, 1.0]]]]]), 3, 1, (-1.0, 1.0))
    [[[[[0, 255]]]]]
    """
    if not are_images(x.flatten(0, 1)):
        return []
    shown = x.reshape(len(x), classes, -1, *x.shape[2:])[:, :, :count]
    bytes_ = image_bytes(shown.flatten(0, 2), *range_, longest=max(x.shape[3:]))
    told: list[Any] = bytes_.reshape(*shown.shape[:3], *bytes_.shape[1:]).tolist()
    return told


def write_facts(folder: str | Path, facts: dict[str, Any]) -> Path:
    """Write `pseudo.json`, one line: with a line for each pixel nobody could read it either.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_facts(folder, {"k": 2}).read_text()
    '{"k": 2}\\n'
    """
    path = Path(folder) / "pseudo.json"
    write_text(path, json.dumps(facts, allow_nan=False) + "\n")
    return path
