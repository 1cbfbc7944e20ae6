"""Losses that PyTorch lacks, each a mean over the batch, and what the mean of a batch weighs among others.

Shapes: B samples, C classes or labels, T positions, V vocabulary size, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_out_of_memory


class TokenCrossEntropy(nn.Module):
    """Cross entropy of the next token, averaged over all positions of all samples.

    Args:
        label_smoothing: Share of the target spread over all tokens, 0 to 1.

    Raises:
        UserError: `label_smoothing` is out of its range.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        check_range("label_smoothing", label_smoothing, low=0, high=1)
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the mean loss of logits `(B, T, V)` and token numbers `(B, T)`.

        Raises:
            UserError: The shapes don't belong together.
        """
        if logits.ndim != 3 or logits.shape[:2] != target.shape:
            raise _shapes("logits (B, T, V) and targets (B, T)", logits, target)
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=self.label_smoothing)


class FocalLoss(nn.Module):
    """Cross entropy that turns away from what is already right (https://arxiv.org/abs/1708.02002): for unequal classes.

    Class numbers `(B,)` or class probabilities `(B, C)` make it the softmax form; floats `(B, C)` with `multilabel`
    the form with one sigmoid per label.

    Args:
        gamma: Strength, 0 or above; 0 is plain cross entropy.
        alpha: Weight of the positive targets, 0 to 1, the negative ones get `1 - alpha`; with `multilabel` only.
        multilabel: Treat the outputs as independent labels.

    Raises:
        UserError: An argument is out of its range.
    """

    def __init__(self, gamma: float = 2.0, alpha: float | None = None, multilabel: bool = False) -> None:
        super().__init__()
        check_range("gamma", gamma, low=0)
        if alpha is not None:
            check_range("alpha", alpha, low=0, high=1)
            if not multilabel:
                what = "alpha weighs positive against negative labels"
                raise UserError(what, argument="alpha", fix="set loss.multilabel=true")
        self.gamma, self.alpha, self.multilabel = gamma, alpha, multilabel

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Compute the mean loss of logits `(B, C)` and targets `(B,)` or `(B, C)`; `multilabel` takes any equal shapes.

        Raises:
            UserError: The shapes don't belong together.
        """
        if self.multilabel:
            if logits.shape != target.shape:
                raise _shapes("logits and targets of one shape", logits, target)
            target = target.to(logits.dtype)
            loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
            chance = torch.sigmoid(logits)
            miss = chance * (1 - target) + (1 - chance) * target
            if self.alpha is not None:
                loss = loss * (self.alpha * target + (1 - self.alpha) * (1 - target))
            return (self._focus(miss) * loss).mean()
        if logits.ndim != 2 or target.shape not in (logits.shape[:1], logits.shape):
            raise _shapes("logits (B, C) and targets (B,) or (B, C)", logits, target)
        log_chance = F.log_softmax(logits, dim=1)
        if target.ndim == 1:
            target = F.one_hot(target, logits.shape[1])
        loss = -target * self._focus(1 - log_chance.exp()) * log_chance
        return loss.sum(dim=1).mean()

    def _focus(self, miss: Tensor) -> Tensor:
        """Weigh a miss. Below a `gamma` of 1 the slope at 0 is infinite, and would make NaN of the gradient."""
        return miss.clamp_min(torch.finfo(miss.dtype).tiny) ** self.gamma


class SupervisedContrastive(nn.Module):
    """Draws embeddings of a class together, pushes the others away (https://arxiv.org/abs/2004.11362).

    A sample without another of its class in the batch adds 0, so batches should hold several samples per class.

    Args:
        temperature: Smaller values look at the nearest neighbours only; above 0.

    Raises:
        UserError: `temperature` is not above 0.
    """

    compares_samples = True
    """Its value for a batch is no mean of values for each sample."""

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        check_range("temperature", temperature, low=1e-6)
        self.temperature = temperature

    def forward(self, embeddings: Tensor, target: Tensor) -> Tensor:
        """Compute the mean loss of embeddings `(B, D)`, normalised here, and class numbers `(B,)`.

        Raises:
            UserError: The shapes don't belong together.
        """
        if embeddings.ndim != 2 or target.shape != embeddings.shape[:1]:
            raise _shapes("embeddings (B, D) and class numbers (B,)", embeddings, target)
        unit = F.normalize(embeddings.float(), dim=1)
        itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        likeness = (unit @ unit.T / self.temperature).masked_fill(itself, torch.finfo(torch.float32).min)
        log_chance = F.log_softmax(likeness, dim=1).masked_fill(itself, 0.0)
        partners = (target[:, None] == target[None, :]) & ~itself
        return -((log_chance * partners).sum(dim=1) / partners.sum(dim=1).clamp(min=1)).mean()

    def lowest(self, target: Tensor) -> float:
        """Return what the loss of a batch comes down to at most: a sample cannot be nearest to all of its class."""
        partners = (target[:, None] == target[None, :]).sum(dim=1) - 1
        return float(partners.clamp(min=1).log().mean())


class ByHead(nn.Module):
    """Losses of several outputs by name, added up with weights that are given or learnt.

    `weights: uncertainty` learns them (Kendall et al. 2018, https://arxiv.org/abs/1705.07115): a head with the log
    variance s adds `exp(-s) * loss + s / 2`. The log variances begin at 0 and are parameters of the loss: they train
    with the model, as those of any loss do.

    Args:
        losses: The loss of each head.
        weights: A number for each head, 1 where none is given; or `uncertainty`.

    Raises:
        UserError: There is no head, or a weight for none.
    """

    def __init__(
        self, losses: Mapping[str, nn.Module], weights: Mapping[str, float] | Literal["uncertainty"] | None = None
    ) -> None:
        super().__init__()
        learnt, given = weights == "uncertainty", weights if isinstance(weights, Mapping) else {}
        strange = [name for name in given if name not in losses]
        if not losses or strange:
            what = "there is no such head" if losses else "there is no head"
            raise UserError(what, argument="weights" if losses else "losses", received=strange, choices=losses)
        for name, weight in given.items():
            check_range(f"weights.{name}", weight, low=0, what="below 0")
        self.losses, self.weights = nn.ModuleDict(losses), {name: float(given.get(name, 1)) for name in losses}
        self.log_variances = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in losses if learnt})

    def forward(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> Tensor:
        """Compute the sum of the weighted losses of all heads.

        Raises:
            UserError: A head has no output or no target.
        """
        if lacking := [name for name in self.losses if name not in outputs or name not in targets]:
            what = "the model gives no such output, or the data set no such target"
            raise UserError(what, key="loss.losses", received=lacking, choices=[*map(str, outputs)])
        total = torch.zeros(())
        for name, loss in self.losses.items():
            try:
                value = loss(outputs[name], targets[name])
            except (IndexError, ValueError, RuntimeError) as error:
                if is_out_of_memory(error):
                    raise
                shapes = f"outputs {tuple(outputs[name].shape)}, targets {tuple(targets[name].shape)}"
                what = f"this loss cannot take the targets of its head: {in_short(error)}"
                raise UserError(what, key=f"loss.losses.{name}", received=shapes, family="loss-or-metric") from error
            if name in self.log_variances:
                value = (-self.log_variances[name]).exp() * value + self.log_variances[name] / 2
            total = total.to(value) + self.weights[name] * value
        return total


class OfModel(nn.Module):
    """Stands for a loss that the model computes itself, as torchvision's detectors do."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Refuse to compute one.

        Raises:
            UserError: A task has asked for it.
        """
        raise UserError("the model computes the loss, but the task asks for one", key="loss", fix="choose a loss")


_OVER_WEIGHTS = (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward, TokenCrossEntropy.forward)
_OVER_WEIGHTS_PLAIN = (F.cross_entropy, F.nll_loss)
"""Losses that divide by the weights of the classes that they counted. Taken here: `F.cross_entropy` may be replaced."""


def mean_weight(criterion: Any, output: Any, target: Any, later: type[int] | None = None) -> Tensor | int | None:
    """Return what a loss divided by to get the mean of a batch, which is what that mean weighs among those of others.

    Of cross entropy and NLL with class numbers it is the sum of the class weights of all targets but the ignored ones.
    None stands for the number of samples, as with losses that are not known. A loss of your own may say it by a method
    `mean_weight(output, target)`.

    Args:
        criterion: The loss.
        output: Its first argument.
        target: Its second argument.
        later: Stands for the number of targets that are not the one it is made of; None counts them at once.
    """
    # A module takes long to say that it has no such attribute.
    if hasattr(type(criterion), "mean_weight") or "mean_weight" in getattr(criterion, "__dict__", ()):
        return criterion.mean_weight(output, target)
    each = target_weights(criterion, output, target, later)
    return each.sum() if isinstance(each, Tensor) else each


def target_weights(criterion: Any, output: Any, target: Any, later: type[int] | None = None) -> Any:
    """Return what each target weighs in a mean over class numbers, in the shape of the targets; see `mean_weight`."""
    if isinstance(criterion, partial):
        known, options = criterion.func in _OVER_WEIGHTS_PLAIN, criterion.keywords
    else:
        known, options = getattr(type(criterion), "forward", None) in _OVER_WEIGHTS, criterion.__dict__
    if not known or options.get("reduction", "mean") != "mean" or not isinstance(output, Tensor):
        return None
    weights = {**options, **options.get("_buffers", {})}.get("weight")
    fits = isinstance(target, Tensor) and output.ndim == target.ndim + 1 and not target.is_floating_point()
    if not fits or (weights is not None and output.shape[1] != len(weights)):
        return None  # shares of classes, which count by samples; or a task of the user's hands on something else
    ignored = options.get("ignore_index", -100)
    if weights is None:
        return later(ignored) if later else target != ignored
    counted = target != ignored
    return torch.where(counted, weights[torch.where(counted, target, 0)], 0)


def _shapes(expected: str, output: Tensor, target: Tensor) -> UserError:
    received = f"{tuple(output.shape)} and {tuple(target.shape)}"
    return UserError("output and target don't belong together", key="loss", expected=expected, received=received)
