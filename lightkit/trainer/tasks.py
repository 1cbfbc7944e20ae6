"""How a batch becomes a loss and the inputs of the metrics.

Shapes: B samples, C classes or labels, T positions, V vocabulary size, `...` further dimensions such as pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_dead_worker, is_out_of_memory
from lightkit.common.modules import is_norm, kept_modes, wide
from lightkit.losses import mean_weight, target_weights

Criterion = Callable[[Tensor, Tensor], Tensor]


class StepOutput(NamedTuple):
    """What one batch gives.

    Attributes:
        loss: Mean loss over the samples of the batch, a 0-d tensor.
        preds: First argument of the metrics: a tensor with samples in dimension 0, or a list with
            a text for each sample, for those of `torchmetrics.text`; None leaves the metrics alone.
        target: Second argument of the metrics; of texts a list with a text, or a list of texts, for each sample.
        metric_kwargs: Further arguments of the metrics by name, tensors with samples in dimension 0 or lists; each
            metric gets those that its `update` has, such as `{"indexes": ...}` for those of `torchmetrics.retrieval`.
        weight: What `loss` weighs in the mean over a split, such as the sum of the class weights of the batch. None
            goes by the loss of the run, as if it had compared `preds` with `target`; see `lightkit.losses.mean_weight`.
        log: Further numbers by name, each a mean over the samples of the batch, or one for each sample. Their means
            over all samples of a split are logged like metrics: `{"kl": kl}` gives `train/kl`, `val/kl` and `test/kl`.
    """

    loss: Tensor
    preds: Any = None
    target: Any = None
    metric_kwargs: Mapping[str, Any] | None = None
    weight: Tensor | int | None = None
    log: Mapping[str, Tensor | float] | None = None


class Task:
    """Base of all tasks: override `step` for a model with several inputs, its own losses or its own metrics inputs.

    Name the subclass in the configuration: `trainer.task._target_: my_project.tasks.Siamese`.
    """

    parts: Sequence[str] = ()
    """Names of the optimizers that step by losses of their own, in `optim.parts`; empty where there is one loss."""

    def part(self, name: str, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of one batch that one of several optimizers steps by, in training.

        Args:
            name: One of `parts`; only the parameters of this optimizer need gradients.
            model: See `step`.
            batch: See `step`.
            criterion: See `step`.
        """
        raise NotImplementedError

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of one batch; the same method serves training, validation and test.

        Gradients, devices, precision, logging and accumulation are the caller's: this method only computes.
        `model.training` tells whether the batch is for training.

        Args:
            model: The network; call it, do not reach into it, so that it also works when wrapped for several GPUs.
            batch: What the data set yields, already on the device.
            criterion: The configured loss.

        Returns:
            The loss and what the metrics see.
        """
        raise NotImplementedError


class Supervised(Task):
    """One input, one target: `criterion(model(x), y)`.

    A model may give a mapping of tensors in the place of one, by these names; any other is not looked at:

    - `logits`: its outputs, as with the models of transformers; or `out`, as with torchvision's of segmentation;
    - `members`, in training only: the outputs of K networks in one, `(B, K, ...)`. The training loss is the mean of
      their losses in the place of the loss of `logits`. A loss that compares samples with each other says so by an
      attribute `compares_samples`, and is computed for one member after the other;
    - `penalty`, in training only: a number that is added to the training loss; of several numbers their mean is;
    - `aux`, in training only: outputs of a further head, whose loss counts half, as in torchvision's references.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute loss and metric inputs of a batch `(x, y)`; see `Task.step`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            fix = f"trainer.task._target_={_BY_NAME} gives the parts to the loss by name, or a task of your own takes "
            fix += "them apart: trainer.task._target_=my_module.MyTask"
            if isinstance(batch, (tuple, list)) and len(batch) == 3:
                fix = f"{fix}; where the third is the query of the sample, {_RETRIEVAL} is one"
            raise UserError(
                "the samples are no pairs of an input and a target", key="trainer.task", received=_kind(batch), fix=fix
            )
        x, y = batch
        output = model(x)
        preds = fit_shape(logits(output), y)
        named = output if model.training and type(output) is not Tensor and isinstance(output, Mapping) else {}
        loss = _loss_of_members(criterion, named["members"], y) if "members" in named else criterion(preds, y)
        loss = loss + 0.5 * criterion(named["aux"], y) if "aux" in named else loss
        return StepOutput(loss + named["penalty"].mean() if "penalty" in named else loss, preds, y)


class Retrieval(Supervised):
    """One input, one target, and the query that they belong to: for the metrics of `torchmetrics.retrieval`.

    Batches are `(x, y, indexes)`: `y` says whether (or how much) the document of a sample is relevant for its query,
    `indexes` which query that is, a whole number each. Metrics get them under the same names as in torchmetrics.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute loss and metric inputs of a batch `(x, y, indexes)`; see `Task.step`."""
        if not isinstance(batch, (tuple, list)) or len(batch) != 3:
            what, expected = "the samples are not an input, a target and the number of a query", "(x, y, indexes)"
            raise UserError(what, key="trainer.task", expected=expected, received=_kind(batch))
        x, y, indexes = batch
        return super().step(model, (x, y), criterion)._replace(metric_kwargs={"indexes": indexes})


