import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from torch.func import vmap
from torch.nn import functional as F

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


WEIGHTS = [0.5, 2.0, 1.0, 0.25]


@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"class_weights": WEIGHTS},
        {"label_smoothing": 0.2, "class_weights": WEIGHTS},
        {"ignore_index": 2},
    ],
    ids=str,
)
def test_options_of_the_cross_entropy_are_those_of_torch(options):
    out, y = _normal(9, 4), torch.arange(9) % 4
    theirs = {"weight" if k == "class_weights" else k: v for k, v in options.items()}
    if "weight" in theirs:
        theirs["weight"] = torch.tensor(WEIGHTS, dtype=out.dtype)
    expected = F.cross_entropy(out, y, reduction="none", **theirs)
    torch.testing.assert_close(find_loss("cross_entropy", options).row_loss(out, y), expected)
    if "ignore_index" not in options:
        soft = _normal(9, 4).softmax(1)
        expected = F.cross_entropy(out, soft, reduction="none", **theirs)
        torch.testing.assert_close(find_loss("cross_entropy", options, "soft").row_loss(out, soft), expected)


@pytest.mark.parametrize("axis", [1, -1])
def test_a_row_of_positions_counts_with_the_mean_of_those_that_have_a_class(axis):
    out, y = _normal(3, 4, 5, 2), torch.arange(30).reshape(3, 5, 2) % 4
    y[0, :, 0], y[1] = -100, -100
    given = out if axis == 1 else out.movedim(1, -1)
    found = find_loss("cross_entropy", {}, "positions", axis).row_loss(given, y)
    for i in (0, 2):
        torch.testing.assert_close(found[i], F.cross_entropy(out[i : i + 1], y[i : i + 1]))
    assert found[1] == 0, "torch has NaN for a row without any"


def test_bce_huber_and_l1_are_those_of_torch():
    out, y = _normal(7, 3), (torch.arange(21).reshape(7, 3) % 2).double()
    weight = torch.tensor([2.0, 0.5, 1.0], dtype=out.dtype)
    cases = [
        (find_loss("bce"), F.binary_cross_entropy_with_logits(out, y, reduction="none")),
        (
            find_loss("bce", {"pos_weight": [2, 0.5, 1]}),
            F.binary_cross_entropy_with_logits(out, y, reduction="none", pos_weight=weight),
        ),
        (find_loss("huber", {"delta": 0.3}), F.huber_loss(out, y, reduction="none", delta=0.3)),
        (find_loss("l1"), F.l1_loss(out, y, reduction="none")),
    ]
    for loss, expected in cases:
        torch.testing.assert_close(loss.row_loss(out, y), expected.mean(1))
    torch.testing.assert_close(find_loss("bce").row_loss(out, y.long()), cases[0][1].mean(1))
    far = torch.tensor([[1e4], [-1e4]])
    assert find_loss("bce").row_loss(far, torch.tensor([1, 0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["mse", "l1", "huber"])
def test_numbers_may_be_stored_as_truth_values_or_whole(name):
    out, y = _normal(7, 3), torch.arange(21).reshape(7, 3) % 2
    expected = find_loss(name).row_loss(out, y.double())
    for stored in (y, y.bool(), y.to(torch.uint8)):
        torch.testing.assert_close(find_loss(name).row_loss(out, stored), expected)


def test_the_focal_loss_by_its_definition():
    out, y = _normal(9, 4), torch.arange(9) % 4
    p = out.softmax(1).gather(1, y[:, None])[:, 0]
    weight = torch.tensor(WEIGHTS, dtype=out.dtype)[y]
    torch.testing.assert_close(
        find_loss("focal", {"gamma": 1.5}).row_loss(out, y), -((1 - p) ** 1.5) * p.log()
    )
    found = find_loss("focal", {"class_weights": WEIGHTS}).row_loss(out, y)
    torch.testing.assert_close(found, -weight * (1 - p) ** 2 * p.log())
    torch.testing.assert_close(
        find_loss("focal", {"gamma": 0.0}).row_loss(out, y), F.cross_entropy(out, y, reduction="none")
    )
    labels = torch.arange(36).reshape(9, 4) % 3 == 0
    q = torch.where(labels, out.sigmoid(), 1 - out.sigmoid())
    expected = (-((1 - q) ** 2) * q.log()).mean(1)
    for stored in (labels, labels.long(), labels.double()):
        torch.testing.assert_close(find_loss("focal", {}, "labels").row_loss(out, stored), expected)


@pytest.mark.usefixtures("torch_allowed")
def test_a_loss_of_the_user_gives_one_value_per_row():
    out, y = _normal(6, 3), _normal(6, 3)
    theirs = find_loss("torch.nn:SmoothL1Loss", {"reduction": "none"})
    torch.testing.assert_close(theirs.row_loss(out, y), F.smooth_l1_loss(out, y, reduction="none").mean(1))
    with pytest.raises(KinfolkError, match=r"SmoothL1Loss': gives \(\) for 6 rows.*reduction=.none"):
        find_loss("torch.nn:SmoothL1Loss").row_loss(out, y)
    with pytest.raises(KinfolkError, match=r"cannot be made.*reductionn"):
        find_loss("torch.nn:SmoothL1Loss", {"reductionn": 1})
    with pytest.raises(KinfolkError, match="failed: "):
        find_loss("torch.nn.functional:nll_loss").row_loss(out, y)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("focal", {"gama": 1.0}, r"local.loss_options.gama = 1.0.*did you mean 'gamma'"),
        ("focal", {"gamma": -1.0}, r"local.loss_options.gamma = -1.0: give 0 or more"),
        ("huber", {"delta": "x"}, r"local.loss_options.delta = 'x': give a number"),
        ("cross_entropy", {"label_smoothing": 1.0}, "label_smoothing = 1.0: give a number from 0"),
        ("cross_entropy", {"class_axis": 2}, "class_axis = 2: give 1"),
    ],
)
def test_options_out_of_place_are_named(name, options, words):
    with pytest.raises(KinfolkError, match=words):
        find_loss(name, options)


def test_table_and_near_names():
    of_classes = [name for name in LOSSES if find_loss(name).classification]
    assert of_classes == ["cross_entropy", "focal"]
    with pytest.raises(KinfolkError, match="did you mean 'cross_entropy'"):
        find_loss("crossentropy")
