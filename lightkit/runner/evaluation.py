"""A trained model on a split: which weights, and what they reach."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.assembly import Learner
from lightkit.checkpoint import content
from lightkit.checkpoint.reading import DamagedError, check_bytes, entry_of
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.data import Data, DataInfo, Loader
from lightkit.ensemble.combining import as_logits, as_probabilities
from lightkit.ensemble.diversity import MemberOutputs
from lightkit.ensemble.module import Ensemble
from lightkit.ensemble.oof import TASKS
from lightkit.metrics import Figures, Gathered, Shaped, write_figures
from lightkit.processes.files import write_whole
from lightkit.runner.member import MemberRun
from lightkit.trainer import evaluate
from lightkit.trainer.evaluate import AsTheyAre, Predictions
from lightkit.trainer.interrupt import AskedToEnd, Interrupt
from lightkit.trainer.learner import Evaluable
from lightkit.trainer.tasks import fit_shape


def load_weights(learner: Learner, checkpoint: str, folder: Path) -> None:
    """Put saved weights into the model: the averaged ones where the run kept an average.

    Args:
        learner: The model of the run, with its data and metrics.
        checkpoint: `best`, `last` or the path of a checkpoint file.
        folder: The run's folder, for the message.

    Raises:
        UserError: There is no such checkpoint, or its weights do not fit the model.
    """
    weights = content.load_model_state(checkpoint_path(learner.store, checkpoint, folder))
    problems = content.model_problems(weights, learner.model)
    if problems:
        raise problems[0]
    content.load_model(learner.model, weights)


def checkpoint_path(store: CheckpointStore | None, checkpoint: str, folder: Path) -> Path:
    """Return the file of a checkpoint: `best`, where there is none the newest, `last`, or a path.

    Raises:
        UserError: The run has no checkpoint.
    """
    if checkpoint not in ("best", "last"):
        return Path(checkpoint)
    path = None if store is None else (store.best() or store.newest()) if checkpoint == "best" else store.newest()
    if path is None:
        fix = "train it first; `lightkit rerun` trains a run again whose checkpoints were removed"
        raise UserError("the run has no checkpoint", key=str(folder), fix=fix, family="no-checkpoint")
    return path


def evaluate_split(
    learner: Learner, split: str, collectors: Sequence[Any] = (), *, interrupt: Interrupt | None = None, step: int = 0
) -> dict[str, float]:
    """Metrics of the model's present weights on a split, without augmentation.

    Args:
        learner: The model of the run, with its data and metrics.
        split: `train`, `val`, `test` or the name of a further set.
        collectors: What else gets every batch.
        interrupt: Tells when a signal asked the run to end.
        step: Optimizer step that a run ends at.

    Raises:
        UserError: The data has no such split.
        Interrupted: A signal asked the run to end.
    """
    loader, metrics = rows_of(learner.data, split), learner.metrics[split]
    metrics.reset()
    pass_over(learner, loader, [metrics, *collectors], interrupt=interrupt, step=step)
    return metrics.compute()


def rows_of(data: Data, split: str, key: str | None = None) -> Loader:
    """Return the loader of a split, without augmentation.

    Args:
        data: The splits.
        split: `train`, `val`, `test` or a further one.
        key: What asks for it, for the error.

    Raises:
        UserError: The data has no such split.
    """
    loader = data.evaluation(split)
    if loader is None:
        what = "the data has no such split"
        raise UserError(what, key=key, received=split, choices=data.loaders(), family="split")
    return loader


def pass_over(
    learner: Evaluable, loader: Any, meters: Sequence[Any], *, interrupt: Interrupt | None = None, step: int = 0
) -> None:
    """Run the model's present weights over a loader; see `evaluate_split`."""
    learner.engine.seed_validation(0)
    asked = interrupt or Interrupt()
    try:
        evaluate(learner, loader, meters, each=lambda _batch: asked.raise_at(step), interrupt=asked)
    except AskedToEnd:
        asked.raise_at(step)
        raise


