import sys

import numpy as np
import pytest
import torch
from PIL import Image

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.huggingface import read_huggingface
from kinfolk.federation.own_data.loaded import MissingValue, federate

# Together with other tests of Hugging Face's packages, whose imports take their time.
pytestmark = pytest.mark.xdist_group("transformers")


@pytest.fixture
def hf():
    import datasets

    return datasets


def columns(n=6):
    return {
        "who": [*"bab"] * (n // 3),
        "a": [*range(n)],
        "b": [i / 2 for i in range(n)],
        "y": [i % 2 for i in range(n)],
    }


def test_the_extra_is_named_where_it_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(KinfolkError, match=r'needs the package datasets: pip install "kinfolk\[hf\]"'):
        read_huggingface(None, "who", "y")


def test_numeric_columns_are_a_table(hf):
    found = read_huggingface(hf.Dataset.from_dict(columns()), "who", "y")
    assert found.feature_names == ("a", "b")
    assert found.clients["b"][0].tolist() == [[0, 0], [2, 1], [3, 1.5], [5, 2.5]]
    assert found.clients["a"][1].tolist() == [1, 0]
    assert found.types["b"] == "float64"


def test_a_chosen_and_shuffled_data_set_is_read_as_it_stands(hf):
    data = hf.Dataset.from_dict(columns()).select([5, 1, 0, 4])
    found = read_huggingface(data, "who", "y")
    assert found.clients["b"][0].tolist() == [[5, 2.5], [0, 0]]


def test_class_names_are_kept_and_minus_one_is_no_label(hf):
    data = hf.Dataset.from_dict({**columns(), "y": [0, 2, -1, 0, 2, 0]})
    data = data.cast_column("y", hf.ClassLabel(names=["cat", "dog", "emu"]))
    with pytest.raises(KinfolkError, match=r"data\.b\.y: empty or NaN in row 3"):
        read_huggingface(data, "who", "y")
    found = read_huggingface(data, "who", "y", missing="drop")
    assert found.class_names == ("cat", "dog", "emu")
    assert found.clients["b"][1].tolist() == [0, 0, 0]
    assert found.missing == (MissingValue("y", 1, "b", 3),)
    assert federate(found).classes == 3


def test_lists_are_arrays(hf):
    x = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
    features = hf.Features(
        {"who": hf.Value("string"), "x": hf.Array2D((2, 2), "float32"), "y": hf.Value("string")}
    )
    data = {"who": [*"aab"] * 2, "x": x, "y": ["no", "yes"] * 3}
    for dataset in (hf.Dataset.from_dict(data, features), hf.Dataset.from_dict({**data, "x": x.tolist()})):
        found = read_huggingface(dataset, "who", "y")
        assert found.clients["a"][0].tolist() == x[[0, 1, 3, 4]].tolist()
        assert found.class_names == ("no", "yes")
        assert found.feature_names == ()


def test_images_are_planes_of_bytes(hf):
    pictures = [np.full((4, 5), 40 * i, dtype=np.uint8) for i in range(6)]
    data = {"who": [1, 1, 2] * 2, "image": [Image.fromarray(p) for p in pictures], "y": [0, 1] * 3}
    features = hf.Features(
        {"who": hf.Value("int32"), "image": hf.Image(), "y": hf.ClassLabel(names=["no", "yes"])}
    )
    found = read_huggingface(hf.Dataset.from_dict(data, features), "who", "y")
    assert [*found.clients] == ["1", "2"]
    assert found.clients["2"][0].shape == (2, 1, 4, 5)
    assert (found.clients["2"][0][1, 0] == pictures[5]).all()
    federation = federate(found)
    assert federation.take(federation.splits["train"].rows(0))[0].min() >= -1
    data["image"][3] = Image.new("L", (5, 5))
    with pytest.raises(KinfolkError, match=r"data\.image, row 4 = '5 x 5': image, row 1 has 5 x 4"):
        read_huggingface(hf.Dataset.from_dict(data, features), "who", "y")
    data["image"][3] = None
    with pytest.raises(KinfolkError, match=r"data\.image = 'row 4': has no image"):
        read_huggingface(hf.Dataset.from_dict(data, features), "who", "y")
    data["image"][3] = {"bytes": b"no image", "path": None}
    with pytest.raises(KinfolkError, match=r"data\.image = 'row 4': its image cannot be read"):
        read_huggingface(hf.Dataset.from_dict(data, features), "who", "y")


FAULTS = {
    "client": ({}, "hwo", "y", r"client = 'hwo': no such column; did you mean 'who'"),
    "label": ({}, "who", "z", r"label = 'z': no such column"),
    "client as label": ({}, "who", "who", r"label = 'who': no such column"),
    "unique": ({"who": [*range(6)]}, "who", "y", r"all 6 differ.* id of rows, not of clients"),
    "text": ({"a": [*"xyzxyz"]}, "who", "y", r"data\.a = 'x': row 1 is text"),
    "missing": ({"a": [1, None, 3, 4, 5, 6]}, "who", "y", r"data\.a\.a: empty or NaN in row 2"),
    "structures": (
        {"a": [{"p": 1}] * 6},
        "who",
        "y",
        r"data\.columns = 'a \(\w+\), b \(scalar\)': give columns of numbers and lists.*select_columns",
    ),
    "text beside lists": (
        {"a": [[1, 2]] * 6, "b": [*"pqrpqr"]},
        "who",
        "y",
        r"data\.b = 'text': give numbers;.*columns=",
    ),
    "words in lists": (
        {"a": [["p"], ["q"]] * 3},
        "who",
        "y",
        r"data\.a = 'text': give numbers; of text the ids",
    ),
    "label without": (
        {"a": [[1, 2]] * 6, "y": [0, None, 1, 0, 1, 0]},
        "who",
        "y",
        r"data\.y: row 2 has no label",
    ),
    "nobody": ({"who": ["a", None] * 3}, "who", "y", r"data\.who: row 2 belongs to nobody"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told(hf, fault):
    change, client, label, message = FAULTS[fault]
    with pytest.raises(KinfolkError, match=message):
        read_huggingface(hf.Dataset.from_dict({**columns(), **change}), client, label)


TAGGED = {
    "who": [*"aabab"],
    "input_ids": [[5, 2], [3], [4, 5, 6], [1, 1], [2]],
    "attention_mask": [[1, 1], [1], [1, 1, 0], [1, 1], [1]],
    "tags": [[0, 1], [2], [-1, 0, 1], [2, 2], [0]],
}


def test_lists_of_differing_length_are_padded_and_stay_whole(hf):
    found = federate(
        read_huggingface(
            hf.Dataset.from_dict({**TAGGED, "y": [0, 1, 0, 1, 1]}),
            "who",
            "y",
            columns=kinfolk.Columns(["input_ids"]),
        )
    )
    assert found.x["0"].tolist() == [[5, 2, 0], [3, 0, 0], [1, 1, 0], [4, 5, 6], [2, 0, 0]]
    assert found.x["0.lengths"].tolist() == [2, 1, 2, 3, 1]
    assert found.x["0"].dtype == torch.int64
    even = hf.Dataset.from_dict({"who": [*"aab"], "x": [[1, 2], [3, 4], [5, 6]], "y": [0, 1, 0]})
    assert federate(read_huggingface(even, "who", "y")).x.dtype == torch.int64, "ids of an embedding"
    floats = even.cast_column("x", hf.List(hf.Value("float64")))
    assert federate(read_huggingface(floats, "who", "y")).x.dtype == torch.float32


@pytest.mark.parametrize("kind", ["numbers", "classes", "words"])
def test_labels_may_be_lists_a_class_per_position(hf, kind):
    given = dict(TAGGED)
    if kind == "words":
        given["tags"] = [["DNV"[c] if c >= 0 else "" for c in row] for row in given["tags"]]
    if kind == "numbers":
        given["tags"] = [[c if c >= 0 else -100 for c in row] for row in given["tags"]]
    data = hf.Dataset.from_dict(given)
    if kind == "classes":
        data = data.cast_column("tags", hf.List(hf.ClassLabel(names=[*"DNV"])))
    loaded = read_huggingface(data, "who", "tags")
    f = federate(loaded)
    assert [*f.x] == ["input_ids", "input_ids.lengths", "attention_mask"]
    assert f.x["attention_mask"].tolist()[3] == [1, 1, 0]
    assert f.y.tolist() == [[0, 1, -100], [2, -100, -100], [2, 2, -100], [-100, 0, 1], [0, -100, -100]]
    assert f.class_names == (() if kind == "numbers" else tuple("DNV"))
    assert f.classes == 3


def test_rows_without_a_label_may_be_dropped_beside_lists(hf):
    data = hf.Dataset.from_dict({**TAGGED, "y": [0, None, 1, 0, 1]})
    found = read_huggingface(data, "who", "y", missing="drop")
    assert found.left_out == {"rows without a label": 1}
    assert found.clients["a"][0]["input_ids"].tolist() == [[5, 2, 0], [1, 1, 0]]


def test_a_network_of_transformers_trains_on_tokens_of_a_data_set(hf, tmp_path):
    import transformers

    draw = np.random.default_rng(0)
    rows = [draw.integers(1, 12, draw.integers(2, 6)).tolist() for _ in range(24)]
    given = {"who": [*"abc"] * 8, "input_ids": rows, "attention_mask": [[1] * len(r) for r in rows]}
    data = hf.Dataset.from_dict({**given, "labels": [[i % 3 for i in r] for r in rows]})
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=12, max_position_embeddings=8, num_labels=3, **small)
    network = transformers.BertForTokenClassification(config)
    settings = {"model.output": "logits", "local.optimiser": "adam", "local.lr": 0.02}
    loaded = federate(read_huggingface(data, "who", "labels"))
    kinfolk.run(network, loaded, rounds=6, settings=settings, folder=tmp_path / "run", progress=False)
    run = kinfolk.load(tmp_path / "run", network=network)
    loss = run.scores.query("score == 'loss'").groupby("round")["value"].mean()
    assert loss.iloc[-1] < 0.8 * loss.iloc[0]
    said = run.predict({"input_ids": rows[:3], "attention_mask": [[1] * len(r) for r in rows[:3]]})
    assert said.shape == (3, 5)


def test_other_things_are_told(hf):
    ragged = hf.Dataset.from_dict({"who": [*"aab"], "x": [[1.0, 2.0], [3.0, 4.0], [5.0]], "y": [0, 1, 0]})
    splits = hf.DatasetDict({"train": ragged, "test": ragged})
    with pytest.raises(
        KinfolkError, match=r"'DatasetDict': give a datasets.Dataset, one split of it: train, test"
    ):
        read_huggingface(splits, "who", "y")
    with pytest.raises(KinfolkError, match=r"data\.dataset = 'list': give a datasets.Dataset"):
        read_huggingface([1], "who", "y")
