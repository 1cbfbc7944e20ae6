"""Nothing is wrong with what is shipped, and the doctor says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightkit.config import compose
from lightkit.doctor.checks import examine, examined
from tests.conftest import Outcome

EXPERIMENTS = (
    "wine",
    "breast_cancer",
    "char_lm",
    "char_lm/transformer",
    "custom_task",
    "diabetes",
    "digits_cnn",
    "digits_mlp",
    "digits_multilabel",
    "ensembles",
    "finetune_timm",
    "finetune_timm/torchvision",
    "retrieval",
    "shapes",
    "transfer_digits/pretrain",
    "transfer_shapes/pretrain",
)
"""All but those that need a run of another one first; the quickest comes first."""
SECONDS = 600
"""More than a user waits: other work on the machine is no reason to leave a check out."""


def alarms(*overrides: str) -> list[str]:
    with examined(compose([*overrides]).cfg, SECONDS) as run:
        found = [*examine(run)]
    failed = [each for each in found if each.measured.startswith("the check itself failed")]
    return [f"{each.check}: {each.measured}" for each in found if each.is_bad or each in failed]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_alarm_on_a_shipped_experiment(project: Path, name: str) -> None:
    assert alarms(f"experiment={name}") == []


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("method", ["head", "lora"])
def test_no_alarm_on_a_fine_tuning(cli: object, project: Path, method: str) -> None:
    assert callable(cli)
    short = ("trainer.epochs=2", "scheduler.warmup_epochs=0", "logger.console.style=quiet")
    base = "outputs/runs/transfer_digits_base"
    done: Outcome = cli("train", "experiment=transfer_digits/pretrain", *short, f"hydra.run.dir={base}")
    assert done.code == 0, done.err
    assert alarms("experiment=transfer_digits", f"finetune={method}", "data.split.per_class=5") == []


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        "data=diabetes loss=huber",
        "data=breast_cancer loss=focal",
        "data=digits model=cnn device.precision=bf16 data.mixup.alpha=0.2 trainer.accumulate=4",
        "data=digits device=ddp optim=sgd optim.lr=0.1 trainer.clip_norm=0.1",
        "data=wine model=soft_tree ensemble=voting",
        "data=digits model=tabm",
        "data=digits model=transformer",
    ],
)
def test_no_alarm_on_what_is_usual(project: Path, overrides: str) -> None:
    assert alarms(*overrides.split()) == []


def test_every_experiment_is_looked_at(root: Path) -> None:
    files = {path.relative_to(root / "experiments") for path in (root / "experiments").glob("*/*.yaml")}
    shown = {path for path in files if not path.name.startswith("_")}
    named = {f"{path.parent}" if path.stem == path.parent.name else f"{path.parent}/{path.stem}" for path in shown}
    of_a_base = {"transfer_digits", "transfer_shapes", "transfer_text", "transfer_text/transformer"}

    assert named - of_a_base == set(EXPERIMENTS)
