"""Pages of real runs, and of every kind of data."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from captum.attr import IntegratedGradients
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.inspection import permutation_importance
from torch import nn

from lightkit.assembly import build_learner, build_shared
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.data import DataInfo
from lightkit.gallery import show
from lightkit.gallery.samples import loader_of
from lightkit.gallery.show import (
    attributions_page,
    data_page,
    importance_page,
    results_page,
    sample_losses,
    worst,
    worst_page,
)
from lightkit.runner import Runner
from lightkit.runs.reading import read_run
from lightkit.trainer import StepOutput, Task
from tests.runner.finished_runs import trained

TEXT = ["data=text", "data.dataset.context_length=16", "data.dataset.max_chars=6000"]


@contextmanager
def fresh(folder: Path, *overrides: str) -> Iterator[Any]:
    """A learner that has not trained yet."""
    cfg = compose([*overrides, "device.name=cpu"]).cfg
    shared = build_shared(cfg, folder)
    with closing(shared.data):
        yield build_learner(cfg, shared, folder)


@pytest.mark.parametrize(
    ("overrides", "sections"),
    [
        (["experiment=digits_cnn"], ["Data", "Samples", "Augmentation", "Targets", "Inputs"]),
        (["data=diabetes"], ["Data", "Samples", "Targets", "Inputs"]),
        pytest.param(["data=digits_multilabel"], None, marks=pytest.mark.thorough),
        pytest.param(
            ["data=breast_cancer", "data.dataset.binary=true", "loss=bce_with_logits", "metrics=binary"],
            None,
            marks=pytest.mark.thorough,
        ),
        ([*TEXT, "model=lstm_lm"], ["Data", "Samples", "Inputs"]),
    ],
)
def test_pages_of_data(tmp_path: Path, overrides: list[str], sections: list[str] | None) -> None:
    with fresh(tmp_path, *overrides) as learner:
        page = data_page(learner.data, "name <x>", count=5)
    assert len(page.samples) == 5
    assert [section.title for section in page.sections] == (sections or ["Data", "Samples", "Targets", "Inputs"])
    files = page.write(tmp_path / "pages", "data-train")
    text = files[0].read_text()
    assert "<title>name &lt;x&gt;: train</title>" in text
    assert "http" not in text.replace("http-equiv", "")  # nothing is fetched
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody changes."""
    return trained(tmp_path_factory.mktemp("runs") / "wine", "trainer.epochs=4")


def runner_of(folder: Path, *overrides: str) -> Runner:
    return Runner(read_run(folder, list(overrides)).cfg, folder)


def test_worst_are_the_largest_losses(tmp_path: Path) -> None:
    with fresh(tmp_path, "data=wine") as learner:
        page = worst_page(learner, "wine", count=7)
        loader = loader_of(learner.data, "test", training=False)
        x, y = (torch.cat(parts) for parts in zip(*loader.epoch(0)))
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(learner.model.eval()(x), y, reduction="none")
    expected = losses.sort(descending=True)
    assert [sample.loss for sample in page.samples] == pytest.approx(expected.values[:7].tolist(), rel=1e-5)
    assert [sample.row for sample in page.samples] == loader.rows[expected.indices[:7]].tolist()
    text = page.html()
    assert "alcohol" in text
    assert "od280/od315_of_diluted_wines" in text


def test_results_agree_with_predict(wine: Path) -> None:
    runner = runner_of(wine)
    with runner.trained() as learner:
        page = results_page(learner, "wine", count=1000)
    rows = {row["row"]: row for row in runner.predict()}
    assert {sample.row for sample in page.samples} == {*rows}
    for sample in page.samples:
        assert sample.answer is not None
        assert sample.answer.text == rows[sample.row]["prediction"]
        assert sample.target == rows[sample.row]["target"]
        assert sample.answer.is_right is (rows[sample.row]["prediction"] == rows[sample.row]["target"])
    right = sum(bool(sample.answer and sample.answer.is_right) for sample in page.samples)
    assert f"{right} of these {len(rows)} are right" in page.sections[0].note


def test_losses_one_by_one_where_the_criterion_cannot_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh(tmp_path, "data=wine") as learner:
        loader = loader_of(learner.data, "test", training=False)
        whole = sample_losses(learner, loader)
        monkeypatch.setattr(show, "unreduced", lambda *_: None)
        assert sample_losses(learner, loader).tolist() == pytest.approx(whole.tolist(), rel=1e-4)
        assert learner.criterion.reduction == "mean"


