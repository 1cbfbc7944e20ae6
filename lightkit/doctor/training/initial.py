"""The first loss, before anything is learnt: it tells whether outputs and targets go together."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.doctor.finding import Finding
from lightkit.doctor.patient import Patient
from lightkit.doctor.training.probing import Heard, compute, percent, plain_batch, sized
from lightkit.losses import FocalLoss, TokenCrossEntropy
from lightkit.trainer.tasks import Supervised

NAME = "initial loss"
_ROWS = 256
_HIGH = 3.0
"""Times the loss of an ignorant guess from which on the first loss of a classification is too high."""
_OFF, _FAR = 10.0, 25.0
"""The same for a regression: from which on it is worth a note, and from which on it is too high."""
_OF_ONE_SHAPE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)
"""Losses that spread outputs and targets of unlike shapes over each other."""
_OUTSIDE = 0.01
"""Share of targets that outputs may be unable to reach."""
_LOW = 0.5
"""Share of that loss below which the network knows something already."""


def check(patient: Patient) -> Iterator[Finding]:
    """Compare the first loss with that of a network that knows nothing, and look at what the outputs are."""
    learner = patient.learner()
    learner.network.train()
    heard = Heard(learner.criterion)
    rows = patient.rows(_ROWS)
    with torch.no_grad():
        step = compute(learner, plain_batch(learner, rows), heard)
    loss = float(step.loss)
    if not math.isfinite(loss):
        why = "the first step would end the run, or fill the weights with NaN"
        fix = "data.normalize=standard where inputs are large; no log, division or square root of 0 in model and loss"
        yield Finding(NAME, "error", f"the loss of the first {sized(rows, 'row')} is {loss}", why, fix=fix)
        return
    if not isinstance(learner.task, Supervised) or len(heard.calls) != 1:
        yield Finding(NAME, "ok", f"{loss:.4g}")
        return
    preds, target = heard.calls[0]
    if isinstance(learner.criterion, _OF_ONE_SHAPE) and preds.shape != target.shape:
        return  # the check of the loss says so
    yield from _compared(learner, loss, heard.calls[0], scale_key=patient.sample.key("target_scale"))
    if learner.data.info.task == "regression":
        yield from _out_of_reach(learner, preds, target, rows)
    else:
        yield from _already_probabilities(learner, preds, rows)


def _out_of_reach(learner: Learner, preds: Tensor, target: Tensor, rows: int) -> Iterator[Finding]:
    """Find targets that a sigmoid or ReLU behind the last layer keeps the outputs from."""
    if preds.shape != target.shape or bool((preds < 0).any()):
        return
    other = _with_weights(learner, rows, times=-3)  # a ReLU then gives larger outputs, a sigmoid does not
    if bool((other < 0).any()) or not bool(other.isfinite().all()):
        return
    bounded = float(max(preds.max(), other.max())) <= 1
    outside = (target < 0) | (target > 1) if bounded else target < 0
    share = float(outside.float().mean())
    if share > _OUTSIDE:
        limits = "lie between 0 and 1" if bounded else "are 0 or more"
        measured = f"all outputs {limits}, and {percent(share)} of the targets do not"
        why = "behind a sigmoid or ReLU the network cannot come near these targets"
        fix = "let the model return the plain output of its last layer, or scale the targets to what it can give"
        yield Finding("outputs", "warning", measured, why, "model", fix, {"share": share})


def _compared(learner: Learner, loss: float, call: tuple[Tensor, Tensor], *, scale_key: str) -> Iterator[Finding]:
    guess = ignorant_loss(learner, *call)
    if guess is None:
        yield Finding(NAME, "ok", f"{loss:.4g}", numbers={"loss": loss})
        return
    expected, what = guess
    if expected <= 0:  # a loss that may be below 0 has no size to compare with
        yield Finding(NAME, "ok", f"{loss:.4g}, where {what} gives {expected:.4g}", numbers={"loss": loss})
        return
    numbers = {"loss": loss, "expected": expected}
    measured = f"{loss:.4g}, where {what} gives {expected:.4g}"
    pretrained = learner.made.report is not None
    regression = learner.data.info.task == "regression"
    if loss > (_FAR if regression else _HIGH) * expected + 1e-6:
        if regression:
            why = "the outputs begin far from the targets, so the first epochs go into finding their size"
            key, fix = scale_key, "scale the targets, or begin the bias of the output at their mean"
        else:
            why = "the network is sure of wrong answers before it has learnt any: its outputs begin too large"
            key, fix = (
                "model",
                "begin the output layer with small weights, scale the inputs (data.normalize), add a norm",
            )
        yield Finding(NAME, "warning", measured, why, key, fix, numbers)
    elif regression and loss > _OFF * expected:
        why = "the targets are not centred: their mean is learnt before anything else"
        yield Finding(NAME, "note", measured, why, "optim.rules", "a larger rate for the bias of the output", numbers)
    elif loss < _LOW * expected and not pretrained and not regression:
        why = "an untrained network cannot know that: the answer is in the input, or the loss does not see the targets"
        yield Finding(NAME, "warning", measured, why, "loss", numbers=numbers)
    else:
        yield Finding(NAME, "ok", measured, numbers=numbers)


def ignorant_loss(learner: Learner, preds: Tensor, target: Tensor) -> tuple[float, str] | None:
    """Return the loss of a network that knows nothing, and what it answers; None where that cannot be told.

    Args:
        learner: What is trained; its loss computes it.
        preds: Outputs, for their shape.
        target: The targets.
    """
    info, criterion = learner.data.info, learner.criterion
    if getattr(criterion, "compares_samples", False) or not isinstance(preds, Tensor):
        return None
    if info.task == "regression" and target.is_floating_point():
        flat = target.detach().float()
        mean = flat.mean(0, keepdim=True).expand_as(flat) if flat.ndim else flat
        return float(criterion(mean.reshape(preds.shape), target)), "the mean of the targets"
    if info.task not in ("multiclass", "binary", "multilabel", "language_modeling"):
        return None
    same = torch.zeros_like(preds)
    if isinstance(criterion, nn.NLLLoss):
        same = same - math.log(preds.shape[1])
    classes = preds.shape[-1] if preds.ndim > 1 else 2
    what = "a coin" if info.task in ("binary", "multilabel") else f"a guess among {classes}"
    plain = type(criterion) is nn.CrossEntropyLoss and criterion.weight is None
    return float(criterion(same, target)), f"{what} (ln {classes})" if plain else what


def _already_probabilities(learner: Learner, preds: Tensor, rows: int) -> Iterator[Finding]:
    """Tell whether the model applies the softmax or sigmoid that its loss applies too."""
    name, criterion = type(learner.criterion).__name__, learner.criterion
    values = preds.detach().float()
    if not bool(((values >= 0) & (values <= 1)).all()):
        return
    takes_logits = isinstance(criterion, (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, FocalLoss, TokenCrossEntropy))
    if not takes_logits or float(values.std()) == 0:  # as where the output layer begins with zeros
        return
    ends = (nn.Softmax, nn.Softmax2d, nn.Sigmoid)
    last = [name for name, module in learner.model.named_modules() if isinstance(module, ends)]
    fix = "let the model return its logits, the plain outputs of its last layer: no softmax and no sigmoid in forward"
    if last:
        kind = type(learner.model.get_submodule(last[-1])).__name__
        fix = f"leave `{last[-1]}` ({kind}) out of the model, so that it returns its logits"
    sums = values.ndim > 1 and bool((values.sum(-1 if values.ndim < 4 else 1) - 1).abs().max() < 1e-3)
    if not sums and bool((_with_weights(learner, rows, times=-1) < 0).any()):
        return  # outputs of a fresh network may lie there by chance
    if isinstance(criterion, nn.BCEWithLogitsLoss):
        measured = f"all outputs lie between 0 and 1, and the loss {name} applies a sigmoid of its own"
        why = "probabilities are pushed through a sigmoid twice: no prediction can come below 0.5"
    elif sums:
        measured = f"all outputs lie between 0 and 1 and sum to 1, and the loss {name} applies a softmax of its own"
        why = "probabilities are pushed through a softmax twice: gradients are small and the loss cannot come near 0"
    else:
        measured = f"all outputs lie between 0 and 1, and the loss {name} takes logits of any size"
        why = "behind a sigmoid or ReLU the network cannot say no: the loss cannot come near 0"
    yield Finding("outputs", "error" if sums else "warning", measured, why, "model", fix)


def _with_weights(learner: Learner, rows: int, *, times: float) -> Tensor:
    """Return outputs when each weight is multiplied; if by less than 0, only a sigmoid or ReLU keeps them positive."""
    heard = Heard(learner.criterion)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(times)
        compute(learner, plain_batch(learner, rows), heard)
    return heard.calls[0][0]
