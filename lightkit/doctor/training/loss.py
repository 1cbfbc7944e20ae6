"""What the loss does with outputs and targets: compares row with row, is a mean, keeps nothing, changes nothing.

Shapes in this file: B samples of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.common.nesting import mapped, tensors
from lightkit.common.randomness import mix
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import (
    Heard,
    batches_of,
    compute,
    differing,
    named,
    plain_batch,
    plain_loader,
    sized,
    state_of,
    without_dropout,
)
from lightkit.trainer.tasks import Supervised

NAME = "loss"
_ROWS = 32
_FEWEST = 8
"""Rows of fewer of which nothing is said."""
_SAME = 1e-5
"""Share of a loss by which rounding alone may change it."""
_NEAR = 0.02
"""Share of a loss within which it counts as a sum of others."""


def check(patient: Patient) -> Iterator[Finding]:
    """Compute the loss of some rows twice, of each half of them, and with the targets of other rows."""
    learner = patient.learner()
    rows = patient.rows(_ROWS) // 2 * 2
    if rows < _FEWEST:
        yield Finding(NAME, "skipped", "there are too few rows")
        return
    batch = plain_batch(learner, rows)
    found = [*_in_place(learner, mapped(torch.clone, batch))]
    learner = patient.learner()
    found += _adding_up(learner, batch)
    learner.network.eval()
    alone = not getattr(learner.criterion, "compares_samples", False)
    with torch.no_grad():
        if not found and alone:
            found += _a_sum(learner, rows)
        if alone:
            found += _of_any_row(learner, batch)
    yield from found
    if not found:
        yield Finding(NAME, "ok", f"of {rows} rows it compares each output with its own target, and is their mean")


class _Watched(Heard):
    """The loss, which notes what it finds and leaves changed."""

    def __init__(self, criterion: Any, batch: Any) -> None:
        super().__init__(criterion)
        self.before, self.batch = [each.clone() for each in tensors(batch)], batch
        self.by_model: bool | None = None
        self.changed: list[str] = []

    def batch_changed(self) -> bool:
        """Tell whether a tensor of the batch is no longer what it was."""
        return any(not _equal(one, other) for one, other in zip(self.before, tensors(self.batch), strict=True))

    def __call__(self, preds: Tensor, target: Tensor) -> Tensor:
        """Compute the loss."""
        self.by_model = self.batch_changed()
        given = {"outputs": preds, "targets": target}
        copies = {name: each.detach().clone() for name, each in given.items() if isinstance(each, Tensor)}
        loss = super().__call__(preds, target)
        self.changed = [name for name, copied in copies.items() if not _equal(copied, given[name])]
        return loss


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.isclose(one.float(), other.detach().float(), equal_nan=True).all())


def _in_place(learner: Learner, batch: Any) -> Iterator[Finding]:
    """Find models and losses that write to what they are given."""
    watched, writers = _Watched(learner.criterion, batch), list[str]()
    learner.network.train()
    inputs = [*tensors(batch)]
    with torch.no_grad(), ExitStack() as stack:
        for name, module in learner.model.named_modules():
            _watch_versions(stack, name, module, inputs, writers)
        compute(learner, batch, watched)
    why = "what comes after sees other numbers than the data set gave: metrics, other models, a further reading"
    if watched.by_model or (watched.by_model is None and watched.batch_changed()):
        name = writers[0] if writers else ""
        kind = type(learner.model.get_submodule(name)).__name__ if writers else type(learner.task).__name__
        who = f"`{name}` ({kind})" if name else kind
        fix = (
            "x = x * 2 in place of x *= 2, x = x.clone() before an assignment such as x[mask] = 0, no function_() on it"
        )
        if isinstance(learner.model.get_submodule(name), nn.ReLU | nn.SiLU | nn.Dropout):
            fix = f"{kind}() without inplace=True in `{name}`"
        measured = f"{who} changes its input in place: the batch is another one after forward"
        yield Finding("input changed in place", "warning", measured, why, "model", fix, {"module": name})
    if watched.changed:
        kind = getattr(learner.criterion, "__name__", type(learner.criterion).__name__)
        measured = f"the loss {kind} changes the {named(watched.changed)} that it is given in place"
        fix = "target = target.clone() (or preds = preds.clone()) first; no target[mask] = 0 and no preds.sigmoid_()"
        yield Finding("input changed in place", "warning", measured, why, "loss", fix, {"changed": watched.changed})


def _watch_versions(stack: ExitStack, name: str, module: nn.Module, inputs: list[Tensor], writers: list[str]) -> None:
    versions = list[list[int]]()

    def before(_module: nn.Module, _inputs: Any) -> None:
        versions.append([each._version for each in inputs])

    def after(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        if versions.pop() != [each._version for each in inputs] and not writers:
            writers.append(name)  # the innermost module comes first

    for handle in (module.register_forward_pre_hook(before), module.register_forward_hook(after)):
        stack.callback(handle.remove)


def _adding_up(learner: Learner, batch: Any) -> Iterator[Finding]:
    """Find losses that are another one for the same rows and weights at the next call."""
    losses, outputs, before = list[float](), list[Any](), state_of(learner)
    without_dropout(learner.network)
    with torch.no_grad():
        for _ in range(3):
            step = compute(learner, mapped(torch.clone, batch))
            losses.append(float(step.loss))
            outputs.append(step.preds)
    if not all(map(math.isfinite, losses)):
        return
    steps = [after - first for first, after in pairwise(losses)]
    if abs(steps[0]) <= 1e-3 * abs(losses[0]) + 1e-9 or not _repeats(outputs):
        return
    names = [name for name in differing(before, state_of(learner)) if name.startswith(("loss", "trainer.task"))]
    said = f"of the same rows and weights it is {', '.join(f'{loss:.4g}' for loss in losses)} at three calls"
    adds = steps[0] > 0.1 * abs(losses[0]) and abs(steps[1] - steps[0]) < _NEAR * steps[0]
    if names:
        said += f": {named([f'`{name}`' for name in names])} is kept from one call to the next"
    attribute = names[0].rpartition(".")[2] if names else "total"
    measured = (
        f"the loss adds up from step to step: {said}" if adds else f"the loss depends on the calls before: {said}"
    )
    why = "its value and its gradient are not those of the batch, and a resume does not give the same"
    key = "loss" if not names or names[0].startswith("loss") else "trainer.task"
    fix = f"return the loss of this batch alone, without self.{attribute}; what is to be shown adds up loss.item()"
    numbers = {"losses": losses, "attributes": names}
    yield Finding(NAME, "error" if adds else "warning", measured, why, key, fix, numbers)


def _repeats(outputs: list[Any]) -> bool:
    """Tell whether the outputs were the same each time, so that the network is not to blame."""
    return all(not isinstance(each, Tensor) or _equal(outputs[0], each) for each in outputs)


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
    measured = (
        f"the loss is a sum over the rows: {whole:.4g} for {rows} of them, {halves[0]:.4g} and {halves[1]:.4g} for its "
        "halves"
    )
    why = "steps grow with data.batch_size, a last batch that is smaller counts less, and a split's loss is no mean"
    key = "loss.reduction" if own else "loss" if isinstance(learner.task, Supervised) else "trainer.task"
    fix = "loss.reduction=mean" if own else ".mean() in place of .sum() over the batch"
    yield Finding(NAME, "error", measured, why, key, fix, {"loss": whole, "halves": halves})


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
    elif isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
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
    key = "loss" if isinstance(learner.task, Supervised) else "trainer.task"
    fix = "print both shapes in front of the loss; output.squeeze(1), or target[:, None]"
    yield Finding(NAME, "warning", measured, why, key, fix, numbers)


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
    found = [float(loss(preds, target.clone()))]
    for number in range(3):
        generator = torch.Generator().manual_seed(mix("doctor", "permuted", number))
        other = target[torch.randperm(len(target), generator=generator).to(target.device)]
        if float((other != target).float().mean()) < 0.2:
            return None
        found.append(float(loss(preds, other)))
    return found if all(map(math.isfinite, found)) else None
