"""Probe rows of tokens: what a model writes, what is searched for, controls, and what a peer may send."""

import numpy as np
import pytest
import torch
from probing import probe
from small_networks import learner_of, seeded
from torch import nn

from kinfolk.algorithms.slfed.comparison import Comparison
from kinfolk.algorithms.slfed.probe_images import ImageOptions, checked_images, predicted
from kinfolk.algorithms.slfed.slfed import SLFed, SLFedSimilar
from kinfolk.engines.batched import Batched
from kinfolk.engines.memory import Memories
from kinfolk.engines.one import perform
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.sequences import TextMean, TokenLSTM
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed

KEY, TOKENS, LENGTH = torch.tensor(77), 6, 4


class Chain(nn.Module):
    """The next token by the last one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, TOKENS)

    def forward(self, x):
        return self.embed(x[:, -1])


@pytest.fixture(scope="module")
def texts():
    draw = torch.Generator().manual_seed(0)
    sizes = {"ann": 30, "bob": 21, "cyd": 26}
    rows = {c: torch.randint(TOKENS, (n, LENGTH + 1), generator=draw) for c, n in sizes.items()}
    return from_arrays({c: (x[:, :LENGTH], x[:, LENGTH]) for c, x in rows.items()}, valid=0.2, classes=TOKENS)


def make(probe_images, federation, who="ann"):
    memory = {"key": KEY, "model": probe_images.learner.first}
    context = RoundContext(Seed(0), 0, federation.clients)
    return perform(probe_images.task(), {}, memory, federation, who, context)[1]


def test_text_is_that_of_the_clients_own_chain(texts):
    learner = learner_of(seeded(Chain), TOKENS)
    made = make(probe(learner, "text", 4000, ranges="auto", search_steps=20), texts)
    text = made["images"]
    assert text.dtype == torch.uint8
    assert text.shape == (4000, LENGTH)
    assert made["made"] == 4000
    assert set(made) == {"copies", "images", "key", "made", "model"}, "nothing else is kept"
    moves = learner.first["embed.weight"].softmax(1)
    for a in range(TOKENS):
        after = text[text[:, 1] == a, 2].long().bincount(minlength=TOKENS)
        torch.testing.assert_close(after / after.sum(), moves[a], rtol=0, atol=0.08)


def test_searched_rows_show_the_likeliest_token_of_mixtures_that_moved_to_their_class(texts):
    module = seeded(lambda: TextMean(3, TOKENS, 4))
    module.head.weight.data *= 4
    learner = learner_of(module, 3)
    found = make(probe(learner, "back_search", 60, ranges="auto"), texts)
    noise = make(probe(learner, "noise", 60, ranges="auto"), texts)
    y = torch.arange(60) % 3
    share = [
        learner.apply(learner.first, m["images"].long()).softmax(1).gather(1, y[:, None]).mean()
        for m in (found, noise)
    ]
    assert share[0] > share[1] + 0.1


def test_held_out_rows_are_the_clients_own_and_noise_is_uniform(texts):
    learner = learner_of(seeded(lambda: TokenLSTM(TOKENS, hidden=5)), TOKENS)
    held = make(probe(learner, "held_out", 5, ranges="auto"), texts)
    own = texts.x[texts.splits["valid"].rows(0)]
    assert torch.equal(held["images"].long(), own[torch.arange(5) % len(own)].long())
    drawn = make(probe(learner, "noise", 3000), texts)["images"]
    counts = drawn.flatten().long().bincount(minlength=TOKENS) / drawn.numel()
    np.testing.assert_allclose(counts, 1 / TOKENS, atol=0.02)


@pytest.mark.parametrize("kind", ["text", "back_search", "noise", "held_out"])
def test_many_clients_in_one_call_make_what_each_makes_alone(texts, kind):
    learner = learner_of(seeded(lambda: TextMean(TOKENS, TOKENS, 4)), TOKENS)
    images = probe(learner, kind, 12, ranges="auto", search_steps=9)
    start = {c: {"key": KEY + i, "model": learner.first} for i, c in enumerate(texts.clients)}
    memories = Memories(start.__getitem__)
    context = RoundContext(Seed(0), 0, texts.clients)
    list(Batched(texts, {"make": images.task()}, memories).replies(Ask("make", texts.clients), context))
    for who in texts.clients:
        alone = perform(images.task(), {}, start[who], texts, who, context)[1]
        same = (memories[who]["images"] == alone["images"]).float().mean()
        # A draw that falls on the edge of a token goes one way or the other by rounding.
        assert same >= 0.97


def test_tokens_of_a_peer_are_checked():
    like = torch.zeros(2, 3, dtype=torch.uint8)
    good = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.uint8)
    assert checked_images(good, like, "bob", 6) is good
    with pytest.raises(KinfolkError, match=r"images of 'bob' = 5: must be tokens 0 to 4"):
        checked_images(good, like, "bob", 5)
    with pytest.raises(KinfolkError, match=r"images of 'bob': must be int32 of shape \(2, 3\)"):
        checked_images(good, like, "bob", 300)
    with pytest.raises(KinfolkError, match=r"images of 'bob' = -1: must be tokens 0 to 299"):
        checked_images(good.int() - 1, like, "bob", 300)


def test_predictions_are_those_of_the_network_on_tokens():
    learner = learner_of(seeded(lambda: TokenLSTM(TOKENS, hidden=5)), TOKENS)
    rows = torch.randint(TOKENS, (20, LENGTH), generator=torch.Generator().manual_seed(2))
    said = predicted(learner, learner.first, rows.to(torch.uint8), -1.0, 1.0)
    assert torch.equal(said, learner.module.eval()(rows).argmax(1))
    compare = Comparison(learner, ImageOptions("text", 20), "images", 2)
    assert compare._tokens({"images": rows.to(torch.uint8)}) == TOKENS
    assert compare._tokens({}) == 0


def test_a_network_that_does_not_write_is_refused():
    with pytest.raises(KinfolkError, match=r"algorithm.images.kind = 'text': the network has 3 outputs"):
        SLFed(learner_of(TextMean(3, TOKENS), 3), images=ImageOptions("text"))
    SLFedSimilar(learner_of(TokenLSTM(TOKENS, hidden=5), TOKENS), images=ImageOptions("text"))
