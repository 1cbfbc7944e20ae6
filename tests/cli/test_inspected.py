from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.cli.inspected import FORMATS
from lightkit.diagnostics import graph
from tests.conftest import Cli
from tests.runner.finished_runs import trained


def test_a_table_and_what_it_comes_to(cli: Cli, project: Path) -> None:
    done = cli("summary", "data=wine", "model.hidden=[8]")
    assert done.code == 0, done.err
    table, _, below = done.out.partition("\n\n")
    head, model, *rows = table.splitlines()
    assert head.split() == ["layer", "class", "×", "output", "parameters", "trains", "MACs", "share", "%"]
    assert model.split() == ["model", "MLP", "(1,", "3)", "155", "yes", "128", "100.0"]
    assert [row.split()[0] for row in rows] == ["layers", "linear0", "norm0", "activation0", "head"]
    labels = [line.partition("  ")[0] for line in below.splitlines()]
    assert labels == ["input", "parameters", "forward", "counted", "not counted", "", "training", "memory", ""]
    assert not (project / "outputs").exists()
    shaped = json.loads(cli("summary", "data=digits", "model=cnn", "--input", "1x16x16", "--json").out)
    assert shaped["inputs"] == [[1, 1, 16, 16]]
    assert shaped["layers"][0]["flops"] == shaped["forward"]["flops"]


def test_levels(cli: Cli) -> None:
    args = ("summary", "data=digits", "model=transformer", "model.dim=8", "model.heads=2", "model.depth=3")
    few = cli(*args, "--depth", "1").out.partition("\n\n")[0].splitlines()
    assert [row.split()[0] for row in few[1:]] == ["model", "embed", "blocks", "norm", "head"]
    long = cli(*args, "--depth", "2", "--long").out
    assert [f"\n    {at} " in long for at in range(3)] == [True] * 3


