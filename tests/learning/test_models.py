import copy
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from kinfolk.allowed import allowing
from kinfolk.errors import KinfolkError
from kinfolk.learning.models import (
    MLP,
    MODELS,
    CelebaCNN,
    FemnistCNN,
    LeNet,
    Logistic,
    MobileNetV2,
    ResNet18,
    TinyCNN,
    build_model,
)
from kinfolk.learning.sequences import TextMean, TokenLSTM, TokenTransformer
from kinfolk.streams import Seed

# A shape that each named model takes, small enough to be quick, and options that make it smaller.
SMALL = {
    "lenet": ((1, 28, 28), {}),
    "femnist_cnn": ((1, 8, 8), {"hidden": 16}),
    "femnist_cnn_small": ((1, 8, 8), {"hidden": 16}),
    "celeba_cnn": ((3, 20, 20), {}),
    "tiny_cnn": ((1, 8, 8), {}),
    "mlp": ((1, 8, 8), {"hidden": [12, 7]}),
    "logistic": ((5,), {}),
    "resnet18": ((3, 8, 8), {"width": 8}),
    "mobilenetv2": ((3, 8, 8), {}),
    "char_lstm": ((6,), {"vocabulary": 9, "hidden": 5}),
    "word_lstm": ((6,), {"vocabulary": 9, "hidden": 5}),
    "char_transformer": ((6,), {"vocabulary": 9, "width": 8, "heads": 2}),
    "text_mean": ((6,), {"vocabulary": 9}),
    "cnn1d": ((2, 12), {"width": 4}),
}
NORMED = [name for name, entry in MODELS.items() if "norm" in entry.options]


@pytest.fixture(autouse=True)
def _seeded():
    with Seed(0).borrowed("init"):
        yield


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _x(name: str, *lead: int) -> torch.Tensor:
    if MODELS[name].axes == ("length",):
        return torch.from_numpy(Seed(1).numpy("x", name).integers(9, size=(*lead, *SMALL[name][0])))
    return torch.from_numpy(Seed(1).numpy("x", name).normal(size=(*lead, *SMALL[name][0]))).float()


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: LeNet(), 61_706),
        (lambda: LeNet(channels=3), 62_006),
        (lambda: LeNet(side=28), 61_706),
        (lambda: LeNet(side=28, pad=False), 44_426),
        (lambda: FemnistCNN(), 6_603_710),
        (lambda: FemnistCNN(hidden=248), 845_510),
        (lambda: CelebaCNN(), 31_202),
        (lambda: ResNet18(), 11_173_962),
        (lambda: ResNet18(classes=40), 11_189_352),
        (lambda: ResNet18(norm="gn"), 11_173_962),
        (lambda: MobileNetV2(), 2_296_922),
        (lambda: MLP(784), 784 * 200 + 200 + 200 * 10 + 10),
        (lambda: MLP(4, (), 3), 4 * 3 + 3),
        (lambda: Logistic(784), 7_850),
        # LEAF's for Shakespeare: four gates of 256, of which each sees input and state, with two biases.
        (lambda: TokenLSTM(80), 80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (512 + 2) + 257 * 80),
        (lambda: TextMean(2, 100, 5), 500 + 12),
        (lambda: TinyCNN(), (9 * 8 + 8) + (9 * 8 * 16 + 16) + (16 * 10 + 10)),
    ],
)
def test_parameters_as_published(build, expected):
    with torch.device("meta"):
        assert _parameters(build()) == expected


