"""Ensembles that torchensemble trains: the same networks, batches and steps, and a run like all others in the end."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit
from lightkit.common.errors import UserError
from lightkit.ensemble.bridge import TorchEnsembleFit, to_torchensemble
from lightkit.runner import Runner
from lightkit.runner.ensemble.torchensemble_engine import (
    TorchEnsembleEngine,
    export_torchensemble,
    import_torchensemble,
)
from lightkit.runs.reading import read_result, read_run
from tests.runner.finished_runs import trained

SMALL = (
    *("model.hidden=[4]", "data.batch_size=64", "trainer.epochs=2", "optim.lr=0.01", "trainer.test=last"),
    *("device=cpu", "logger=quiet", "logger.console.style=lines", "logger.tensorboard.enabled=false"),
    *("metrics.figures=[]", "ensemble.size=2", "hydra.run.dir=run"),
)
MORE = {
    "adversarial": ("data.normalize=minmax",),
    "fast_geometric": ("ensemble.cycle_epochs=2",),
    "gradient_boosting": ("ensemble.shrinkage=0.5",),
    "soft_gradient_boosting": ("ensemble.shrinkage=0.5",),
}
Cli = Callable[..., Any]
thorough = pytest.mark.thorough


def words(method: str, *more: str, data: str = "wine", engine: str = "torchensemble") -> list[str]:
    chosen = [f"data={data}", *SMALL, f"ensemble={method}", *MORE.get(method, ()), f"ensemble.engine={engine}"]
    return ["train", *chosen, *more]


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The ensembles of torchensemble that are trained in a test."""
    made: list[Any] = []
    train = TorchEnsembleFit.run

    def run(self: TorchEnsembleFit) -> Any:
        made.append(train(self).eval())
        return made[-1]

    monkeypatch.setattr(TorchEnsembleFit, "run", run)
    return made


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "data"),
    [
        ("fast_geometric", "wine"),
        ("snapshot", "wine"),
        ("adversarial", "diabetes"),
        *(pytest.param(method, "wine", marks=thorough) for method in ("voting", "greedy", "fusion", "adversarial")),
        *(pytest.param(method, "diabetes", marks=thorough) for method in ("fast_geometric", "soft_gradient_boosting")),
    ],
)
def test_every_method_becomes_an_ensemble_like_all(
    method: str, data: str, cli: Cli, project: Path, containers: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    outcome = cli(*words(method, data=data))
    assert outcome.code == 0, outcome.err
    run = project / "run"
    ensemble, shape = lightkit.load_ensemble(run), {"wine": 13, "diabetes": 10}[data]
    x, (container,) = torch.rand(9, shape), containers
    with torch.no_grad():
        outputs, expected = ensemble.module(x), container(x)
        if method == "fast_geometric" and data == "wine":  # that averages outputs, and we probabilities
            expected = to_torchensemble(ensemble.module, method="FastGeometric", outputs=3)(x)
        if method == "greedy":  # which weighs the members of a vote
            outputs = torch.stack([network(x).softmax(1) for network in ensemble]).mean(0)
        elif data == "wine":
            outputs = outputs.softmax(1)
    assert torch.allclose(outputs, expected, atol=1e-5)
    assert read_result(run)["test"]["test/loss"] > 0
    name = json.loads((run / "ensemble.json").read_text())["members"][-1]["name"]
    member, log = run / "members" / name, (run / "run.log").read_text()
    rows = [json.loads(line) for line in (member / "metrics.jsonl").read_text().splitlines()]
    assert sum("torchensemble/loss" in row for row in rows) == read_result(member)["epochs"]
    assert sum("val/loss" in row for row in rows) == 1
    printed = outcome.out + outcome.err
    assert f"{name}  epoch 1/" in log
    assert "the weights of the last epoch count" in printed
    assert ("torchensemble  Save the snapshot model with index: 1" in log) == (method == "snapshot")
    assert [text for text in ("Estimator:", "\nNone") if text in printed + log] == []
    assert not [record for record in caplog.records if record.name == "root"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "method",
    ["bagging", "gradient_boosting", pytest.param("fusion", marks=thorough), pytest.param("voting", marks=thorough)],
)
def test_both_engines_come_to_the_same(method: str, cli: Cli, project: Path) -> None:
    rates = ("model.dropout=0.3", "optim.rules=[{match: '*bias', lr_scale: 0.1}]", "scheduler.warmup_steps=1")
    results = []
    for engine in ("torchensemble", "sequential"):
        outcome = cli(*words(method, *rates, engine=engine), f"hydra.run.dir={engine}")
        assert outcome.code == 0, outcome.err
        results.append(read_result(project / engine)["metrics"])
    assert results[0] == pytest.approx(results[1], abs=1e-5)


SETTINGS = {
    "trainer.steps=5": "it counts epochs",
    "trainer.accumulate=2": "it makes a step of every batch",
    "trainer.clip_norm=1": "it clips",
    "trainer.clip_value=1": "it clips",
    "trainer.early_stopping.patience=2": "",
    "trainer.ema.decay=0.9": "it keeps no average",
    "trainer.nonfinite.action=skip": "",
    "trainer.validate_every=2": "",
    "trainer.overfit.samples=4": "",
    "trainer.task._target_=lightkit.trainer.tasks.Retrieval": "",
    "device.precision=bf16": "it has no autocast",
    "device.compile=default": "",
    "device.parallel=ddp": "it trains in",
    "data.mixup.alpha=0.2": "",
    "data.mixup.cutmix_alpha=1": "it takes a class",
    "trainer.epoch_steps=5": "its epochs are passes",
    "trainer.early_stopping.target=1": "",
    "trainer.swa.from_epoch=1": "it keeps no average",
    "logger.tensorboard.histograms=3": "its steps",
    "profile=true": "",
}
"""Settings of a run that it cannot follow, and what is said of them."""


def test_settings_that_it_cannot_follow_are_refused_all_at_once(cli: Cli, project: Path) -> None:
    outcome = cli(*words("voting", *SETTINGS, "device.nproc=2"))
    expected = (f"{text.partition('=')[0]}: ensemble.engine=torchensemble: {why}" for text, why in SETTINGS.items())
    assert outcome.code == 2
    assert [line for line in expected if line not in outcome.err] == []
    assert not (project / "run").exists()


REFUSED = """
ensemble.members=[{model.hidden:[8]}] ; ensemble.members: torchensemble trains members that are alike
scheduler=plateau ; scheduler: torchensemble gives a schedule no validated value
data=breast_cancer data.dataset.binary=true loss=bce_with_logits metrics=binary ; no ensemble for binary targets
finetune.freeze=['layers.linear0*'] ; finetune: torchensemble steps every parameter
model=tabm ; model: torchensemble takes networks that give one tensor
ensemble=bagging ensemble.resample=folds ensemble.size=null ; ensemble.resample: ensemble.engine=torchensemble
ensemble=gradient_boosting ensemble.engine=auto ; ensemble.engine:
ensemble=fast_geometric ensemble.cycle_epochs=1 ; torchensemble keeps its networks in the middle
ensemble=fast_geometric optim.rules=[{match:'*bias',lr_scale:0.1}] ; optim.rules: torchensemble writes one rate
ensemble=stacking ensemble.size=null ; ensemble.engine: torchensemble has no such method
"""


@pytest.mark.thorough(first=0)
def test_what_it_cannot_do_is_refused_before_training(cli: Cli, project: Path) -> None:
    for typed, part in (line.split(" ; ") for line in REFUSED.strip().splitlines()):
        outcome = cli(*words("voting", *typed.split()))
        assert outcome.code == 2, typed
        assert part.strip() in outcome.err, typed
        assert "fix:" in outcome.err or "choices:" in outcome.err, typed
        assert not (project / "run").exists(), typed
    outcome = cli(*words("fusion", "optim=sgd", "optim.lr=1e30", data="diabetes"))
    assert (outcome.code, "the loss is no longer finite in epoch" in outcome.err) == (3, True)


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("method", ["gradient_boosting", pytest.param("voting", marks=thorough)])
def test_an_interrupted_training_begins_anew(
    method: str, cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, asked = TorchEnsembleEngine._show, list[int]()

    def interrupt(self: TorchEnsembleEngine, names: Any, parts: Any, member: int, *more: Any) -> None:
        show(self, names, parts, member, *more)
        if member == 1 and not asked:
            asked.append(member)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TorchEnsembleEngine, "_show", interrupt)
    assert cli(*words(method)).code == 128 + signal.SIGTERM
    assert read_result(project / "run")["status"] == "interrupted"
    outcome = cli("resume", "run")
    assert outcome.code == 0, outcome.err
    assert "torchensemble keeps nothing of a training that was interrupted: 00" in outcome.out + outcome.err
    assert cli(*words(method, "hydra.run.dir=whole")).code == 0
    runs = [read_result(project / name)["metrics"] for name in ("run", "whole")]
    assert runs[0] == pytest.approx(runs[1])


def test_it_is_used_like_every_other_and_takes_more_members(cli: Cli, project: Path) -> None:
    assert cli(*words("voting")).code == 0
    for line in (
        ["predict", "run"],
        ["eval", "run/members/00"],
        ["ckpt", "convert", "run", "model.pt", "--to", "model"],
        ["ckpt", "convert", "run", "out", "--to", "torchensemble"],
    ):
        outcome = cli(*line)
        assert outcome.code == 0, (line, outcome.err)
    before = (project / "run/members/00/result.json").read_bytes()
    assert cli("resume", "run", "ensemble.size=3").code == 0
    assert (project / "run/members/00/result.json").read_bytes() == before
    assert len(read_result(project / "run")["members"]) == 3


@pytest.mark.thorough(first=0)
def test_rounds_cannot_be_added_but_by_our_own_engine(cli: Cli, project: Path) -> None:
    assert cli(*words("gradient_boosting")).code == 0
    outcome = cli("resume", "run", "ensemble.size=3")
    assert outcome.code == 2
    assert "torchensemble trains the members of GradientBoosting in one go" in outcome.err
    assert (project / "run/members/00-round/result.json").exists()
    assert cli("resume", "run", "ensemble.size=3", "ensemble.engine=sequential").code == 0
    assert len(read_result(project / "run")["members"]) == 3


@pytest.mark.thorough(first=0)
def test_there_by_the_lines_it_prints_and_back(tmp_path: Path) -> None:
    run, names = trained(tmp_path / "run", "ensemble=voting", "ensemble.size=2"), dict[str, object]()
    cfg = read_run(run).cfg
    file, lines = export_torchensemble(run, cfg, tmp_path / "out")
    exec(lines, names)
    x, ours = torch.randn(5, 13), lightkit.load_ensemble(run)
    with torch.no_grad():
        assert torch.allclose(names["model"].predict(x), ours.module(x).exp(), atol=1e-6)  # type: ignore[attr-defined]
    import_torchensemble(file, run, cfg, tmp_path / "back")
    back = read_run(tmp_path / "back").cfg
    assert Runner(back, tmp_path / "back").evaluate() == pytest.approx(Runner(cfg, run).evaluate(), abs=1e-6)
    with pytest.raises(UserError, match="this run is no ensemble"):
        export_torchensemble(run / "members" / "00", cfg, tmp_path / "none")
    other = trained(tmp_path / "other", "model.hidden=[7]")
    with pytest.raises(UserError, match="network 0"):
        import_torchensemble(file, other, read_run(other).cfg, tmp_path / "unlike")
    assert not (tmp_path / "unlike").exists()
