"""Cross-validation through the command line: folds, what all rows say, and what becomes of the run afterwards."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error, r2_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict

import lightkit
from lightkit.cli import main
from lightkit.ensemble.oof import MemberPredictions
from lightkit.sklearn import Classifier
from tests.conftest import Cli

QUICK = ("data=wine", "model.hidden=[4]", "trainer.epochs=1", "optim.lr=0.01", "cv.engine=sequential")
QUICK += ("logger.console.style=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]")
RUN = "outputs/run"


def result(folder: Path | str = RUN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return found


def oof(folder: Path | str = RUN) -> MemberPredictions:
    return MemberPredictions.read(Path(folder) / "oof.safetensors")


def trained(cli: Cli, *words: str, into: str = RUN) -> dict[str, Any]:
    outcome = cli("train", *QUICK, *words, f"hydra.run.dir={into}")
    assert outcome.code == 0, outcome.err
    return result(into)


@pytest.fixture(scope="module", autouse=True)
def quick_intervals() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightkit.runner.intervals._DRAWS", 50)
        yield


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project with a cross-validation of three folds."""
    place = tmp_path_factory.mktemp("wine")
    (place / "conf").mkdir()
    with chdir(place):
        assert main(["train", *QUICK, "cv=3", f"hydra.run.dir={RUN}"]) == 0
    return place


@pytest.fixture
def there(wine: Path) -> Iterator[Path]:
    with chdir(wine):
        yield wine


def test_each_row_is_tested_once_and_all_rows_are_measured(there: Path) -> None:
    found, rows = result(), oof()
    assert rows.rows.tolist() == list(range(178))
    assert set(rows.counts.tolist()) == {1}
    predicted, targets = rows.predictions.argmax(1).numpy(), rows.targets.numpy()
    assert found["test"]["test/accuracy"] == pytest.approx(accuracy_score(targets, predicted), abs=1e-6)
    macro = f1_score(targets, predicted, average="macro")
    assert found["test"]["test/f1"] == pytest.approx(macro, abs=1e-6)
    low, high = found["folds"]["intervals"]["test/accuracy"]
    assert low <= found["test"]["test/accuracy"] <= high


def test_the_mean_over_the_folds_and_its_spread_are_those_of_their_results(there: Path) -> None:
    found = result()
    own = [result(f"{RUN}/members/fold-{fold}") for fold in range(3)]
    values = [fold["test"]["test/f1"] for fold in own]
    told = found["folds"]["values"]["test/f1"]
    assert (told["mean"], told["sd"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert found["objective"]["value"] == pytest.approx(np.mean([fold["objective"]["value"] for fold in own]))


def test_a_fold_scales_its_inputs_by_its_own_training_rows(there: Path) -> None:
    facts = [json.loads(Path(f"{RUN}/members/fold-{fold}/environment.json").read_text()) for fold in range(3)]
    assert len({json.dumps(own["scaling"]) for own in facts}) == 3


def test_eval_predict_and_compare_take_it_for_what_it_is(there: Path, cli: Callable[..., Any]) -> None:
    with chdir(there):
        told = cli("eval", RUN, "--json")
        (values,) = json.loads(told.out)
        assert values["metrics"] == pytest.approx(result()["test"] | {"test/loss": values["metrics"]["test/loss"]})
        assert values["metrics"]["test/loss"] == pytest.approx(result()["test"]["test/loss"], rel=1e-4)

        assert cli("predict", RUN).code == 0
        with Path(f"{RUN}/predictions-test.csv").open() as file:
            rows = list(csv.DictReader(file))
        right = [row["target"] == row["prediction"] for row in rows]
        assert len(rows) == 178
        assert np.mean(right) == pytest.approx(result()["test"]["test/accuracy"], abs=1e-6)

        table = cli("compare", RUN).out
        assert "3" in table.splitlines()[1].split()
        assert f"{result()['folds']['values']['test/accuracy']['mean']:.4f}" in table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval", RUN, "--split", "val"), "each row is a test row of one fold"),
        (("predict", RUN, "--checkpoint", "last"), "--checkpoint: what the folds predicted"),
        (("export", RUN, "m.pt2"), "this run is a cross-validation"),
        (("params", RUN), "cross-validation"),
    ],
)
def test_what_one_model_could_do_names_the_folds(
    there: Path, cli: Callable[..., Any], words: tuple[str, ...], message: str
) -> None:
    with chdir(there):
        outcome = cli(*words)
    assert outcome.code == 2, outcome.out
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_new_rows_are_predicted_by_the_mean_of_the_folds(there: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 13)).astype(np.float32)
    model = lightkit.load(RUN)
    own = [lightkit.load(f"{RUN}/members/fold-{fold}").predict_proba(x) for fold in range(3)]
    assert np.allclose(model.predict_proba(x), np.mean(own, 0), atol=1e-6)
    assert model.predict(x).tolist() == model.classes[np.mean(own, 0).argmax(1)].tolist()
    found = model.evaluate(x, model.predict(x))
    assert found["accuracy"] == 1.0


