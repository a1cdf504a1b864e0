"""Tiny networks of transformers with drawn weights: by name and as objects, whole, frozen, with adapters."""

from __future__ import annotations

import json
import os
import socket

import pytest
import torch
from safetensors.torch import load_file

import kinfolk
from kinfolk.engines.fast import prepare
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import build_parts, first_rows
from kinfolk.experiment.run import run as run_spec
from kinfolk.experiment.spec import parse
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.batchable import obstacle
from kinfolk.learning.hugging_face import hugging_face_model
from kinfolk.learning.lora import add_lora, merge_lora

# In one process: importing transformers takes seconds where the machine is busy.
pytestmark = pytest.mark.xdist_group("transformers")
os.environ["HF_HUB_OFFLINE"] = "1"

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGS: dict[str, dict[str, object]] = {
    "gpt2": {
        **{"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"], "vocab_size": 12},
        **{"n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2, "pad_token_id": 0, "bos_token_id": 0},
        **{"eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    },
    "bert": {
        **{"model_type": "bert", "architectures": ["BertForSequenceClassification"], "vocab_size": 12},
        **{"max_position_embeddings": 8, **SMALL, **STILL},
    },
    "vit": {
        **{"model_type": "vit", "architectures": ["ViTForImageClassification"], "image_size": 8},
        **{"patch_size": 4, "num_channels": 1, **SMALL, **STILL},
    },
}
for one in CONFIGS.values():  # LayerNorm of the usual first weights, 0.02, would multiply rounding
    one["initializer_range"] = 0.3
NAMES = sorted(CONFIGS)


def rows(name):
    draw = torch.Generator().manual_seed(1)
    held = {}
    for i in range(4):
        count = 7 + i
        if name == "vit":
            x = torch.randn(count, 1, 8, 8, generator=draw)
        else:
            x = torch.randint(1, 12, (count, 6), generator=draw)
        held[f"c{i}"] = (x, torch.arange(count) % 3)
    return from_arrays(held, test=held, classes=3)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*address):
        raise AssertionError(f"something was to be downloaded: {address}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def config(tmp_path):
    def write(name, **more):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**CONFIGS[name], **more}))
        return path

    return write


def spec(path, *lines):
    return parse(f'model.name = "hf:{path}"\nmodel.output = "logits"\ndata.name = "own"\n' + "\n".join(lines))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lora", [0, 2])
def test_engines_agree(name, lora, config, tmp_path):
    found = {}
    for engine in ("loop", "batched", "wire"):
        lines = (f'engine.name = "{engine}"', "engine.chunk = 2", 'engine.device = "cpu"', "run.rounds = 2")
        lines += (f"model.lora.rank = {lora}", "model.lora.alpha = 2", "local.batch = 4", "local.lr = 0.02")
        one = spec(config(name), *lines)
        found[engine] = run_spec(one, tmp_path / engine, federation=rows(name)).state.model
    trained = {n for n in found["loop"] if "lora" in n}
    assert trained == (set(found["loop"]) if lora else set())
    for leaf, t in found["loop"].items():
        assert torch.equal(t, found["wire"][leaf])
        assert (found["batched"][leaf] - t).norm() <= 1e-5 * max(t.norm(), 0.1 * t.numel() ** 0.5), leaf


