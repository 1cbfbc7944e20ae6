from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lightkit.common.errors import UserErrors
from lightkit.config import compose, load_run, save
from lightkit.config.direction import direction
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
TINY = ("data=wine", "trainer.epochs=2", "device=cpu", "model.hidden=[4]", "logger.tensorboard.enabled=false")
METRICS = """\
from torchmetrics import Metric
from torchmetrics.regression import MeanSquaredError


class Mine(MeanSquaredError):
    pass


class Open(Metric):
    pass


class Late(Metric):
    def __init__(self):
        super().__init__()
        self.higher_is_better = True


def made():
    return MeanSquaredError()
"""


def mode(cli: Cli, *overrides: str) -> str:
    done = cli("config", "data=wine", *overrides)
    assert done.code == 0, done.err
    return str(yaml.safe_load(done.out)["metrics"]["mode"])


@pytest.fixture
def metrics(project: Path) -> Path:
    (project / "measures.py").write_text(METRICS, encoding="utf-8")
    return project


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "max"),
        (["metrics.monitor=val/loss"], "min"),
        (["metrics.monitor=train/loss", "metrics.mode=min"], "min"),
        (["data=diabetes", "metrics.monitor=val/mse"], "min"),
        (["data=diabetes", "metrics.monitor=val/r2"], "max"),
        (["data=diabetes", "+metrics.val.r._target_=torchmetrics.PearsonCorrCoef", "metrics.monitor=val/r",
          "metrics.mode=max"], "max"),
        (["metrics.val.a={_target_: torchmetrics.CalibrationError, task: multiclass}", "metrics.monitor=val/a"], "min"),
        (["metrics.val.a={_target_: torchmetrics.ClasswiseWrapper, metric: {_target_: "
          "torchmetrics.classification.MulticlassHingeLoss}}", "metrics.monitor=val/a/0"], "min"),
        (["metrics.val.a._target_=measures.Mine", "metrics.monitor=val/a"], "min"),
        (["metrics.val.loss._target_=torchmetrics.classification.MulticlassAccuracy", "metrics.monitor=val/loss"],
         "max"),
    ],
)  # fmt: skip
def test_the_mode_follows_from_the_metric(cli: Cli, metrics: Path, overrides: list[str], expected: str) -> None:
    assert mode(cli, *overrides) == expected


def test_a_mode_that_contradicts_the_metric_is_refused(project: Path) -> None:
    wrong = {
        "metrics.mode: contradicts metrics.monitor": ["metrics.monitor=val/loss", "metrics.mode=max"],
        "leave it out (null goes by the metric)": ["metrics.mode=min"],
        "scheduler.mode: contradicts metrics.mode, which is max": ["scheduler=plateau", "scheduler.mode=min"],
    }
    for part, typed in wrong.items():
        with pytest.raises(UserErrors) as caught:
            compose(["data=wine", *typed])
        assert part in str(caught.value)
        assert f"command line: {typed[-1]}" in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Open", "Late", "made"])
def test_a_metric_that_leaves_it_open_needs_a_mode(cli: Cli, metrics: Path, name: str) -> None:
    overrides = ("data=wine", f"metrics.val.a._target_=measures.{name}", "metrics.monitor=val/a")
    done = cli("config", *overrides)
    assert done.code == 2
    assert "metrics.mode: missing: the metric of val/a" in done.err
    assert cli("config", *overrides, "metrics.mode=max").code == 0


def test_everything_in_a_run_goes_by_the_derived_mode(cli: Cli, project: Path) -> None:
    parts = ("scheduler=plateau", "trainer.early_stopping.patience=1", "metrics.monitor=val/loss")
    assert cli("train", *TINY, *parts, "trainer.epochs=4", "hydra.run.dir=outputs/a").code == 0
    run = project / "outputs/a"
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [row["val/loss"] for row in rows if "val/loss" in row]
    assert (config["metrics"]["mode"], config["scheduler"]["mode"]) == ("min", "min")
    assert result["objective"]["mode"] == "min"
    assert result["objective"]["value"] == min(losses)
    assert json.loads((run / "checkpoints/manifest.json").read_text(encoding="utf-8"))["mode"] == "min"


def test_a_run_with_a_mode_of_its_own_goes_on_with_it(project: Path, tmp_path: Path) -> None:
    path = save(compose(["data=wine"]).cfg, tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("mode: max", "mode: min"), encoding="utf-8")
    assert load_run(tmp_path, ["trainer.epochs=3"], known=True).cfg.metrics.mode == "min"


@pytest.mark.parametrize("new", [False, True])
def test_a_run_that_is_to_monitor_something_else_takes_the_mode_of_that(
    project: Path, tmp_path: Path, new: bool
) -> None:
    save(compose(["data=wine", "scheduler=plateau"]).cfg, tmp_path)
    cfg = load_run(tmp_path, ["metrics.monitor=val/loss"], known=True, new=new).cfg
    assert (cfg.metrics.mode, cfg.scheduler.mode) == ("min", "min")


@pytest.mark.parametrize(
    ("listed", "monitor"),
    [
        ([{"_target_": "a.MulticlassAccuracy"}, {"_target_": "torchmetrics.regression.MeanSquaredError"}],
         "val/all/MeanSquaredError"),
        ({"acc": {"_target_": "torchmetrics.classification.MulticlassAccuracy"},
          "mse": {"_target_": "torchmetrics.regression.MeanSquaredError"}}, "val/all/mse"),
    ],
)  # fmt: skip
def test_a_metric_of_a_collection_says_it_for_itself(listed: object, monitor: str) -> None:
    node = {"_target_": "torchmetrics.MetricCollection", "metrics": listed}
    assert direction({"monitor": monitor, "val": {"all": node}}) == "min"
