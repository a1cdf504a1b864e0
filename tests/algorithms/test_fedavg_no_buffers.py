"""FedAvg without its buffers: what is trained is FedAvg's, what is not stays as it was at first."""

import numpy as np
import pytest
import torch

from kinfolk.algorithms.fedavg import FedAvg, FedAvgNoBuffers
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_parameters_are_fedavgs_and_buffers_the_first(weights):
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner, weights), federation)
    got = toy.play_rounds(FedAvgNoBuffers(learner, weights), federation)
    model, names = got.state.model, [name for name, _ in learner.module.named_parameters()]
    assert list(model) == list(learner.first)
    for name, leaf in model.items():
        wanted = plain.state.model if name in names else learner.first
        assert torch.equal(leaf, wanted[name]), name
        if name not in names:  # else there is nothing to forget
            assert not torch.equal(plain.state.model[name], leaf)
    # The same weights, judged by other statistics.
    losses = [np.array([loss for _, loss in o.scores["centre"].values()]) for o in (plain, got)]
    assert np.abs(losses[0] - losses[1]).max() > 1e-3


def test_without_buffers_it_is_fedavg():
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    plain = toy.play_rounds(FedAvg(learner), federation, score=False).state.model
    got = toy.play_rounds(FedAvgNoBuffers(learner), federation, score=False).state.model
    assert message_difference(got, plain, 0) == ""
