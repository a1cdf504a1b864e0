import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch.func import vmap

from kinfolk.errors import KinfolkError
from kinfolk.learning.losses import LOSSES, find_loss, residual
from kinfolk.streams import Seed


def _normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(Seed(3).numpy("data", *shape).normal(size=shape))


def test_cross_entropy_is_minus_the_log_share_of_the_label():
    out, y = _normal(7, 4), torch.tensor([0, 1, 2, 3, 3, 0, 1])
    expected = -log_softmax(out.numpy(), axis=1)[np.arange(7), y.numpy()]
    np.testing.assert_allclose(find_loss("cross_entropy").row_loss(out, y), expected, rtol=1e-12)


@pytest.mark.parametrize("outputs", [(5, 1), (5,)])
@pytest.mark.parametrize("targets", [(5, 1), (5,)])
def test_mse_takes_a_single_output_with_or_without_its_axis(outputs, targets):
    out, y = _normal(5), _normal(5, 2)[:, 0]
    loss = find_loss("mse").row_loss(out.reshape(outputs), y.reshape(targets))
    np.testing.assert_allclose(loss, (out.numpy() - y.numpy()) ** 2, rtol=1e-12)


def test_mse_of_many_outputs_is_their_mean():
    out, y = _normal(5, 3), _normal(3, 5).T
    loss = find_loss("mse").row_loss(out, y)
    np.testing.assert_allclose(loss, ((out.numpy() - y.numpy()) ** 2).mean(1), rtol=1e-12)


def test_no_rows_no_losses():
    assert find_loss("mse").row_loss(torch.zeros(0, 1), torch.zeros(0)).shape == (0,)
    assert find_loss("cross_entropy").row_loss(torch.zeros(0, 2), torch.zeros(0).long()).shape == (0,)


def test_outputs_never_broadcast_over_targets():
    with pytest.raises(KinfolkError, match=r"model outputs = \(4, 1\).*\(4, 3\)"):
        residual(torch.zeros(4, 1), torch.zeros(4, 3))


def test_both_losses_go_under_vmap():
    out = _normal(3, 6, 4)
    for loss, y in (
        (find_loss("cross_entropy"), torch.arange(18).reshape(3, 6) % 4),
        (find_loss("mse"), _normal(3, 4, 6).mT),
    ):
        one_by_one = torch.stack([loss.row_loss(o, t) for o, t in zip(out, y, strict=True)])
        torch.testing.assert_close(vmap(loss.row_loss)(out, y), one_by_one)


def test_table_and_near_names():
    of_classes = [name for name in LOSSES if find_loss(name).classification]
    assert of_classes == ["cross_entropy", "focal"]
    with pytest.raises(KinfolkError, match="did you mean 'cross_entropy'"):
        find_loss("crossentropy")
