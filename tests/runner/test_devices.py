"""What a run says and leaves behind about its device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.config import compose
from lightkit.runner import Runner

SMALL = ["data=wine", "model.hidden=[8]", "trainer.epochs=2", "device=cpu", "device.threads=1", "metrics.figures=[]",
         "logger.console.style=quiet", "logger.every_steps=1"]  # fmt: skip


def ran(folder: Path, *overrides: str) -> dict[str, Any]:
    return Runner(compose([*SMALL, *overrides]).cfg, folder).run()


def test_what_is_switched_on_is_in_the_record(tmp_path: Path) -> None:
    ran(tmp_path, "device.precision=tf32", "device.matmul=high", "device.cuda_graphs=true")
    facts = json.loads((tmp_path / "environment.json").read_text())
    assert facts["device"].endswith("1 thread, tf32, matmul high, fused optimizer")
    assert facts["visible"] == []
    log = (tmp_path / "run.log").read_text()
    assert "TF32 is a format of NVIDIA's GPUs: computed in fp32" in log
    assert "there are CUDA graphs on NVIDIA's GPUs only; nothing is recorded on cpu" in log
    assert facts["device"] in log
    torch.set_float32_matmul_precision("highest")


def newest(folder: Path) -> dict[str, Any]:
    return torch.load(sorted((folder / "checkpoints").glob("step-*.pt"))[-1], weights_only=True)


@pytest.mark.thorough
def test_an_adapter_of_half_precision_holds_only_what_was_trained(tmp_path: Path) -> None:
    ran(tmp_path / "base", "checkpoint.export=weights")
    tuned = [f"finetune.weights.path={tmp_path}/base/weights.pt", "finetune=head", "checkpoint.export=adapter"]
    ran(tmp_path / "tuned", *tuned, "device.precision=bf16-true")
    found = torch.load(tmp_path / "tuned/adapter.pt", weights_only=True)
    assert found["kept"], "rounding is no difference"
    trained = newest(tmp_path / "tuned")["model"]
    assert trained["head.weight"].dtype == torch.bfloat16
    assert found["tensors"]["head.weight"].dtype == torch.float32, "as the network is built"
    again = [*tuned[:2], f"finetune.weights.adapter={tmp_path}/tuned/adapter.pt"]
    ran(tmp_path / "again", *again, "device.precision=bf16-true")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("precision", "weight", "loss"), [("fp32", 1e-5, 1e-5), ("bf16", 5e-2, 5e-3), ("bf16-true", 1e-1, 2e-2)]
)
def test_a_batch_in_parts_differs_by_the_rounding_of_the_precision(
    precision: str, weight: float, loss: float, tmp_path: Path
) -> None:
    options = [f"device.precision={precision}"]
    whole = ran(tmp_path / "whole", *options, "data.batch_size=32")
    parts = ran(tmp_path / "parts", *options, "data.batch_size=8", "trainer.accumulate=4")
    one, other = (newest(tmp_path / name)["model"] for name in ("whole", "parts"))
    apart = max(float((one[name].float() - other[name].float()).abs().max()) for name in one)
    assert apart <= weight
    assert parts["metrics"]["val/loss"] == pytest.approx(whole["metrics"]["val/loss"], rel=loss)