class Forecast(Supervised):
    """Forecasts series of unlike sizes by any model, as changes of the seasonal naive forecast.

    Batches are those of `lightkit.data.series.Series`. The model gets values less the mean of the naive forecast, over
    the scale of the series, and 1 where a value is still to come. Its outputs `(B, H)` and the loss are in that scale,
    metrics in the unit of the data; `mase` is https://doi.org/10.1016/j.ijforecast.2006.03.001.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute loss and metric inputs of a batch of windows; see `Task.step`."""
        x, y = batch
        horizon = y[:1].numel()
        naive, scale = x[:, -horizon:, 0], x[:, 0, -1:]
        level = naive.mean(1, keepdim=True)
        ahead = (torch.arange(x.shape[1], device=x.device) >= x.shape[1] - horizon).to(x).expand(len(x), -1)
        seen = torch.stack([(x[..., 0] - level) / scale, *x[..., 1:-1].unbind(2), ahead], 2)
        preds = (naive + scale * model(seen).reshape(naive.shape)).reshape(y.shape)
        error = (preds - y).reshape(naive.shape) / scale
        loss = criterion(error, torch.zeros_like(error))
        return StepOutput(loss, preds, y, log={"mase": error.abs().mean(1)})


class TwoViews(Task):
    """Learns from views of the same sample (SimCLR, Chen et al. 2020, https://arxiv.org/abs/2002.05709).

    In training, `lightkit.data.transforms.Views` makes the views of each sample, and labels are not looked at: the loss
    gets the embeddings of all views, `(V * B, D)`, and the number of the sample that each is of, `(V * B,)`. With
    `lightkit.losses.SupervisedContrastive` that is NT-Xent: the other views of a sample are to be nearer than those of
    the other samples in the batch. Of several processes each compares the samples of its own part of the batch.

    Validation and test see samples as they are: their loss compares embeddings with the labels, which metrics get, too.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute the loss of the views in training, or loss and metric inputs of plain samples; see `Task.step`."""
        views, labels = batch
        if isinstance(views, (tuple, list)):
            samples = torch.arange(len(labels), device=labels.device).repeat(len(views))
            return StepOutput(criterion(model(torch.cat([*views])), samples))
        if model.training:
            fix = "data.augment=[{_target_: lightkit.data.transforms.Views, augment: [...]}]"
            raise UserError("the task compares views of each sample", key="data.augment", received="one view", fix=fix)
        embeddings = model(views)
        return StepOutput(criterion(embeddings, labels), embeddings, labels)


class Weighted(Supervised):
    """One input, one target, and how much the sample counts in training: batches are `(x, y, weight)`.

    The loss is the weighted mean of those of the samples; with class weights a sample counts its weight times that of
    its class. Pairs without a weight are what they are to `Supervised`.

    Args:
        scaled: Whether weights are 1 on average. Then the loss of a training batch is divided by what its samples come
            to with weights of 1, so that its expectation is that of all rows; without class weights several processes
            have it together as one has it alone.
    """

    def __init__(self, scaled: bool = False) -> None:
        self.scaled = scaled

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute loss and metric inputs of a batch `(x, y, weight)`; see `Task.step`."""
        if len(batch) != 3:
            return super().step(model, batch, criterion)
        x, y, weight = batch
        if not hasattr(criterion, "reduction"):
            what, fix = "this loss cannot weigh samples", "one of torch.nn with `reduction`"
            raise UserError(what, key="loss", received=type(criterion).__name__, fix=fix, family="loss-or-metric")
        weighed = WeighedMean(criterion, weight, scaled=self.scaled and model.training)
        return super().step(model, (x, y), weighed)._replace(weight=weighed.total)


class WeighedMean:
    """The weighted mean of the losses of samples, as a loss; weights of 1 give the mean of the loss itself.

    Args:
        criterion: A loss with `reduction`.
        weight: `(B,)` how much each sample counts.
        scaled: Divide the sum by what the samples come to with weights of 1.
    """

    total: Tensor | None = None
    """What the newest mean weighs among those of others."""

    def __init__(self, criterion: Any, weight: Tensor, *, scaled: bool = False) -> None:
        self._criterion, self._weight, self._scaled = criterion, weight, scaled
        self._each: Any = copy.copy(criterion)
        self._each.reduction = "none"

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute the mean of a batch."""
        weight, counts = self._weight, target_weights(self._criterion, output, target)
        losses = self._each(output, target).reshape(len(weight), -1)
        if counts is None:
            losses, counts = losses.mean(1), torch.ones_like(weight)
        else:  # by the weights of classes, as the loss alone
            losses, counts = losses.sum(1), counts.reshape(losses.shape).sum(1).to(weight)
        total = (counts if self._scaled else counts * weight).sum()
        self.total = total.clamp_min(torch.finfo(total.dtype).tiny)
        return (losses * weight).sum() / self.total