Predicted = tuple[Predictions, dict[str, list[Any]]]
"""Predictions, and how sure an ensemble is of each row, see `lightkit.ensemble.diversity.MemberOutputs`."""


def predict_rows(trained: Evaluable, loader: Any, info: DataInfo, after: AsTheyAre | None = None) -> Predicted:
    """Predict the rows of a loader by the model's present weights.

    Args:
        trained: The model.
        loader: The rows.
        info: Facts about their data.
        after: What becomes of outputs; None leaves them as they are.
    """
    collected, model = Predictions(info.task, info.class_names, info.in_unit), trained.engine.unwrap(trained.network)
    collected.after = after or AsTheyAre()
    if not isinstance(model, Ensemble):
        pass_over(trained, loader, [collected])
        return collected, {}
    each = MemberOutputs(info.task, model.weights, info.target_scale, info.undo)
    with model.observed(each):
        pass_over(trained, loader, [collected])
    return collected, each.columns(collected.outputs())


def collected(outputs: Tensor, targets: Tensor | None, info: DataInfo, after: AsTheyAre | None = None) -> Predictions:
    """Return outputs of rows `(N, ...)` that are known, and their targets, as what a run predicts.

    Args:
        outputs: As a network gives them.
        targets: As it learns them; None where there are none.
        info: Facts about the data.
        after: See `predict_rows`.
    """
    found = Predictions(info.task, info.class_names, info.in_unit)
    found.after = after or AsTheyAre()
    found.update(outputs, targets, torch.zeros(()), len(outputs))
    return found


def over_views(learner: Learner, split: str, views: int = 0, after: AsTheyAre | None = None) -> Predicted:
    """Predict the rows of a split, each by the mean over augmented views of it.

    The numbers of a view are those of the seed, its own number and the place of the row in the split.

    Args:
        learner: The model of the run, with its data.
        split: See `evaluate_split`.
        views: How many views; 0 takes the rows as they are.
        after: See `predict_rows`.

    Raises:
        UserError: There is no such split, the run augments nothing, or what it predicts has no mean.
    """
    info, plain, augment = learner.data.info, rows_of(learner.data, split), learner.data.train.prepare.augment
    if not views:
        return predict_rows(learner, plain, info, after)
    check_mean(info, "--tta")
    if not augment:
        what, fix = "the run augments nothing, so all views are alike", "a run with data.augment, or leave it out"
        raise UserError(what, key="--tta", received=views, fix=fix, family="contradiction")
    how: dict[str, Any] = {"augment": augment, "augment_on_device": False, "persistent_workers": False}
    seeds = [mix(plain.options.seed, "view", number) for number in range(views)]
    found = [predict_rows(learner, plain.with_rows(plain.rows, seed=seed, **how), info)[0].tensors() for seed in seeds]
    values = torch.stack([as_probabilities(info.undo(outputs), info.task) for outputs, _ in found])
    outputs = fit_shape(as_logits(info.transform(values.double().mean(0).float()), info.task), found[0][1])
    return collected(outputs, found[0][1], info, after), {}


def check_mean(info: DataInfo, key: str) -> None:
    """Refuse a kind of target whose predictions are neither probabilities nor values.

    Raises:
        UserError: It is such a kind.
    """
    if info.task not in TASKS:
        what = "what this run predicts has no probabilities of classes or labels, and is no value"
        raise UserError(what, key=key, received=info.task, choices=TASKS, family="data-setting")


def with_names(rows: list[dict[str, Any]], source: Any) -> list[dict[str, Any]]:
    """Put the file or name of each row into it, where the data set has them."""
    names, column = getattr(getattr(source, "base", source), "row_names", None), getattr(source, "row_column", "file")
    return rows if names is None else [{"row": row["row"], column: str(names[row["row"]]), **row} for row in rows]


def load_counted(run: MemberRun, learner: Learner) -> None:
    """Put the weights into the model that count in the end: the best ones, unless `trainer.test` asks for the last."""
    wants_best = run.cfg.trainer.test != "last"
    best = run.session.ranks.shared(lambda: learner.store.best() if learner.store and wants_best else None)
    if best is None:
        learner.average.keep()
        return
    if not run.session.ranks.shared(lambda: _is_held(learner, best)):
        load_weights(learner, str(best), run.path)


