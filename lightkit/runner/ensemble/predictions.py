"""What a member of an ensemble predicts of rows that it did not learn from, and at validations, kept in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightkit.assembly.parts import role_of
from lightkit.common import run_files
from lightkit.data import DataInfo
from lightkit.ensemble.combining import as_probabilities
from lightkit.ensemble.oof import SPLITS, MemberPredictions
from lightkit.ensemble.plan import MemberResult
from lightkit.ensemble.validations import KEPT_BYTES, SharedValidationOutputs, ValidationOutputs
from lightkit.metrics import Gathered
from lightkit.runner.evaluation import load_counted, pass_over
from lightkit.runner.member import MemberRun
from lightkit.trainer.evaluate import Predictions, ValidationMeter
from lightkit.trainer.interrupt import Interrupt
from lightkit.trainer.learner import Learner


class Outputs(NamedTuple):
    """What a member gives for the rows of a split."""

    rows: Tensor
    """Rows of the data set, `(N,)`."""
    outputs: Tensor
    """Raw outputs, `(N, ...)`."""
    targets: Tensor
    """Their targets, `(N, ...)`."""


HELD_OUT = {"train": "left_out", "val": "val", "test": "test"}
"""Of each split, which of its rows a member has not learnt from."""


def is_member(folder: Path) -> bool:
    """Tell whether a folder is that of a member of an ensemble."""
    return folder.parent.name == run_files.MEMBERS


def keep_predictions(run: MemberRun, learner: Learner) -> None:
    """Write what the weights that count predict of all rows that were held out.

    Args:
        run: The member.
        learner: Its model, with its data; its weights are replaced by those that count.

    Raises:
        UserError: The file cannot be written.
        Interrupted: A signal asked the run to end.
    """
    load_counted(run, learner)
    found = predict_held_out(learner, source=str(run.path), interrupt=run.session.signals, step=learner.state.step)
    run.session.ranks.shared(lambda: found.write(run.path / run_files.PREDICTIONS_HELD_OUT))


def predict_held_out(
    learner: Learner, *, source: str, interrupt: Interrupt | None = None, step: int = 0
) -> MemberPredictions:
    """Predict all rows that a model did not learn from.

    Args:
        learner: The model with the weights that count, and its data.
        source: What error messages call the predictions.
        interrupt: Tells when a signal asked the run to end.
        step: Optimizer step that the run ends at.

    Raises:
        Interrupted: A signal asked the run to end.
    """
    info, data, found = learner.data.info, learner.data, dict[str, Outputs]()
    for split, held_out in HELD_OUT.items():
        loader = data.evaluation(held_out)
        if loader is None:
            continue
        taken = Predictions(info.task, info.class_names)
        gathered = Gathered(taken, learner.engine.ranks)
        pass_over(learner, loader, [gathered], interrupt=interrupt, step=step)
        gathered.exchange()
        if learner.engine.ranks.main:
            found[split] = Outputs(loader.rows, *taken.tensors())
    return as_predictions(found, info, source=source)


def keep_outputs(outputs: Mapping[str, Outputs], info: DataInfo, folder: Path) -> MemberPredictions:
    """Write and return what a member predicts of rows that it did not learn from, where its outputs are known.

    The file is not forced to the disk: one that is damaged makes a resumed run train the member again.

    Args:
        outputs: By the names of `HELD_OUT`.
        info: Facts about the data.
        folder: The member's folder.

    Raises:
        UserError: The file cannot be written.
    """
    found = {split: outputs[held_out] for split, held_out in HELD_OUT.items() if held_out in outputs}
    predictions = as_predictions(found, info, source=str(folder))
    predictions.write(folder / run_files.PREDICTIONS_HELD_OUT, forced=False)
    return predictions


def as_predictions(outputs: Mapping[str, Outputs], info: DataInfo, *, source: str) -> MemberPredictions:
    """Make predictions of the raw outputs for rows that were held out.

    Args:
        outputs: By split; of `train` those of rows that were left out.
        info: Facts about the data.
        source: What error messages call the predictions.
    """
    parts = [
        {
            "rows": own.rows,
            "split": torch.full((len(own.rows),), SPLITS.index(split), dtype=torch.uint8),
            "predictions": as_probabilities(own.outputs, info.task),
            "targets": own.targets,
        }
        for split, own in outputs.items()
    ]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else _nothing()
    return MemberPredictions(
        counts=torch.ones(len(joined["rows"]), dtype=torch.int64),
        task=info.task,
        data=info.fingerprint,
        classes=tuple(info.class_names),
        source=source,
        **joined,
    )


def _nothing() -> dict[str, Any]:
    """Return predictions of no rows."""
    return {
        "rows": torch.zeros(0, dtype=torch.int64),
        "split": torch.zeros(0, dtype=torch.uint8),
        "predictions": torch.zeros(0, 1),
        "targets": torch.zeros(0),
    }


def validation_meters(run: MemberRun, learner: Learner) -> list[ValidationMeter]:
    """Return what keeps the outputs of a run's validations: of a member of an ensemble that learns by itself.

    Args:
        run: The run, which has begun.
        learner: Its model, with its state.
    """
    role = role_of(run.cfg)
    tied = role.weights_of or role.computed_from or role.adds_to is not None or role.features or role.joint
    if not is_member(run.path) or tied or learner.data.val is None:
        return []
    ranks = learner.engine.ranks
    kept = ValidationOutputs(run.path / run_files.VALIDATIONS, learner.timetable, tell=run.logger.message)
    if ranks.main:
        kept.start(learner.state.step)
    return [kept if ranks.size == 1 else SharedValidationOutputs(kept, ranks)]


def forget_validations(members: Sequence[MemberResult]) -> None:
    """Remove the large ones of the files with the outputs of validations, of an ensemble that is combined."""
    for member in members:
        path = member.folder / run_files.VALIDATIONS
        if path.exists() and path.stat().st_size > KEPT_BYTES:
            path.unlink()
