"""Whole runs on a real GPU: chosen GPUs, the same bits again, nothing lost on a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu
SMALL = ["data=wine", "model.hidden=[16]", "model.dropout=0.2", "trainer.epochs=4", "checkpoint.every_steps=3",
         "scheduler=constant", "metrics.figures=[]", "logger.console.style=quiet", "device=cuda"]  # fmt: skip
EXACT = ["device.deterministic=true"]


def newest(folder: Path) -> dict[str, Any]:
    return torch.load(sorted((folder / "checkpoints").glob("step-*.pt"))[-1], weights_only=True, map_location="cpu")


def test_a_chosen_gpu_is_seen_alone_and_told_by_its_uuid(process: Callable[..., Any], project: Path) -> None:
    done = process("train", *SMALL, "device.gpus=auto:1", f"hydra.run.dir={project}/run")
    assert done.code == 0, done.err
    facts = json.loads((project / "run/environment.json").read_text())
    assert facts["device"].startswith("cuda:0: ")
    assert len(facts["gpus"]) == 1
    (line,) = facts["visible"]
    assert line.startswith("cuda:0 is GPU ")
    assert "GPU-" in line or "MIG-" in line


def test_a_gpu_that_is_not_there(process: Callable[..., Any]) -> None:
    done = process("train", *SMALL, "device.gpus=[99]")
    assert done.code == 2
    assert "there is no GPU 99 here" in done.err
    assert "device=cpu runs on the CPU" in done.err


def test_a_process_that_has_used_its_gpus_cannot_choose_any_more(
    process: Callable[..., Any], project: Path, root: Path
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    import subprocess
    import sys

    use = "from lightkit.device import configure_process; configure_process('cuda', gpus=[1])"
    code = f"import torch; torch.cuda.init(); {use}"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert "something asked for GPUs before they were chosen" in done.stderr


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "bf16-true"])
def test_a_deterministic_run_resumes_with_the_same_bits(
    process: Callable[..., Any], project: Path, precision: str
) -> None:
    options = [*SMALL, *EXACT, f"device.precision={precision}"]
    assert process("train", *options, f"hydra.run.dir={project}/whole").code == 0
    assert process("train", *options, "trainer.steps=5", f"hydra.run.dir={project}/part").code == 0
    assert process("resume", f"{project}/part", "trainer.steps=null").code == 0
    whole, part = newest(project / "whole"), newest(project / "part")
    assert whole["state"]["step"] == part["state"]["step"]
    assert all(torch.equal(whole["model"][name], part["model"][name]) for name in whole["model"])
    assert whole["precision"] == part["precision"]


@pytest.mark.parametrize(
    "switch", ["device.compile=default", "device.cuda_graphs=true", "device.compile=reduce-overhead"]
)
def test_a_run_that_is_sped_up_trains_and_keeps_its_names(
    process: Callable[..., Any], project: Path, switch: str
) -> None:
    done = process("train", *SMALL, switch, "trainer.accumulate=2", f"hydra.run.dir={project}/run")
    assert done.code == 0, done.err
    assert "not compiled" not in (project / "run/run.log").read_text()
    assert not [name for name in newest(project / "run")["model"] if "_orig_mod" in name]
    assert process("eval", f"{project}/run").code == 0
