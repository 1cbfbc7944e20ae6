"""What the loss does with outputs and targets.

It judges outputs that have not seen the targets, right answers better than wrong ones, and no padding; it compares row
with row, is a mean, keeps nothing, and changes nothing.

Shapes in this file: B samples, T positions, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lightkit.assembly import Learner
from lightkit.common.modules import hooked, mapped, tensors
from lightkit.common.randomness import mix
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, named, sized
from lightkit.doctor.training.probing import (
    Heard,
    alike,
    batches_of,
    compute,
    differing,
    plain_batch,
    plain_loader,
    state_of,
    without_dropout,
)
from lightkit.trainer.tasks import Supervised

NAME, TARGETS, SIGN, PADDING = "loss", "shuffled labels", "sign of the loss", "padding"
_JUDGED_ROWS = 64
_SURE = 10.0
"""Logit of an answer that is sure."""
_PADDED = 0.05
"""Share of all targets from which padding is worth a word."""
_ROWS, _FEWEST = 32, 8
"""Rows of a batch that is computed in parts, and rows of fewer of which nothing is said."""
_SAME = 1e-5
"""Share of a loss by which rounding alone may change it."""
_NEAR = 0.02
"""Share of a loss within which it counts as a sum of others."""


def check_answers(run: ExaminedRun) -> Iterator[Finding]:
    """Give the network targets of other rows, and the loss right, wrong and padded answers."""
    objective = Objective.of(run)
    if isinstance(objective, str):
        yield Finding(TARGETS, "skipped", objective)
        return
    yield objective.find_leak()
    yield from objective.find_wrong_sign()
    yield from objective.find_padding()


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
    def of(cls, run: ExaminedRun) -> Objective | str:
        """Compute it for some training rows, or say why nothing can be said about the loss."""
        learner = run.learner()
        learner.network.eval()
        batch = plain_batch(learner, run.rows(_JUDGED_ROWS))
        if not _is_pair(batch) or not isinstance(batch[0], Tensor):
            return "samples are no pairs of a tensor and a target"
        try:
            objective = cls(learner, *batch)
            blank = objective.heard(torch.zeros_like(objective.x), objective.y)[1]
        except ValueError as error:
            return str(error)
        if not torch.equal(objective.target, blank):
            return "the loss compares outputs with the inputs, as of an autoencoder, and not with targets"
        return objective

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
        others = self.y[torch.randperm(len(self.y)).to(self.y.device)]
        for place in [None] if self.y.ndim == 1 else [0, -1]:
            changed = others if place is None else self.y.clone()
            if place is not None:
                changed[:, place] = others[:, place]
            preds, target = self.heard(self.x, changed)
            gap = self._gap(preds, place)
            if gap > 0 and not torch.equal(target, self.target):
                measured = f"with the targets of other rows, and the same inputs, the outputs change by up to {gap:.3g}"
                why = "the targets reach the network: it is told the answers, and new rows come without them"
                fix = (
                    "look for a way of the targets into the network, in `step` of the task and `forward` of the "
                    "model, and hand them to the loss alone"
                )
                return Finding(TARGETS, "error", measured, why, "trainer.task", fix, {"change": gap})
        measured = "with the targets of other rows the outputs are the same"
        return Finding(TARGETS, "ok", measured, numbers={"change": 0.0})

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
        axis, criterion = class_axis(self.preds, y), self.learner.criterion
        moved = self.preds.float().movedim(axis, -1).clone()
        moved[padded] = moved[padded].flip(-1) + torch.linspace(0, 1, moved.shape[-1], device=moved.device)
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


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)


def class_axis(preds: Tensor, target: Tensor) -> int:
    """Return the axis of the classes of outputs: the last one of `(B, T, C)`, the second of `(B, C, T)`."""
    return preds.ndim - 1 if preds.shape[:-1] == target.shape else 1


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Compute the loss of some rows twice, of each half of them, and with the targets of other rows."""
    learner, rows = run.learner(), run.rows(_ROWS) // 2 * 2
    if rows < _FEWEST:
        yield Finding(NAME, "skipped", "there are too few rows")
        return
    batch = plain_batch(learner, rows)
    findings = [*_in_place(learner, mapped(torch.clone, batch))]
    learner = run.learner()
    findings += _adding_up(learner, batch)
    learner.network.eval()
    if not getattr(learner.criterion, "compares_samples", False):
        with torch.no_grad():
            findings += [] if findings else _a_sum(learner, rows)
            findings += _of_any_row(learner, batch)
    measured = f"of {rows} rows it compares each output with its own target, and is their mean"
    yield from findings or [Finding(NAME, "ok", measured)]


