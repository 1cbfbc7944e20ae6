"""`lightkit doctor RUN`, on histories as runs write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.doctor.after_run import look_back
from tests.conftest import Outcome
from tests.doctor.judging import judge

Cli = Callable[..., Outcome]
CONFIG = (
    "metrics: {monitor: val/loss, mode: min}\ntrainer: {epochs: 10, clip_norm: null}\ncheckpoint: {enabled: true}\n"
)
LIMITED, HIGHEST = CONFIG.replace("null", "1.0"), CONFIG.replace("mode: min", "mode: max")
FALLING = [2.0, 1.5, 1.2, 1.0, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4]
WELL = [2.0, 1.6, 1.3, 1.1, 1.0, 0.95, 0.94, 0.93, 0.931, 0.93]
WORSE = [2.0, 1.6, 1.3, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8]
SPEED, RAM = [100.0] * 6 + [30.0] * 6, [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
ADVICE = "the loss is no longer finite at step 3\n    expected: a finite loss\n    fix:      lower optim.lr"
MEMORY = "CUDA out of memory. Tried to allocate 2 GiB"
GAP = {"metrics": {"train/accuracy": 0.99, "val/accuracy": 0.6}}


def run(folder: Path, curves: dict[str, Any], result: dict[str, Any] | None = None, config: str = CONFIG) -> Path:
    """Write a run whose curves have a value every ten steps."""
    (folder / "config.yaml").write_text(config)
    rows = [{"step": 10 * at, "epoch": at, name: each} for name, of in curves.items() for at, each in enumerate(of, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if result is not None:
        ended = {"status": "finished", "steps": 100, "objective": {"name": "val/loss", "mode": "min"}}
        (folder / "result.json").write_text(json.dumps({**ended, **result}))
    return folder


CASES: dict[str, tuple[Any, ...]] = {
    "well": ("ok ended: finished after 100 steps", {"train/loss": FALLING, "val/loss": WELL}),
    "its course": ("ok course", {"train/loss": FALLING, "val/loss": WELL}),
    "overfitting": (
        "warning overfitting: val/loss rose from 1.1 at step 40 to 1.8 | trainer.early_stopping.patience",
        {"train/loss": FALLING, "val/loss": WORSE},
    ),
    "too short": ("note course: trainer.epochs=20", {"train/loss": FALLING, "val/loss": FALLING}),
    "growing": ("error training loss: too large", {"train/loss": [1.0, 2.0, 4.0, 8.0]}),
    "hardly falling": ("warning training loss: hardly", {"train/loss": [2.303, 2.303, 2.302, 2.302]}),
    "no number": ("error training loss: NaN", {"train/loss": [2.0, 1.0, None, None]}),
    "logged once": ("skipped training loss", {"train/loss": [2.0]}),
    "logged twice": ("skipped training loss", {"train/loss": [0.31, 0.33]}),
    "logged twice, falling": ("ok training loss", {"train/loss": [0.31, 0.2]}),
    "logged twice, growing": ("error training loss: too large", {"train/loss": [0.31, 0.9]}),
    "epochs tell more than single steps": (
        "ok training loss: from 0.75 to 0.44 in 20 steps", {"train/loss_step": [0.31, 0.33], "train/loss": [0.75,
            0.44]},
    ),
    "never fell": (
        "warning validation loss: val/loss is 1.1 at best, and the first training loss was 1.11",
        {"train/loss": [1.11, 1.09, 1.07, 1.05, 1.0], "val/loss": [1.1, 1.11, 1.1, 1.12, 1.13]},
    ),
    "fell before the first validation": (
        "0 warning validation loss", {"train/loss": FALLING, "val/loss": [0.8, 0.8, 0.9, 1.0]}, {}, CONFIG,
            "overfitting",
    ),
    "advised": ("error ended: lower optim.lr", {"train/loss": FALLING}, {"status": "failed", "reason": ADVICE}),
    "out of memory": (
        "error ended: do not fit | trainer.find_batch_size=auto", {"train/loss": FALLING}, {"status": "failed",
            "reason": MEMORY},
    ),
    "interrupted": (
        "note ended: lightkit resume ", {"train/loss": FALLING}, {"status": "interrupted",
            "reason": "SIGTERM at step 3"},
    ),
    "killed": ("error ended: none has written a result", {"train/loss": FALLING}, None),
    "spikes": ("warning gradients: trainer.clip_norm=2", {"train/loss": FALLING, "grad/norm": [1.0] * 9 + [100.0]}),
    "a limit that cuts every step": (
        "note gradients: trainer.clip_norm=10", {"train/loss": FALLING, "grad/norm": [5.0] * 10}, {}, LIMITED,
    ),
    "slower": ("warning pace", {"train/loss": FALLING, "speed/samples_per_second": SPEED}),
    "growing memory": ("warning memory", {"train/loss": FALLING, "system/ram_gib": RAM}),
    "skipped steps": (
        "warning skipped steps: device.precision=bf16", {"train/loss": FALLING}, {"scaler_skipped_steps": 30},
    ),
    "a gap": ("note gap: 'train': 0.99, 'val': 0.6", {"train/loss": FALLING}, GAP, HIGHEST),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_a_history_tells(tmp_path: Path, name: str) -> None:
    says, curves, result, config, besides = (*CASES[name], *({}, CONFIG, "")[len(CASES[name]) - 2 :])
    judge([*look_back(run(tmp_path, curves, result, config))], says, besides)


def test_a_folder_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{")
    status = {each.check: each.status for each in look_back(tmp_path)}
    assert (status["ended"], status["loss"]) == ("error", "skipped")


def test_a_real_run_and_a_checkpoint_that_was_damaged(cli: Cli, project: Path) -> None:
    short = ("data=wine", "model.hidden=[8]", "trainer.epochs=5", "logger.console.style=quiet")
    assert cli("train", *short, "hydra.run.dir=outputs/one").code == 0
    well = cli("doctor", "outputs/one", "--json")
    path = next((project / "outputs/one/checkpoints").glob("*.pt"))
    path.write_bytes(path.read_bytes()[:-10])
    damaged = cli("doctor", "outputs/one")

    assert well.code == 0, well.out
    assert {each["check"] for each in json.loads(well.out)["findings"]} >= {"ended", "training loss", "checkpoints"}
    assert damaged.code == 1
    assert f"{path.name} (" in damaged.out
