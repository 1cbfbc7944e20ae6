"""Runs whose model is shared out over two processes, against the same run in one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.runner import Runner
from lightkit.trainer import Callback
from tests.runner.processes import configured, far, go_on, together, train
from tests.runner.test_process_group import Spoilt, content, ended, ending, kill, same_bits, terminate

FSDP = ("device.parallel=fsdp", "device.fsdp.min_parameters=1")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("data.batch_size=9", "trainer.accumulate=2", "trainer.clip_norm=0.5"),
        ("trainer.ema.decay=0.9", "model.hidden=[8,7]", "trainer.clip_value=0.01", "device.fsdp.reshard=false"),
        ("data.batch_size=41", "device.fsdp.min_parameters=1000"),
    ],
    ids=["plain", "accumulation", "average", "one piece"],
)
def test_two_processes_learn_what_one_does(changes: tuple[str, ...], tmp_path: Path) -> None:
    cfg = configured(*FSDP, *changes)
    Runner(cfg, tmp_path / "one").run()
    train(tmp_path / "two", cfg, 2)
    assert far(tmp_path / "one", tmp_path / "two") == []
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert one["model"].keys() == two["model"].keys()
    for name, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][name], tensor, rtol=1e-3, atol=1e-4)
    assert one["optimizer"]["state"].keys() == two["optimizer"]["state"].keys()
    for name, state in one["optimizer"]["state"].items():
        assert {key: tuple(value.shape) for key, value in state.items()} == {
            key: tuple(value.shape) for key, value in two["optimizer"]["state"][name].items()
        }


@pytest.mark.thorough
def test_the_same_bits_after_a_resume(tmp_path: Path) -> None:
    cfg = configured(*FSDP, "model.dropout=0.5", "trainer.ema.decay=0.9", "model.norm=batch", "data.drop_last=true")
    whole = train(tmp_path / "whole", cfg, 2)
    assert ended(tmp_path / "cut", cfg, 3, terminate) == [143, 143]
    same_bits(whole, go_on(tmp_path / "cut", 2))


@pytest.mark.thorough
def test_one_process_and_replicas_go_on(tmp_path: Path) -> None:
    cfg = configured(*FSDP, "data.batch_size=10", "trainer.epochs=1")
    Runner(configured(*FSDP, "data.batch_size=10", "trainer.epochs=4"), tmp_path / "one").run()
    place = train(tmp_path / "changing", cfg, 2)
    go_on(place, 1, "trainer.epochs=2")
    go_on(place, 2, "trainer.epochs=3", "device.parallel=ddp")
    go_on(place, 2, "trainer.epochs=4", "device.parallel=fsdp")
    one, two = content(tmp_path / "one"), content(place)
    assert one["state"]["step"] == two["state"]["step"]


@pytest.mark.thorough
def test_a_killed_process_ends_the_run(tmp_path: Path) -> None:
    cfg = configured(*FSDP, "checkpoint.every_steps=2")
    whole = train(tmp_path / "whole", cfg, 2)
    assert ended(tmp_path / "cut", cfg, 5, kill) == [7, -signal.SIGKILL]
    same_bits(whole, go_on(tmp_path / "cut", 2))


def test_each_process_holds_its_part(tmp_path: Path) -> None:
    class Looking(Callback):
        def on_step(self, trainer: Any) -> None:
            for name, parameter in trainer.model.named_parameters():
                assert parameter.to_local().numel() < parameter.numel(), name
                assert trainer.optimizer.state[parameter]["exp_avg"].to_local().numel() < parameter.numel()

    cfg = configured(*FSDP, "trainer.epochs=1")
    assert together(lambda: ending(cfg, tmp_path / "run", Looking()).run(), 2, tmp_path / "log") == [0, 0]
    assert "FSDP2 over 2" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_bad_loss_in_one_process(action: str, tmp_path: Path) -> None:
    cfg = configured(*FSDP, f"trainer.nonfinite.action={action}", "trainer.nonfinite.every=2")
    codes = together(lambda: Runner(cfg, tmp_path / "run", observer=Spoilt()).run(), 2, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log-0").read_text()
    assert content(tmp_path / "run")["state"]["skipped" if action == "skip" else "rollbacks"] == 1


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["weights", "model"])
def test_a_whole_model_is_exported(kind: str, tmp_path: Path) -> None:
    place = train(tmp_path / "run", configured(*FSDP, f"checkpoint.export={kind}"), 2)
    assert next(place.glob(f"{kind}*.pt")).stat().st_size > 1000


@pytest.mark.thorough
def test_pretrained_weights_and_a_rule(tmp_path: Path) -> None:
    Runner(configured("trainer.epochs=1"), tmp_path / "base").run()
    rule = "finetune.rules=[{match: ['@head'], lr_scale: 2.0}]"
    cfg = configured(*FSDP, f"finetune.weights.path={tmp_path / 'base'}", rule, "trainer.epochs=1")
    Runner(cfg, tmp_path / "one").run()
    train(tmp_path / "two", cfg, 2)
    assert far(tmp_path / "one", tmp_path / "two") == []
