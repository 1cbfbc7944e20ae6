from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lightkit.checkpoint.export import Member, average, write_state_dict
from lightkit.common.errors import UserError
from tests.checkpoint.parts import net


def member(seed: int, **options) -> Member:
    return Member(f"net{seed}", net(seed, **options).state_dict())


def of(*tensors: torch.Tensor) -> list[Member]:
    return [Member(f"m{index}", {"x": tensor}) for index, tensor in enumerate(tensors)]


def test_the_mean_of_every_tensor() -> None:
    states = [net(seed).state_dict() for seed in (1, 2, 3)]
    soup = average([Member(str(index), state) for index, state in enumerate(states)])
    for name in ("head.weight", "layers.a.bias", "layers.norm.running_mean"):
        wanted = sum(state[name].double() for state in states) / 3
        assert torch.equal(soup.state[name], wanted.float())
    assert soup.shares == (("0", 1 / 3), ("1", 1 / 3), ("2", 1 / 3))
    assert soup.statistics == ("layers.norm.running_mean",)  # the variances are all 1 still
    assert soup.state["layers.norm.num_batches_tracked"] == 0


def test_weights_are_shares() -> None:
    soup = average(of(torch.zeros(2), torch.ones(2)), [1, 3])
    assert soup.state["x"].tolist() == [0.75, 0.75]
    assert [share for _, share in soup.shares] == [0.25, 0.75]
    only = average([member(1), member(2)], [0, 1])
    assert torch.equal(only.state["head.weight"], net(2).head.weight)


def test_equal_models_come_out_to_the_bit() -> None:
    state = net(1).state_dict() | {"mask": torch.full((2, 2), -math.inf).triu(1), "odd": torch.tensor(math.nan)}
    soup = average([Member(str(index), state) for index in range(3)], [0.2, 0.3, 0.5])
    assert all(torch.equal(soup.state[name], state[name]) for name in state if name != "odd")
    assert soup.state["odd"].isnan()
    assert soup.statistics == ()


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (torch.ones(2, dtype=torch.bfloat16), torch.full((2,), 2.0, dtype=torch.bfloat16), torch.bfloat16),
        (torch.ones(2, dtype=torch.float16), torch.ones(2) * 2, torch.float32),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64) * 2, torch.complex64),
    ],
)
def test_every_precision_is_averaged_in_double(one, other, result) -> None:
    mean = average(of(one, other)).state["x"]
    assert mean.dtype == result
    assert (mean == 1.5).all()


def test_small_differences_survive_and_the_largest_counter_is_taken() -> None:
    values = [1.0, 1.0 + 2**-23, 1.0 + 2**-22]
    assert average(of(*(torch.tensor([value]) for value in values))).state["x"].item() == 1.0 + 2**-23
    assert average(of(torch.ones(1), torch.tensor([math.inf])), [1, 0]).state["x"] == 1
    counts = [Member(str(count), {"norm.num_batches_tracked": torch.tensor(count)}) for count in (3, 9, 4)]
    largest = average(counts).state["norm.num_batches_tracked"]
    assert (largest, largest.dtype) == (9, torch.int64)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([], "there is nothing to average"),
        ([member(1), member(2, classes=5)], r"head.weight is 3×5 fractions here and 5×5 fractions in net2"),
        ([member(1), *of(torch.ones(1))], r"x is in m0 only"),
        (of(torch.ones(1), torch.ones(1, dtype=torch.int64)), r"x is 1 fractions here and 1 int64 in m1"),
        (of(torch.tensor([1, 2]), torch.tensor([1, 3])), r"x holds int64 values, which cannot be averaged"),
        (of(torch.ones(2), torch.tensor([1.0, math.nan])), r"the mean of x is not finite"),
    ],
)
def test_what_does_not_go_together_is_named(members, message) -> None:
    with pytest.raises(UserError, match=message):
        average(members)


@pytest.mark.parametrize("weights", [[1], [0, 0], [-1, 2], [math.nan, 1], [math.inf, 1]])
def test_weights_that_are_none(weights) -> None:
    with pytest.raises(UserError, match="the models cannot be weighted so") as caught:
        average([member(1), member(2)], weights)
    assert "2 numbers, one a model" in str(caught.value)


def test_tied_tensors_stay_tied(tmp_path) -> None:
    class Tied(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.a, self.b = nn.Linear(50, 50), nn.Linear(50, 50)
            self.b.weight = self.a.weight

    soup = average([Member(str(seed), Tied(seed).state_dict()) for seed in (1, 2)])
    assert soup.state["a.weight"] is soup.state["b.weight"]
    write_state_dict(soup.state, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 1.5 * 50 * 50 * 4
    assert soup.state["a.bias"] is not soup.state["b.bias"]