def test_a_narrow_mobilenet_is_the_published_one_in_proportion():
    whole, narrow = MobileNetV2().state_dict(), MobileNetV2(width=8).state_dict()
    assert list(whole) == list(narrow)
    for name, tensor in whole.items():
        for axis, (wide, thin) in enumerate(zip(tensor.shape, narrow[name].shape, strict=True)):
            kept = name == "head.bias" or (name, axis) in (("head.weight", 0), ("stem.0.weight", 1))
            kept |= tensor.dim() == 4 and (axis > 1 or wide == 1)  # windows; channels convolved alone
            assert wide == thin * (1 if kept else 4), (name, axis)
    assert MobileNetV2(width=8, norm="gn")(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize(("build", "channels"), [(ResNet18, 4_800), (MobileNetV2, 17_544), (CelebaCNN, 128)])
def test_batch_norm_channels_as_published(build, channels):
    with torch.device("meta"):
        norms = [m for m in build().modules() if isinstance(m, nn.BatchNorm2d)]
        groups = [m for m in build(norm="gn").modules() if isinstance(m, nn.GroupNorm)]
    assert sum(m.num_features for m in norms) == channels
    assert sum(m.num_channels for m in groups) == channels
    assert all(m.num_channels // m.num_groups >= 4 and m.num_groups <= 32 for m in groups)
    constants = (1e-3, 0.01) if build is CelebaCNN else (1e-5, 0.1)
    assert {(m.eps, m.momentum) for m in norms} == {constants}


def test_group_norm_finds_a_divisor():
    for width in (1, 5, 13, 24):
        assert TinyCNN(norm="gn", width=width)(torch.ones(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_output_shape_and_last_layer(name):
    shape, options = SMALL[name]
    for outputs in (1, 7):
        model = build_model(name, shape, outputs, options).eval()
        assert model(_x(name, 3)).shape == (3, outputs)
        assert model(_x(name, 0)).shape == (0, outputs)
        assert list(model.state_dict())[-2:] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(("name", "side"), [("celeba_cnn", 84), ("celeba_cnn", 48), ("celeba_cnn", 2)])
def test_sides_that_pooling_must_round_up(name, side):
    model = build_model(name, (3, side, side), 2, {}).eval()
    assert model(torch.zeros(1, 3, side, side)).shape == (1, 2)


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.least])
def test_the_smallest_image_is_taken(name):
    side = MODELS[name].least
    model = build_model(name, (1, side, side), 2, {**SMALL[name][1]}).eval()
    assert model(torch.zeros(1, 1, side, side)).shape == (1, 2)


def test_small_images_are_not_shrunk_early():
    """The papers' CIFAR variants end on a 4x4 map of a 32x32 image."""
    for model in (ResNet18(width=4), MobileNetV2()):
        model.eval()
        assert model.blocks(model.stem(torch.zeros(1, 3, 32, 32))).shape[2:] == (4, 4)


def test_lenet_pads_with_the_background():
    model, by_hand = LeNet(side=28), LeNet(side=32)
    by_hand.load_state_dict(model.state_dict())
    wide = torch.full((2, 1, 32, 32), -1.0)
    wide[:, :, 10:20, 10:20] = 1.0
    torch.testing.assert_close(model(wide[:, :, 2:-2, 2:-2]), by_hand(wide))


@pytest.mark.parametrize("name", NORMED)
def test_group_norm_and_none_have_no_buffers_and_batch_norm_has(name):
    shape, options = SMALL[name]
    for norm, kept in (("gn", False), ("none", False), ("batch", False), ("bn", True)):
        model = build_model(name, shape, 2, {**options, "norm": norm})
        assert bool(list(model.buffers())) == kept


@pytest.mark.parametrize("name", NORMED)
def test_batch_statistics_are_those_of_training_in_scoring_too(name):
    shape, options = SMALL[name]
    kept, none = (build_model(name, shape, 2, {**options, "norm": norm}) for norm in ("bn", "batch"))
    none.load_state_dict({n: t for n, t in kept.state_dict().items() if n in none.state_dict()})
    x = _x(name, 6)
    torch.testing.assert_close(none.eval()(x), kept.train()(x))
    assert not torch.allclose(none(x[:3]), none(x)[:3]), "a row is read by those around it"


# Only BatchNorm behaves differently when it does not train.
VMAPPED = [(n, None, True) for n in MODELS if n not in NORMED] + [
    (n, norm, training) for n in NORMED for norm, training in (("bn", True), ("bn", False), ("gn", True))
]


# Plain attention is mapped row by row; engines exchange it.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(("name", "norm", "training"), VMAPPED)
def test_vmapped_over_two_copies_equals_each_alone(name, norm, training):
    shape, options = SMALL[name]
    options = options if norm is None else {**options, "norm": norm}
    # Doubles: BatchNorm over few values magnifies the rounding of a batched convolution.
    models = [build_model(name, shape, 3, options).double().train(training) for _ in range(2)]
    x = _x(name, 2, 4)
    x = x.double() if x.is_floating_point() else x
    params, buffers = stack_module_state(models)
    skeleton = copy.deepcopy(models[0]).to("meta")

    def loss(p, b, rows):
        b = {key: value.clone() for key, value in b.items()}
        out = functional_call(skeleton, (p, b), (rows,))
        return out.square().sum(), (out, b)

    grads, (together, after) = vmap(grad(loss, has_aux=True))(params, buffers, x)
    alone = torch.stack([model(rows) for model, rows in zip(models, x, strict=True)])
    alone.square().sum().backward()
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(alone[0], alone[1])
    for key, value in (grads | after).items():
        entries = [(dict(m.named_parameters()) | dict(m.named_buffers()))[key] for m in models]
        expected = torch.stack([t if t.grad is None else t.grad for t in entries])
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_input_is_not_written_to_and_every_parameter_gets_a_gradient(name):
    shape, options = SMALL[name]
    model, x = build_model(name, shape, 3, options), _x(name, 4)
    kept = x.clone()
    model(x).square().sum().backward()
    assert torch.equal(x, kept)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_caller_seeds_and_forward_draws_nothing():
    first, again = (_built_under(Seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    before = torch.get_rng_state()
    first(torch.zeros(2, 1, 8, 8))
    assert torch.equal(torch.get_rng_state(), before)


def _built_under(seed: Seed) -> nn.Module:
    with seed.borrowed("init"):
        return build_model("tiny_cnn", (1, 8, 8), 10, {"norm": "bn"})


def test_rows_of_any_shape_are_flattened_but_never_regrouped():
    assert build_model("mlp", (), 1, {"hidden": 4})(torch.zeros(5)).shape == (5, 1)
    assert build_model("logistic", (2, 3), 4, {})(torch.zeros(5, 2, 3)).shape == (5, 4)
    with pytest.raises(RuntimeError):
        build_model("mlp", (3,), 1, {})(torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("name", "shape", "options", "field", "words"),
    [
        ("lenett", (1, 28, 28), {}, "model.name", "did you mean 'lenet'?"),
        ("zzz", (1, 28, 28), {}, "model.name", "known: celeba_cnn"),
        ("mlp", (4,), {"hiden": [3]}, "model.hiden", "did you mean 'hidden'?"),
        ("logistic", (4,), {"hidden": 3}, "model.hidden", "no options"),
        ("mlp", (4,), {"hidden": [3, -1]}, "model.hidden", "whole numbers above 0"),
        ("mlp", (4,), {"hidden": "big"}, "model.hidden", "whole numbers above 0"),
        ("tiny_cnn", (1, 8, 8), {"width": 0}, "model.width", "whole number above 0"),
        ("tiny_cnn", (1, 8, 8), {"width": True}, "model.width", "whole number above 0"),
        ("tiny_cnn", (1, 8, 8), {"norm": "bnn"}, "model.norm", "did you mean 'bn'?"),
        ("resnet18", (3, 8, 8), {"norm": 3}, "model.norm", "known: batch, bn, gn, none"),
        ("lenet", (1, 28, 28), {"pad": 2}, "model.pad", "true or false"),
        ("lenet", (1, 8, 8), {}, "data.shape", "16x16 up; resize them, or use tiny_cnn, mlp or logistic"),
        ("lenet", (1, 28, 32), {}, "data.shape", "square"),
        ("lenet", (28, 28), {}, "data.shape", "channel axis, (1, 28, 28)"),
        ("resnet18", (32, 32, 3), {}, "data.shape", "channels first, (3, 32, 32)"),
        ("tiny_cnn", (64,), {}, "data.shape", "use mlp or logistic"),
    ],
)
def test_errors_name_field_value_and_remedy(name, shape, options, field, words):
    with pytest.raises(KinfolkError) as caught:
        build_model(name, shape, 10, options)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=3, *, shape, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(shape[0], width), nn.Linear(width, outputs))

def plain(width):
    return nn.Linear(2, width)

def wrong():
    return 3

def broken():
    raise ValueError("two\\nlines")

number = 5
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    with allowing(["own_model", "broken_module", "no_such_module"]):
        yield
    sys.modules.pop("own_model", None)


@pytest.mark.usefixtures("own")
def test_a_model_of_ones_own_is_found_in_the_current_directory():
    path = list(sys.path)
    net = build_model("own_model:Net", (4,), 6, {"width": 5})
    assert [tuple(p.shape) for p in net.parameters()] == [(5, 4), (5,), (6, 5), (6,)]
    assert build_model("own_model:plain", (4,), 6, {"width": 5}).out_features == 5
    assert sys.path == path


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("no_such_module:Net", {}, "cannot import no_such_module"),
        ("broken_module:Net", {}, "ZeroDivisionError"),
        ("own_model:Nett", {}, "no class or function 'Nett'"),
        ("own_model:number", {}, "no class or function 'number'"),
        ("own_model:", {}, "package.module:Class"),
        (":Net", {}, "package.module:Class"),
        (".own_model:Net", {}, "package.module:Class"),
        ("own_model:Net", {"depth": 2}, "depth"),
        ("own_model:plain", {}, "width"),
        ("own_model:wrong", {}, "gave a int, not a torch.nn.Module"),
        ("own_model:broken", {}, "ValueError: two lines"),
    ],
)
def test_faults_in_a_model_of_ones_own_are_one_line(name, options, words):
    with pytest.raises(KinfolkError) as caught:
        build_model(name, (4,), 6, options)
    assert caught.value.field.startswith("model")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_padding_counts_for_nothing_in_a_mean_and_the_order_does_not_matter():
    model = TextMean(2, 20, 4)
    x = torch.tensor([[0, 0, 3, 7, 9], [0, 9, 0, 3, 7]])
    out = model(x)
    torch.testing.assert_close(out[0], out[1])
    wanted = model.head(model.embed.weight[[3, 7, 9]].mean(0))
    torch.testing.assert_close(out[0], wanted)
    assert model(torch.zeros(1, 5, dtype=torch.int64)).isfinite().all()


@pytest.mark.parametrize(
    "build",
    [lambda **more: TokenLSTM(9, hidden=5, **more), lambda **more: TokenTransformer(9, 6, width=8, **more)],
)
def test_what_comes_later_changes_nothing_before_it(build):
    model, x = build(every=True), _x("char_lstm", 3)
    out, last = model(x), build()
    assert out.shape == (3, 6, 9)
    changed = x.clone()
    changed[:, 4] = (x[:, 4] + 1) % 9
    other = model(changed)
    torch.testing.assert_close(out[:, :4], other[:, :4])
    assert (out[:, 4:] - other[:, 4:]).abs().amax((0, 2)).min() > 1e-4
    last.load_state_dict(model.state_dict())
    torch.testing.assert_close(last(x), out[:, -1])


def test_a_transformer_is_that_of_pytorch():
    ours = TokenTransformer(9, 6, width=8, heads=2, layers=1, every=True).double()
    layer = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).double()
    block = ours.blocks[0]
    names = {
        "self_attn.in_proj_": block.attend, "self_attn.out_proj.": block.mix, "linear1.": block.wide,
        "linear2.": block.narrow, "norm1.": block.norm1, "norm2.": block.norm2,
    }  # fmt: skip
    layer.load_state_dict({f"{n}{p}": t for n, m in names.items() for p, t in m.state_dict().items()})
    x = _x("char_transformer", 4)
    causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    states = layer(ours.embed(x) + ours.place, causal)
    torch.testing.assert_close(ours(x), ours.head(ours.norm(states)))


@pytest.mark.parametrize(
    ("name", "shape", "options", "line"),
    [
        ("char_lstm", (1, 8, 8), {}, r"data.shape = \(1, 8, 8\): char_lstm takes rows \(length\)"),
        ("cnn1d", (43,), {}, r"data.shape = \(43,\): cnn1d takes rows \(channels, time\)"),
        ("char_transformer", (6,), {"heads": 3}, "model.heads = 3: width = 64 is no multiple of it"),
        ("char_lstm", (6,), {"vocabulary": -1}, "model.vocabulary = -1: give a whole number, 0 or more"),
    ],
)
def test_sequence_models_say_what_they_take(name, shape, options, line):
    with pytest.raises(KinfolkError, match=line):
        build_model(name, shape, 5, options)
