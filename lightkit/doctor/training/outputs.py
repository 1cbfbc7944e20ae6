"""What an untrained network gives, before anything is learnt.

Its first loss tells whether outputs and targets go together; and a language model must not see what it is to predict.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lightkit.assembly import Learner
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, percent, sized
from lightkit.doctor.training.probing import Heard, compute, plain_batch, seeded
from lightkit.losses import FocalLoss, TokenCrossEntropy
from lightkit.trainer.tasks import Supervised

NAME, CAUSALITY = "initial loss", "causality"
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
_TEXTS, _TOLERANCE = 4, 1e-4


def check(run: ExaminedRun) -> Iterator[Finding]:
    """Compare the first loss with that of a network that knows nothing, and look at what the outputs are."""
    learner, rows = run.learner(), run.rows(_ROWS)
    learner.network.train()
    heard = Heard(learner.criterion)
    with torch.no_grad():
        loss = float(compute(learner, plain_batch(learner, rows), heard).loss)
    if not math.isfinite(loss):
        why = "the first step would end the run, or fill the weights with NaN"
        fix = "data.normalize=standard where inputs are large; no log, division or square root of 0 in model and loss"
        yield Finding(NAME, "error", f"the loss of the first {sized(rows, 'row')} is {loss}", why, fix=fix)
        return
    if not isinstance(learner.task, Supervised) or len(heard.calls) != 1 or not isinstance(heard.calls[0][0], Tensor):
        yield Finding(NAME, "ok", f"{loss:.4g}")
        return
    preds, target = heard.calls[0]
    if isinstance(learner.criterion, _OF_ONE_SHAPE) and preds.shape != target.shape:
        return  # the check of the loss says so
    yield _compared(learner, loss, preds, target, scale_key=run.sample.key("target_scale"))
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
    share = float(((target < 0) | (target > 1) if bounded else target < 0).float().mean())
    if share > _OUTSIDE:
        limits = "lie between 0 and 1" if bounded else "are 0 or more"
        measured = f"all outputs {limits}, and {percent(share)} of the targets do not"
        why = "behind a sigmoid or ReLU the network cannot come near these targets"
        fix = "let the model return the plain output of its last layer, or scale the targets to what it can give"
        yield Finding("outputs", "warning", measured, why, "model", fix, {"share": share})


def _compared(learner: Learner, loss: float, preds: Tensor, target: Tensor, *, scale_key: str) -> Finding:
    guess = ignorant_loss(learner, preds, target)
    if guess is None:
        return Finding(NAME, "ok", f"{loss:.4g}", numbers={"loss": loss})
    expected, what = guess
    measured = f"{loss:.4g}, where {what} gives {expected:.4g}"
    if expected <= 0:  # a loss that may be below 0 has no size to compare with
        return Finding(NAME, "ok", measured, numbers={"loss": loss})
    numbers, regression = {"loss": loss, "expected": expected}, learner.data.info.task == "regression"
    if regression and loss > _FAR * expected + 1e-6:
        why = "the outputs begin far from the targets, so the first epochs go into finding their size"
        fix = "scale the targets, or begin the bias of the output at their mean"
        return Finding(NAME, "warning", measured, why, scale_key, fix, numbers)
    if regression and loss > _OFF * expected:
        why = "the targets are not centred: their mean is learnt before anything else"
        return Finding(NAME, "note", measured, why, "optim.rules", "a larger rate for the bias of the output", numbers)
    if not regression and loss > _HIGH * expected + 1e-6:
        why = "the network is sure of wrong answers before it has learnt any: its outputs begin too large"
        fix = "begin the output layer with small weights, scale the inputs (data.normalize), add a norm"
        return Finding(NAME, "warning", measured, why, "model", fix, numbers)
    if not regression and loss < _LOW * expected and learner.made.report is None:  # nothing pretrained
        why = "an untrained network cannot know that: the answer is in the input, or the loss does not see the targets"
        return Finding(NAME, "warning", measured, why, "loss", numbers=numbers)
    return Finding(NAME, "ok", measured, numbers=numbers)


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
        if preds.numel() != target.numel():  # such as a mean and a deviation for each target
            return None
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
    criterion, values = learner.criterion, preds.detach().float()
    takes_logits = isinstance(criterion, nn.CrossEntropyLoss | nn.BCEWithLogitsLoss | FocalLoss | TokenCrossEntropy)
    inside = bool(((values >= 0) & (values <= 1)).all())
    if not takes_logits or not inside or float(values.std()) == 0:  # as where the output layer begins with zeros
        return
    sums = values.ndim > 1 and bool((values.sum(-1 if values.ndim < 4 else 1) - 1).abs().max() < 1e-3)
    if not sums and bool((_with_weights(learner, rows, times=-1) < 0).any()):
        return  # outputs of a fresh network may lie there by chance
    measured, name = "all outputs lie between 0 and 1", type(criterion).__name__
    if isinstance(criterion, nn.BCEWithLogitsLoss):
        measured = f"{measured}, and the loss {name} applies a sigmoid of its own"
        why = "probabilities are pushed through a sigmoid twice: no prediction can come below 0.5"
    elif sums:
        measured = f"{measured} and sum to 1, and the loss {name} applies a softmax of its own"
        why = "probabilities are pushed through a softmax twice: gradients are small and the loss cannot come near 0"
    else:
        measured = f"{measured}, and the loss {name} takes logits of any size"
        why = "behind a sigmoid or ReLU the network cannot say no: the loss cannot come near 0"
    fix = "let the model return its logits, the plain outputs of its last layer: no softmax and no sigmoid in forward"
    for place, module in learner.model.named_modules():
        if isinstance(module, nn.Softmax | nn.Softmax2d | nn.Sigmoid):
            fix = f"leave `{place}` ({type(module).__name__}) out of the model, so that it returns its logits"
    yield Finding("outputs", "error" if sums else "warning", measured, why, "model", fix)


def _with_weights(learner: Learner, rows: int, *, times: float) -> Tensor:
    """Return outputs when each weight is multiplied; if by less than 0, only a sigmoid or ReLU keeps them positive."""
    heard = Heard(learner.criterion)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(times)
        compute(learner, plain_batch(learner, rows), heard)
    return heard.calls[0][0]


def check_causality(run: ExaminedRun) -> Iterator[Finding]:
    """Change the last tokens of some texts: what is predicted before them must stay."""
    if run.shared.data.info.task != "language_modeling":
        return
    learner = run.learner()
    x, y = plain_batch(learner, run.rows(_TEXTS))
    if x.ndim != 2 or x.shape[1] < 2 or not torch.where(y[:, :-1] < 0, True, y[:, :-1] == x[:, 1:]).all():
        return  # what is to be predicted is not the next token
    place, other = x.shape[1] // 2, x.clone()
    other[:, place:] = (other[:, place:] + 1) % max(2, learner.data.info.vocab_size or int(x.max()) + 1)
    learner.network.eval()
    given = []
    with torch.no_grad():
        for tokens in (x, other):
            seeded(learner, 0)
            given.append(compute(learner, (tokens, y)).preds)
    if given[0] is None or given[1] is None or given[0].ndim < 3:
        return
    before = (given[0][:, :place] - given[1][:, :place]).abs().max()
    difference = float(before / given[0].abs().max().clamp_min(1e-12))
    numbers = {"difference": difference, "place": place}
    if difference <= _TOLERANCE:
        measured = f"what is predicted up to token {place} does not depend on those after it"
        yield Finding(CAUSALITY, "ok", measured, numbers=numbers)
        return
    measured = f"other tokens from place {place} on change what is predicted before them by {percent(difference)}"
    why = "the network reads the answer: its loss comes near 0, and it can write nothing"
    fix = "a causal mask in the attention (is_causal=True, or a triangle of -inf); no bidirectional=True"
    yield Finding(CAUSALITY, "error", measured, why, "model", fix, numbers)
