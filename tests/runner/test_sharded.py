"""Models shared out over two processes, plain ones and fine-tunings, against the same run in one."""

from __future__ import annotations

import importlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import AUDIT_FAILED
from lightkit.common.modules import part
from lightkit.runner import Runner
from lightkit.trainer import Callback
from tests.runner.processes import BASE, configured, far, go_on, together, train
from tests.runner.test_process_group import Spoilt, content, ended, ending, kill, same_bits, terminate

FSDP = ("device.parallel=fsdp", "device.fsdp.min_parameters=1")
SGD = ("optim=sgd", "optim.lr=0.05")
TRANSFORMER = (*SGD, "model=transformer", "model.dim=8", "model.depth=2", "model.heads=2", "trainer.epochs=1")
GRADUAL = (
    *SGD, "finetune=gradual", "finetune.gradual.share=null", "finetune.gradual.every_steps=3", "model.hidden=[8,7]",
)  # fmt: skip
CHANGES = {
    "accumulation": ("data.batch_size=9", "trainer.accumulate=2", "trainer.clip_norm=0.5"),
    "average": ("trainer.ema.decay=0.9", "model.hidden=[8,7]", "trainer.clip_value=0.01", "device.fsdp.reshard=false"),
    "one piece": ("data.batch_size=41", "device.fsdp.min_parameters=1000"),
    "gradual": (*GRADUAL, "trainer.accumulate=2", "device.fsdp.reshard=false", "trainer.validate_unit=step",
                "trainer.validate_every=2", "trainer.epochs=3", "trainer.test=none"),
    "frozen norms": (*SGD, "finetune.freeze=['@body']", "model.norm=batch", "trainer.epochs=1"),
    "wrapped": (*TRANSFORMER, "finetune=lora", "finetune.lora.impl=wrap",
                "device.activation_checkpointing=['blocks.*']"),
    "parametrized": (*TRANSFORMER, "finetune=lora", "finetune.lora.impl=parametrize"),
    "adapter": (*TRANSFORMER, "finetune=adapter", "device.fsdp.min_parameters=1000000"),
    "prefix": (*TRANSFORMER, "finetune=prefix", "trainer.ema.decay=0.9"),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def for_the_children() -> None:
    """Import what each of the processes would import anew, for longer than it trains."""
    for name in ("torch.distributed.fsdp", "torch._dynamo"):
        importlib.import_module(name)


def sharded(*overrides: str) -> Any:
    base = [text for text in BASE if not text.startswith("model.") or "model=transformer" not in overrides]
    return configured(*FSDP, *overrides, base=base)


def audit(place: Path) -> list[dict[str, Any]]:
    file = place / "finetune.json"
    return json.loads(file.read_text())["audit"] if file.exists() else []


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHANGES)
def test_two_processes_learn_what_one_does(name: str, tmp_path: Path) -> None:
    cfg = sharded(*CHANGES[name])
    Runner(cfg, tmp_path / "one").run()
    train(tmp_path / "two", cfg, 2)
    assert far(tmp_path / "one", tmp_path / "two", relative=2e-3) == []
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert one["model"].keys() == two["model"].keys()
    frozen = {key for row in one["optimizer"]["groups"] for key in row["params"]} ^ set(one["model"])
    for key, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][key], tensor, rtol=1e-2, atol=1e-4)
        assert torch.equal(two["model"][key], tensor) or key not in frozen or "running" in key
    shapes = [
        {key: {what: value.shape for what, value in state.items()} for key, state in run["optimizer"]["state"].items()}
        for run in (one, two)
    ]
    assert shapes[0] == shapes[1]
    assert audit(tmp_path / "one") == audit(tmp_path / "two")
    assert bool(audit(tmp_path / "one")) == any("finetune" in text for text in CHANGES[name])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("end", "changes"),
    [
        (terminate, ("model.dropout=0.5", "trainer.ema.decay=0.9", "model.norm=batch", "data.drop_last=true")),
        (terminate, (*GRADUAL, "optim.momentum=0.9", "device.precision=fp16", "trainer.test=none")),
        (terminate, ("trainer.swa.from_epoch=1", "trainer.epoch_steps=3", "model.norm=batch", "data.drop_last=true")),
        (kill, ("checkpoint.every_steps=2",)),
    ],
    ids=["plain", "in mid-phase", "mean of epochs", "killed"],
)
def test_the_same_bits_after_a_resume(end: Any, changes: tuple[str, ...], tmp_path: Path) -> None:
    cfg = sharded(*changes)
    whole = train(tmp_path / "whole", cfg, 2)
    codes = ended(tmp_path / "cut", cfg, 5, end)
    assert codes == ([143, 143] if end is terminate else [7, -signal.SIGKILL])
    same_bits(whole, go_on(tmp_path / "cut", 2))


