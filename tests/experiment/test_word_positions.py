"""Words as labels of positions: in Python, in files, in predictions."""

import numpy as np
import pytest
import torch
from torch import nn

from kinfolk.api import assign, run
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.own_data.load import load_own
from kinfolk.trained import load

WORDS = np.array(["the", "cat", "sat", "on", "a", "mat"])
TAGS = {"the": "DET", "cat": "NOUN", "sat": "VERB", "on": "ADP", "a": "DET", "mat": "NOUN"}
NAMES = ("ADP", "DET", "NOUN", "VERB")


class Tagger(nn.Module):
    """A tag for each word, and some that no word has."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(6, 8), nn.Linear(8, 7)

    def forward(self, tokens):
        return self.head(self.words(tokens))


def sentences(count, seed):
    """Token ids and tags, of differing length."""
    draw = np.random.default_rng(seed)
    x = [draw.integers(0, 6, draw.integers(2, 6)) for _ in range(count)]
    return [one.tolist() for one in x], [[TAGS[WORDS[i]] for i in one] for one in x]


def padded(sites):
    for who, (x, y) in sites.items():
        long = max(map(len, x))
        ids = np.array([[*one, *[0] * (long - len(one))] for one in x])
        tags = np.array([[*one, *[""] * (long - len(one))] for one in y])
        yield who, ids, tags


SITES = {who: sentences(30, i) for i, who in enumerate(("ann", "bob"))}


def test_words_of_positions_are_numbered_by_their_sorted_names():
    f = from_arrays(SITES)
    assert f.class_names == NAMES
    held = f.splits["train"].row.tolist() + f.splits["test"].row.tolist()
    assert sorted(held) == list(range(60))
    tags = [one for _, y in SITES.values() for one in y]
    for row, wanted in enumerate(tags):
        got = f.y[row].tolist()
        assert [NAMES[c] for c in got[: len(wanted)]] == wanted
        assert set(got[len(wanted) :]) <= {-100}
    again = from_arrays({who: (ids, tags) for who, ids, tags in padded(SITES)})
    assert torch.equal(again.y, f.y)


@pytest.mark.parametrize("blank", ["", " "])
def test_a_position_without_a_word_has_no_class(blank):
    y = [["a", "b", blank], [blank, "a", "b"], ["b", "b", "a"], [blank] * 3]
    f = from_arrays({"ann": (np.zeros((4, 3)), y)})
    assert f.class_names == ("a", "b")
    assert f.y.tolist() == [[0, 1, -100], [-100, 0, 1], [1, 1, 0], [-100] * 3]


def test_words_without_end_are_no_classes():
    y = [[f"w{i}{j}" for j in range(5)] for i in range(9)]
    with pytest.raises(KinfolkError, match="'w00': row 1 is text, and 45 of 45 labels differ: too many"):
        from_arrays({"ann": (np.zeros((9, 5)), y)})


def test_predictions_are_words_and_scores_are_of_real_positions(tmp_path):
    settings = {"local.lr": 1.0, "local.batch": 10}
    run(Tagger, SITES, test=SITES, rounds=15, folder=tmp_path / "run", settings=settings, progress=False)
    found = load(tmp_path / "run", network=Tagger)
    assert found.class_names == NAMES
    x, y = SITES["ann"]
    said = found.predict(x)
    right = [said[i][j] == tag for i, row in enumerate(y) for j, tag in enumerate(row)]
    table = found.scores.query("round == 15 and client == 'ann' and score == 'accuracy'")
    assert table["value"].item() == pytest.approx(np.mean(right))
    assert np.mean(right) > 0.9


def test_a_network_may_say_a_class_that_the_data_have_not(tmp_path):
    class Fifth(Tagger):
        def forward(self, tokens):
            return super().forward(tokens) + torch.tensor([0.0, 0, 0, 0, 99, 0, 0])

    run(Fifth, SITES, rounds=1, folder=tmp_path / "run", progress=False)
    assert set(load(tmp_path / "run", network=Fifth).predict(SITES["ann"][0]).flat) == {"4"}


def test_words_come_from_files_through_the_command_line(tmp_path, kinfolk):
    (tmp_path / "sites").mkdir()
    for who, ids, tags in padded(SITES):
        np.savez(tmp_path / "sites" / f"{who}.npz", x=ids, y=tags)
    code, out, err = kinfolk("data", "import", "sites", "--out", "store")
    assert code == 0, err
    assert "4 sorted names are classes 0 to 3, and positions without text are left out" in " ".join(
        out.split()
    )
    rows, report = load_own("store")
    assert report.class_names == NAMES
    assert torch.equal(rows.y, from_arrays(SITES).y)
    words = ("--set", "model.name=test_word_positions:Tagger", "--set", "run.rounds=1")
    code, _, err = kinfolk("run", "store", *words, "--allow-import", "test_word_positions", "--out", "run")
    assert code == 0, err


def test_newcomers_number_their_words_as_the_run_does(tmp_path):
    method = "fesem,k=2,start.warm_epochs=1"
    some = {who: sentences(20, i) for i, who in enumerate("abcdef")}
    for who in "def":  # they call things otherwise
        x, y = some[who]
        some[who] = x, [[{"DET": "NOUN", "NOUN": "DET"}.get(tag, tag) for tag in row] for row in y]
    settings = {"local.lr": 1.0, "local.batch": 5}
    run(Tagger, some, method, rounds=9, folder=tmp_path / "run", settings=settings, progress=False)
    x = [[0, 1], [1], [4, 5], [0], [1, 5]] * 4
    fewer = {"new": (x, [["DET", "NOUN"], ["NOUN"], ["DET", "NOUN"], ["DET"], ["NOUN", "NOUN"]] * 4)}
    found = assign(tmp_path / "run", fewer, network=Tagger)
    assert found.frame.iloc[0]["centre"] == 1.0, "by another numbering its words would all be wrong"
    odd = {"new": (x, [["X", "NOUN"], ["NOUN"], ["X", "NOUN"], ["X"], ["X", "X"]] * 4)}
    with pytest.raises(KinfolkError, match="label = 'X': the run knows no such class"):
        assign(tmp_path / "run", odd, network=Tagger)
