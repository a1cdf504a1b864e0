"""Weights from a file: what fits is loaded, what does not is named."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from kinfolk.errors import KinfolkError
from kinfolk.learning.pretrained import load_weights


def network(classes=3):
    body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    return nn.ModuleDict({"body": body, "head": nn.Linear(5, classes)})


@pytest.fixture
def file(tmp_path):
    def write(tensors, name="weights.safetensors"):
        save_file({n: t.contiguous().clone() for n, t in tensors.items()}, tmp_path / name)
        return tmp_path / name

    return write


def refused(net, path, fresh=()):
    before = {n: t.clone() for n, t in net.state_dict().items()}
    with pytest.raises(KinfolkError) as caught:
        load_weights(net, path, fresh)
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert "\n" not in str(caught.value)
    return caught.value.remedy


def test_all_parameters_and_buffers_are_loaded(file):
    one, other = network(), network()
    one["body"][1].running_mean.fill_(0.5)
    load_weights(other, file(one.state_dict()))
    assert all(torch.equal(t, other.state_dict()[n]) for n, t in one.state_dict().items())


def test_half_precision_is_widened(file):
    one, other = network(), network()
    half = {n: t.bfloat16() if t.is_floating_point() else t for n, t in one.state_dict().items()}
    load_weights(other, file(half))
    assert torch.equal(other["head"].weight, one["head"].weight.bfloat16().float())


def test_a_head_of_another_size_is_said_and_may_be_fresh(file):
    one, other = network(7), network(3)
    path = file(one.state_dict())
    said = refused(other, path)
    assert "head.weight is [3, 5] here and [7, 5] in the file" in said
    assert 'head has another size; to begin it anew, set model.fresh=["head.*"]' in said
    head = other["head"].weight.clone()
    load_weights(other, path, ["head.*"])
    assert torch.equal(other["head"].weight, head)
    assert torch.equal(other["body"][0].weight, one["body"][0].weight)
    assert "matches no name; near ones: head" in refused(other, path, ["haed.*"])


def test_the_first_five_names_and_near_ones_are_listed(file):
    state = network().state_dict()
    renamed = {n.replace("body.1", "body.norm").replace("head", "haed"): t for n, t in state.items()}
    said = refused(network(), file(renamed))
    assert said.startswith("14 names or shapes do not match: body.1.weight is not in the file (near: ")
    assert said.count("; ") == 5
    assert "and 9 more" in said


def test_a_prefix_is_said(file):
    state = network().state_dict()
    said = refused(network(), file({f"model.{n}": t for n, t in state.items()}))
    assert "Names of the file begin with 'model.', the others do not" in said
    inner = nn.ModuleDict({"model": network()})
    assert "Names of the network begin with 'model.'" in refused(inner, file(state))


def test_tied_tensors_may_have_any_of_their_names(file):
    def tied():
        net = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
        net["b"].weight = net["a"].weight
        return net

    one, other = tied(), tied()
    state = {n: t for n, t in one.state_dict().items() if n != "a.weight"}
    load_weights(other, file(state))
    assert torch.equal(other["a"].weight, one["a"].weight)
    assert other["a"].weight is other["b"].weight
    assert "a.weight is not in the file" in refused(tied(), file({n: state[n] for n in ("a.bias", "b.bias")}))


def test_files_of_other_kinds_are_refused(tmp_path, file):
    torch.save(network().state_dict(), tmp_path / "old.pt")
    assert "is a pickle, which can run code when read" in refused(network(), tmp_path / "old.pt")
    assert "save_file" in refused(network(), tmp_path / "old.pt")
    (tmp_path / "text.safetensors").write_text("hello")
    assert "is no safetensors file" in refused(network(), tmp_path / "text.safetensors")
    path = file(network().state_dict())
    assert "is a folder" in refused(network(), tmp_path)
    assert f"no such file; there is {path.name}" in refused(network(), tmp_path / "wieghts.safetensors")
    bad = {**network().state_dict(), "head.bias": torch.tensor([1.0, float("nan"), 0.0])}
    assert "head.bias holds NaN" in refused(network(), file(bad))
    counted = {**network().state_dict(), "head.bias": torch.tensor([1, 2, 3])}
    assert "head.bias is float32 here and int64 in the file" in refused(network(), file(counted))
