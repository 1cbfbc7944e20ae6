from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import Outcome
from tests.runner.finished_runs import trained

Cli = Callable[..., Outcome]
WINE = ("data=wine", "model=mlp", "trainer.epochs=4")


def values(cli: Cli, *args: str) -> Any:
    done = cli("plan", *args, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_plain_training_is_one_phase_in_which_everything_trains(cli: Cli, project: Path) -> None:
    done = cli("plan", *WINE)
    assert done.code == 0, done.err
    head, *rows = done.out.partition("\n\n")[0].splitlines()
    assert head.split()[:4] == ["phase", "group", "tensors", "parameters"]
    assert [row.removeprefix("epoch 0").split()[0] for row in rows] == ["decay", "no_decay"]
    assert "parameters train (100 %), optimizer state " in done.out
    assert not (project / "outputs").exists()


def test_as_json(cli: Cli) -> None:
    found = values(cli, *WINE)
    (phase,) = found["phases"]
    assert phase["trainable"] == phase["parameters"] == sum(group["parameters"] for group in phase["groups"])
    assert len(phase["steps"]) == 4
    assert all(len(group["rates"]) == 4 and group["names"] for group in phase["groups"])
    assert "weights" not in found


def test_phases_of_a_fine_tuning(cli: Cli) -> None:
    schedule = 'finetune.schedule=[{epoch: 2, unfreeze: ["*"]}]'
    found = values(cli, *WINE, "finetune=head", schedule, "finetune.head.lr=0.1")
    assert [phase["phase"] for phase in found["phases"]] == ["epoch 0", "epoch 2"]
    assert [phase["trainable"] < phase["parameters"] for phase in found["phases"]] == [True, False]
    first = {group["group"]: group for group in found["phases"][0]["groups"]}
    assert not first["head"]["frozen"]
    assert first["head"]["rate"] == 0.1
    assert "finetune.head" in first["head"]["rules"]
    done = cli("plan", *WINE, "finetune=head", schedule)
    assert "\nfrom epoch 2: " in done.out
    assert " as before" not in cli("plan", *WINE, "finetune=head", schedule, "--long").out


def test_what_was_loaded(cli: Cli, project: Path) -> None:
    names = [name for group in values(cli, *WINE)["phases"][0]["groups"] for name in group["names"]]
    from lightkit.assembly import build
    from lightkit.config import compose

    parts = build(compose([*WINE, "device.name=cpu"]).cfg, project / "outputs")
    parts.data.close()
    torch.save(parts.model.state_dict(), project / "weights.pt")
    args = (*WINE, "finetune=full", "finetune.weights.path=weights.pt", "finetune.weights.head=keep")
    done = cli("plan", *args)
    assert done.code == 0, done.err
    assert "\nweights from " in done.out
    assert f"weights.pt: {len(parts.model.state_dict())} loaded" in done.out
    loaded = values(cli, *args)["weights"]
    assert set(names) <= set(loaded["loaded"])
    assert loaded["missing"] == []


def test_what_is_in_a_group(cli: Cli) -> None:
    args = (*WINE, "model.hidden=[8,8]", "finetune=discriminative", "finetune.layer_decay=0.5", "finetune.slices=[]")
    groups = values(cli, *args)["phases"][0]["groups"]
    holds = {group["group"].removesuffix(".no_decay"): group["holds"] for group in groups}
    assert len(holds) == 3
    assert ["head.*"] in holds.values()
    assert all(name.startswith(tuple(part.rstrip("*") for part in g["holds"])) for g in groups for name in g["names"])
    done = cli("plan", *args)
    head, *rows = done.out.partition("\n\n")[0].splitlines()
    assert head.split()[-1] == "holds"
    assert [row for row in rows if row.endswith("  head.*")]


DRAWN = "no pretrained weights are given: what is frozen stays as it was drawn"


@pytest.mark.thorough
def test_random_weights_that_are_frozen_are_told_as_training_tells_them(cli: Cli, project: Path) -> None:
    args = (*WINE, "finetune=head", "trainer.epochs=1", "trainer.test=none")
    done = cli("plan", *args)
    assert DRAWN in done.out.splitlines()
    assert values(cli, *args)["notes"] == [DRAWN]
    assert cli("train", *args, "device=cpu", "hydra.run.dir=run").code == 0
    assert DRAWN in (project / "run" / "run.log").read_text()
    assert DRAWN not in cli("plan", *args, "finetune.weights.path=run").out
    assert DRAWN not in cli("plan", *WINE, "finetune=full").out


def test_all_but_one_parameter_is_not_all(cli: Cli) -> None:
    done = cli("plan", *WINE, "model.hidden=[64,64]", "finetune=freeze", "finetune.freeze=[head.bias]")
    assert "parameters train (99.9" in done.out


def test_needs_no_gpu_and_takes_hydra_settings(cli: Cli) -> None:
    assert values(cli, *WINE, "device=cuda", "hydra.run.dir=elsewhere")["phases"]


def test_a_run_to_start_from_has_a_name(cli: Cli, project: Path) -> None:
    base = cli("train", *WINE, "name=base", "trainer.steps=2", "device=cpu", "metrics.figures=[]", "logger=quiet")
    assert base.code == 0, base.err
    found = values(cli, *WINE, "finetune=head", "finetune.weights.path=base")
    (folder,) = (project / "outputs" / "runs").glob("*/*-base")
    assert found["weights"]["source"].startswith(f"{folder.relative_to(project)}/")


def test_the_plan_of_a_member_is_that_of_its_own_configuration(cli: Cli, project: Path) -> None:
    stack = ("ensemble=stacking", "ensemble.size=1", "ensemble.folds=2", "ensemble.refit=false", "ensemble.holdout=0")
    trained(project / "outputs" / "run", *stack, "ensemble.meta.trainer.steps=20")
    members = project / "outputs" / "run" / "members"
    first, meta = (cli("plan", "--from", str(members / name)) for name in ("00-fold0", "02-meta"))
    assert (first.code, meta.code) == (0, 0), first.err + meta.err
    assert first.out != meta.out
    assert cli("plan", "--from", str(members / "00-fold0"), "optim.lrr=1").code == 2
