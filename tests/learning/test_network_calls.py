"""How rows reach `forward`, and how its output is found."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from kinfolk.errors import KinfolkError
from kinfolk.learning.batchable import cost, obstacle
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.network import arguments, call, run
from kinfolk.task import Batch


def net(forward):
    """A network of one method."""
    return type("Net", (nn.Module,), {"forward": forward})()


ROWS = {"tokens": torch.ones(2, 3, dtype=torch.int64), "mask": torch.ones(2, 3, dtype=torch.bool)}
PADDED = {"0": torch.ones(2, 3), "0.lengths": torch.tensor([1, 3])}
REAL = torch.tensor([[True, False, False], [True, True, True]])


def test_a_dict_goes_by_name_a_tuple_by_place_and_one_parameter_takes_it_whole():
    placed, named = arguments(net(lambda self, mask, tokens: None), ROWS)
    assert placed == ()
    assert named == ROWS
    placed, named = arguments(net(lambda self, a, b, c=3: None), {"1": ROWS["mask"], "0": ROWS["tokens"]})
    assert [t.dtype for t in placed] == [torch.int64, torch.bool]
    assert named == {}
    for forward in (lambda self, batch: None, lambda self, batch, scale=2.0: None):
        placed, named = arguments(net(forward), ROWS)
        assert placed == (ROWS,)
    assert arguments(net(lambda self, **given: None), ROWS)[1] == ROWS


def test_masks_and_lengths_of_padding_are_given_to_whoever_asks():
    asks = {
        "mask": REAL,
        "attention_mask": REAL,
        "key_padding_mask": ~REAL,
        "lengths": torch.tensor([1, 3]),
    }
    for name, wanted in asks.items():
        forward = eval(f"lambda self, x, {name}=None: x")
        placed, named = arguments(net(forward), PADDED)
        assert torch.equal(placed[0], PADDED["0"])
        assert list(named) == [name]
        assert torch.equal(named[name], wanted)
    assert arguments(net(lambda self, x: None), PADDED)[1] == {}
    two = {
        "a": torch.ones(1, 2),
        "a.lengths": torch.tensor([1]),
        "b": torch.ones(1, 3),
        "b.lengths": torch.tensor([2]),
    }
    named = arguments(net(lambda self, a, b, mask, b_mask: None), two)[1]
    assert named["mask"].tolist() == [[True, False]]
    assert named["b_mask"].tolist() == [[True, True, False]]
    own = arguments(
        net(lambda self, a, mask: None),
        {"a": ROWS["tokens"], "mask": ROWS["mask"], "a.lengths": PADDED["0.lengths"]},
    )
    assert torch.equal(own[1]["mask"], ROWS["mask"])  # what the user gave goes before what was made


def test_a_name_that_forward_does_not_know_is_told_with_the_nearest():
    with pytest.raises(
        KinfolkError, match=r"data\.x = 'tokens': forward has no input .* did you mean 'token'"
    ):
        arguments(net(lambda self, token, mask: None), ROWS)


@dataclass
class Said:
    logits: Tensor
    note: str = ""


Pair = namedtuple("Pair", "logits hidden")


@pytest.mark.parametrize(
    ("make", "output"),
    [
        (lambda t: {"logits": t, "loss": None}, "logits"),
        (lambda t: (t + 1, t), "1"),
        (lambda t: Pair(t, t + 1), "logits"),
        (lambda t: Said(t), "logits"),
    ],
)
def test_a_field_of_an_output_object_is_found_by_name_or_place(make, output):
    network = net(lambda self, x: make(x))
    x = torch.randn(3, 2)
    assert torch.equal(run(network, x, output), x)
    assert torch.equal(call(network, {}, x, output=output), x)
    with pytest.raises(
        KinfolkError, match=r"model\.output = '': the network gives a \w+, no tensor; name one of"
    ):
        run(network, x)


def test_an_object_without_a_tensor_says_so():
    with pytest.raises(KinfolkError, match=r"gives a str, no tensor, and none in it"):
        run(net(lambda self, x: "hm"), torch.zeros(1))


class Object(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.words = nn.Linear(2, 3), nn.Embedding(5, 3)

    def forward(self, x, word):
        return {"logits": self.body(x) + self.words(word)}


def test_a_learner_runs_counts_and_batches_a_network_of_two_inputs_and_an_object():
    learner = Learner(Object(), find_loss("cross_entropy"), 3, output="logits")
    x = {"x": torch.randn(2, 2), "word": torch.tensor([1, 4])}
    y = torch.tensor([0, 2])
    assert obstacle(learner, x, y) == ""
    assert cost(learner, x).flops == 2 * 2 * 3
    model = learner.first
    by_hand = x["x"] @ model["body.weight"].T + model["body.bias"] + model["words.weight"][x["word"]]
    assert torch.allclose(learner.apply(model, x), by_hand, rtol=1e-5, atol=1e-6)
    batch = Batch(x, y, torch.arange(2), None)
    wanted = nn.functional.cross_entropy(by_hand, y)
    assert torch.allclose(learner.objective(model, batch, {}), wanted, rtol=1e-5)


def test_bfloat16_leaves_ids_whole():
    learner = Learner(Object(), find_loss("cross_entropy"), 3, output="logits", half=True)
    x = {"x": torch.ones(1, 2), "word": torch.tensor([4])}
    exact = Learner(learner.module, learner.loss, 3, output="logits").apply(learner.first, x)
    assert torch.allclose(learner.apply(learner.first, x), exact, rtol=0.05, atol=0.05)
