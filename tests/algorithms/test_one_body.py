"""Clusters with a body in common: each leaf against means taken here of what clients sent."""

import numpy as np
import pytest
import torch
from mdicfl_options import DISTINCT
from turned import turned

from kinfolk.algorithms import ALGORITHMS, with_options
from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.contract import toy
from kinfolk.contract.checks import CHECKS
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import override
from kinfolk.types import Client, Stack

OPTIONS = {
    "ifca": {"k": 2},
    "fesem": {"k": 2, "start.warm_epochs": 2},
    "mdicfl": {"k": 2, **DISTINCT, "pseudo.samples": 4, "search.iterations": 5},
    "hypcluster": {"k": 2},
}
ROUNDS = 2


def played(name, weights, network="tiny_cnn", seed=0):
    """(outcome, what each client sent in the last round)."""
    federation, _ = turned(2)
    settings = {**OPTIONS[name], "aggregate.share": "body", "aggregate.weights": weights}
    method = with_options(ALGORITHMS[name], toy.learner(network, federation), settings)
    sent = {}

    def note(request, reply):
        if request.task == "update":
            sent[reply.clients[0]] = reply.row(reply.clients[0])["model"], int(reply.size[0])
        return reply

    wrap = lambda engine: Passing(engine, note)  # noqa: E731
    return toy.play_rounds(method, federation, rounds=ROUNDS, seed=seed, wrap=wrap), sent


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("name", OPTIONS)
def test_bodies_are_the_mean_of_all_and_heads_that_of_each_cluster(name, weights):
    outcome, sent = played(name, weights)
    who = sorted(sent)
    group = np.array(outcome.groups)
    assert len(who) == len(group) == 12
    mass = np.array([sent[c][1] if weights == "size" else 1 for c in who], dtype=np.float64)
    for leaf, found in outcome.state.centres.items():
        told = np.stack([sent[c][0][leaf].numpy() for c in who])
        for k in set(group.tolist()):
            among = group == k if leaf.startswith("head.") else np.ones(12, dtype=bool)
            if told.dtype.kind == "i":
                assert found[k] == told.max()
                continue
            wanted = np.tensordot(mass[among] / mass[among].sum(), told[among].astype(np.float64), 1)
            np.testing.assert_allclose(found[k].numpy(), wanted, rtol=1e-4, atol=1e-5, err_msg=leaf)
        if not leaf.startswith("head."):
            assert torch.equal(found[0], found[1]), leaf


@pytest.mark.parametrize("name", ["ifca", "fesem"])
def test_heads_do_differ(name):
    outcome, _ = played(name, "uniform", "mlp", seed=2)  # ifca's start decides whether it ever splits
    assert len(set(outcome.groups)) == 2
    heads = outcome.state.centres["head.weight"]
    assert float((heads[0] - heads[1]).abs().max()) > 0.01


def test_ifcas_starts_differ_in_their_heads_alone():
    federation, _ = turned(2)
    learner = toy.learner("mlp", federation)
    method = with_options(ALGORITHMS["ifca"], learner, {"aggregate.share": "body"})
    for leaf, t in toy.play_rounds(method, federation, rounds=0, score=False).state.centres.items():
        assert torch.equal(t[0], learner.first[leaf])
        alone = leaf != "head.weight"
        assert (torch.equal(t[0], t[1]) and torch.equal(t[0], t[2])) == alone, leaf


def test_a_cluster_of_nobody_keeps_its_head_on_the_common_body():
    keep = {"fc": torch.zeros(3, 1), "head.w": torch.tensor([[5.0], [6.0], [7.0]])}
    chunk = Stack.of(
        {Client(c): (n, {"model": {"fc": torch.tensor([v]), "head.w": torch.tensor([v])}})
         for c, n, v in (("a", 1, 1.0), ("b", 1, 2.0), ("c", 2, 9.0))}
    )  # fmt: skip
    by = Aggregator(weights="size", share="body").fold(keep, lambda chunk: torch.tensor([0, 0, 2]))
    models, member, mass = by.end(by.add(by.begin(), chunk))
    assert models["fc"].flatten().tolist() == [5.25] * 3
    assert models["head.w"].flatten().tolist() == [1.5, 6.0, 9.0]
    assert (member, mass.tolist()) == ({"a": 0, "b": 0, "c": 2}, [2.0, 0.0, 2.0])
    assert by.end(by.begin())[0] is keep


def test_one_cluster_is_as_without():
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    ends = [
        toy.play_rounds(
            with_options(ALGORITHMS["ifca"], learner, {"k": 1, "aggregate.share": share}), federation
        )
        for share in ("nothing", "body")
    ]
    for leaf, t in ends[0].state.centres.items():
        torch.testing.assert_close(ends[1].state.centres[leaf], t, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fesem", "ifca", "mdicfl"])
@pytest.mark.parametrize("check", ["engines_agree", "survives_drop_outs", "resume", "state_is_plain"])
def test_the_contract_holds(name, check):
    options = {**OPTIONS[name], "aggregate.share": "body"}
    if name == "fesem":
        options["start.on"] = "models"
        if check == "engines_agree":
            del options["start.warm_epochs"]
    CHECKS[check](lambda learner: with_options(ALGORITHMS[name], learner, options))


def test_secure_sums_know_nothing_of_it():
    """The means of groups that a secure sum gives make the same models as the replies themselves."""
    keep = {"fc": torch.zeros(2, 1), "head.w": torch.zeros(2, 1)}
    by = Aggregator(share="body").fold(keep, len)
    means = {0: {"fc": torch.tensor([1.0]), "head.w": torch.tensor([1.0])},
             1: {"fc": torch.tensor([4.0]), "head.w": torch.tensor([4.0])}}  # fmt: skip
    models, _, _ = by.of_means(means, {0: 2.0, 1: 1.0}, {})
    assert models["fc"].flatten().tolist() == [2.0, 2.0]
    assert models["head.w"].flatten().tolist() == [1.0, 4.0]


def test_what_cannot_be_shared_is_refused():
    with pytest.raises(KinfolkError, match="no layer called 'head'"):
        Aggregator(share="body").check_layers(["fc.weight"])
    changes = ["algorithm.name=ifca", "algorithm.aggregate.share=body", "data.clients=6", "data.rows=20"]
    build_parts(override(Experiment(), changes))
    private = [*changes, "privacy.mode=server", "privacy.noise=1", "privacy.clip=1", "model.name=mlp"]
    with pytest.raises(KinfolkError, match=r"aggregate.share = 'body'"):
        build_parts(override(Experiment(), private))
