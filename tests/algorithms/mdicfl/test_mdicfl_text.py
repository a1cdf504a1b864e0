"""MD-ICFL where rows are tokens: mixtures that are searched for or generated, and text that models write."""

from dataclasses import replace

import pytest
import torch
from small_networks import TURN, learner_of, seeded, several
from torch import nn
from torch.nn import functional as F

from kinfolk.algorithms.mdicfl.back_search import BackSearch
from kinfolk.algorithms.mdicfl.generator import Generator
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.algorithms.mdicfl.written_text import WrittenText
from kinfolk.contract.toy import play_rounds
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.inputs import probabilities
from kinfolk.learning.sequences import TextMean, TokenLSTM
from kinfolk.task import Plan

TOKENS, LENGTH = 6, 4


def one(models, k):
    return {n: t[k : k + 1] for n, t in models.items()}


@pytest.mark.parametrize(
    "sampler", [BackSearch(60, warm_steps=0), Generator(150, batch=30, hidden=32, output="none")]
)
def test_rows_made_of_mixtures_move_towards_their_class(sampler):
    module = seeded(lambda: TextMean(3, TOKENS, 4))
    module.head.weight.data *= 3
    learner = learner_of(module, 3)
    models = several(learner, 2)
    name = "back_search" if isinstance(sampler, BackSearch) else "generator"
    wanted = PseudoRows(name, samples=4)
    reader, shape = wanted.reader(learner, (LENGTH,))
    assert shape == (LENGTH, TOKENS)
    x, _ = sampler.draw(wanted, reader, models, shape, TURN, {})
    assert x.shape == (2, 12, LENGTH, TOKENS)
    y = wanted.labels(3)
    for k in range(2):
        said = probabilities(reader, one(models, k), x[k])[0].gather(1, y[:, None])
        noise = probabilities(reader, one(models, k), torch.randn(12, *shape))[0].gather(1, y[:, None])
        assert (said > noise).all()
        assert (said - noise).mean() > 0.1


class Chain(nn.Module):
    """The next token by the last one alone: a Markov chain with known transitions."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(logits, freeze=False)

    def forward(self, x):
        return self.embed(x[:, -1])


def test_written_text_is_that_of_the_chain():
    draw = torch.Generator().manual_seed(4)
    logits = torch.randn(2, TOKENS, TOKENS, generator=draw) * 1.5
    learner = learner_of(Chain(logits[0]), TOKENS)
    models, wanted = {"embed.weight": logits}, PseudoRows("text", samples=700)
    assert wanted.reader(learner, (LENGTH,)) == (learner, (LENGTH,))
    x, kept = WrittenText(warm_tokens=3).draw(wanted, learner, models, (LENGTH,), TURN, {})
    assert x.shape == (2, TOKENS * 700, LENGTH)
    assert x.dtype == kept["x"].dtype == torch.int64
    for k in range(2):
        moves = logits[k].softmax(1).double()
        text = kept["x"][k]
        seen = torch.zeros(TOKENS, TOKENS, dtype=torch.float64)
        for a, b in ((0, 1), (1, 2), (2, 3)):
            seen.index_put_(
                (text[:, a], text[:, b]), torch.ones(len(text), dtype=torch.float64), accumulate=True
            )
        torch.testing.assert_close(seen / seen.sum(1, keepdim=True), moves, rtol=0, atol=0.06)
        # Bayes: the last token of rows that class c follows, from how often it stands last and leads to c.
        last = text[:, -1].bincount(minlength=TOKENS).double()
        given = (last[:, None] * moves) / (last[:, None] * moves).sum(0)
        ends = x[k, :, -1].reshape(TOKENS, 700)
        found = torch.stack([row.bincount(minlength=TOKENS) for row in ends]).double() / 700
        torch.testing.assert_close(found, given.T, rtol=0, atol=0.08)
    again, more = WrittenText(warm_tokens=3).draw(wanted, learner, models, (LENGTH,), TURN, kept)
    assert torch.equal(more["x"][:, :, 0], kept["x"][:, :, 3]), "texts go on"
    assert torch.equal(
        WrittenText(warm_tokens=3).draw(wanted, learner, models, (LENGTH,), TURN, kept)[0], again
    )


def test_a_spoilt_model_writes_something_all_the_same():
    learner = learner_of(Chain(torch.zeros(TOKENS, TOKENS)), TOKENS)
    models = {"embed.weight": torch.full((1, TOKENS, TOKENS), torch.nan)}
    x, _ = WrittenText().draw(PseudoRows("text", samples=2), learner, models, (LENGTH,), TURN, {})
    assert ((x >= 0) & (x < TOKENS)).all()


def languages(clients: int = 6, rows: int = 60):
    """Clients of two chains, in turns."""
    draw = torch.Generator().manual_seed(0)
    moves = (torch.randn(2, TOKENS, TOKENS, generator=draw) * 2).softmax(-1)
    held = {}
    for i in range(clients):
        text = [0]
        for _ in range(rows + LENGTH):
            text.append(int(torch.multinomial(moves[i % 2][text[-1]], 1, generator=draw)))
        windows = torch.tensor(text).unfold(0, LENGTH + 1, 1)
        held[f"c{i}"] = (windows[:, :LENGTH], windows[:, LENGTH])
    return from_arrays(held, classes=TOKENS)


def method(sampler: str, **options) -> MDICFL:
    learner = learner_of(seeded(lambda: TokenLSTM(TOKENS, hidden=12, layers=1)), TOKENS)
    learner = replace(learner, plan=Plan(20, epochs=3), lr=1.0)
    return MDICFL(learner, k=2, pseudo=PseudoRows(sampler, samples=3), search=BackSearch(20), **options)


@pytest.mark.parametrize("privacy", ["weak", "strong"])
@pytest.mark.parametrize("sampler", ["back_search", "text", "generator"])
def test_rounds_on_tokens_find_the_chains(sampler, privacy):
    algorithm = method(sampler, privacy=privacy, generator=Generator(30, batch=20, hidden=16))
    algorithm = replace(algorithm, start=replace(algorithm.start, confidence=0.0))
    outcome = play_rounds(algorithm, languages(), rounds=6)
    member = outcome.state.member
    assert outcome.state.assigned
    assert outcome.state.shape == (LENGTH,)
    if sampler == "text":
        assert F.one_hot(member, 2)[::2].float().mean(0).max() == 1
        assert member[0] != member[1]


def test_what_cannot_be_made_is_refused():
    mean = learner_of(TextMean(3, TOKENS), 3)
    with pytest.raises(KinfolkError, match=r"sampler = 'text': the network has 3 outputs and 6 tokens"):
        PseudoRows("text").reader(mean, (LENGTH,))
    with pytest.raises(KinfolkError, match=r"sampler = 'text': rows are no tokens"):
        PseudoRows("text").reader(learner_of(nn.Linear(4, 3)), (4,))

    class Flat(nn.Module):
        """It needs to know that rows have two axes."""

        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(TOKENS, 2), nn.Linear(2, 3)

        def forward(self, x):
            rows, length = x.shape
            return self.head(self.embed(x).reshape(rows, length, 2).sum(1))

    with pytest.raises(KinfolkError, match=r"sampler = 'back_search': the network takes no mixtures"):
        PseudoRows().reader(learner_of(Flat()), (LENGTH,))
