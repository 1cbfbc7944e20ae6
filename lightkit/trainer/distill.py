"""Learning from a teacher's outputs as well as from the targets (https://arxiv.org/abs/1503.02531).

Shapes: B samples, C classes or labels, T positions, V vocabulary size, `...` further dimensions such as pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_dead_worker, is_out_of_memory
from lightkit.trainer.tasks import Criterion, StepOutput, Task


class Distillation(Task):
    """A task whose training loss is `(1 - weight) * loss + weight * distance to the teacher`.

    The teacher sees each batch as the student does, in eval mode and without gradients. Validation and test keep the
    plain loss, so that runs compare. The `preds` of the task must be raw outputs (logits), as metrics take them; a task
    that draws random numbers should do so only while `model.training`, and then shows the teacher the plain batch.

    Args:
        task: How a batch becomes a loss; serves student and teacher.
        teacher: The network to learn from, on the device of the student. It is never changed, copied or saved.
        temperature: Softens the outputs of both where there are classes or labels; above 0.
        weight: Share of the teacher in the loss, 0 to 1.
        kind: What the outputs are: `multiclass`, `language_modeling`, `binary`, `multilabel` or `regression`.

    Raises:
        UserError: An argument is out of its range, or there is no such kind.
    """

    def __init__(
        self, task: Task, teacher: nn.Module, *, temperature: float = 2.0, weight: float = 0.5, kind: str
    ) -> None:
        if kind not in DISTANCES:
            fix = "finetune.distill.teacher=null"
            raise UserError(
                "no distillation for such targets", key="finetune.distill", received=kind, choices=DISTANCES, fix=fix
            )
        if not temperature > 0:
            raise UserError("must be above 0", key="finetune.distill.temperature", received=temperature)
        if not 0 <= weight <= 1:
            raise UserError("must be from 0 to 1", key="finetune.distill.weight", received=weight)
        self.task, self.teacher = task, teacher.eval()
        self.temperature, self.weight, self.kind = temperature, weight, kind
        self._compared = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Distillation:
        """Copy with the same teacher, which may be large and never changes."""
        other = copy.copy(self)
        other.task = copy.deepcopy(self.task, memo)
        return other

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Take the step of the task, its loss mixed with the distance to the teacher in training; see `Task.step`.

        Raises:
            UserError: The teacher cannot take the batch, or its outputs are not of the student's size.
        """
        step = self.task.step(model, batch, criterion)
        if not model.training:
            if not self._compared:  # what does not fit is told before training begins
                self._taught(step, batch)
            return step
        student, teacher = self._taught(step, batch)
        distance = DISTANCES[self.kind](student, teacher, self.temperature)
        return step._replace(loss=(1 - self.weight) * step.loss + self.weight * distance)

    def _taught(self, step: StepOutput, batch: Any) -> tuple[Tensor, Tensor]:
        """Return the outputs of student and teacher, in single precision at least."""
        if step.preds is None:
            received = type(self.task).__name__
            what = "the task gives no outputs that a teacher's could be compared with"
            raise UserError(what, key="trainer.task", received=received, expected="a StepOutput with preds")
        teacher = self.teacher
        if any(parameter.device != step.preds.device for parameter in list(teacher.parameters())[:1]):
            teacher = copy.deepcopy(teacher).to(step.preds.device)  # the dry run tries its first batch on the CPU
        try:
            with torch.no_grad():  # the teacher's own loss is of no use
                other = self.task.step(teacher, batch, lambda *_outputs: torch.zeros(())).preds
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            if is_out_of_memory(error) or is_dead_worker(error):
                raise
            what = f"the teacher cannot take the batches of this run: {in_short(error)}"
            raise UserError(what, key="finetune.distill.teacher") from error
        if other is None or other.shape != step.preds.shape:
            raise UserError(
                "the teacher's outputs are not of the student's size",
                key="finetune.distill.teacher",
                expected=str(tuple(step.preds.shape)),
                received="no outputs" if other is None else tuple(other.shape),
                fix="a teacher trained on data with the same classes",
            )
        self._compared = True
        return _wide(step.preds), _wide(other)


def _classes(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the divergence of the distributions over the classes of `(B, C, ...)`; see `_divergence`."""
    return _divergence(student.movedim(1, -1), teacher.movedim(1, -1), temperature)


def _divergence(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the divergence of distributions over the last dimension, mean over all positions, times T²."""
    # The factor keeps the gradients' size whatever the temperature, which divides them twice.
    ours, theirs = (F.log_softmax(logits / temperature, dim=-1).flatten(0, -2) for logits in (student, teacher))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


def _labels(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the divergence of the chances of each label, mean over `(B, ...)`, times T²: 0 where both agree."""
    chance = torch.sigmoid(teacher / temperature)
    cross = F.binary_cross_entropy_with_logits(student / temperature, chance)
    return (cross - F.binary_cross_entropy_with_logits(teacher / temperature, chance)) * temperature**2


def _values(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Compute the mean squared difference."""
    return F.mse_loss(student, teacher)


DISTANCES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "multiclass": _classes,
    "language_modeling": _divergence,
    "binary": _labels,
    "multilabel": _labels,
    "regression": _values,
}
"""Kind of outputs → distance of the student's to the teacher's, and the temperature."""


def _wide(output: Tensor) -> Tensor:
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output
