"""What trains a network: optimizer and schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.assembly.test_learner import built, one_step, options


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("optim"))
def test_every_optimizer_moves_every_parameter(name: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", f"optim={name}", "model.hidden=[8]")
    before = [parameter.detach().clone() for parameter in parts.model.parameters()]
    one_step(parts)
    assert not any(torch.equal(a, b) for a, b in zip(before, parts.model.parameters(), strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize("name", options("scheduler"))
def test_every_scheduler_steps(name: str, tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", f"scheduler={name}", "model.hidden=[8]")
    for _ in range(parts.timetable.total_steps):
        parts.optimizer.step()
        parts.scheduler.step()
    parts.scheduler.epoch_end(1.0)
    assert all(group["lr"] >= 0 for group in parts.optimizer.param_groups)


def test_groups_follow_the_rules(tmp_path: Path) -> None:
    parts = built(tmp_path, "data=wine", "optim.rules=[{match: 'head*', name: head, lr_scale: 10}]", "optim.lr=0.01")
    rates = {group["name"]: group["initial_lr"] for group in parts.optimizer.param_groups}
    assert rates["head"] == pytest.approx(0.1) if "head" in rates else max(rates.values()) == pytest.approx(0.1)
