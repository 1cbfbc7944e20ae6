"""Fine-tunings whose model is shared out over two processes, against the same run in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.exit_codes import AUDIT_FAILED
from lightkit.common.modules import part
from lightkit.runner import Runner
from lightkit.trainer import Callback
from tests.runner.processes import BASE, configured, far, go_on, together, train
from tests.runner.test_process_group import content, ended, ending, same_bits, terminate

FSDP = ("device.parallel=fsdp", "device.fsdp.min_parameters=1", "optim=sgd", "optim.lr=0.05")
TRANSFORMER = ("model=transformer", "model.dim=8", "model.depth=2", "model.heads=2", "trainer.epochs=1")
GRADUAL = ("finetune=gradual", "finetune.gradual.share=null", "finetune.gradual.every_steps=3", "model.hidden=[8,7]")


def tuned(*overrides: str) -> Any:
    base = [text for text in BASE if not text.startswith("model.") or TRANSFORMER[0] not in overrides]
    return configured(*FSDP, *overrides, base=base)


def audit(place: Path) -> list[dict[str, Any]]:
    return json.loads((place / "finetune.json").read_text())["audit"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        (*GRADUAL, "trainer.accumulate=2", "device.fsdp.reshard=false", "trainer.validate_unit=step",
         "trainer.validate_every=2", "trainer.epochs=3", "trainer.test=none"),
        ("finetune.freeze=['@body']", "model.norm=batch", "trainer.epochs=1"),
        (*TRANSFORMER, "finetune=lora", "finetune.lora.impl=wrap", "device.activation_checkpointing=['blocks.*']"),
        (*TRANSFORMER, "finetune=lora", "finetune.lora.impl=parametrize"),
        (*TRANSFORMER, "finetune=adapter", "device.fsdp.min_parameters=1000000"),
        (*TRANSFORMER, "finetune=prefix", "trainer.ema.decay=0.9"),
    ],
    ids=["gradual", "frozen norms", "wrapped", "parametrized", "adapter", "prefix"],
)  # fmt: skip
def test_two_processes_tune_as_one_does(changes: tuple[str, ...], tmp_path: Path) -> None:
    cfg = tuned(*changes)
    Runner(cfg, tmp_path / "one").run()
    train(tmp_path / "two", cfg, 2)
    assert far(tmp_path / "one", tmp_path / "two", relative=2e-3) == []
    one, two = content(tmp_path / "one"), content(tmp_path / "two")
    assert one["model"].keys() == two["model"].keys()
    assert one["optimizer"]["state"].keys() == two["optimizer"]["state"].keys()
    frozen = {name for row in one["optimizer"]["groups"] for name in row["params"]} ^ set(one["model"])
    for name, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][name], tensor, rtol=1e-2, atol=1e-4)
        assert torch.equal(two["model"][name], tensor) or name not in frozen or "running" in name
    assert audit(tmp_path / "one") == audit(tmp_path / "two") != []


@pytest.mark.thorough
def test_a_fine_tuning_goes_on_in_other_numbers_of_processes(tmp_path: Path) -> None:
    thaw = "finetune.schedule=[{step: 2, unfreeze: ['*linear1*']}]"
    texts = ("finetune.freeze=['@body']", thaw, "model.hidden=[8,7]", "scheduler=constant", "data.batch_size=31")
    Runner(tuned(*texts, "device.precision=fp16", "trainer.epochs=3"), tmp_path / "one").run()
    place = train(tmp_path / "changing", tuned(*texts, "device.precision=fp16", "trainer.epochs=1"), 2)
    go_on(place, 1, "trainer.epochs=2")
    go_on(place, 2, "trainer.epochs=3")
    one, two = content(tmp_path / "one"), content(place)
    assert one["precision"] == two["precision"]
    assert one["state"]["step"] == two["state"]["step"] == 12
    for name, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][name], tensor, rtol=2e-2, atol=1e-3)


@pytest.mark.thorough
def test_the_same_bits_after_a_resume_in_mid_phase(tmp_path: Path) -> None:
    cfg = tuned(*GRADUAL, "trainer.ema.decay=0.9", "optim.momentum=0.9", "device.precision=fp16", "trainer.test=none")
    whole = train(tmp_path / "whole", cfg, 2)
    assert ended(tmp_path / "cut", cfg, 5, terminate) == [143, 143]
    same_bits(whole, go_on(tmp_path / "cut", 2))


class Moving(Callback):
    """Changes what rests, in one process only."""

    def on_step(self, trainer: Any) -> None:
        if trainer.engine.ranks.rank == 1 and trainer.state.step == 1:
            resting = next(p for p in trainer.model.parameters() if not p.requires_grad and part(p).numel())
            with torch.no_grad():
                part(resting).add_(1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["fail", "warn"])
def test_what_moves_in_one_process_all_of_them_know(action: str, tmp_path: Path) -> None:
    cfg = tuned("finetune.freeze=['@body']", f"finetune.audit={action}", "trainer.epochs=1", "trainer.test=none")
    codes = together(lambda: ending(cfg, tmp_path / "run", Moving()).run(), 2, tmp_path / "log")
    assert codes == [AUDIT_FAILED if action == "fail" else 0] * 2, (tmp_path / "log-0").read_text()
    told = (tmp_path / "run" / "run.log").read_text()
    assert "should rest but moved: layers.linear0.weight" in told
    assert told.count("should rest but moved: layers.linear0.weight") == 1


@pytest.mark.thorough
def test_what_was_put_in_is_written_for_one_process(tmp_path: Path) -> None:
    cfg = tuned(*TRANSFORMER, "finetune=lora", "finetune.lora.impl=wrap", "checkpoint.export=adapter")
    place = train(tmp_path / "run", cfg, 2)
    (file,) = [path for path in place.glob("adapter*") if path.is_file()]
    assert file.stat().st_size > 1000
    names = list(content(place)["model"])
    assert "blocks.0.attn.qkv.lora.lora_A" in names
    assert not [name for name in names if name.startswith(("module.", "_"))]
