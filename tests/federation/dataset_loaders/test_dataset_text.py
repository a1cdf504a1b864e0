"""Text federations from files that these tests write: alphabets, words, windows, time order, known groups."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.catalogue import find, read_official
from kinfolk.federation.datasets.text import LETTERS, WORDS, windows, words
from kinfolk.federation.partition.holdout import in_order
from kinfolk.federation.sources import DataSpec, build
from kinfolk.streams import Seed

ALPHABET = "".join(map(chr, range(32, 127)))
RNG = np.random.default_rng(3)
SHARED = Path(__file__).parents[4] / "shared" / "data"


def document(rows: dict[str, tuple[list, list]]) -> str:
    return json.dumps(
        {
            "users": list(rows),
            "num_samples": [len(y) for _, y in rows.values()],
            "user_data": {name: {"x": x, "y": y} for name, (x, y) in rows.items()},
        }
    )


def role(length: int) -> tuple[str, tuple[list, list]]:
    """A text and its rows as LEAF writes them: 80 characters and the next, one step further each time."""
    text = "".join(LETTERS[i] for i in RNG.integers(0, 80, length))
    places = range(length - 80)
    return text, ([text[i : i + 80] for i in places], [text[i + 80] for i in places])


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_leafs_alphabet():
    assert len(LETTERS) == len(set(LETTERS)) == 80
    assert [LETTERS[i] for i in (0, 1, 11, 25, 51, 53, 79)] == ["\n", " ", "0", "A", "[", "a", "}"]


def test_shakespeare_row_by_row(tmp_path):
    texts = {"HAMLET": role(200), "IAGO": role(90)}
    write(tmp_path / "data/all_data/all_data.json", document({n: rows for n, (_, rows) in texts.items()}))
    # Drawn among windows that overlap: never read.
    write(tmp_path / "data/train/all_data_niid_1_keep_0_train_9.json", "no json")
    rows = read_official("shakespeare", tmp_path)
    assert rows.client_names == ("HAMLET", "IAGO")
    assert rows.classes == 80
    assert rows.x.dtype == np.uint8
    for i, name in enumerate(rows.client_names):
        own, text = rows.client == i, texts[name][0]
        assert ["".join(LETTERS[c] for c in row) for row in rows.x[own]] == texts[name][1][0]
        assert [LETTERS[c] for c in rows.y[own]] == list(text[80:])
        assert rows.start[own].tolist() == list(range(len(text) - 80))


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ("a" * 79, "b", r"user 'IAGO' has in row 2 no 80 characters and the next one"),
        ("a" * 80, "bc", r"user 'IAGO' has in row 2 no 80 characters and the next one"),
        ("a" * 79 + "é", "b", r"user 'IAGO' has a character that is not LEAF's: 'é' is not in the alphabet"),
    ],
)
def test_shakespeare_names_what_is_wrong(x, y, said, tmp_path):
    write(tmp_path / "all_data.json", document({"IAGO": (["b" * 80, x], ["b", y])}))
    with pytest.raises(KinfolkError, match=said):
        read_official("shakespeare", tmp_path)


def test_shakespeare_as_a_federation_is_cut_in_order_of_the_text(tmp_path, monkeypatch):
    texts = {"HAMLET": role(1000), "IAGO": role(700)}
    write(tmp_path / "shakespeare/all_data.json", document({n: rows for n, (_, rows) in texts.items()}))
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    spec = DataSpec(
        "shakespeare", clients=0, partition="natural", shift="none", test="local", valid=0.2, stride=3
    )
    federation = build(spec, Seed(0))
    for i, name in enumerate(federation.clients):
        _apart(federation, i, texts[name][0], LETTERS, 80, 3)
    with pytest.raises(KinfolkError, match=r"data.partition = 'iid': text is cut by its author"):
        build(replace(spec, clients=2, partition="iid"), Seed(0))


def _apart(federation, i: int, text: str, alphabet: str, length: int, stride: int) -> None:
    """Rows of a split are windows of the text; splits follow one another without a common character."""
    spans = {}
    for name, split in federation.splits.items():
        x, y = (t[split.rows(i)] for t in (federation.x, federation.y))
        places = []
        for row, after in zip(x.tolist(), y.tolist(), strict=True):
            said = "".join(alphabet[c] for c in [*row, after])
            assert text.count(said) == 1
            places.append(text.index(said))
        assert places == sorted(places)
        assert len(places) >= 3
        spans[name] = (places[0], places[-1] + length + 1)
    assert spans["train"][1] <= spans["valid"][0]
    assert spans["valid"][1] <= spans["test"][0]
    assert spans["train"][0] == 0
    assert spans["test"][1] > len(text) - stride


def test_words_are_hashed_and_stand_at_the_end():
    said = words("Can't WAIT... can't", length=8)
    tokens = [zlib.crc32(word) % 9_999 + 1 for word in (b"can't", b"wait", b".", b".", b".", b"can't")]
    assert said == [0, 0, *tokens]
    assert words("") == [0] * 25
    many = words(" ".join(map(str, range(40))))
    assert len(many) == 25
    assert many[0] == zlib.crc32(b"0") % 9_999 + 1, "a long text is cut at its end"
    assert all(1 <= token < WORDS for token in many)


def tweet(text: str) -> list[str]:
    return ["1467", "Mon Apr 06", "NO_QUERY", "ann", text, "training"]


def test_sent140_row_by_row(tmp_path):
    rows = {"ann": ([tweet("so happy!"), tweet("meh")], [1, 0]), "bob": ([tweet("why, oh why?")], [0])}
    write(tmp_path / "data/all_data/all_data.json", document(rows))
    found = read_official("sent140", tmp_path)
    assert found.client_names == ("ann", "bob")
    assert found.y.tolist() == [1, 0, 0]
    assert found.x.tolist() == [words("so happy!"), words("meh"), words("why, oh why?")]
    assert found.start is None, "tweets do not overlap"
    assert (found.classes, found.class_names) == (2, ("negative", "positive"))


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (["1", "2"], 0, "user 'ann' has in row 1 no id, date, query, user and text"),
        (tweet("hm"), 4, "user 'ann' has label 4 in row 1, not 0 to 1"),
    ],
)
def test_sent140_names_what_is_wrong(x, y, said, tmp_path):
    write(tmp_path / "all_data.json", document({"ann": ([x], [y])}))
    with pytest.raises(KinfolkError, match=said):
        read_official("sent140", tmp_path)


@pytest.fixture
def manuals(tmp_path, monkeypatch) -> dict[str, str]:
    """A small file of the kind: five pages in two languages."""
    names = ["da:cp", "da:ls", "en:cp", "en:ls", "en:mv"]
    pages = {
        name: "".join(ALPHABET[i] for i in RNG.integers(0, 95, 260 + 30 * k)) for k, name in enumerate(names)
    }
    np.savez(
        tmp_path / "manuals.npz",
        text=np.array([ALPHABET.index(c) for c in "".join(pages.values())], np.uint8),
        offset=np.cumsum([0, *map(len, pages.values())]),
        client=np.array(names),
        language=np.array([name[:2] for name in names]),
        alphabet=np.array(ALPHABET),
    )  # fmt: skip
    monkeypatch.setenv("KINFOLK_DATA", str(tmp_path))
    return pages


PAGES = DataSpec(
    "manuals", clients=0, groups=2, shift="source", partition="natural", test="local", window=7, valid=0.2
)


@pytest.mark.parametrize("stride", [0, 1, 3, 11])
def test_windows_of_manuals_never_straddle(manuals, stride):
    federation = build(replace(PAGES, stride=stride), Seed(0))
    assert federation.clients == tuple(manuals)
    assert federation.x.dtype == torch.uint8
    assert federation.scale is None
    for i, name in enumerate(federation.clients):
        _apart(federation, i, manuals[name], ALPHABET, 7, stride or 7)
    assert federation.classes == 95
    assert federation.class_names == tuple(ALPHABET)


def test_languages_are_the_known_groups(manuals):
    assert build(PAGES, Seed(0)).truth.tolist() == [0, 0, 1, 1, 1]
    some = build(replace(PAGES, clients=4), Seed(1))
    assert some.truth.tolist() == [int(name.startswith("en")) for name in some.clients]
    with pytest.raises(KinfolkError, match=r"data.groups = 3: the clients are of 2 known groups"):
        build(replace(PAGES, groups=3), Seed(0))
    assert build(replace(PAGES, shift="none"), Seed(0)).truth.tolist() == [0] * 5
    with pytest.raises(KinfolkError, match=r"data.shift = 'rotation': 'manuals' makes its groups itself"):
        build(replace(PAGES, shift="rotation"), Seed(0))


def test_every_character_may_have_a_target(manuals):
    rows = windows(find("manuals"), replace(PAGES, targets="every", stride=5))
    assert rows.y.shape == rows.x.shape
    assert np.array_equal(rows.y[:, :-1], rows.x[:, 1:])
    one = windows(find("manuals"), replace(PAGES, stride=5))
    assert np.array_equal(rows.y[:, -1], one.y)


def test_a_file_whose_offsets_do_not_fit_is_not_used(manuals, tmp_path):
    found = dict(np.load(tmp_path / "manuals.npz"))
    np.savez(tmp_path / "manuals.npz", **{**found, "offset": found["offset"][:-1]})
    with pytest.raises(KinfolkError, match="its offsets do not fit its text and clients"):
        find("manuals")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("window", 0, "at least one character"),
        ("stride", -1, "0 .* or more"),
        ("targets", "all", "'next' or 'every'"),
    ],
)
def test_settings_of_text_are_checked(field, value, said):
    with pytest.raises(KinfolkError, match=f"data.{field} = .*{said}"):
        build(replace(PAGES, **{field: value}), Seed(0))


def test_a_row_on_the_line_is_in_neither_part():
    start, rows = np.arange(0, 100, 5), np.arange(20)
    for length in (3, 5, 8, 20):
        kept, held = in_order(rows, start, length, 0.25)
        cut = (start[-1] + length) * 0.75
        assert (start[kept] + length <= cut).all()
        assert (start[held] >= cut).all()
        between = np.setdiff1d(rows, [*kept, *held])
        assert ((start[between] < cut) & (start[between] + length > cut)).all()
    assert in_order(rows, start, 3, 0.0)[0].tolist() == rows.tolist()


@pytest.mark.skipif(not (SHARED / "manuals.npz").is_file(), reason="no manuals.npz here")
def test_the_manuals_themselves(monkeypatch):
    monkeypatch.setenv("KINFOLK_DATA", str(SHARED))
    federation = build(replace(PAGES, groups=8, window=80), Seed(0))
    assert len(federation.clients) == 290
    assert federation.truth.bincount().tolist() == [24, 40, 40, 40, 40, 40, 26, 40]
    assert len(find("manuals").x) == 3_031_494
