"""Networks that count as one."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lightkit.assembly.ensemble import members_only
from lightkit.common.errors import UNREADABLE, UserError
from lightkit.device.casting import weights_as
from lightkit.ensemble.combining import soft
from lightkit.ensemble.file import StoredEnsemble, StoredMember, assembled, nested, read_ensemble, write_ensemble
from lightkit.ensemble.module import Ensemble, alike, alone, stack

X = torch.linspace(-2, 2, 7 * 4).view(7, 4)


class Branching(nn.Linear):
    """Computes by what it sees, which vmap refuses."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if out.sum() > 0 else 2 * out


class Named(nn.Module):
    """Gives several things by name, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"other": x, "logits": self.linear(x)}


class Scaled(nn.Module):
    """Has a setting beside its tensors."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(4, 1), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)[:, 0] * self.scale


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def ensemble(
    task: str = "multiclass", kind: type[nn.Linear] = nn.Linear, count: int = 12, **options: object
) -> Ensemble:
    torch.manual_seed(1)
    outputs = {"binary": 1}.get(task, 3)
    return Ensemble([kind(4, outputs) for _ in range(count)], task=task, **options).eval()  # type: ignore[arg-type]


def by_hand(model: Ensemble) -> Tensor:
    """The mean prediction as an output, without what the class does to compute it."""
    outputs = alone(list(model), X)
    if model.task == "regression":
        return outputs.mean(0)
    if model.task == "multiclass":
        return outputs.softmax(-1).mean(0).log()
    return outputs.sigmoid().mean(0).logit()


@pytest.mark.parametrize("kind", [nn.Linear, Branching])  # those that branch are computed one after the other
@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel", "regression"])
@pytest.mark.parametrize("count", [3, 12])  # twelve are computed at once
def test_output_is_that_of_a_model(task: str, count: int, kind: type[nn.Linear]) -> None:
    model = ensemble(task, kind, count)
    expected = by_hand(model)
    with torch.no_grad():
        first, second = model(X), model(X)
    for output in (first, second, model(X)):  # the last one with gradients
        assert torch.allclose(output, expected, atol=1e-6)


def test_new_weights_count() -> None:
    model, other = ensemble(), ensemble()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
        model(X)
        model.load_state_dict(other.state_dict())
        assert torch.allclose(model(X), by_hand(other), atol=1e-6)
        assert torch.allclose(model.double()(X.double()).float(), by_hand(other), atol=1e-5)


def test_state_and_copies_have_the_networks_only() -> None:
    model = ensemble()
    with torch.no_grad():
        expected = model(X)
        names = {f"estimators.{i}.{name}" for i in range(12) for name in ("weight", "bias")}
        assert set(model.state_dict()) == {"weights", *names}
        file = io.BytesIO()
        torch.save(model, file)
        assert file.tell() < 40_000
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            assert torch.allclose(other(X), expected, atol=1e-6)


def test_weights_of_members_keep_their_precision_and_their_shares() -> None:
    placed = weights_as(torch.bfloat16, ensemble(count=3, weights=[0.1, 0.2, 0.7]))
    assert placed[0].weight.dtype is torch.bfloat16  # type: ignore[union-attr]
    assert placed.weights.tolist() == pytest.approx([0.1, 0.2, 0.7], abs=1e-7)  # type: ignore[operator,union-attr]
    assert placed(X.bfloat16()).exp().sum(1).tolist() == pytest.approx([1] * 7, abs=1e-6)
    few = members_only(ensemble(count=3, weights=[0.2, 0.2, 0.6]), {"00", "02"}.__contains__)
    assert (few.names, few.weights.tolist()) == (("00", "02"), pytest.approx([0.25, 0.75]))


def test_a_sum_and_a_hard_vote() -> None:
    summed = ensemble(rule="sum", weights=[0.5] * 12)
    assert torch.allclose(summed(X), 0.5 * alone(list(summed), X).sum(0), atol=1e-5)
    voted = ensemble(rule="hard")
    shares = torch.stack([(alone(list(voted), X).argmax(-1) == c).double().mean(0) for c in range(3)], 1)
    assert torch.allclose(voted(X).exp().double(), shares, atol=1e-6)


def test_what_members_predict_can_be_observed() -> None:
    model, seen = ensemble(), list[Tensor]()
    with torch.no_grad(), model.observed(seen.append):
        model(X)
    model(X)
    assert [tuple(batch.shape) for batch in seen] == [(12, 7, 3)]
    assert torch.allclose(seen[0], alone(list(model), X).softmax(-1), atol=1e-6)


