"""Memory of a real GPU: the largest batch, the report when it runs out, peaks in the log, the cache afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.batches import find_batch
from lightkit.runs.reading import read_jsonl

pytestmark = pytest.mark.gpu
IMAGES = ["data=shapes", "data.dataset.train=4096", "data.dataset.val=64", "data.dataset.test=64", "model=resnet18",
          "device=cuda", "logger=quiet", "metrics.figures=[]", "trainer.epochs=1",
          "data.eval_batch_size=64"]  # fmt: skip
GIB = 2**30


@pytest.mark.parametrize("more", [[], ["device.precision=bf16"], ["device.precision=fp16", "trainer.ema.decay=0.9"]])
def test_auto_finds_a_part_that_fits_and_training_stays_below_the_limit(tmp_path: Path, more: list[str]) -> None:
    cfg = compose([*IMAGES, "data.batch_size=4096", "device.batch_size=auto", *more]).cfg
    before = torch.cuda.memory_reserved()
    limit = 2 * GIB
    found = find_batch(cfg, limit=limit)
    assert torch.cuda.memory_reserved() == before, "the search is in a process of its own"
    assert found.size * found.accumulate == 4096
    assert 1 < found.accumulate < 512, found.lines
    text = [f"data.batch_size={found.size}", f"trainer.accumulate={found.accumulate}"]
    torch.cuda.reset_peak_memory_stats()
    Runner(compose([*IMAGES, *more, *text]).cfg, tmp_path / "run").run()
    assert torch.cuda.max_memory_allocated() < limit
    measured = re.search(r"\((\d+(?:\.\d+)?) (MiB|GiB) of", found.lines[0])
    assert measured, found.lines
    told = float(measured[1]) * (GIB if measured[2] == "GiB" else 2**20)
    assert torch.cuda.max_memory_allocated() == pytest.approx(told, rel=0.15)


def test_a_run_that_asks_has_the_numbers_in_its_configuration(process: Callable[..., Any], project: Path) -> None:
    done = process("train", *IMAGES, "device.batch_size=auto", "data.batch_size=256", f"hydra.run.dir={project}/run")
    assert done.code == 0, done.err
    assert "batch   256: fits as a whole" in (project / "run/run.log").read_text()
    assert load_run(project / "run").cfg.device.batch_size is None


def test_the_largest_batch_after_running_out_of_memory() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    size = 224 if total > 40 * GIB else 128
    texts = [*IMAGES, f"data.dataset.size={size}", "data.dataset.train=8192", "data.dataset.cache=false"]
    found = find_batch(compose([*texts, "device.batch_size=max"]).cfg)
    assert found.size >= 8
    assert "the largest that fits" in found.lines[0]


def test_the_report_names_peak_and_blocks_and_the_next_run_has_the_memory(tmp_path: Path) -> None:
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1.5 * GIB / total))
    try:
        cfg = compose([*IMAGES, "data.batch_size=4096"]).cfg
        with pytest.raises(UserError, match="out of memory in training step 1") as caught:
            Runner(cfg, tmp_path / "run").run()
        report = str(caught.value)
        assert "reserved, of" in report
        assert "activations of 4096 samples about" in report
        assert "layer1.*" in report
        assert "data.batch_size=2048 trainer.accumulate=2" in report
        assert json.loads((tmp_path / "run/result.json").read_text())["status"] == "failed"
        assert torch.cuda.memory_reserved() < 0.2 * GIB, "the cache was not emptied"
        Runner(compose([*IMAGES, "data.batch_size=64"]).cfg, tmp_path / "next").run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert free > 0


def test_peaks_are_logged(tmp_path: Path) -> None:
    Runner(compose([*IMAGES, "data.batch_size=256", "logger.every_steps=4"]).cfg, tmp_path / "run").run()
    steps = [row for row in read_jsonl(tmp_path / "run/metrics.jsonl") if "train/loss_step" in row]
    assert steps
    for row in steps:
        assert 0 < row["system/allocated_peak_gib"] <= row["system/reserved_peak_gib"]
    assert torch.cuda.memory_reserved() < 0.2 * GIB
