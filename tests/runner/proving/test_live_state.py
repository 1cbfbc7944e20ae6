"""What the objects of a run have in them besides what is saved."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.runner.proving.live_state import live_state


class Counter:
    def __init__(self) -> None:
        self.count, self.cache = 0, dict[str, int]()
        self.inner: Any = None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("kept", torch.zeros(1))
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.calls = 3


def test_what_a_model_saves_is_left_out() -> None:
    assert set(live_state({"model": Net()})) == {"model.calls", "model.passing"}


def test_values_are_found_by_their_paths() -> None:
    thing = Counter()
    thing.inner = [Counter(), random.Random(1)]
    found = live_state({"loss": thing})
    assert {"loss.count", "loss.cache", "loss.inner[0].count", "loss.inner[1]"} <= set(found)
    assert found["loss.count"].text == "0"
    assert found["loss.inner[1]"].text == "a generator"
    assert (found["loss.count"].refills, found["loss.cache"].refills) == (False, True)


def test_a_change_changes_the_digest() -> None:
    thing = Counter()
    before = live_state({"loss": thing})
    thing.count += 1
    after = live_state({"loss": thing})
    assert [path for path in before if before[path].digest != after[path].digest] == ["loss.count"]


class Own(torch.optim.SGD):
    """An optimizer of one's own that counts outside of its state."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.AdamW, Own])
def test_what_a_fused_optimizer_notes_of_itself_is_no_state(kind: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = kind(model.parameters(), lr=0.1, fused=True)
    before = live_state({"optim": optimizer})
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    after = live_state({"optim": optimizer})
    assert set(before) == set()
    assert set(after) == ({"optim.count"} if kind is Own else set())


def test_objects_that_hold_each_other_are_visited_once() -> None:
    one, other = Counter(), Counter()
    one.inner, other.inner = other, one
    assert "loss.inner.count" in live_state({"loss": one})


def test_what_is_a_part_of_its_own_is_told_there() -> None:
    one, other = Counter(), Counter()
    one.inner = other
    found = live_state({"loss": one, "trainer.task": other})
    assert "trainer.task.count" in found
    assert "loss.inner.count" not in found