def _is_held(learner: Learner, path: Path) -> bool:
    """Tell whether the model holds what is in its checkpoint, and that is whole."""
    entry = entry_of(path)
    if entry is None or entry.step != learner.state.step or learner.callbacks or learner.average.is_saved:
        return False
    with suppress(DamagedError):  # whoever reads the file tells of it
        check_bytes(path, entry)
        return True
    return False


def final_test(run: MemberRun, learner: Learner) -> bool:
    """Test the model at the end of its run, with figures; with the best weights where there are any on disk.

    Returns:
        Whether the model has the weights that count for certain: a callback may have changed them.
    """
    cfg, info, state = run.cfg, learner.data.info, learner.state
    splits = [split for split in learner.data.loaders() if split not in ("train", "val")]
    if cfg.trainer.test == "none" or not splits:
        return False
    load_counted(run, learner)
    found = dict[str, float]()
    for split in splits:
        figures = Figures(info.task, cfg.metrics.figures, info.class_names, info.num_classes)
        taken = Gathered(figures, run.session.ranks)
        values = evaluate_split(learner, split, [taken], interrupt=run.session.signals, step=state.step)
        taken.exchange()
        result_writer(run)(split, learner.metrics[split].figures_data)
        state.last.update(values)
        run.logger.scalars(values, step=state.step, epoch=state.epoch)
        found |= values
        if run.session.ranks.main:
            folder = run.path / run_files.FIGURES / ("" if split == "test" else split)
            figures.write(run.logger, folder, step=state.step, split=split)
    for tested in run.on_test:
        tested(found)
    return not learner.callbacks


_LOG = logging.getLogger(__name__)


def result_writer(run: MemberRun) -> Callable[[str, Mapping[str, Shaped]], None]:
    """Return what keeps the newest results of a split in the run's folder, and says once where they are."""
    announced = set[Path]()

    def write(split: str, results: Mapping[str, Shaped]) -> None:
        if not run.session.ranks.main:
            return
        for name, path in write_results(results, run.path / run_files.FIGURES / split).items():
            if path not in announced:
                announced.add(path)
                run.logger.message(f"metrics.{split}.{name} is no number: see {path}")

    return write


def write_results(results: Mapping[str, Shaped], folder: Path) -> dict[str, Path]:
    """Write results to a file of NumPy each, which takes the place of an older one.

    Args:
        results: Results by the name of their metric.
        folder: Where the files go; made when there is something to write.

    Returns:
        The files by name.
    """
    written = dict[str, Path]()
    for name, result in results.items():
        folder.mkdir(parents=True, exist_ok=True)
        written[name] = path = folder / f"{name.replace('/', '_')}{run_files.METRIC_RESULT}"
        packed = io.BytesIO()
        np.savez(packed, **result.arrays())
        write_whole(path, packed.getvalue(), forced=True)
    return written


def evaluation_folder(folder: Path, split: str) -> Path:
    """Return where an evaluation after a run keeps such results."""
    return folder / run_files.FIGURES / Path(run_files.EVALUATION.format(split=split)).stem


def draw_results(run: MemberRun, learner: Learner) -> None:
    """Draw what the metrics of a run that has come to its end gave last, for its folder and TensorBoard."""
    if not run.session.ranks.main:
        return
    for split in learner.metrics:
        folder = run.path / run_files.FIGURES / split
        for path in sorted(folder.glob(f"*{run_files.METRIC_RESULT}")):
            figure = draw_file(path)
            if figure is not None:
                write_figures({f"{split}/{path.stem}": figure}, run.logger, folder, step=learner.state.step)


def draw_file(path: Path) -> Any:
    """Draw a file of `write_results`; None where it cannot be drawn."""
    from lightkit.metrics.drawing import draw  # matplotlib is slow to import

    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError) as error:
        _LOG.warning("%s cannot be drawn: %s", path, error)
        return None
    return draw(arrays, title=path.stem)