def networks(make: Callable[[], nn.Module], count: int = 10) -> list[nn.Module]:
    torch.manual_seed(0)
    made = [make().eval() for _ in range(count)]
    for buffer in (buffer for network in made for buffer in network.buffers() if buffer.is_floating_point()):
        buffer.data += torch.rand_like(buffer)
    return made


@pytest.mark.parametrize("make", [deep, Named, lambda: Scaled(2.0)])
def test_one_call_gives_what_each_gives_alone(make: Callable[[], nn.Module]) -> None:
    members = networks(make)
    stacked = stack(members)
    assert stacked is not None
    outputs, expected = stacked.outputs(X), alone(members, X)
    assert outputs.shape == expected.shape == (10, 7, expected.shape[2])
    assert torch.allclose(outputs, expected, atol=1e-6, rtol=0)


def test_few_large_or_unlike_ones_are_computed_alone() -> None:
    assert stack(networks(deep, 9)) is None
    assert stack(networks(lambda: nn.Linear(4, 1024))) is None
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    assert alike(deep(), deep())
    assert alike(Scaled(2.0), Scaled(2.0))
    for one, other in (
        (Scaled(2.0), Scaled(3.0)),
        (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.GELU())),
        (nn.Linear(4, 4), nn.Linear(4, 3)),
        (nn.Linear(4, 4), nn.Linear(4, 4).double()),
        (nn.Linear(4, 4), hooked),
    ):
        assert not alike(one, other)


def state(own: float = 0.0) -> dict[str, Tensor]:
    """A base that all have in common, and tensors of each member."""
    return {
        "base.weight": torch.arange(6.0).view(2, 3),
        "adapter.weight": torch.full((2, 2), own),
        "norm.num_batches_tracked": torch.tensor(3),
        "half": torch.full((3,), own, dtype=torch.bfloat16),
        "nothing": torch.zeros(0, 4),
        "turned": (torch.arange(6.0).view(2, 3) + own).T,
    }


