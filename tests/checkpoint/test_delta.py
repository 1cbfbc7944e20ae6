from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from lightkit.checkpoint.delta import FORMAT, apply_delta, delta, fingerprint, read_delta, write_delta
from lightkit.checkpoint.facts import describe
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from tests.checkpoint.parts import Net, net, same


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class Low(nn.Module):
    """A change of rank 1."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(1, columns)), nn.Parameter(torch.zeros(rows, 1))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight + self.b @ self.a


def injected(model: Net) -> Net:
    layer = model.layers.a
    parametrize.register_parametrization(layer, "weight", Low(*layer.weight.shape))
    return model


NAMES = {name: name for name in net().state_dict() if name != "layers.a.weight"} | {
    "layers.a.parametrizations.weight.original": "layers.a.weight"
}


class Tied(nn.Module):
    """An embedding that is the output layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(6, 4), nn.Linear(4, 6)
        self.out.weight = self.embedding.weight


def test_exactly_what_differs_is_found() -> None:
    model = net(1)
    base = snapshot(model)
    model.train()(torch.randn(8, 4))  # moves the statistics of batch norm and its counter
    with torch.no_grad():
        model.head.bias[1] += 1
    change = delta(model.state_dict(), base)
    statistics = [f"layers.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
    assert list(change.tensors) == [*statistics, "head.bias"]
    assert sorted([*change.tensors, *change.kept]) == sorted(base)
    assert change.fingerprint == fingerprint(base)
    assert torch.equal(change.tensors["head.bias"], model.head.bias)


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        (torch.tensor([1.0, 0.0]), torch.tensor([1.0, -0.0]), True),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), False),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.float16), True),
        (torch.ones(2, 3), torch.ones(3, 2), True),
        (torch.ones(2, 3), torch.ones(3, 2).T, False),
        (torch.tensor(3), torch.tensor(4), True),
        (torch.zeros(0, 3), torch.zeros(0, 3), False),
        (torch.zeros(0, 3), torch.zeros(0, 4), True),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64).conj(), True),
    ],
)
def test_a_tensor_differs_by_bits_shape_and_type(before, after, differs, tmp_path) -> None:
    change = delta({"x": after}, {"x": before})
    assert list(change.tensors) == ["x"] * differs
    assert change.kept == ("x",) * (not differs)
    write_delta(tmp_path / "a.pt", change)
    back = read_delta(tmp_path / "a.pt").tensors
    assert all(back[name].dtype == after.dtype and torch.equal(back[name], after) for name in back)


def test_an_injected_model_comes_back_bit_by_bit(tmp_path) -> None:
    plain = net(1)
    base = snapshot(plain)
    model = injected(plain)
    with torch.no_grad():
        model.layers.a.parametrizations.weight[0].b.fill_(0.5)
        model.head.weight += 0.1
    model.train()(torch.randn(8, 4))
    write_delta(tmp_path / "a.pt", delta(model.state_dict(), base, NAMES, source="base.pt", config="model: x"))
    change = read_delta(tmp_path / "a.pt")
    assert "layers.a.parametrizations.weight.original" in change.kept
    assert {name for name in change.tensors if ".0." in name} == {
        "layers.a.parametrizations.weight.0.a", "layers.a.parametrizations.weight.0.b",
    }  # fmt: skip
    assert (change.source, change.config) == ("base.pt", "model: x")
    fresh = injected(net(1))
    report = apply_delta(fresh, change, base_fingerprint=fingerprint(base))
    assert same(fresh, model)
    assert set(report.loaded) == set(change.tensors)
    with torch.no_grad():
        model.layers.a.parametrizations.weight.original += 1
    assert "layers.a.parametrizations.weight.original" in delta(model.state_dict(), base, NAMES).tensors


def test_tied_tensors_are_written_once(tmp_path) -> None:
    model = Tied()
    base = snapshot(model)
    assert delta(model.state_dict(), base).kept == ("embedding.weight", "out.weight", "out.bias")
    with torch.no_grad():
        model.embedding.weight += 1
    write_delta(tmp_path / "a.pt", delta(model.state_dict(), base))
    change = read_delta(tmp_path / "a.pt")
    assert list(change.tensors) == ["embedding.weight"]
    assert change.tied == {"out.weight": "embedding.weight"}
    fresh = Tied()
    fresh.load_state_dict(base)
    apply_delta(fresh, change, base_fingerprint=fingerprint(base))
    assert torch.equal(fresh.out.weight, model.out.weight)
    untied = base | {"out.weight": torch.zeros(6, 4)}
    assert list(delta(model.state_dict(), untied).tensors) == ["embedding.weight"]
    rows = {row[0]: row[2] for row in describe(tmp_path / "a.pt").tensors}
    assert rows["out.weight"] == "tied to embedding.weight"


def test_wrappers_devices_and_order_make_no_difference() -> None:
    model = net(1)
    base = snapshot(model)
    parallel = nn.DataParallel(copy.deepcopy(model))
    compiled = {f"_orig_mod.{name}": tensor for name, tensor in base.items()}
    assert {fingerprint(state) for state in (base, parallel.state_dict(), compiled)} == {fingerprint(base)}
    assert fingerprint(dict(reversed(base.items()))) == fingerprint(base)
    assert fingerprint(base | {"note": "text"}) == fingerprint(base)
    assert fingerprint({"x": torch.ones(3, 2).T}) == fingerprint({"x": torch.ones(2, 3)})
    assert delta(parallel.state_dict(), base).tensors == {}
    apply_delta(parallel, delta(parallel.state_dict(), base), base_fingerprint=fingerprint(base))
    without = {name: tensor for name, tensor in base.items() if not name.startswith("head.")}
    assert list(delta(model.state_dict(), without).tensors) == ["head.weight", "head.bias"], "only what was loaded"


