"""kNN-Per against a plain search over rows in float64, and against FedAvg where they meet."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.knn_per import Kernel, KNNPer
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import pack


def phi_and_h(learner, model, x):
    """What the last layer is given and what the network says, by the plain network in pieces."""
    network = copy.deepcopy(learner.module).eval()
    network.load_state_dict(model)
    seen = []
    network.head.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        h = torch.softmax(network(x).double(), 1).numpy()
    return seen[0].flatten(1).double().numpy(), h


def neighbours(train, y, test, k, kernel, scale, classes):
    """h_knn row by row, as the paper writes it."""
    out = np.zeros((len(test), classes))
    for i, at in enumerate(test):
        apart = np.array([np.linalg.norm(at - one) for one in train])
        far = apart**2 / (train.shape[1] * scale) if kernel == "gaussian" else apart / scale
        for j in np.argsort(far)[:k]:
            out[i, y[j]] += np.exp(-far[j])
        out[i] /= out[i].sum()
    return out


def by_hand(federation, learner, model, split, k, lam, kernel, scale, capacity=10**6):
    """(right answers, mean loss) of each client on a split, lambda by client or the same for all."""
    found = {}
    for i, who in enumerate(federation.clients):
        mine, held = (federation.splits[s].rows(i) for s in ("train", split))
        mine = mine[:capacity]
        if not len(held):
            continue
        train, _ = phi_and_h(learner, model, federation.x[mine])
        test, h = phi_and_h(learner, model, federation.x[held])
        near = neighbours(train, federation.y[mine].numpy(), test, k, kernel, scale, toy.CLASSES)
        share = lam[who] if isinstance(lam, dict) else lam
        p, y = share * near + (1 - share) * h, federation.y[held].numpy()
        loss = -np.log(np.maximum(p[np.arange(len(y)), y], 1e-30)).mean()
        found[who] = (int((p.argmax(1) == y).sum()), loss)
    return found


@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
@pytest.mark.parametrize(
    ("kernel", "scale", "k", "lam"),
    [("gaussian", 1.0, 10, 0.5), ("gaussian", 0.1, 3, 0.8), ("exponential", 1.0, 4, 0.3)],
)
def test_answers_are_the_mixture_with_the_nearest_rows(engine, network, kernel, scale, k, lam):
    federation = toy.ragged()
    learner = toy.learner(network, federation)
    method = KNNPer(learner, k, lam, kernel, scale)
    got = toy.play_rounds(method, federation, engine)
    wanted = by_hand(federation, learner, got.state.model, "test", k, lam, kernel, scale)
    for who, (right, loss) in wanted.items():
        assert got.scores["personal"][who][1] == pytest.approx(loss, rel=1e-4, abs=1e-5)
        assert got.scores["personal"][who][0] == right
    apart = [abs(got.scores["centre"][who][1] - loss) for who, (_, loss) in wanted.items()]
    assert max(apart) > 0.05


def with_validation():
    """A third split: some of the training rows of each client but the first."""
    plain = toy.grouped((12, 20, 9, 15), side=8, noise=0.8)
    rows = [plain.splits["train"].rows(i) for i in range(4)]
    cut = {
        "valid": pack([r[: 4 * (i > 0)] for i, r in enumerate(rows)]),
        "train": pack([r[4:] for r in rows]),
    }
    return replace(plain, splits={**plain.splits, **cut})


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_lambda_is_chosen_by_the_loss_on_validation_rows(engine):
    federation = with_validation()
    learner = toy.learner("mlp", federation)
    got = toy.play_rounds(KNNPer(learner, 3, 0.25), federation, engine)
    model, grid = got.state.model, [j / 10 for j in range(11)]
    losses = {who: [] for who in federation.clients}
    for lam in grid:
        for who, (_, loss) in by_hand(federation, learner, model, "valid", 3, lam, "gaussian", 1.0).items():
            losses[who].append(loss)
    chosen = {w: grid[int(np.argmin(v))] if v else 0.25 for w, v in losses.items()}
    assert sum(lam == 0.25 for lam in chosen.values()) == 1
    wanted = by_hand(federation, learner, model, "test", 3, chosen, "gaussian", 1.0)
    for who, (right, loss) in wanted.items():
        assert got.scores["personal"][who] == (right, pytest.approx(loss, rel=1e-4, abs=1e-5))


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_a_store_has_room_for_the_first_rows(engine):
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    got = toy.play_rounds(KNNPer(learner, 4, 0.7, capacity=3), federation, engine)
    wanted = by_hand(federation, learner, got.state.model, "test", 4, 0.7, "gaussian", 1.0, capacity=3)
    for who, (right, loss) in wanted.items():
        assert got.scores["personal"][who] == (right, pytest.approx(loss, rel=1e-4, abs=1e-5))


def test_the_common_model_is_fedavgs_and_no_neighbour_changes_nothing():
    federation = toy.ragged()
    learner = toy.learner("tiny_cnn", federation)
    plain = toy.play_rounds(FedAvg(learner), federation)
    got = toy.play_rounds(KNNPer(learner, lam=0.0), federation)
    assert message_difference(got.state.model, plain.state.model, 0) == ""
    for who, (right, loss) in plain.scores["centre"].items():
        assert got.scores["personal"][who] == (right, pytest.approx(loss, rel=1e-5))


def test_far_rows_still_vote_and_an_empty_store_leaves_the_model():
    by, x = Kernel(2, "gaussian", 1.0), torch.tensor([[0.0, 0.0]])
    far = torch.tensor([[1e3, 0.0], [0.0, 2e3]])
    assert by.votes(x, far, torch.tensor([1, 0]), 2)[0].tolist() == [[0.0, 1.0]]
    out, lam = torch.tensor([[0.0, 1.0]]), torch.tensor(0.9)
    alone = by.answer(out, x, far, torch.tensor([-1, -1]), lam)
    torch.testing.assert_close(alone, out.log_softmax(1))


def test_what_can_not_be_is_refused():
    learner = toy.learner("mlp", toy.ragged())
    for wrong in ({"k": 0}, {"lam": 1.5}, {"scale": 0.0}, {"capacity": 0}):
        with pytest.raises(KinfolkError, match=next(iter(wrong))):
            KNNPer(learner, **wrong)
    bare = copy.copy(learner)
    object.__setattr__(bare, "module", torch.nn.Linear(3, 2))
    with pytest.raises(KinfolkError, match="last layer is a Linear called 'head'"):
        KNNPer(bare)