class _Watched(Heard):
    """The loss, which notes what it finds changed and leaves changed."""

    def __init__(self, criterion: Any, batch: Any) -> None:
        super().__init__(criterion)
        self.before, self.batch = [each.clone() for each in tensors(batch)], batch
        self.by_model: bool | None = None
        self.changed: list[str] = []

    def batch_changed(self) -> bool:
        """Tell whether a tensor of the batch is no longer what it was."""
        return not all(map(alike, self.before, tensors(self.batch)))

    def __call__(self, preds: Tensor, target: Tensor) -> Tensor:
        """Compute the loss."""
        self.by_model = self.batch_changed()
        given = {"outputs": preds, "targets": target}
        copies = {name: each.detach().clone() for name, each in given.items() if isinstance(each, Tensor)}
        loss = super().__call__(preds, target)
        self.changed = [name for name, copied in copies.items() if not alike(copied, given[name])]
        return loss


def _in_place(learner: Learner, batch: Any) -> Iterator[Finding]:
    """Find models and losses that write to what they are given."""
    watched, versions, writers = _Watched(learner.criterion, batch), list[list[int]](), list[str]()
    inputs = [*tensors(batch)]

    def before(_name: str, _module: nn.Module, _inputs: Any) -> None:
        versions.append([each._version for each in inputs])

    def after(name: str, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if versions.pop() != [each._version for each in inputs]:
            writers.append(name)  # the innermost module comes first

    learner.network.train()
    with torch.no_grad(), hooked(learner.model, before, after):
        compute(learner, batch, watched)
    why = "what comes after sees other numbers than the data set gave: metrics, other models, a further reading"
    if watched.by_model or (watched.by_model is None and watched.batch_changed()):
        name = writers[0] if writers else ""
        kind = type(learner.model.get_submodule(name)).__name__ if writers else type(learner.task).__name__
        fix = (
            "x = x * 2 in place of x *= 2, x = x.clone() before an assignment such as x[mask] = 0, no function_() on it"
        )
        if isinstance(learner.model.get_submodule(name), nn.ReLU | nn.SiLU | nn.Dropout):
            fix = f"{kind}() without inplace=True in `{name}`"
        who = f"`{name}` ({kind})" if name else kind
        measured = f"{who} changes its input in place: the batch is another one after forward"
        yield Finding("input changed in place", "warning", measured, why, "model", fix, {"module": name})
    if watched.changed:
        kind = getattr(learner.criterion, "__name__", type(learner.criterion).__name__)
        measured = f"the loss {kind} changes the {named(watched.changed)} that it is given in place"
        fix = "target = target.clone() (or preds = preds.clone()) first; no target[mask] = 0 and no preds.sigmoid_()"
        yield Finding("input changed in place", "warning", measured, why, "loss", fix, {"changed": watched.changed})


def _adding_up(learner: Learner, batch: Any) -> Iterator[Finding]:
    """Find losses that are another one for the same rows and weights at the next call."""
    before = state_of(learner)
    without_dropout(learner.network)
    with torch.no_grad():
        steps = [compute(learner, mapped(torch.clone, batch)) for _ in range(3)]
    losses, outputs = [float(step.loss) for step in steps], [step.preds for step in steps]
    gaps = [later - first for first, later in pairwise(losses)]
    # Where the outputs differ the network is to blame.
    repeats = all(not isinstance(each, Tensor) or alike(outputs[0], each) for each in outputs)
    if not all(map(math.isfinite, losses)) or abs(gaps[0]) <= 1e-3 * abs(losses[0]) + 1e-9 or not repeats:
        return
    names = [name for name in differing(before, state_of(learner)) if name.startswith(("loss", "trainer.task"))]
    adds = gaps[0] > 0.1 * abs(losses[0]) and abs(gaps[1] - gaps[0]) < _NEAR * gaps[0]
    measured = "the loss adds up from step to step" if adds else "the loss depends on the calls before"
    measured += f": of the same rows and weights it is {', '.join(f'{loss:.4g}' for loss in losses)} at three calls"
    if names:
        measured += f": {named([f'`{name}`' for name in names])} is kept from one call to the next"
    attribute = names[0].rpartition(".")[2] if names else "total"
    why = "its value and its gradient are not those of the batch, and a resume does not give the same"
    key = "loss" if not names or names[0].startswith("loss") else "trainer.task"
    fix = f"return the loss of this batch alone, without self.{attribute}; what is to be shown adds up loss.item()"
    numbers = {"losses": losses, "attributes": names}
    yield Finding(NAME, "error" if adds else "warning", measured, why, key, fix, numbers)


def _a_sum(learner: Learner, rows: int) -> Iterator[Finding]:
    """Find losses that are a sum over the samples of the batch and no mean."""
    whole = float(compute(learner, plain_batch(learner, rows)).loss)
    loader = plain_loader(learner, "train", rows=rows, batch_size=rows // 2)
    halves = [float(compute(learner, batch).loss) for batch in batches_of(learner, loader)]
    total = sum(halves)
    if not math.isfinite(total) or abs(whole) < 1e-9 or len(halves) != 2:
        return
    if abs(whole - total) > _NEAR / 10 * abs(whole) or abs(total / 2 - whole) < 0.2 * abs(whole):
        return
    own = isinstance(learner.criterion, nn.Module) and hasattr(learner.criterion, "reduction")
    measured = f"the loss is a sum over the rows: {whole:.4g} for {rows} of them, "
    measured += f"{halves[0]:.4g} and {halves[1]:.4g} for its halves"
    why = "steps grow with data.batch_size, a last batch that is smaller counts less, and a split's loss is no mean"
    key, fix = (
        ("loss.reduction", "loss.reduction=mean")
        if own
        else (_key(learner), ".mean() in place of .sum() over the batch")
    )
    yield Finding(NAME, "error", measured, why, key, fix, {"loss": whole, "halves": halves})


def _key(learner: Learner) -> str:
    """Return the key of what computes the loss."""
    return "loss" if isinstance(learner.task, Supervised) else "trainer.task"


def _of_any_row(learner: Learner, batch: Any) -> Iterator[Finding]:
    """Find losses that stay the same when each output gets the target of another row."""
    heard = Heard(learner.criterion)
    step = compute(learner, batch, heard)
    if len(heard.calls) == 1 and all(isinstance(each, Tensor) for each in heard.calls[0]):
        preds, target = (each.detach() for each in heard.calls[0])
        try:
            losses = _permuted(learner.criterion, _spread_out(preds, target), target)
        except Exception:  # a loss of one's own may take certain outputs only
            return
    elif _is_pair(batch):
        preds, target = step.preds, batch[1]
        if not isinstance(preds, Tensor) or not preds.is_floating_point() or len(preds) != len(target):
            return
        if float(preds.float().std(0).mean()) < 1e-2 * max(1.0, float(target.float().std())):
            return  # outputs that are nearly the same go with any target
        losses = _permuted(lambda _, y: compute(learner, (batch[0], y)).loss, preds, target)
    else:
        return
    if losses is None or max(losses) - min(losses) > _SAME * abs(losses[0]):
        return
    shapes = [tuple(each.shape) for each in (preds, target)]
    numbers = {"losses": losses, "outputs": shapes[0], "targets": shapes[1]}
    if shapes[0] != shapes[1] and target.is_floating_point():
        measured = (
            f"the outputs have the shape {shapes[0]} and the targets {shapes[1]}: they are spread over each other"
        )
        why = "it compares every output with every target, so the mean of the targets is all that can be learnt"
        fix = "one shape for both: output.squeeze(1) in the model, or y[..., None] or y.squeeze(-1) in the data set"
        yield Finding("outputs", "error", measured, why, "model", fix, numbers)
        return
    measured = f"the loss of {sized(len(target), 'row')} stays {losses[0]:.4g} when their targets are shuffled"
    why = "it does not see which target belongs to which output: (B,) and (B, 1) broadcast, or it ignores them"
    fix = "print both shapes in front of the loss; output.squeeze(1), or target[:, None]"
    yield Finding(NAME, "warning", measured, why, _key(learner), fix, numbers)


def _spread_out(preds: Tensor, target: Tensor) -> Tensor:
    """Return outputs that differ from row to row as targets do, whatever the network gives at its beginning."""
    preds = preds.float()
    spread = preds.std(0, keepdim=True)
    if float(spread.max()) < 1e-12:
        generator = torch.Generator().manual_seed(mix("doctor", "spread"))
        preds, spread = torch.randn(preds.shape, generator=generator).to(preds.device), torch.ones(())
    unit = (preds - preds.mean(0, keepdim=True)) / spread.clamp_min(1e-12)
    if not target.is_floating_point():
        return unit
    return unit * target.float().std().clamp_min(1e-6) + target.float().mean()


def _permuted(loss: Any, preds: Tensor, target: Tensor) -> list[float] | None:
    """Return losses with the targets as they are, and of other rows; None where these hardly differ."""
    losses = [float(loss(preds, target.clone()))]
    for number in range(3):
        generator = torch.Generator().manual_seed(mix("doctor", "permuted", number))
        other = target[torch.randperm(len(target), generator=generator).to(target.device)]
        if float((other != target).float().mean()) < 0.2:
            return None
        losses.append(float(loss(preds, other)))
    return losses if all(map(math.isfinite, losses)) else None