def test_folds_trained_at_once_come_to_what_they_come_to_alone(there: Path) -> None:
    assert main(["train", *QUICK, "cv=3", "cv.engine=vectorized", "hydra.run.dir=outputs/at-once"]) == 0
    assert np.allclose(oof().predictions, oof("outputs/at-once").predictions, atol=1e-5)
    for fold in range(3):
        one, other = (Path(f"{run}/members/fold-{fold}/environment.json") for run in (RUN, "outputs/at-once"))
        assert json.loads(one.read_text())["scaling"] == json.loads(other.read_text())["scaling"]


def test_what_folds_predict_is_what_scikit_learn_predicts_with_the_same_folds(cli: Cli) -> None:
    trained(cli, "cv=2", "data.split.val=0", "metrics.monitor=train/loss")
    fold = np.zeros(178, int)
    for number in range(2):
        fold[np.load(f"{RUN}/members/fold-{number}/rows.npz")["split"] == 2] = number
    model = Classifier("model.hidden=[4]", "trainer.epochs=1", "optim.lr=0.01", "data.batch_size=16")
    theirs = cross_val_predict(model, *load_wine(return_X_y=True), cv=PredefinedSplit(fold), method="predict_proba")
    assert np.abs(oof().predictions.numpy() - theirs).max() < 1e-6


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_each_fold_weighs_classes_by_its_own_training_rows(cli: Cli, engine: str) -> None:
    found = trained(cli, "cv=2", "loss.weight=balanced", f"cv.engine={engine}")
    total = 0.0
    for fold in range(2):
        place = Path(f"{RUN}/members/fold-{fold}")
        rows = oof(place).of_split("test")
        weights = 1 / torch.tensor(json.loads((place / "environment.json").read_text())["class_shares"])
        loss = torch.nn.functional.nll_loss(rows.predictions.log(), rows.targets, weight=weights).item()
        assert result(place)["test"]["test/loss"] == pytest.approx(loss, rel=1e-5)
        total += loss * len(rows) / 178
    (anew,) = json.loads(cli("eval", RUN, "--json").out)
    assert (anew["metrics"]["test/loss"], found["test"]["test/loss"]) == pytest.approx((total, total), rel=1e-5)


def test_a_fold_that_is_lost_is_trained_again_alone(there: Path) -> None:
    copy = Path(shutil.copytree(RUN, "outputs/copy"))
    shutil.rmtree(copy / "members" / "fold-1")
    for name in ("result.json", "oof.safetensors"):
        (copy / name).unlink()
    before = (copy / "members" / "fold-0" / "result.json").stat().st_mtime_ns
    assert main(["resume", str(copy)]) == 0
    assert torch.equal(oof(copy).predictions, oof().predictions)
    assert result(copy)["test"] == result()["test"]
    assert (copy / "members" / "fold-0" / "result.json").stat().st_mtime_ns == before


@pytest.mark.thorough
def test_a_killed_cross_validation_goes_on_with_the_same_bits(process: Cli) -> None:
    words = ("data=wine", "model.hidden=[4]", "cv=2", "--epochs", "2", "--steps", "12")
    outcome = process("verify-resume", *words)
    assert outcome.code == 0, outcome.out + outcome.err
    assert "the same bits" in outcome.out


def test_repeats_deal_the_rows_out_anew_and_a_refit_learns_from_all(cli: Cli) -> None:
    found = trained(cli, "cv.folds=2", "cv.repeats=2", "cv.refit=true", "data.split.val=0.1")
    assert found["folds"]["names"] == ["fold-0-0", "fold-0-1", "fold-1-0", "fold-1-1"]
    rows = [MemberPredictions.read(Path(f"{RUN}/members/fold-{name}-0/oof.safetensors")) for name in (0, 1)]
    assert rows[0].of_split("test").rows.tolist() != rows[1].of_split("test").rows.tolist()
    assert set(oof().counts.tolist()) == {2}
    refit = np.load(f"{RUN}/members/fold-refit/rows.npz")["split"]
    assert (refit == 2).sum() == 0
    x = np.zeros((2, 13), dtype=np.float32)
    assert np.array_equal(
        lightkit.load(RUN).predict_proba(x), lightkit.load(f"{RUN}/members/fold-refit").predict_proba(x)
    )


def test_folds_of_an_ensemble_are_ensembles(process: Cli) -> None:
    found = trained(process, "cv=2", "ensemble=voting", "ensemble.size=2")
    assert Path(f"{RUN}/members/fold-1/ensemble.safetensors").is_file()
    assert sorted(oof().rows.tolist()) == list(range(178))
    assert found["test"]["test/accuracy"] > 0.3
    x = np.zeros((2, 13), dtype=np.float32)
    own = [lightkit.load(f"{RUN}/members/fold-{fold}").predict_proba(x) for fold in range(2)]
    assert np.allclose(lightkit.load(RUN).predict_proba(x), np.mean(own, 0), atol=1e-6)


