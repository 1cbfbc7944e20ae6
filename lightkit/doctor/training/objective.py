"""What the loss judges: outputs that have not seen the targets, right answers better than wrong ones, no padding.

Shapes in this file: B samples, T positions, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor
from torch.nn import functional

from lightkit.assembly import Learner
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import Heard, compute, plain_batch, sized

TARGETS, SIGN, PADDING = "shuffled labels", "sign of the loss", "padding"
_ROWS = 64
_SURE = 10.0
"""Logit of an answer that is sure."""
_PADDED = 0.05
"""Share of all targets from which padding is worth a word."""


def check(patient: Patient) -> Iterator[Finding]:
    """Give the network targets of other rows, and the loss right, wrong and padded answers."""
    found = Objective.of(patient)
    if isinstance(found, str):
        yield Finding(TARGETS, "skipped", found)
        return
    yield found.find_leak()
    yield from found.find_wrong_sign()
    yield from found.find_padding()


class Objective:
    """What the loss of one batch gets: outputs of the network in evaluation, and what they are compared with.

    Args:
        learner: What is trained.
        x: Inputs of the batch.
        y: Its targets, of which some differ.
    """

    def __init__(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        self.learner, self.x, self.y = learner, x, y
        self.preds, self.target = self.heard(x, y)

    @classmethod
    def of(cls, patient: Patient) -> Objective | str:
        """Compute it for some training rows, or say why nothing can be said about the loss."""
        learner = patient.learner()
        learner.network.eval()
        batch = plain_batch(learner, patient.rows(_ROWS))
        if (
            not isinstance(batch, (tuple, list))
            or len(batch) != 2
            or not all(isinstance(part, Tensor) for part in batch)
        ):
            return "samples are no pairs of a tensor and a target"
        try:
            found = cls(learner, *batch)
            blank = found.heard(torch.zeros_like(found.x), found.y)[1]
        except ValueError as error:
            return str(error)
        if not torch.equal(found.target, blank):
            return "the loss compares outputs with the inputs, as of an autoencoder, and not with targets"
        return found

    def heard(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the loss is given for a batch, or where the task computes it itself what its metrics are given.

        Raises:
            ValueError: The task gives no pair of outputs and targets.
        """
        heard = Heard(self.learner.criterion)
        with torch.no_grad():
            step = compute(self.learner, (x, y), heard)
        preds, target = heard.calls[0] if len(heard.calls) == 1 else (step.preds, step.target)
        if not isinstance(preds, Tensor) or not isinstance(target, Tensor):
            raise ValueError("the task hands no outputs and targets to its loss or metrics")
        return preds.detach(), target.detach()

    def find_leak(self) -> Finding:
        """Prove that outputs depend on the targets that they are judged by, or that they do not.

        In a sequence an output may know earlier targets, as of a decoder that is given what it should have said. So
        only the target of one position is changed there, and only the output of that position looked at.
        """
        if not torch.equal(self.heard(self.x, self.y)[0], self.preds):
            return Finding(TARGETS, "skipped", "outputs differ from one evaluation to the next anyway")
        others, judged = self.y[torch.randperm(len(self.y)).to(self.y.device)], self.target
        for place in [None] if self.y.ndim == 1 else [0, -1]:
            changed = self.y.clone()
            if place is None:
                changed = others
            else:
                changed[:, place] = others[:, place]
            preds, target = self.heard(self.x, changed)
            gap = self._gap(preds, place)
            if gap > 0 and not torch.equal(target, judged):
                measured = f"with the targets of other rows, and the same inputs, the outputs change by up to {gap:.3g}"
                why = "the targets reach the network: it is told the answers, and new rows come without them"
                fix = (
                    "look for a way of the targets into the network, in `step` of the task and `forward` of the "
                    "model, and hand them to the loss alone"
                )
                return Finding(TARGETS, "error", measured, why, "trainer.task", fix, {"change": gap})
        numbers = {"change": 0.0}
        return Finding(TARGETS, "ok", "with the targets of other rows the outputs are the same", numbers=numbers)

    def _gap(self, preds: Tensor, place: int | None) -> float:
        """Return the largest change of the outputs, of one position where they have positions."""
        if preds.shape != self.preds.shape:
            return 0.0
        change = (preds.float() - self.preds.float()).abs()
        if place is not None:
            positions = self.y.shape[1]
            axis = next((axis for axis in (1, change.ndim - 1) if change.shape[axis] == positions), None)
            change = change if axis is None else change.select(axis, place)
        gap = float(change.max()) if change.numel() else 0.0
        return gap if gap > 1e-6 * float(self.preds.abs().max().clamp(min=1e-6)) else 0.0

    def find_wrong_sign(self) -> Iterator[Finding]:
        """Find a loss that is lower for wrong answers than for right ones."""
        with suppress(Exception):  # a loss of one's own may take anything
            right, wrong = self._losses_of_answers()
            if right > wrong + 1e-3 * abs(wrong):
                measured = f"the loss of right answers is {right:.3g}, and of wrong ones {wrong:.3g}"
                why = "training makes the loss small, and so the answers wrong"
                fix = "turn the sign of the loss round: a loss is to fall as answers become better"
                yield Finding(SIGN, "error", measured, why, "loss", fix, {"right": right, "wrong": wrong})

    def _losses_of_answers(self) -> tuple[float, float]:
        """Return the loss of right answers, and the lowest of those of wrong ones."""
        target, shape, criterion = self.target, self.preds.shape, self.learner.criterion
        if not target.is_floating_point() and len(shape) == target.ndim + 1:
            axis = class_axis(self.preds, target)
            count = shape[axis]
            answers = [functional.one_hot((target.clamp(min=0) + step) % count, count).float() for step in (0, 1)]
            answers = [_SURE * answer.movedim(-1, axis) for answer in answers]
        elif self.learner.data.info.task in ("binary", "multilabel"):
            sure = _SURE * (2 * target.float() - 1)
            answers = [sure, -sure]
        else:
            exact, apart = target.float(), target.float().std().clamp(min=1e-3)
            answers = [exact, exact + apart, exact - apart]
        right, *wrong = (float(criterion(answer.reshape(shape), target)) for answer in answers)
        return right, min(wrong)

    def find_padding(self) -> Iterator[Finding]:
        """Find sequences that end with the same target again and again, which the loss counts as any other."""
        y = self.target
        if y.is_floating_point() or y.ndim != 2 or y.shape[1] < 4 or len(self.preds.shape) != 3:
            return
        filler = y[:, -1].mode().values
        padded = (y == filler).flip(1).cumprod(1).flip(1).bool()
        lengths, share = padded.sum(1), float(padded.float().mean())
        elsewhere = int(((y == filler) & ~padded).sum())
        if share < _PADDED or len(lengths.unique()) < 3 or elsewhere > 0.05 * int(padded.sum()):
            return
        axis = class_axis(self.preds, y)
        moved = self.preds.float().movedim(axis, -1).clone()
        moved[padded] = moved[padded].flip(-1) + torch.linspace(0, 1, moved.shape[-1], device=moved.device)
        criterion = self.learner.criterion
        if float(criterion(moved.movedim(-1, axis), y)) == float(criterion(self.preds.float(), y)):
            return
        ignores = hasattr(criterion, "ignore_index")
        measured = (
            f"{share:.0%} of the targets of {sized(len(y), 'sequence')} are the token {int(filler)} at their ends, and "
            "the loss counts them"
        )
        why = "that is padding: loss and metrics look good for guessing it, whatever the rest is worth"
        key = "loss.ignore_index" if ignores else "data.dataset"
        fix = f"loss.ignore_index={int(filler)}" if ignores else "-100 as the target of padding, which is not counted"
        yield Finding(PADDING, "warning", measured, why, key, fix, {"share": share, "token": int(filler)})


def class_axis(preds: Tensor, target: Tensor) -> int:
    """Return the axis of the classes of outputs: the last one of `(B, T, C)`, the second of `(B, C, T)`."""
    return preds.ndim - 1 if preds.shape[:-1] == target.shape else 1
