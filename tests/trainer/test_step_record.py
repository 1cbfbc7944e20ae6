from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from lightkit.device.stepping import take_step
from lightkit.trainer.audit.gradients import StepRecord
from tests.trainer.test_watch import Own, Twice


@pytest.mark.parametrize(("kind", "each"), [(SGD, 1), (Adam, 1), (Own, 1), (Twice, 2)])
def test_steps_are_counted_whoever_takes_them(kind: Any, each: int) -> None:
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = kind([weight], lr=1.0)
    record = StepRecord(optimizer)
    assert record.steps == 0
    optimizer.step()
    take_step(optimizer)
    kind([weight], lr=1.0).step()
    assert record.steps == 2 * each


def test_gradients_are_kept_of_the_step_that_is_listened_to() -> None:
    used, spare, empty = (nn.Parameter(torch.ones(size)) for size in (2, 2, 0))
    optimizer = SGD([used, spare, empty], lr=1.0)
    record = StepRecord(optimizer)
    used.grad, empty.grad = torch.tensor([1.0, -3.0]), torch.ones(0)
    optimizer.step()
    assert record.gradients is None
    record.listen()
    optimizer.step()
    used.grad = torch.ones(2)
    optimizer.step()
    assert record.gradients is not None
    assert {number: float(value) for number, value in record.gradients.items()} == {id(used): 3.0}
    record.listen()
    assert record.gradients is None
