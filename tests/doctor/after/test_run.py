"""`lightkit doctor RUN`, on histories as runs write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightkit.doctor.after_run import look_back
from lightkit.doctor.finding import Finding
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
CONFIG = (
    "metrics: {monitor: val/loss, mode: min}\ntrainer: {epochs: 10, clip_norm: null}\ncheckpoint: {enabled: true}\n"
)


def run(folder: Path, rows: list[dict[str, Any]], result: dict[str, Any] | None = None, config: str = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if result is not None:
        ended = {"status": "finished", "steps": 100, "objective": {"name": "val/loss", "mode": "min"}}
        (folder / "result.json").write_text(json.dumps({**ended, **result}))
    return folder


def curves(**values: list[float | None]) -> list[dict[str, Any]]:
    """Rows of ten steps each; `val_loss` stands for val/loss."""
    return [
        {"step": 10 * (at + 1), "epoch": at + 1, name.replace("_", "/", 1): value}
        for name, each in values.items()
        for at, value in enumerate(each)
    ]


def found(folder: Path) -> dict[str, Finding]:
    return {each.check: each for each in look_back(folder)}


FALLING = [2.0, 1.5, 1.2, 1.0, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4]


def test_a_run_that_went_well(tmp_path: Path) -> None:
    rows = curves(train_loss=FALLING, val_loss=[2.0, 1.6, 1.3, 1.1, 1.0, 0.95, 0.94, 0.93, 0.931, 0.93])
    told = found(run(tmp_path, rows, {}))

    assert [each for each in told.values() if each.is_bad] == []
    assert told["ended"].measured == "finished after 100 steps"
    assert told["course"].status == "ok"


def test_overfitting_is_told_with_the_step_from_which_on(tmp_path: Path) -> None:
    rows = curves(train_loss=FALLING, val_loss=[2.0, 1.6, 1.3, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8])
    told = found(run(tmp_path, rows, {}))["overfitting"]

    assert told.status == "warning"
    assert "val/loss rose from 1.1 at step 40 to 1.8" in told.measured
    assert told.key == "trainer.early_stopping.patience"


def test_a_run_that_was_too_short(tmp_path: Path) -> None:
    told = found(run(tmp_path, curves(train_loss=FALLING, val_loss=FALLING), {}))["course"]
    assert (told.status, told.fix) == ("note", "trainer.epochs=20")


@pytest.mark.parametrize(
    ("losses", "status", "says"),
    [
        ([1.0, 2.0, 4.0, 8.0], "error", "too large"),
        ([2.303, 2.303, 2.302, 2.302], "warning", "hardly"),
        ([2.0, 1.0, None, None], "error", "NaN"),
        ([2.0], "skipped", ""),
        ([0.31, 0.33], "skipped", ""),
        ([0.31, 0.2], "ok", ""),
        ([0.31, 0.9], "error", "too large"),
    ],
)
def test_a_training_loss_that_does_not_fall(tmp_path: Path, losses: list[float], status: str, says: str) -> None:
    told = found(run(tmp_path, curves(train_loss=losses), {}))["training loss"]
    assert told.status == status
    assert says in told.why


def test_single_steps_are_not_judged_where_epochs_tell_more(tmp_path: Path) -> None:
    rows = curves(train_loss_step=[0.31, 0.33], train_loss=[0.75, 0.44])
    for row in rows:
        if "train/loss/step" in row:
            row["train/loss_step"] = row.pop("train/loss/step")

    assert found(run(tmp_path, rows, {}))["training loss"].measured == "from 0.75 to 0.44 in 20 steps"


def test_a_validation_loss_that_never_fell(tmp_path: Path) -> None:
    rows = curves(train_loss=[1.11, 1.09, 1.07, 1.05, 1.0], val_loss=[1.1, 1.11, 1.1, 1.12, 1.13])
    told = found(run(tmp_path, rows, {}))["validation loss"]
    assert told.status == "warning"
    assert told.measured == "val/loss is 1.1 at best, and the first training loss was 1.11"

    learning = curves(train_loss=FALLING, val_loss=[0.8, 0.8, 0.9, 1.0])
    assert "validation loss" not in found(run(tmp_path, learning, {}))


def test_what_the_run_itself_advised_is_repeated(tmp_path: Path) -> None:
    reason = "the loss is no longer finite at step 3\n    expected: a finite loss\n    fix:      lower optim.lr"
    told = found(run(tmp_path, curves(train_loss=FALLING), {"status": "failed", "reason": reason}))["ended"]
    assert told.fix == "lower optim.lr"


def test_how_it_ended(tmp_path: Path) -> None:
    rows = curves(train_loss=FALLING)
    failed = {"status": "failed", "reason": "CUDA out of memory. Tried to allocate 2 GiB"}
    states = {
        "failed": found(run(tmp_path / "a", rows, failed))["ended"],
        "interrupted": found(run(tmp_path / "b", rows, {"status": "interrupted", "reason": "SIGTERM at step 3"}))[
            "ended"
        ],
        "killed": found(run(tmp_path / "c", rows))["ended"],
    }

    assert states["failed"].status == states["killed"].status == "error"
    assert "do not fit" in states["failed"].why
    assert "device.batch_size=auto" in states["failed"].fix
    assert states["interrupted"].fix == f"lightkit resume {tmp_path / 'b'}"
    assert "none has written a result" in states["killed"].measured


def test_gradients_pace_memory_and_skipped_steps(tmp_path: Path) -> None:
    rows = curves(
        train_loss=FALLING,
        grad_norm=[1.0] * 9 + [100.0],
        speed_samples_per_second=[100.0] * 6 + [30.0] * 6,
        system_ram_gib=[1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    )
    told = found(run(tmp_path, rows, {"scaler_skipped_steps": 30}))

    assert {name for name, each in told.items() if each.is_bad} == {"gradients", "pace", "memory", "skipped steps"}
    assert told["gradients"].fix == "trainer.clip_norm=2"
    assert told["skipped steps"].fix == "device.precision=bf16"


def test_a_limit_that_cuts_every_step(tmp_path: Path) -> None:
    rows = curves(train_loss=FALLING, grad_norm=[5.0] * 10)
    told = found(run(tmp_path, rows, {}, CONFIG.replace("clip_norm: null", "clip_norm: 1.0")))["gradients"]
    assert (told.status, told.fix) == ("note", "trainer.clip_norm=10")


def test_a_gap_between_the_splits(tmp_path: Path) -> None:
    values = {"metrics": {"train/accuracy": 0.99, "val/accuracy": 0.6}}
    told = found(run(tmp_path, curves(train_loss=FALLING), values, CONFIG.replace("mode: min", "mode: max")))["gap"]
    assert told.status == "note"
    assert told.numbers == {"train": 0.99, "val": 0.6}


def test_a_folder_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("{")
    told = found(tmp_path)
    assert told["ended"].status == "error"
    assert told["loss"].status == "skipped"


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