@pytest.mark.thorough
def test_one_process_and_replicas_go_on(tmp_path: Path) -> None:
    place = train(tmp_path / "changing", sharded("data.batch_size=10", "trainer.epochs=1"), 2)
    Runner(sharded("data.batch_size=10", "trainer.epochs=4"), tmp_path / "one").run()
    go_on(place, 1, "trainer.epochs=2")
    go_on(place, 2, "trainer.epochs=3", "device.parallel=ddp")
    go_on(place, 2, "trainer.epochs=4", "device.parallel=fsdp")
    assert content(tmp_path / "one")["state"]["step"] == content(place)["state"]["step"]


@pytest.mark.thorough
def test_each_process_holds_its_part(tmp_path: Path) -> None:
    class Looking(Callback):
        def on_step(self, trainer: Any) -> None:
            for name, parameter in trainer.model.named_parameters():
                assert parameter.to_local().numel() < parameter.numel(), name
                assert trainer.optimizer.state[parameter]["exp_avg"].to_local().numel() < parameter.numel()

    cfg = sharded("trainer.epochs=1")
    assert together(lambda: ending(cfg, tmp_path / "run", Looking()).run(), 2, tmp_path / "log") == [0, 0]
    assert "FSDP2 over 2" in (tmp_path / "run" / "run.log").read_text()


@pytest.mark.thorough
def test_a_bad_loss_in_one_process(tmp_path: Path) -> None:
    cfg = sharded("trainer.nonfinite.action=rollback", "trainer.nonfinite.every=2")
    codes = together(lambda: Runner(cfg, tmp_path / "run", observer=Spoilt()).run(), 2, tmp_path / "log")
    assert codes == [0, 0], (tmp_path / "log-0").read_text()
    assert content(tmp_path / "run")["state"]["rollbacks"] == 1


@pytest.mark.thorough
def test_pretrained_weights_a_rule_and_a_whole_model_exported(tmp_path: Path) -> None:
    Runner(configured("trainer.epochs=1"), tmp_path / "base").run()
    rule = "finetune.rules=[{match: ['@head'], lr_scale: 2.0}]"
    base = f"finetune.weights.path={tmp_path / 'base'}"
    cfg = sharded(base, rule, "trainer.epochs=1", "checkpoint.export=model")
    Runner(cfg, tmp_path / "one").run()
    train(tmp_path / "two", cfg, 2)
    assert far(tmp_path / "one", tmp_path / "two") == []
    assert (tmp_path / "two" / "model.pt").stat().st_size > 1000


class Moving(Callback):
    """Changes what rests, in one process only."""

    def on_step(self, trainer: Any) -> None:
        if trainer.engine.ranks.rank == 1 and trainer.state.step == 1:
            resting = next(p for p in trainer.model.parameters() if not p.requires_grad and part(p).numel())
            with torch.no_grad():
                part(resting).add_(1.0)


@pytest.mark.thorough
def test_what_moves_in_one_process_all_of_them_know(tmp_path: Path) -> None:
    audited = ("finetune.freeze=['@body']", "finetune.audit=fail", "trainer.epochs=1", "trainer.test=none")
    cfg = sharded(*SGD, *audited)
    codes = together(lambda: ending(cfg, tmp_path / "run", Moving()).run(), 2, tmp_path / "log")
    assert codes == [AUDIT_FAILED] * 2, (tmp_path / "log-0").read_text()
    log = (tmp_path / "run" / "run.log").read_text()
    assert log.count("should rest but moved: layers.linear0.weight") == 1


@pytest.mark.thorough
def test_what_was_put_in_is_written_for_one_process(tmp_path: Path) -> None:
    cfg = sharded(*TRANSFORMER, "finetune=lora", "finetune.lora.impl=wrap", "checkpoint.export=adapter")
    place = train(tmp_path / "run", cfg, 2)
    (file,) = [path for path in place.glob("adapter*") if path.is_file()]
    assert file.stat().st_size > 1000
    names = list(content(place)["model"])
    assert "blocks.0.attn.qkv.lora.lora_A" in names
    assert not [name for name in names if name.startswith(("module.", "_"))]