@pytest.mark.parametrize("dropped", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_clients_can_share_a_call(name, dropped, config):
    rates = {key: dropped for key in CONFIGS[name] if "drop" in key}
    assert rates
    parts = build_parts(spec(config(name, **rates), "model.lora.rank = 2"), rows(name))
    assert obstacle(parts.learner, *first_rows(parts.federation, 2)) == ""


@pytest.mark.parametrize("name", NAMES)
def test_adapters_begin_at_the_network_and_merge_into_it(name, config):
    torch.manual_seed(0)
    network = hugging_face_model(str(config(name)), 3, {}).double().eval()
    x = rows(name).x[:3]
    x = x.double() if name == "vit" else x
    before = network(x).logits
    layers = add_lora(network, rank=2, alpha=3, layers=["*.h.*" if name == "gpt2" else "*layer*"])
    assert len(layers) >= 8
    torch.testing.assert_close(network(x).logits, before, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        for leaf, p in network.named_parameters():
            if "lora" in leaf:
                p.normal_(0, 0.3)
        changed = network(x).logits
        assert (changed - before).abs().max() > 1e-3
        merge_lora(network)
        torch.testing.assert_close(network(x).logits, changed, rtol=1e-9, atol=1e-9)
    if name == "gpt2":
        assert type(network.transformer.h[0].attn.c_attn).__name__ == "Conv1D"
        assert network.transformer.h[0].attn.c_attn.weight.shape == (8, 24)


def test_a_folder_gives_its_weights_and_a_new_head(config, tmp_path):
    torch.manual_seed(0)
    network = hugging_face_model(str(config("bert")), 3, {})
    network.save_pretrained(tmp_path / "saved")
    same = hugging_face_model(str(tmp_path / "saved"), 3, {})
    assert all(torch.equal(t, network.state_dict()[n]) for n, t in same.state_dict().items())
    assert same.training
    other = hugging_face_model(str(tmp_path / "saved"), 5, {})
    assert other.classifier.weight.shape == (5, 8)
    assert torch.equal(other.bert.pooler.dense.weight, network.bert.pooler.dense.weight)
    with pytest.raises(KinfolkError, match=r"missing or of another size: bert\."):
        hugging_face_model(str(tmp_path / "saved"), 3, {"intermediate_size": 12})


def test_a_run_of_a_folder_leaves_a_network_for_transformers(config, tmp_path):
    hugging_face_model(str(config("gpt2")), 3, {}).save_pretrained(tmp_path / "saved")
    one = spec(tmp_path / "saved", "model.lora.rank = 2", "run.rounds = 2", 'model.train = ["score.*"]')
    data = rows("gpt2")
    run_spec(one, tmp_path / "run", federation=data)
    run = kinfolk.load(tmp_path / "run")
    network = run.model()
    x, y = data.take(data.splits["test"].rows(0))
    said = network(x).logits.argmax(1)
    assert run.predict(x, client="c0").tolist() == said.tolist()
    row = run.scores.query("client == 'c0' and round == 2 and score == 'accuracy'").iloc[0]
    assert int((said == y).sum()) == round(row["value"] * row["rows"])
    network.save_pretrained(tmp_path / "home")
    again = hugging_face_model(str(tmp_path / "home"), 3, {}).eval()
    assert torch.equal(again(x).logits, network(x).logits)
    run.export(tmp_path / "out")
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == set(network.state_dict())


def test_a_users_object_is_taken_as_any_network(config, tmp_path):
    import transformers

    given = {k: v for k, v in CONFIGS["vit"].items() if k not in ("model_type", "architectures")}
    network = transformers.ViTForImageClassification(transformers.ViTConfig(**given, num_labels=3))
    settings = {"model.output": "logits", "model.train": ["classifier.*"], "engine.name": "batched"}
    done = kinfolk.run(network, rows("vit"), rounds=1, settings=settings)
    assert set(done.state.model) == {"classifier.weight", "classifier.bias"}
    assert network.config._attn_implementation != "eager"  # the user's own stays as it is
    with pytest.raises(KinfolkError, match=r"model.output = '': .* name one of: logits"):
        kinfolk.run(network, rows("vit"), rounds=1)


def test_mistakes_are_told(config, tmp_path):
    path = config("bert")
    with pytest.raises(
        KinfolkError, match=r"hiden_size = 4: bert has no such option; did you mean 'hidden_size'"
    ):
        hugging_face_model(str(path), 3, {"hiden_size": 4})
    with pytest.raises(KinfolkError, match=r"model.architecture = 'Bert': transformers has no such network"):
        hugging_face_model(str(path), 3, {"architecture": "Bert"})
    with pytest.raises(KinfolkError, match="names no architecture"):
        hugging_face_model(str(config("bert", architectures=None)), 3, {})
    path.write_text("{}")
    with pytest.raises(KinfolkError, match="is no configuration"):
        hugging_face_model(str(path), 3, {})
    config("vit").rename(tmp_path / "config.json")
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(KinfolkError, match="holds pickled weights"):
        hugging_face_model(str(tmp_path), 3, {})


@pytest.mark.parametrize("name", ["pipeline", "Trainer", "BertConfig", "logging", "__getattr__", "AutoModel"])
def test_of_transformers_a_configuration_names_networks_alone(config, name):
    words = f"model.architecture = '{name}': transformers has no such network"
    with pytest.raises(KinfolkError, match=words):
        hugging_face_model(str(config("bert")), 3, {"architecture": name})
    with pytest.raises(KinfolkError, match=words):
        hugging_face_model(str(config("bert", architectures=[name])), 3, {})


@pytest.mark.parametrize(
    "entry",
    [
        {"_attn_implementation": "someone/kernel"},
        {"attn_implementation": "someone/kernel:run"},
        {"_experts_implementation": "someone/kernel"},
        {"auto_map": {"AutoModelForSequenceClassification": "theirs.Net"}},
        {"quantization_config": {"quant_method": "gptq"}},
    ],
)
def test_no_code_or_kernel_of_others_comes_with_a_configuration(config, entry):
    network = hugging_face_model(str(config("bert", **entry)), 3, {})
    told = network.config.to_dict()
    assert network.config._attn_implementation == network.config._experts_implementation == "eager"
    assert not {"auto_map", "quantization_config"} & set(told)


def test_without_transformers_the_extra_is_named(config, monkeypatch):
    monkeypatch.setattr("kinfolk.learning.hugging_face.find_spec", lambda name: None)
    with pytest.raises(KinfolkError, match=r"pip install 'kinfolk\[hf\]'"):
        hugging_face_model(str(config("bert")), 3, {})


def test_preparing_leaves_other_networks_alone():
    assert type(prepare(torch.nn.Tanh())) is torch.nn.Tanh
