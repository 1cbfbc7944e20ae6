"""Ensembles within ensembles, and members that scale their inputs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightkit.ensemble.combining import soft
from lightkit.ensemble.file import Scaled, StoredEnsemble, StoredMember, assembled, nested
from lightkit.ensemble.module import Ensemble


def networks(*names: str) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {name: nn.Linear(3, 2) for name in names}


def stored(weights: dict[str, float], rule: str = "soft", **more: object) -> StoredEnsemble:
    return StoredEnsemble(
        [StoredMember(name, "", weight, {}) for name, weight in weights.items()], rule, "multiclass", (), more
    )


def test_a_plain_ensemble_is_as_before() -> None:
    found = networks("a", "b")
    ensemble = assembled(stored({"a": 0.25, "b": 0.75}), found)
    expected = Ensemble(list(found.values()), task="multiclass", weights=[0.25, 0.75])
    x = torch.randn(4, 3)
    assert ensemble.names == ("a", "b")
    assert torch.equal(ensemble(x), expected(x))


@pytest.mark.parametrize("rule", ["soft", "hard", "sum"])
def test_an_ensemble_as_a_member_keeps_its_rule(rule: str) -> None:
    found, x = networks("0.a", "0.b", "1"), torch.randn(5, 3)
    members, groups, scaling = nested(stored({"a": 0.5, "b": 0.5}, rule), "0", 0.3)
    assert not scaling
    outer = stored({**{member.name: member.weight for member in members}, "1": 0.7}, groups=groups, scaling={})
    ensemble = assembled(outer, found)
    inner = Ensemble([found["0.a"], found["0.b"]], task="multiclass", rule=rule, weights=[0.5, 0.5])  # type: ignore[arg-type]
    parts = {"0": inner(x).softmax(1), "1": found["1"](x).softmax(1)}
    shares = dict(zip(ensemble.names, ensemble.weights.tolist()))
    assert shares == pytest.approx({"1": 0.7, "0": 0.3})
    expected = soft(torch.stack([parts["0"], parts["1"]]), [0.3, 0.7])
    assert torch.allclose(ensemble(x).exp(), expected, atol=1e-6)


def test_ensembles_of_ensembles_are_put_together_from_the_inside() -> None:
    inner = nested(stored({"a": 1.0}, scaling={"a": {"shift": [1.0] * 3, "scale": [2.0] * 3}}), "x", 1.0)
    middle = StoredEnsemble(inner[0], "soft", "multiclass", (), {"groups": inner[1], "scaling": inner[2]})
    members, groups, scaling = nested(middle, "y", 1.0)
    assert [group["name"] for group in groups] == ["y.x", "y"]
    assert groups[-1]["members"] == ["y.x"]
    assert list(scaling) == ["y.x.a"]
    found, x = networks("y.x.a"), torch.randn(2, 3)
    outer = StoredEnsemble(members, "soft", "multiclass", (), {"groups": groups, "scaling": scaling})
    expected = found["y.x.a"]((x - 1) / 2).softmax(1)
    assert torch.allclose(assembled(outer, found)(x).exp(), expected, atol=1e-6)


def test_a_network_scales_its_inputs() -> None:
    x = torch.tensor([[3.0, 5.0]])
    assert Scaled(nn.Identity(), torch.tensor([1.0, 1.0]), torch.tensor([2.0, 4.0]))(x).tolist() == [[1.0, 1.0]]