def test_a_loss_that_compares_samples_has_none_of_its_own(tmp_path: Path) -> None:
    contrastive = ("data=wine", "loss=supervised_contrastive", "metrics=none", "metrics.monitor=val/loss")
    with fresh(tmp_path, *contrastive) as learner:
        with pytest.raises(UserError, match="compares samples"):
            worst(learner, "test", 3)
        assert all(sample.loss is None for sample in results_page(learner, "x").samples)


@pytest.mark.thorough(first=0)
def test_numbers_are_drawn_over_their_targets(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "data=diabetes")
    with runner_of(folder).trained() as learner:
        page = results_page(learner, "diabetes", split="val", count=3)
    assert [section.title for section in page.sections] == ["All predictions", "Samples"]
    assert page.samples[0].answer is not None
    assert page.samples[0].answer.is_right is None
    # In the unit of the table (25 to 346), though the network learnt hundreds.
    rows = {row["row"]: row for row in runner_of(folder).predict("val")}
    assert all(row["target"] == round(row["target"]) and 25 <= row["target"] <= 346 for row in rows.values())
    for sample in page.samples:
        assert sample.target == f"{rows[sample.row]['target']:.4g}"
        assert sample.answer is not None
        assert sample.answer.text == f"{rows[sample.row]['prediction']:.4g}"


class Named:
    """Samples as dictionaries, of classes with names."""

    def __init__(self) -> None:
        self.info = DataInfo("custom", (4,), 2, ("cat", "dog"))

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"x": torch.full((4,), float(row % 2)), "kind": row % 2}


class OfNamed(Task):
    def step(self, model: nn.Module, batch: Any, criterion: Any) -> StepOutput:
        output = model(batch["x"])
        return StepOutput(criterion(output, batch["kind"]), output, batch["kind"])


def test_dictionaries_have_the_names_of_their_classes(tmp_path: Path) -> None:
    task = ("data=custom", f"data.dataset._target_={__name__}.Named", f"trainer.task._target_={__name__}.OfNamed")
    rest = ("data.split.by=random", "model=mlp", "loss=cross_entropy", "metrics=none", "metrics.monitor=val/loss")
    sizes = ("data.num_workers=0", "model.in_features=4", "model.num_classes=2")
    with fresh(tmp_path, *task, *rest, *sizes) as learner:
        page = results_page(learner, "named", count=4)
    for sample in page.samples:
        assert sample.target == ("cat", "dog")[sample.row % 2]
        assert sample.answer is not None
        assert sample.answer.text in ("cat", "dog")
        assert sample.answer.is_right is (sample.answer.text == sample.target)


def test_wrong_tokens_of_a_text_are_marked(tmp_path: Path) -> None:
    with fresh(tmp_path, *TEXT, "model=lstm_lm") as learner:
        text = worst_page(learner, "text", count=2).html()
    assert "<mark title=" in text
    assert "Tokens that were predicted wrongly are marked." in text


def test_a_loss_that_is_no_number_is_the_worst(tmp_path: Path) -> None:
    with fresh(tmp_path, "data=wine") as learner:
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter.fill_(float("nan"))
        page = worst_page(learner, "broken", count=2)
    assert all(sample.loss != sample.loss for sample in page.samples)
    assert page.html()


