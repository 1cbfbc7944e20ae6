"""The curve of an ensemble over epochs, of what its members put out at their validations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lightkit.assembly.parts import role_of
from lightkit.common import run_files
from lightkit.ensemble.combining import as_probabilities, hard, soft
from lightkit.ensemble.plan import MemberResult
from lightkit.ensemble.validations import (
    KEPT_BYTES,
    SharedValidationOutputs,
    Validation,
    ValidationOutputs,
)
from lightkit.runner.ensemble.combined import SplitMeter
from lightkit.runner.ensemble.predictions import is_member
from lightkit.runner.ensemble.report import Outcome
from lightkit.runner.member import MemberRun
from lightkit.trainer.evaluate import ValidationMeter
from lightkit.trainer.learner import Learner


class CurvePoint(NamedTuple):
    """The ensemble at one validation."""

    step: int
    """Optimizer steps of the member that has taken most."""
    epoch: float
    """Epochs of the members."""
    values: dict[str, float]
    """Loss and metrics by name."""


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


def over_validations(
    outcome: Outcome, kept: Mapping[str, Sequence[Validation]], rows: Tensor, meter: SplitMeter
) -> list[CurvePoint]:
    """Measure the ensemble at each validation of its members, with the weights that it has in the end.

    A member that has ended counts with what it predicted at its last validation.

    Args:
        outcome: The ensemble.
        kept: The validations of each member that counts, by its name.
        rows: Rows of the validation split in the order of the outputs.
        meter: Measures predictions of this split.
    """
    shares = [outcome.weights[name] for name in kept]
    truth, order = outcome.together.of_split("val"), rows.argsort()
    places = sorted({record.epoch for records in kept.values() for record in records})
    begin = max(records[0].epoch for records in kept.values())
    steps, found = list[int](), list[Tensor]()
    for place in (place for place in places if place >= begin):
        newest = [[record for record in records if record.epoch <= place][-1] for records in kept.values()]
        outputs = torch.stack([record.outputs for record in newest])[:, order]
        predictions = as_probabilities(outputs.flatten(0, 1), truth.task).unflatten(0, outputs.shape[:2])
        votes = outcome.rule == "hard" and truth.task != "regression"
        found.append(hard(predictions, shares, task=truth.task) if votes else soft(predictions, shares))
        steps.append(max(record.step for record in newest))
    places = [place for place in places if place >= begin]
    points = map(CurvePoint, steps, places, meter.at_once(truth, found))
    return list({point.step: point for point in points}.values())