@pytest.fixture
def rules(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a function that counts, and one that fails."""
    (project / "own_rules.py").write_text(
        "def linear(module, inputs, output):\n"
        "    return 1000 * inputs[0].shape[0] * module.in_features\n\n\n"
        "def fails(module, inputs, output):\n"
        "    return module.nothing\n"
    )
    yield project
    sys.modules.pop("own_rules", None)


def test_a_project_counts_the_classes_of_others(cli: Cli, rules: Path) -> None:
    plain = json.loads(cli("summary", "data=wine", "model.hidden=[8]", "--json").out)
    own = "logger.flops={Linear: {_target_: own_rules.linear, _partial_: true}}"
    done = cli("summary", "data=wine", "model.hidden=[8]", own, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["forward"]["flops"] == 1000 * (13 + 8)
    assert found["training"]["flops"] == 3 * found["forward"]["flops"] * found["training"]["samples"]
    by_name = {layer["name"]: layer["flops"] for layer in found["layers"]}
    assert by_name["head"] == 8000
    assert plain["forward"]["flops"] == 256


def test_a_rule_that_is_for_nothing_or_fails_is_told(cli: Cli, rules: Path) -> None:
    unused = "logger.flops={Conv9d: {_target_: own_rules.linear, _partial_: true}}"
    assert "logger.flops.Conv9d: the model has no module of this class" in cli("summary", "data=wine", unused).out
    fails = cli("summary", "data=wine", "logger.flops={Linear: {_target_: own_rules.fails, _partial_: true}}")
    assert fails.code == 2
    assert "logger.flops.Linear: this rule fails: AttributeError" in fails.err
    missing = cli("summary", "data=wine", "logger.flops={Linear: {_target_: own_rules.nothing, _partial_: true}}")
    assert missing.code == 2
    assert "logger.flops.Linear._target_" in missing.err


pytest.importorskip("torchview")


def test_a_picture(cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = cli("graph", "data=wine", "model.hidden=[8]", "--output", "model.dot")
    assert (done.code, done.out) == (0, "7 boxes, 2 levels of layers: model.dot\n"), done.err
    assert "layers.linear0" in (project / "model.dot").read_text()
    assert not (project / "outputs").exists()
    args = ("--depth", "1", "--direction", "lr", "--input", "1,16,16", "--output", "model.dot")
    assert cli("graph", "data=digits", "model=cnn", *args).code == 0
    text = (project / "model.dot").read_text()
    assert ("rankdir=LR" in text, "(1, 1, 16, 16)" in text, "conv0" in text) == (True, True, False)
    monkeypatch.setenv("PATH", str(project))
    without = cli("graph", "data=wine")
    assert without.code == 2
    for part in ("Graphviz, which draws the picture, is not installed", "apt install graphviz", "--output model.dot"):
        assert part in without.err
    assert not (project / "model.svg").exists()
    assert FORMATS == graph.FORMATS


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
    plan = values(cli, *WINE, "device=cuda", "hydra.run.dir=elsewhere")  # needs no GPU, and takes Hydra's settings
    (phase,) = plan["phases"]
    assert phase["trainable"] == phase["parameters"] == sum(group["parameters"] for group in phase["groups"])
    assert len(phase["steps"]) == 4
    assert all(len(group["rates"]) == 4 and group["names"] for group in phase["groups"])
    assert "weights" not in plan


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


def test_random_weights_that_are_frozen_are_told(cli: Cli, run: Path) -> None:
    drawn, args = "no pretrained weights are given: what is frozen stays as it was drawn", (*WINE, "finetune=head")
    assert drawn in cli("plan", *args).out.splitlines()
    assert values(cli, *args)["notes"] == [drawn]
    start = values(cli, *args, "model.hidden=[4]", "finetune.weights.path=mine")  # a run, by its name
    assert "notes" not in start
    assert start["weights"]["source"].startswith("outputs/runs/2026-01-31/10-00-00-mine/")


def test_all_but_one_parameter_is_not_all(cli: Cli) -> None:
    done = cli("plan", *WINE, "model.hidden=[64,64]", "finetune=freeze", "finetune.freeze=[head.bias]")
    assert "parameters train (99.9" in done.out


@pytest.mark.thorough(first=0)
def test_the_plan_of_a_member_is_that_of_its_own_configuration(cli: Cli, project: Path) -> None:
    stack = ("ensemble=stacking", "ensemble.size=1", "ensemble.folds=2", "ensemble.refit=false", "ensemble.holdout=0")
    trained(project / "outputs" / "run", *stack, "ensemble.meta.trainer.steps=20")
    members = project / "outputs" / "run" / "members"
    refused = cli("params", "outputs/run")
    assert (refused.code, f"fix:      lightkit params {members}/NAME" in refused.err) == (2, True)
    assert cli("params", str(members / "00-fold0")).code == 0
    first, meta = (cli("plan", "--from", str(members / name)) for name in ("00-fold0", "02-meta"))
    assert (first.code, meta.code) == (0, 0), first.err + meta.err
    assert first.out != meta.out
    assert cli("plan", "--from", str(members / "00-fold0"), "optim.lrr=1").code == 2


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    return trained(tmp_path_factory.mktemp("finished") / "run", "data.batch_size=32")


@pytest.fixture
def run(finished: Path, project: Path) -> Path:
    """The same by the name `mine`."""
    folder = project / "outputs" / "runs" / "2026-01-31" / "10-00-00-mine"
    return Path(shutil.copytree(finished, folder))


def test_weights_of_a_checkpoint(cli: Cli, run: Path) -> None:
    done = cli("params", "mine")
    assert done.code == 0, done.err
    names = [line.split()[0] for line in done.out.partition("\n\n")[0].splitlines()]
    assert names[0] == "name"
    assert {name.partition(".")[0] for name in names[1:]} == {"layers", "head"}
    assert "79 numbers in 6 tensors, norm " in done.out
    (path,) = list((run / "checkpoints").glob("step-*.pt"))[-1:]
    found = json.loads(cli("params", "last", "--json", "--checkpoint", str(path)).out)
    weights = torch.load(path, weights_only=True)["model"]
    for one in found:
        assert one["values"]["norm"] == pytest.approx(weights[one["name"]].norm().item())
        assert one["gradient"] is None


@pytest.mark.thorough(first=0)
def test_gradients(cli: Cli, run: Path) -> None:
    before = sorted(run.rglob("*"))
    found = json.loads(cli("params", "mine", "--grads", "--json").out)
    assert all(one["gradient"]["norm"] > 0 for one in found)
    assert json.loads(cli("params", "mine", "--grads", "--json").out) == found
    other = json.loads(cli("params", "mine", "--grads", "--json", "data.batch_size=8").out)
    assert other[0]["gradient"] != found[0]["gradient"]
    assert other[0]["values"] == found[0]["values"]
    done = cli("params", "mine", "--grads", "--match", "head")
    assert ("grad norm" in done.out, "layers" in done.out, "norm of their gradients" in done.out) == (True, False, True)
    assert sorted(run.rglob("*")) == before
    assert cli("params", "mine", "--output", "params.svg").out.endswith("6 of 6 drawn: params.svg\n")
    assert Path("params.svg").exists()
    nowhere = cli("params", "mine", "--output", "nowhere/x.png")
    assert (nowhere.code, "--output: cannot write the picture" in nowhere.err) == (2, True)
    summary = json.loads(cli("summary", "--from", "mine", "--json").out)
    assert [layer["output"] for layer in summary["layers"] if layer["name"] == "layers"] == [[1, 4]]


def test_frozen_ones(cli: Cli, run: Path, project: Path) -> None:
    trained(
        project / "outputs" / "runs" / "2026-01-31" / "11-00-00-tuned", "finetune=head", f"finetune.weights.path={run}"
    )
    done = cli("params", "tuned", "--grads")
    assert done.code == 0, done.err
    frozen = [line.split()[0] for line in done.out.splitlines() if " frozen" in line]
    assert len(frozen) == 4
    assert all(name.startswith("layers.") for name in frozen)
    assert "no gradient" not in done.out