def stored(*states: dict[str, Tensor]) -> StoredEnsemble:
    members = [
        StoredMember(f"0{index}-seed={index}", f"seed: {index}\nname: é\n", 0.25 * (index + 1), tensors)
        for index, tensors in enumerate(states)
    ]
    more = {"groups": [{"names": ["00-seed=0"], "weight": 0.5}], "scaling": {"mean": [0.1, 2.0]}}
    return StoredEnsemble(members, "soft", "multiclass", ("no", "yes"), more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ensemble.safetensors"


def tensors_in(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return sorted(file.keys())


def test_it_gives_back_what_was_written(path: Path) -> None:
    given = stored(state(1.0), state(2.0), state(2.0))
    write_ensemble(path, given)
    read = read_ensemble(path)
    assert (read.rule, read.task, list(read.classes), read.more) == ("soft", "multiclass", ["no", "yes"], given.more)
    for one, other in zip(read.members, given.members, strict=True):
        assert (one.name, one.config, one.weight) == (other.name, other.config, other.weight)
        assert list(one.state) == list(other.state)
        assert all(tensor.dtype == other.state[name].dtype for name, tensor in one.state.items())
        assert all(torch.equal(tensor, other.state[name]) for name, tensor in one.state.items())
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    names = tensors_in(path)
    assert len([name for name in names if name.endswith("base.weight")]) == 1, "what is in common is there once"
    assert len([name for name in names if name.endswith("adapter.weight")]) == 2
    assert not [name for name in names if name.startswith("02-")]


def test_alike_bytes_of_other_shapes_and_types_are_kept_apart(path: Path) -> None:
    given = {"flat": torch.zeros(4), "square": torch.zeros(2, 2), "whole": torch.zeros(4, dtype=torch.int32)}
    given["tied"] = torch.zeros(4)
    write_ensemble(path, StoredEnsemble([StoredMember("m", "", 1.0, given)], "soft", "binary"))
    assert tensors_in(path) == ["m/flat", "m/square", "m/whole"]
    read, kinds = read_ensemble(path).members[0].state, {}
    for name, tensor in given.items():
        kinds[name] = tensor.shape, tensor.dtype
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in read.items()} == kinds


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text", "folder"])
def test_a_damaged_file_is_named(damage: str, path: Path) -> None:
    write_ensemble(path, stored(state(1.0)))
    content = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "missing":
        path.write_bytes({"empty": b"", "cut": content[:-7], "text": b"not an ensemble"}[damage])
    with pytest.raises(UserError, match=r"the file of the ensemble cannot be read") as caught:
        read_ensemble(path)
    assert (caught.value.exit_code, caught.value.key) == (UNREADABLE, str(path))
    assert "lightkit resume" in str(caught.value)


OURS = {"format": "lightkit.ensemble", "version": "1"}
LOST = {
    "rule": "soft",
    "task": "binary",
    "classes": [],
    "more": None,
    "members": [{"name": "m", "config": "", "weight": 1.0, "tensors": {"w": "not there"}}],
}


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({}, "it holds no ensemble of this version"),
        ({**OURS, "version": "2"}, "it holds no ensemble of this version"),
        ({**OURS, "format": "lightkit.predictions"}, "it holds no ensemble of this version"),
        ({**OURS, "ensemble": "not json"}, "cannot be read"),
        ({**OURS, "ensemble": "[]"}, "cannot be read"),
        ({**OURS, "ensemble": json.dumps({"members": []})}, "cannot be read"),
        ({**OURS, "ensemble": json.dumps(LOST)}, "cannot be read"),
    ],
)
def test_another_content_is_named(facts: dict[str, str], message: str, path: Path) -> None:
    save_file({"a": torch.zeros(1)}, path, metadata={"ensemble": "{}", **facts})
    with pytest.raises(UserError, match=message) as caught:
        read_ensemble(path)
    assert caught.value.exit_code == UNREADABLE


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "file" / "ensemble.safetensors"
    path.parent.write_text("a file, no folder", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written") as caught:
        write_ensemble(path, stored(state(1.0)))
    assert caught.value.key == str(path)


@pytest.mark.parametrize("name", ["../../mine", "/tmp/mine", "..", "", "a/b"])
def test_names_of_members_lead_nowhere_else(name: str, path: Path) -> None:
    write_ensemble(path, StoredEnsemble([StoredMember(name, "", 1.0, state())], "soft", "multiclass"))
    with pytest.raises(UserError, match="the name of a folder"):
        read_ensemble(path)


def linear(*names: str) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {name: nn.Linear(3, 2) for name in names}


def parts(weights: dict[str, float], rule: str = "soft", **more: object) -> StoredEnsemble:
    members = [StoredMember(name, "", weight, {}) for name, weight in weights.items()]
    return StoredEnsemble(members, rule, "multiclass", (), more)


@pytest.mark.parametrize("rule", ["soft", "hard", "sum"])
def test_an_ensemble_as_a_member_keeps_its_rule(rule: str) -> None:
    made, x = linear("0.a", "0.b", "1"), torch.randn(5, 3)
    members, groups, scaling = nested(parts({"a": 0.5, "b": 0.5}, rule), "0", 0.3)
    assert not scaling
    outer = parts({**{member.name: member.weight for member in members}, "1": 0.7}, groups=groups, scaling={})
    ensemble = assembled(outer, made)
    inner = Ensemble([made["0.a"], made["0.b"]], task="multiclass", rule=rule, weights=[0.5, 0.5])  # type: ignore[arg-type]
    assert dict(zip(ensemble.names, ensemble.weights.tolist())) == pytest.approx({"1": 0.7, "0": 0.3})
    expected = soft(torch.stack([inner(x).softmax(1), made["1"](x).softmax(1)]), [0.3, 0.7])
    assert torch.allclose(ensemble(x).exp(), expected, atol=1e-6)


def test_ensembles_of_ensembles_are_put_together_from_the_inside() -> None:
    inner = nested(parts({"a": 1.0}, scaling={"a": {"shift": [1.0] * 3, "scale": [2.0] * 3}}), "x", 1.0)
    middle = StoredEnsemble(inner[0], "soft", "multiclass", (), {"groups": inner[1], "scaling": inner[2]})
    members, groups, scaling = nested(middle, "y", 1.0)
    assert [group["name"] for group in groups] == ["y.x", "y"]
    assert groups[-1]["members"] == ["y.x"]
    assert list(scaling) == ["y.x.a"]
    made, x = linear("y.x.a"), torch.randn(2, 3)
    outer = StoredEnsemble(members, "soft", "multiclass", (), {"groups": groups, "scaling": scaling})
    expected = made["y.x.a"]((x - 1) / 2).softmax(1)
    assert torch.allclose(assembled(outer, made)(x).exp(), expected, atol=1e-6)