@pytest.mark.gpu
def test_a_gpu_makes_no_difference(tmp_path) -> None:
    model = net(1)
    base = snapshot(model)
    model.to("cuda")
    assert fingerprint(model.state_dict()) == fingerprint(base)
    with torch.no_grad():
        model.head.bias += 1
    change = delta(model.state_dict(), base)
    assert list(change.tensors) == ["head.bias"]
    write_delta(tmp_path / "a.pt", change)
    fresh = net(1).to("cuda")
    apply_delta(fresh, read_delta(tmp_path / "a.pt"), base_fingerprint=fingerprint(base))
    assert same(fresh, model)


@pytest.mark.parametrize(
    "changed",
    [
        lambda s: s | {"head.bias": torch.nextafter(s["head.bias"], torch.ones(3))},
        lambda s: s | {"head.bias": s["head.bias"].double()},
        lambda s: s | {"head.weight": s["head.weight"].view(5, 3)},
        lambda s: {name.replace("head", "tail"): tensor for name, tensor in s.items()},
        lambda s: {name: tensor for name, tensor in s.items() if name != "head.bias"},
    ],
)
def test_a_fingerprint_is_of_names_types_shapes_and_bits(changed) -> None:
    state = snapshot(net(1))
    assert fingerprint(changed(dict(state))) != fingerprint(state)


def test_the_wrong_base_is_refused_by_both_fingerprints() -> None:
    model = net(1)
    base = snapshot(model)
    with torch.no_grad():
        model.head.bias += 1
    change = delta(model.state_dict(), base, source="right.pt")
    wrong = net(2)
    given = fingerprint(wrong.state_dict())
    with pytest.raises(UserError, match=r"belongs to other base weights") as caught:
        apply_delta(wrong, change, base_fingerprint=given, base_source="wrong.pt")
    assert caught.value.exit_code == 2
    for text in ("right.pt", "wrong.pt", fingerprint(base), given):
        assert text in str(caught.value)
    assert same(wrong, net(2))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: net(1, classes=5), r"head.bias is 5 float32 in the model and 3 float32 in the adapter"),
        (lambda: net(1).double(), r"head.bias is 3 float64 in the model"),
        (lambda: injected(net(1)), r"only in the adapter: layers.a.weight"),
        (lambda: nn.Sequential(net(1)), r"only in the model: 0.head.bias"),
    ],
)
def test_another_model_is_refused_and_left_alone(other, message) -> None:
    model = net(1)
    base = snapshot(model)
    with torch.no_grad():
        model.head.bias += 1
        model.layers.a.bias += 1
    change, here = delta(model.state_dict(), base), other()
    before = copy.deepcopy(here)
    with pytest.raises(UserError, match=message) as caught:
        apply_delta(here, change, base_fingerprint=change.fingerprint)
    assert "was written for another model; nothing was loaded" in str(caught.value)
    assert same(here, before)


def an_adapter(path: Path) -> Path:
    model = net(1)
    base = snapshot(model)
    with torch.no_grad():
        model.head.weight += 1
    write_delta(path, delta(model.state_dict(), base, source="base.pt", config="name: x\n"))
    return path


def test_the_file_is_plain_and_says_what_it_is(tmp_path) -> None:
    path = an_adapter(tmp_path / "a.pt")
    assert torch.load(path, weights_only=True)["format"] == FORMAT
    with pytest.raises(UserError, match="this is an adapter file") as caught:
        read_weights(path)
    assert caught.value.exit_code == 2
    assert "base.pt with fingerprint" in str(caught.value)
    assert "lightkit ckpt merge" in str(caught.value)
    assert list(read_weights(path, key="tensors").state) == ["head.weight"]
    facts = describe(path)
    assert dict(facts.lines)["kind"].startswith("adapter")
    assert facts.tensors == [("head.weight", "3×5", "float32")]
    assert facts.config == "name: x\n"


def test_no_flipped_bit_goes_unnoticed(tmp_path) -> None:
    path = an_adapter(tmp_path / "a.pt")
    whole, right, codes = path.read_bytes(), read_delta(path), set()
    for place in range(0, len(whole), 29):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            change = read_delta(path)
        except UserError as error:
            codes.add(error.exit_code)
            continue
        assert replace(change, tensors={}) == replace(right, tensors={})
        assert torch.equal(change.tensors["head.weight"], right.tensors["head.weight"])
    assert codes == {5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not an adapter file"),
        ({"version": 99}, "format version 99; this lightkit reads up to 1"),
        ({"tensors": [1]}, r"not complete \(tensors\)"),
        ({"base": {"fingerprint": 1, "source": ""}}, "not complete"),
        ({"tied": {"a": "nothing"}}, "not complete"),
    ],
)
def test_an_odd_file_is_refused(tmp_path, change, message) -> None:
    content = torch.load(an_adapter(tmp_path / "a.pt"), weights_only=True) | change
    torch.save(content, tmp_path / "b.pt")
    with pytest.raises(UserError, match=message) as caught:
        read_delta(tmp_path / "b.pt")
    assert caught.value.exit_code == 5
    torch.save(net().state_dict(), tmp_path / "c.pt")
    with pytest.raises(UserError, match="not an adapter file"):
        read_delta(tmp_path / "c.pt")