def table(path: Path, seed: int = 0) -> None:
    """Write rows of nine patients with a target of large numbers."""
    draw = np.random.default_rng(seed)
    rows = [(f"p{i % 9}", i, *draw.normal(size=2)) for i in range(90)]
    lines = [f"{patient},{time},{a:.4f},{b:.4f},{np.exp(a + 4):.4f}" for patient, time, a, b in rows]
    path.write_text("\n".join(["patient,day,a,b,y", *lines]) + "\n")


TABLE = ("data=csv", "data.dataset.path=t.csv", "data.dataset.target=y", "data.dataset.target_transform=log")
TABLE += ("data.dataset.group_column=patient",)


def test_values_are_measured_in_their_unit_though_each_fold_learns_another(
    cli: Cli, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table(project / "t.csv")
    found, rows = trained(cli, *TABLE, "cv=2", "+metrics.test.mae._target_=torchmetrics.MeanAbsoluteError"), oof()
    truth = np.array([float(line.split(",")[-1]) for line in (project / "t.csv").read_text().splitlines()[1:]])
    assert rows.targets.numpy().ravel() == pytest.approx(truth, rel=1e-4)
    predicted = rows.predictions.numpy().ravel()
    assert found["test"]["test/mae"] == pytest.approx(mean_absolute_error(truth, predicted), rel=1e-4)
    assert found["test"]["test/r2"] == pytest.approx(r2_score(truth, predicted), rel=1e-4)
    parts = [np.load(f"{RUN}/members/fold-{fold}/rows.npz")["split"] for fold in range(2)]
    for split in parts:
        tested = {number % 9 for number in np.flatnonzero(split == 2).tolist()}
        assert not tested & {number % 9 for number in np.flatnonzero(split != 2).tolist()}
    (anew,) = json.loads(cli("eval", RUN, "--json").out)
    assert anew["metrics"] == pytest.approx(found["test"], rel=1e-4)  # the loss is that of what is learnt
    assert cli("predict", RUN, "--output", "old.csv").code == 0
    with (project / "old.csv").open() as file:
        told = [(float(row["target"]), float(row["prediction"])) for row in csv.DictReader(file)]
    assert np.allclose(told, np.stack([truth, predicted], 1), rtol=1e-4)
    assert cli("predict", RUN, "--input", "t.csv", "--output", "new.csv").code == 0
    together = lightkit.load(RUN).evaluate("t.csv")
    assert (together["loss"] < 10, together["mse"] > 100) == (True, True), "a loss is that of the logarithm"
    kept = cli("eval", RUN).out
    table(project / "t.csv", seed=2)
    assert cli("eval", RUN).out == kept
    assert "the data have changed" in caplog.text
    with (project / "new.csv").open() as file:
        new = list(csv.DictReader(file))
    assert len(new) == 90
    assert {"prediction", "std"} <= new[0].keys()


def test_folds_in_order_of_time_learn_from_older_rows_and_measure_further_sets(cli: Cli, project: Path) -> None:
    table(project / "t.csv")
    table(project / "more.csv", seed=1)
    timed = (*TABLE[:-1], "data.dataset.time_column=day", "cv.folds=2", "cv.by=time", "data.dataset.features=[a,b]")
    found = trained(cli, *timed, "data.more={again: {dataset: {path: more.csv}}}")
    for fold in range(2):
        split = np.load(f"{RUN}/members/fold-{fold}/rows.npz")["split"]
        assert np.flatnonzero(split == 0).max() < np.flatnonzero(split == 2).min()
    assert sorted(oof().rows.tolist()) == list(range(30, 90))
    assert len(found["folds"]["values"]["again/loss"]["values"]) == 2


def test_a_file_that_asks_for_folds_without_their_number_is_refused(cli: Cli, project: Path) -> None:
    (project / "conf").mkdir(exist_ok=True)
    (project / "conf/config.yaml").write_text("cv:\n  repeats: 2\n  engine: sequential\n")
    own = [word for word in QUICK if "engine" not in word]
    outcome = cli("train", *own)
    assert (outcome.code, "cv.repeats: there are no folds" in outcome.err) == (2, True)
    assert "conf/config.yaml:2" in outcome.err
    assert cli("train", *own, "cv.folds=null", f"hydra.run.dir={RUN}").code == 0
    assert cli("eval", RUN).code == 0
    trained(cli, "cv=2", into="outputs/folds")
    assert cli("train", "--from", "outputs/folds/members/fold-0-1", "hydra.run.dir=outputs/again").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cv=1",), "cv.folds: out of range"),
        (("cv=500",), "there are fewer rows than folds"),
        (("cv=many",), "cv.folds: wrong type"),
        (("cv.refit=true",), "cv.refit: there are no folds"),
        (("cv=3", "trainer.stop_at=5step"), "the folds are trained to their ends"),
        (("cv=3", "cv.engine=vectorized", "ensemble=voting"), "folds that are ensembles train as processes"),
        (("cv=3", "cv.fold=1"), "cv.fold: unknown key"),
    ],
)
def test_mistakes_never_start_a_run(cli: Cli, project: Path, words: tuple[str, ...], message: str) -> None:
    outcome = cli("train", "data=wine", *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (project / "outputs").exists()
