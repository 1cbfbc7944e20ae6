"""Memory of a real GPU: the largest batch, the report when it runs out, peaks in the log, the cache afterwards."""

from __future__ import annotations

import gc
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


def limited(count: float) -> str:
    """Let a run have so many bytes of the GPU."""
    return f"device.memory_fraction={min(1.0, count / torch.cuda.get_device_properties(0).total_memory):.5f}"


def emptied() -> int:
    """Let go of what tests before have left behind; returns the bytes that stay."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@pytest.mark.parametrize("more", [[], ["device.precision=bf16"], ["device.precision=fp16", "trainer.ema.decay=0.9"]])
def test_auto_finds_a_part_that_fits_and_training_stays_below_the_limit(tmp_path: Path, more: list[str]) -> None:
    cfg = compose([*IMAGES, "data.batch_size=4096", "trainer.find_batch_size=auto", *more]).cfg
    before = torch.cuda.memory_reserved()
    limit = 2 * GIB
    found = find_batch(cfg, limit=limit)
    assert torch.cuda.memory_reserved() == before, "the search is in a process of its own"
    assert found.size * found.accumulate == 4096
    assert 1 < found.accumulate < 512, found.lines
    text = [f"data.batch_size={found.size}", f"trainer.accumulate={found.accumulate}"]
    Runner(compose([*IMAGES, *more, *text, "logger.every_steps=1"]).cfg, tmp_path / "run").run()
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    peak = GIB * max(row.get("system/allocated_peak_gib", 0.0) for row in rows)
    assert 0 < peak < limit
    measured = re.search(r"\((\d+(?:\.\d+)?) (MiB|GiB) of", found.lines[0])
    assert measured, found.lines
    told = float(measured[1]) * (GIB if measured[2] == "GiB" else 2**20)
    assert peak == pytest.approx(told, rel=0.15)


def test_a_run_that_asks_has_the_numbers_in_its_configuration(process: Callable[..., Any], project: Path) -> None:
    done = process(
        "train", *IMAGES, "trainer.find_batch_size=auto", "data.batch_size=256", f"hydra.run.dir={project}/run"
    )
    assert done.code == 0, done.err
    assert "batch   256: fits as a whole" in (project / "run/run.log").read_text()
    assert load_run(project / "run").cfg.trainer.find_batch_size is None


def test_the_largest_batch_after_running_out_of_memory() -> None:
    found = find_batch(compose([*IMAGES, limited(2 * GIB), "trainer.find_batch_size=max"]).cfg)
    assert 8 <= found.size < 4096
    assert "the largest that fits" in found.lines[0]


def test_the_report_names_peak_and_blocks_and_the_next_run_has_the_memory(tmp_path: Path) -> None:
    before = emptied()
    try:
        cfg = compose([*IMAGES, "data.batch_size=4096", limited(before + 1.2 * GIB)]).cfg
        with pytest.raises(UserError, match="out of memory in training step 1") as caught:
            Runner(cfg, tmp_path / "run").run()
        report = str(caught.value)
        assert "reserved, of" in report
        assert "activations of 4096 samples about" in report
        assert "layer1.*" in report
        assert "data.batch_size=2048 trainer.accumulate=2" in report
        assert json.loads((tmp_path / "run/result.json").read_text())["status"] == "failed"
        del caught
        assert emptied() < before + 0.2 * GIB, "the cache was not emptied"
        Runner(compose([*IMAGES, "data.batch_size=64"]).cfg, tmp_path / "next").run()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_peaks_are_logged(tmp_path: Path) -> None:
    before = emptied()
    Runner(compose([*IMAGES, "data.batch_size=256", "logger.every_steps=4"]).cfg, tmp_path / "run").run()
    steps = [row for row in read_jsonl(tmp_path / "run/metrics.jsonl") if "train/loss_step" in row]
    assert steps
    for row in steps:
        assert 0 < row["system/allocated_peak_gib"] <= row["system/reserved_peak_gib"]
    assert torch.cuda.memory_reserved() < before + 0.2 * GIB
