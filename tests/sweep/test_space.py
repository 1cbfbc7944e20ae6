"""Values to choose from, in Hydra's grammar."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserError
from lightkit.config.loader import make_loader
from lightkit.sweep.space import Space, as_overrides, read_space

optuna = pytest.importorskip("optuna")


def space(*texts: str) -> Space:
    loader = make_loader()
    return read_space([loader.parse(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k=tag(log,interval(1e-4,1e-1))", optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)),
        ("k=interval(0,1)", optuna.distributions.FloatDistribution(0, 1)),
        ("k=int(interval(1,64))", optuna.distributions.IntDistribution(1, 64)),
        ("k=tag(int,log,interval(1,64))", optuna.distributions.IntDistribution(1, 64, log=True)),
        ("k=range(1,8,2)", optuna.distributions.IntDistribution(1, 7, step=2)),
        ("k=range(3)", optuna.distributions.IntDistribution(0, 2)),
        ("k=range(9,0,-3)", optuna.distributions.IntDistribution(3, 9, step=3)),
        ("k=range(0,0.5,0.25)", optuna.distributions.FloatDistribution(0, 0.25, step=0.25)),
        ("k=choice([8],[16,8])", optuna.distributions.CategoricalDistribution(["[8]", "[16,8]"])),
        ("model=mlp,cnn", optuna.distributions.CategoricalDistribution(["mlp", "cnn"])),
        ("+k=1,2,1", optuna.distributions.CategoricalDistribution(["1", "2"])),
    ],
)
def test_each_kind_of_sweep_is_a_distribution(text: str, expected: object) -> None:
    read = space("seed=3", text)
    assert read.fixed == ("seed=3",)
    assert read.varied == {text.partition("=")[0]: expected}


@pytest.mark.parametrize("text", ["optim.lr=tag(log,interval(0,1))", "optim.lr=range(3,3)", "optim.lr=interval(2,1)"])
def test_a_range_without_values_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(UserError, match="no values can be drawn") as caught:
        space(text)
    assert caught.value.key == "optim.lr"
    assert caught.value.fix


def test_a_grid_lists_every_value_and_a_continuum_has_none() -> None:
    assert space("a=1,2", "b=range(2,9,3)", "c=range(0,1,0.5)").grid == {
        "a": ["1", "2"],
        "b": [2, 5, 8],
        "c": [0.0, 0.5],
    }
    assert space("a=1,2", "b=interval(0,1)").grid is None
    assert space("a=1").grid == {}


def test_values_are_written_as_they_are_typed() -> None:
    assert as_overrides({"optim.lr": 1e-05, "+model.hidden": "[8]", "seed": 3}) == [
        "optim.lr=1e-05",
        "+model.hidden=[8]",
        "seed=3",
    ]
