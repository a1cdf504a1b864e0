"""Adapters: the formula, the start, merging, what they refuse."""

import copy

import pytest
import torch
from torch import nn

from kinfolk.errors import KinfolkError
from kinfolk.learning.lora import LoRA, LoRAAttention, add_lora, merge_lora


def stirred(network, seed=0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in network.named_parameters():
            if "lora" in name:
                p.copy_(torch.randn(p.shape, generator=draw, dtype=p.dtype) * 0.3)
    return network


def test_a_linear_layer_is_w_plus_alpha_over_rank_b_a():
    layer = nn.Sequential(nn.Linear(5, 4)).double()
    plain = copy.deepcopy(layer)
    add_lora(layer, rank=3, alpha=6)
    x = torch.randn(2, 7, 5, dtype=torch.float64)
    assert torch.equal(layer(x), plain(x))  # B is zero
    stirred(layer)
    a, b = layer[0].lora_A, layer[0].lora_B
    assert (a.shape, b.shape) == ((3, 5), (4, 3))
    wanted = x @ (plain[0].weight + 2.0 * b @ a).T + plain[0].bias
    torch.testing.assert_close(layer(x), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("case", ["self", "cross", "causal", "padded", "single", "float mask"])
def test_attention_is_pytorchs_with_merged_matrices(batch_first, weights, case):
    torch.manual_seed(0)
    net = nn.ModuleList([nn.MultiheadAttention(8, 2, batch_first=batch_first)]).double()
    add_lora(net, rank=2)
    merged = merge_lora(copy.deepcopy(stirred(net)))[0]
    assert type(merged) is nn.MultiheadAttention
    shape = (5, 8) if case == "single" else (3, 5, 8) if batch_first else (5, 3, 8)
    x = torch.randn(shape, dtype=torch.float64)
    more = {"need_weights": weights, "average_attn_weights": case != "self"}
    other = torch.randn(shape, dtype=torch.float64) if case == "cross" else x
    if case == "causal":
        more |= {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "is_causal": True}
    if case == "float mask":
        more |= {"attn_mask": torch.randn(6, 5, 5, dtype=torch.float64)}
    if case == "padded":
        more |= {"key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3], [1]])}
    got, wanted = (layer(x, other, other * (2 if case == "cross" else 1), **more) if case == "cross"
                   else layer(x, x, x, **more) for layer in (net[0], merged))  # fmt: skip
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-9, atol=1e-9)
    assert (got[1] is None) == (wanted[1] is None)
    if got[1] is not None:
        torch.testing.assert_close(got[1], wanted[1], rtol=1e-9, atol=1e-9)


def test_pytorchs_short_cuts_in_scoring_do_not_pass_adapters_by():
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(block, 2, enable_nested_tensor=False).double().eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        before = net(x)
        assert len(add_lora(net, rank=2)) == 8
        torch.testing.assert_close(net(x), before, rtol=1e-9, atol=1e-9)
        changed = stirred(net)(x)
        assert (changed - before).abs().max() > 0.01
        merged = merge_lora(copy.deepcopy(net))
        torch.testing.assert_close(merged(x), changed, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(net(x), changed, rtol=1e-9, atol=1e-9)  # with gradients


def test_merged_weights_are_rounded_once():
    net = stirred(nn.Sequential(nn.Linear(300, 20)))
    add_lora(net, rank=8, alpha=16)
    stirred(net)
    layer = net[0]
    exact = layer.weight.double() + 2 * layer.lora_B.double() @ layer.lora_A.double()
    merged = merge_lora(copy.deepcopy(net))[0]
    assert torch.equal(merged.weight, exact.float())
    assert set(merged.state_dict()) == {"weight", "bias"}
    assert not merged._forward_pre_hooks
    assert merged.weight.requires_grad


def test_which_layers_get_adapters():
    def fresh():
        body = nn.ModuleDict(
            {"attn": nn.MultiheadAttention(4, 2), "fc": nn.Linear(4, 4), "c": nn.Conv2d(1, 1, 1)}
        )
        return nn.ModuleDict({"body": body, "head": nn.Linear(4, 2)})

    assert add_lora(fresh(), 1) == ["body.attn", "body.attn.out_proj", "body.fc", "head"]
    assert add_lora(fresh(), 1, layers=["*attn"]) == ["body.attn", "body.attn.out_proj"]
    assert add_lora(fresh(), 1, layers=["*out_proj"]) == ["body.attn", "body.attn.out_proj"]
    net = fresh()
    net["body"].requires_grad_(False)
    assert "head" not in add_lora(net, 1, train=True)  # it is trained whole
    assert net["head"].weight.requires_grad
    tied = fresh()
    tied["head"] = nn.Linear(4, 4)
    tied["head"].weight = tied["body"]["fc"].weight
    assert add_lora(tied, 1) == ["body.attn", "body.attn.out_proj"]
    assert isinstance(tied["body"]["attn"], LoRAAttention)
    assert not isinstance(tied["head"], LoRA)


@pytest.mark.parametrize(
    ("network", "layers", "said"),
    [
        (nn.Sequential(nn.Conv2d(1, 1, 1)), ["*"], "no linear or attention layer"),
        (nn.ModuleDict({"fc1": nn.Linear(2, 2)}), ["fc2"], "matches no name; near ones: fc1"),
        (nn.ModuleDict({"a": nn.MultiheadAttention(4, 2, kdim=3)}), ["a"], "several widths"),
        (nn.ModuleDict({"a": nn.MultiheadAttention(4, 2, add_bias_kv=True)}), ["a"], "added keys"),
    ],
)
def test_what_cannot_have_an_adapter_is_said(network, layers, said):
    with pytest.raises(KinfolkError, match=said):
        add_lora(network, 1, layers=layers)


def test_the_draw_of_a_follows_from_the_generator():
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(9, 4))
        add_lora(net, 2)
        nets.append(net[0].lora_A)
    assert torch.equal(*nets)
    assert nets[0].abs().max() <= 1 / 3  # uniform within 1 / sqrt(inputs)
