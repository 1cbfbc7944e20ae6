"""The file of a whole ensemble: it gives back what was written, and says what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.exit_codes import UNREADABLE
from lightkit.ensemble.combining import soft
from lightkit.ensemble.file import StoredEnsemble, StoredMember, assembled, nested, read_ensemble, write_ensemble
from lightkit.ensemble.module import Ensemble


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


def tensors_in(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return sorted(file.keys())


def write_facts(path: Path, **facts: str) -> None:
    save_file({"a": torch.zeros(1)}, path, metadata=facts)


def test_it_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    given = stored(state(1.0), state(2.0))
    write_ensemble(path, given)
    read = read_ensemble(path)
    assert (read.rule, read.task, list(read.classes), read.more) == ("soft", "multiclass", ["no", "yes"], given.more)
    for one, other in zip(read.members, given.members, strict=True):
        assert (one.name, one.config, one.weight) == (other.name, other.config, other.weight)
        assert list(one.state) == list(other.state)
        for name, tensor in one.state.items():
            assert tensor.dtype == other.state[name].dtype
            assert torch.equal(tensor, other.state[name])
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_tensors_in_common_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    write_ensemble(path, stored(state(1.0), state(2.0), state(2.0)))
    names = tensors_in(path)
    assert len([name for name in names if name.endswith("base.weight")]) == 1
    assert len([name for name in names if name.endswith("adapter.weight")]) == 2
    assert not [name for name in names if name.startswith("02-")]


def test_alike_bytes_of_other_shapes_and_types_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    given = {
        "flat": torch.zeros(4),
        "square": torch.zeros(2, 2),
        "whole": torch.zeros(4, dtype=torch.int32),
        "tied": torch.zeros(4),
    }
    write_ensemble(path, StoredEnsemble([StoredMember("m", "", 1.0, given)], "soft", "binary"))
    assert tensors_in(path) == ["m/flat", "m/square", "m/whole"]
    read = read_ensemble(path).members[0].state
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in read.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in given.items()
    }


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text", "folder"])
def test_a_damaged_file_is_told(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
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


@pytest.mark.parametrize(
    "facts", [{}, {"format": "lightkit.ensemble", "version": "2"}, {"format": "lightkit.predictions", "version": "1"}]
)
def test_a_file_of_another_kind_or_version_is_told(facts: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    write_facts(path, **facts, ensemble="{}")
    with pytest.raises(UserError, match="it holds no ensemble of this version") as caught:
        read_ensemble(path)
    assert caught.value.exit_code == UNREADABLE


@pytest.mark.parametrize(
    "facts",
    [
        "not json",
        "[]",
        json.dumps({"members": []}),
        json.dumps(
            {
                "rule": "soft",
                "task": "binary",
                "classes": [],
                "more": None,
                "members": [{"name": "m", "config": "", "weight": 1.0, "tensors": {"w": "not there"}}],
            }
        ),
    ],
)
def test_facts_that_do_not_go_with_the_tensors_are_told(facts: str, tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    write_facts(path, format="lightkit.ensemble", version="1", ensemble=facts)
    with pytest.raises(UserError, match="the file of the ensemble cannot be read"):
        read_ensemble(path)


def test_where_nothing_can_be_written_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file" / "ensemble.safetensors"
    path.parent.write_text("a file, no folder", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written") as caught:
        write_ensemble(path, stored(state(1.0)))
    assert caught.value.key == str(path)


@pytest.mark.parametrize("name", ["../../mine", "/tmp/mine", "..", "", "a/b"])
def test_names_of_members_lead_nowhere_else(name: str, tmp_path: Path) -> None:
    path = tmp_path / "ensemble.safetensors"
    write_ensemble(path, StoredEnsemble([StoredMember(name, "", 1.0, state())], "soft", "multiclass"))
    with pytest.raises(UserError, match="the name of a folder"):
        read_ensemble(path)


def networks(*names: str) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {name: nn.Linear(3, 2) for name in names}


def parts(weights: dict[str, float], rule: str = "soft", **more: object) -> StoredEnsemble:
    return StoredEnsemble(
        [StoredMember(name, "", weight, {}) for name, weight in weights.items()], rule, "multiclass", (), more
    )


@pytest.mark.parametrize("rule", ["soft", "hard", "sum"])
def test_an_ensemble_as_a_member_keeps_its_rule(rule: str) -> None:
    found, x = networks("0.a", "0.b", "1"), torch.randn(5, 3)
    members, groups, scaling = nested(parts({"a": 0.5, "b": 0.5}, rule), "0", 0.3)
    assert not scaling
    outer = parts({**{member.name: member.weight for member in members}, "1": 0.7}, groups=groups, scaling={})
    ensemble = assembled(outer, found)
    inner = Ensemble([found["0.a"], found["0.b"]], task="multiclass", rule=rule, weights=[0.5, 0.5])  # type: ignore[arg-type]
    single = {"0": inner(x).softmax(1), "1": found["1"](x).softmax(1)}
    shares = dict(zip(ensemble.names, ensemble.weights.tolist()))
    assert shares == pytest.approx({"1": 0.7, "0": 0.3})
    expected = soft(torch.stack([single["0"], single["1"]]), [0.3, 0.7])
    assert torch.allclose(ensemble(x).exp(), expected, atol=1e-6)


def test_ensembles_of_ensembles_are_put_together_from_the_inside() -> None:
    inner = nested(parts({"a": 1.0}, scaling={"a": {"shift": [1.0] * 3, "scale": [2.0] * 3}}), "x", 1.0)
    middle = StoredEnsemble(inner[0], "soft", "multiclass", (), {"groups": inner[1], "scaling": inner[2]})
    members, groups, scaling = nested(middle, "y", 1.0)
    assert [group["name"] for group in groups] == ["y.x", "y"]
    assert groups[-1]["members"] == ["y.x"]
    assert list(scaling) == ["y.x.a"]
    found, x = networks("y.x.a"), torch.randn(2, 3)
    outer = StoredEnsemble(members, "soft", "multiclass", (), {"groups": groups, "scaling": scaling})
    expected = found["y.x.a"]((x - 1) / 2).softmax(1)
    assert torch.allclose(assembled(outer, found)(x).exp(), expected, atol=1e-6)