class Detection(Task):
    """Finds boxes by a model that computes its losses itself.

    Batches are lists of images and of targets; a target has `boxes` `(N, 4)`, left, top, right, bottom in pixels, and
    `labels` `(N,)` from 1 on, as 0 is the background. In training the model is called as `model(images, targets)` and
    gives losses by name, whose sum trains; each is logged under its name. Otherwise `model(images)` gives for each
    image `boxes`, `labels` and `scores`, which go to the metrics.

    Such models give losses in training mode only, so those of validation and test take a second pass in which all but
    norm layers and dropout are in that mode. Where a model draws boxes to learn from, it draws then, too.
    """

    def step(self, model: nn.Module, batch: Any, criterion: Criterion) -> StepOutput:
        """Compute losses, and outside of training boxes, of a batch; see `Task.step`."""
        images, targets, found = list(batch[0]), batch[1], None
        if not model.training:
            found = model(images)
            if not isinstance(targets[0], Mapping):  # new pictures
                return StepOutput(torch.zeros(()), found, targets)
        losses = model(images, targets) if model.training else _losses(model, images, targets)
        return StepOutput(torch.stack([*losses.values()]).sum(), found, targets, log=losses)


def _losses(model: nn.Module, images: list[Tensor], targets: Any) -> dict[str, Tensor]:
    """Compute the losses of a model in eval mode, which stays so."""
    with kept_modes(model):
        for module in model.modules():
            module.training |= not (is_norm(module) or isinstance(module, nn.modules.dropout._DropoutNd))
        return model(images, targets)


_BY_NAME = "lightkit.trainer.ByName"
_RETRIEVAL = f"{Retrieval.__module__}.{Retrieval.__qualname__}"


def _kind(batch: Any) -> str:
    if isinstance(batch, dict):
        return f"dict of {', '.join(map(str, batch))}"
    return f"{type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")


def _loss_of_members(criterion: Criterion, members: Tensor, y: Tensor) -> Tensor:
    """Compute the mean of the losses of the outputs of members, `(B, K, ...)`."""
    if getattr(criterion, "compares_samples", False):
        return torch.stack([criterion(fit_shape(member, y), y) for member in members.unbind(1)]).mean()
    # A mean over samples is the same over the samples of all members, in one call.
    repeated = y.repeat_interleave(members.shape[1], 0)
    return criterion(fit_shape(members.flatten(0, 1), repeated), repeated)


def loss_weight(step: StepOutput, criterion: Criterion, later: type[int] | None = None) -> Tensor | int | None:
    """Return what the loss of a batch weighs among others; None stands for its number of samples. See `mean_weight`."""
    return mean_weight(criterion, step.preds, step.target, later) if step.weight is None else step.weight


def logits(output: Any) -> Any:
    """Return what a model gives, or its entry `logits` or `out` where it gives several things by name."""
    if type(output) is Tensor or not isinstance(output, Mapping):
        return output
    return next((output[name] for name in ("logits", "out") if name in output), output)


def fit_shape(output: Any, target: Any) -> Any:
    """Drop the last dimension of an `(N, 1)` output where the target is `(N,)` floats; of several by name of each.

    A loss would otherwise broadcast the two to `(N, N)` and train on nonsense without an error.
    """
    if isinstance(output, Tensor):
        is_column = output.ndim == target.ndim + 1 and output.shape[-1] == 1 and torch.is_floating_point(target)
        return output.squeeze(-1) if is_column else output
    if isinstance(output, Mapping) and isinstance(target, Mapping):
        return {name: fit_shape(output[name], each) for name, each in target.items() if name in output}
    return output


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
                plain = batch[:2] if isinstance(self.task, Weighted) else batch
                other = self.task.step(teacher, plain, lambda *_outputs: torch.zeros(())).preds
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            if is_out_of_memory(error) or is_dead_worker(error):
                raise
            what = f"the teacher cannot take the batches of this run: {in_short(error)}"
            raise UserError(what, key="finetune.distill.teacher") from error
        if other is None or other.shape != step.preds.shape:
            what, fix = (
                "the teacher's outputs are not of the student's size",
                "a teacher trained on data with the same classes",
            )
            expected, key, received = str(tuple(step.preds.shape)), "finetune.distill.teacher", "no outputs"
            received = received if other is None else str(tuple(other.shape))
            raise UserError(what, key=key, expected=expected, received=received, fix=fix)
        self._compared = True
        return wide(step.preds), wide(other)


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


DISTANCES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "multiclass": lambda student, teacher, t: _divergence(student.movedim(1, -1), teacher.movedim(1, -1), t),
    "language_modeling": _divergence,
    "binary": _labels,
    "multilabel": _labels,
    "regression": lambda student, teacher, _t: F.mse_loss(student, teacher),
}
"""Kind of outputs → distance of the student's to the teacher's, and the temperature."""
