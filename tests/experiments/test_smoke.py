"""`trainer=smoke` over everything that is shipped: it ends, whatever warm-ups, schedules and intervals say."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from lightkit.config.sources import experiment_names
from tests.conftest import ROOT, Cli

EXPERIMENTS = experiment_names(ROOT / "experiments")
BASES = {"transfer_digits": "transfer_digits_base", "transfer_shapes": "transfer_shapes_base"}
SCHEDULERS = sorted(path.stem for path in (ROOT / "conf/scheduler").glob("[!_]*.yaml"))
ENSEMBLES = sorted(path.stem for path in (ROOT / "conf/ensemble").glob("*.yaml"))
FINETUNES = {
    "gradual": ["finetune.gradual.share=null", "finetune.gradual.every_epochs=7"],
    "head": ["finetune.schedule=[{epoch: 30, unfreeze: ['*']}]", "trainer.epochs=50"],
    "lora": ["finetune.lora.rank=4", "finetune.rules=[{match: '@tuned', warmup_steps: 400}]"],
    "discriminative": [],
}
LONG = {
    "cosine": ["scheduler.warmup_epochs=30", "scheduler.cycles=7"],
    "linear": ["scheduler.warmup_steps=3000", "scheduler.interval=epoch"],
    "constant": ["scheduler.warmup_epochs=40"],
    "step": ["scheduler.milestones=[30,60]", "scheduler.every_epochs=null", "scheduler.warmup_epochs=5"],
    "plateau": ["scheduler.warmup_epochs=5", "scheduler.patience=20"],
    "one_cycle": ["scheduler.three_phase=true"],
    "inverse_sqrt": ["scheduler.warmup_steps=3000"],
    "wsd": ["scheduler.warmup_epochs=5", "scheduler.decay_share=0.4"],
    "custom": ["scheduler._target_=lightkit.optim.annealing.Triangular"],
    "torch": [
        "scheduler.scheduler={_target_: torch.optim.lr_scheduler.CosineAnnealingLR, T_max: 500}",
        "~scheduler.scheduler.gamma",
    ],
}
PLAIN = ["data=wine", "model.hidden=[8]", "metrics.figures=[]"]
LENGTHS = ["trainer.epochs=200", "trainer.validate_unit=step", "trainer.validate_every=5000", "trainer.accumulate=8",
           "checkpoint.every_steps=9000", "trainer.stop_at=100"]  # fmt: skip


def smoke(cli: Cli, *overrides: str) -> dict[str, object]:
    done = cli(
        "train", "trainer=smoke", "device=cpu", "device.threads=1", "logger.tensorboard.enabled=false", *overrides
    )
    assert done.code == 0, done.out + done.err
    (file,) = Path.cwd().glob("outputs/runs/2*/*/result.json")
    result = json.loads(file.read_text())
    assert result["status"] == "finished"
    assert math.isfinite(result["objective"]["value"])
    found: dict[str, object] = result
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment(name: str, cli: Cli, project: Path) -> None:
    if name in BASES:
        base = project / "outputs/runs" / BASES[name]
        fast = ["trainer=smoke", "device=cpu", "logger.tensorboard.enabled=false", f"hydra.run.dir={base}"]
        assert cli("train", f"experiment={name}/pretrain", *fast).code == 0
    result = smoke(cli, f"experiment={name}")
    if "steps" in result:
        assert result["steps"] == 4
    for folder in project.glob("outputs/runs/2*/*"):
        shutil.rmtree(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler(name: str, cli: Cli) -> None:
    result = smoke(cli, *PLAIN, f"scheduler={name}", *LONG[name], *LENGTHS)
    assert result["steps"] == 4
    assert result["epochs"] == 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENSEMBLES)
def test_every_ensemble(name: str, cli: Cli) -> None:
    scaled = ["data.normalize=minmax"] if name == "adversarial" else []
    smoke(cli, *PLAIN, f"ensemble={name}", "scheduler.warmup_epochs=3", *scaled)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FINETUNES)
def test_fine_tuning_with_late_phases(name: str, cli: Cli) -> None:
    small = ("data=digits", "model=cnn", "model.channels=[4,4]", "metrics.figures=[]")
    result = smoke(cli, *small, f"finetune={name}", *FINETUNES[name])
    assert result["steps"] == 4


def test_what_would_be_refused_for_its_warm_up(cli: Cli) -> None:
    assert cli("plan", "experiment=digits_cnn", "trainer.steps=3").code == 2
    assert cli("plan", "experiment=digits_cnn", "trainer.steps=3", "trainer=smoke").code == 0


def test_everything_of_a_run_happens(cli: Cli, project: Path) -> None:
    smoke(cli, "data=wine", "model.hidden=[8]", "trainer.epochs=30", "checkpoint.every_epochs=10")
    (folder,) = project.glob("outputs/runs/2*/*")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = {name.split("/")[0] for row in rows for name in row}
    assert {"train", "val", "test"} <= logged
    assert len([*folder.glob("checkpoints/step-*.pt")]) >= 2
    assert (folder / "figures").is_dir()
    assert "trainer.smoke: " in (folder / "run.log").read_text()
    assert cli("resume", "last").code == 0
    assert cli("eval", "last").code == 0