@pytest.mark.thorough
def test_an_ensemble_is_one_model(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", "ensemble=voting", "ensemble.size=2")
    with runner_of(folder).trained() as learner:
        page: Any = results_page(learner, "both", count=4)
    assert len(page.samples) == 4
    assert page.samples[0].answer.confidence is not None


class Net(ClassifierMixin, BaseEstimator):
    """A network as an estimator of scikit-learn that is fitted already."""

    def __init__(self, network: Any = None) -> None:
        self.network, self.classes_ = network, np.arange(3)

    def fit(self, *_: Any) -> Net:
        return self

    def predict(self, x: Any) -> Any:
        with torch.no_grad():
            return self.network(torch.from_numpy(x)).argmax(1).numpy()


def test_importance_is_that_of_scikit_learn(wine: Path) -> None:
    with runner_of(wine).trained() as learner:
        page = importance_page(learner, "wine", ("val/accuracy", "max"), split="test", count=32)
        source, rows = learner.data.source, loader_of(learner.data, "test", training=False).rows
        x, y = source.x[rows].numpy(), source.y[rows].numpy()
        wanted = permutation_importance(Net(learner.model.eval()), x, y, n_repeats=10, random_state=0)
    found = {line["column"]: (line["drop"], line["sd"]) for line in page.table}
    assert list(found) == [column for column, _ in sorted(found.items(), key=lambda item: -item[1][0])]
    for name, mean, sd in zip(source.feature_names, wanted.importances_mean, wanted.importances_std):
        assert found[name] == pytest.approx((mean, sd), abs=1e-6)
    assert re.search("(flavanoids|total_phenols) and (flavanoids|total_phenols) are closest", page.html())


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a table with numbers, names, dates and gaps; one column is noise."""
    place, generator = tmp_path_factory.mktemp("mixed"), np.random.default_rng(0)
    days = [f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}" for i in range(240)]
    table = pd.DataFrame({"kind": generator.choice(["a", "b", "c"], 240), "day": days})
    table["noise"], table["gap"] = generator.normal(size=240), np.where(np.arange(240) % 5, np.arange(240) % 7, np.nan)
    table["y"] = table.kind.map({"a": 0.0, "b": 3.1, "c": -3.2}) + table.gap.isna() * 2.05
    table["twin"] = table.gap.fillna(0.0) + 0.01 * table.noise
    table.to_csv(place / "t.csv", index=False)
    dataset = [f"data.dataset.path={place / 't.csv'}", "data.dataset.target=y", "data.dataset.categorical=[kind]"]
    more = ["data.dataset.dates=[day]", "data.dataset.missing=median", "data.dataset.add_indicator=true"]
    return trained(
        place / "run", "data=csv", *dataset, *more, "trainer.epochs=12", "optim.lr=0.01", "model.hidden=[32]"
    )


def test_all_that_a_column_is_made_of_is_permuted_together(mixed: Path) -> None:
    with runner_of(mixed).trained() as learner:
        names, columns = learner.data.source.feature_names, show.columns_of(learner.data.source)
        assert [*columns] == ["kind", "day", "noise", "gap", "twin"]
        assert [names[place] for place in columns["kind"]] == ["kind=a", "kind=b", "kind=c"]
        assert [names[place] for place in columns["gap"]] == ["gap", "gap missing"]
        before = learner.data.source.x.clone()
        page = importance_page(learner, "mixed", ("val/nothing", "max"), split="val", count=5, repeats=4)
        assert torch.equal(learner.data.source.x, before)
    drops = {line["column"]: line["drop"] for line in page.table}
    assert page.subtitle.startswith("val/loss ")
    assert next(iter(drops)) == "kind"
    assert drops["kind"] > 10 * abs(drops["noise"])
    assert re.search("Here (gap and twin|twin and gap) are closest", page.sections[0].note)


def test_attributions_sum_up_to_the_output(wine: Path) -> None:
    with runner_of(wine).trained() as learner:
        page = attributions_page(learner, "wine", split="test", count=5)
        rows = torch.tensor([sample.row for sample in page.samples])
        x, network = learner.data.source.x[rows], learner.model.eval()
        outputs, zero = network(x), network(torch.zeros_like(x))
        chosen = outputs.argmax(1, keepdim=True)
        wanted = IntegratedGradients(network).attribute(x, target=chosen[:, 0])
    found = torch.stack([sample.x for sample in page.samples])
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.sum(1), (outputs - zero).gather(1, chosen)[:, 0].detach(), rtol=0.02, atol=0.02)
    assert "alcohol" in page.html()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["integrated_gradients", "saliency", "input_x_gradient"])
def test_attributions_of_images_are_beside_them(tmp_path: Path, method: str) -> None:
    with fresh(tmp_path, "experiment=digits_cnn") as learner:
        page = attributions_page(learner, "digits", split="val", count=3, method=method)
    assert [tuple(sample.x.shape) for sample in page.samples] == [(3, 8, 16)] * 3
    assert all(float(sample.x.min()) >= 0 and float(sample.x.max()) <= 1 for sample in page.samples)
    assert all((sample.x[0, :, 8:] > sample.x[1, :, 8:]).any() for sample in page.samples)
    assert page.write(tmp_path / "pages", "a")[1].read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_explained_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh(tmp_path, *TEXT, "model=lstm_lm") as learner:
        with pytest.raises(UserError, match="no table whose columns have names"):
            importance_page(learner, "text", ("val/loss", "min"), split="val", count=3)
        with pytest.raises(UserError, match="attributions are for images"):
            attributions_page(learner, "text", split="val", count=3)
        monkeypatch.setitem(sys.modules, "captum.attr", None)
        with pytest.raises(UserError, match=r"pip install 'lightkit\[explain\]'"):
            attributions_page(learner, "text", split="val", count=3)
