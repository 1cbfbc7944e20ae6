"""Averages of the weights over the steps of training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lightkit.common.modules import is_shard, kept_modes, like, wide

if TYPE_CHECKING:
    from lightkit.trainer.interrupt import Interrupt
    from lightkit.trainer.learner import Learner


class NoAverage:
    """The plain case: the newest weights are the ones to evaluate."""

    is_saved = False
    """Whether a checkpoint has a state of it, with the weights to evaluate under `weights`."""

    def update(self) -> None:
        """Take in the weights after an optimizer step."""

    def end_epoch(self, learner: Learner, interrupt: Interrupt) -> None:
        """Take in the weights at the end of an epoch, before its validation; once for each step.

        Args:
            learner: The model in training, with its data.
            interrupt: Tells when a signal asked the run to end.

        Raises:
            AskedToEnd: A signal came while a batch was waited for.
        """

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model hold the weights to evaluate, while inside."""
        yield

    def keep(self) -> None:
        """Put the weights to evaluate into the model for good."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what a checkpoint kept."""


class WeightAverage(NoAverage):
    """Averaged tensors beside those in training, which a checkpoint keeps and an evaluation uses.

    Args:
        model: The network whose parameters and floating-point buffers are averaged, without any wrapper.
    """

    is_saved = True

    def __init__(self, model: nn.Module) -> None:
        self.steps = 0
        self._live = {
            name: tensor for name, tensor in model.state_dict(keep_vars=True).items() if tensor.is_floating_point()
        }
        # In fp32 at least: what a step adds is less than bfloat16 can hold beside the average.
        self._mean = {name: wide(tensor.detach()).clone() for name, tensor in self._live.items()}

    @torch.no_grad()
    def _move(self, names: Sequence[str], share: float) -> None:
        """Move the averages of these tensors towards those in training, by a share of the way."""
        # Where processes hold parts of the parameters, buffers are whole, and no operation takes both.
        for part in (False, True):
            alike = [name for name in names if is_shard(self._live[name]) == part]
            if alike:
                live = [wide(self._live[name].detach()) for name in alike]
                torch._foreach_lerp_([self._mean[name] for name in alike], live, share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model hold the averaged weights, while inside; its own come back afterwards, also after an error."""
        own = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        _copy(self._mean, self._live)
        try:
            yield
        finally:
            _copy(own, self._live)

    def keep(self) -> None:
        """Put the averaged weights into the model for good."""
        _copy(self._mean, self._live)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged tensors by name and the number of steps."""
        return {"steps": self.steps, "weights": dict(self._mean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved averages of the same model."""
        self.steps = state["steps"]
        _copy(state["weights"], self._mean)


class Ema(WeightAverage):
    """Exponential moving average of parameters and floating-point buffers (Polyak and Juditsky 1992).

    After n steps the share kept is `min(decay, (1 + n) / (10 + n))`, so that the first, random weights fade quickly.

    Args:
        model: The network whose weights are averaged, without any wrapper.
        decay: Share of the average kept at each step, in (0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self.decay, self._names = decay, [*self._live]

    def update(self) -> None:
        """Move the average towards the weights of the model."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self._move(self._names, 1.0 - decay)

    def keep_rows(self, rows: Tensor) -> None:
        """Leave out of stacked tensors `(M, ...)` all models but these, `(K,)` int64; the model has done so before."""
        self._mean = {name: mean.index_select(0, rows) for name, mean in self._mean.items()}


class Swa(WeightAverage):
    """Mean of the parameters at the ends of epochs (Izmailov et al. 2018, https://arxiv.org/abs/1803.05407).

    Buffers are the newest. The statistics of batch norm, which are those of other weights, are computed anew, as
    `torch.optim.swa_utils.update_bn` does: over the training rows, without augmentation and dropout. Before the first
    of these epochs the weights to evaluate are those in training.

    Args:
        model: The network whose weights are averaged, without any wrapper.
        from_epoch: First epoch whose weights count, from 1.
        update_bn: Compute the statistics of batch norm anew.
    """

    def __init__(self, model: nn.Module, from_epoch: int, *, update_bn: bool = True) -> None:
        super().__init__(model)
        self.from_epoch, self.update_bn = from_epoch, update_bn
        weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self._weights = [name for name in self._live if name in weights]
        self._buffers = [name for name in self._live if name not in weights]
        self._taken_step = self._normed_step = -1

    def end_epoch(self, learner: Learner, interrupt: Interrupt) -> None:
        """Take in the weights, then compute the statistics; where a signal ends that, it is done by the next call."""
        step = learner.state.step
        if learner.state.epoch + 1 < self.from_epoch:
            return
        if self._taken_step != step:
            self._move(self._buffers, 1.0)
            self._move(self._weights, 1.0 / (self.steps + 1))
            self.steps, self._taken_step = self.steps + 1, step
        if self.update_bn and self._normed_step != step:
            with self.applied():
                update_statistics(learner, interrupt)
                self._move(self._buffers, 1.0)
        self._normed_step = step

    @contextmanager
    def applied(self) -> Iterator[None]:
        """See `WeightAverage.applied`; nothing before there is an average."""
        with super().applied() if self.steps else nullcontext():
            yield

    def keep(self) -> None:
        """See `WeightAverage.keep`; nothing before there is an average."""
        if self.steps:
            super().keep()

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged tensors, none before there are any, and the steps of which there are some."""
        state = super().state_dict() if self.steps else {"steps": 0, "weights": {}}
        return {**state, "taken_step": self._taken_step, "normed_step": self._normed_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved averages of the same model."""
        super().load_state_dict({**state, "weights": {**self._mean, **state["weights"]}})
        self._taken_step, self._normed_step = state["taken_step"], state["normed_step"]


def averages_itself(optimizer: Any) -> bool:
    """Tell whether an optimizer has a `train` and an `eval` that change the weights, as schedule-free ones have."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


class OwnAverage(NoAverage):
    """The average that an optimizer keeps itself (schedule-free, Defazio et al. 2024, https://arxiv.org/abs/2405.15682).

    Its `eval()` computes the weights to evaluate from those it trains, and `train()` those back, which rounds. So the
    trained ones are kept and put back: what a run learns does not depend on when it is validated or saved.

    Args:
        model: The network that it trains, without any wrapper.
        optimizer: It has `train` and `eval`.
    """

    is_saved = True

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self._optimizer = optimizer
        held = {id(each) for group in optimizer.param_groups for each in group["params"]}
        self._live: dict[str, Tensor] = {name: each for name, each in model.named_parameters() if id(each) in held}
        optimizer.train()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """See `NoAverage.applied`."""
        own = {name: tensor.detach().clone() for name, tensor in self._live.items()}
        self._optimizer.eval()
        try:
            yield
        finally:
            self._optimizer.train()
            _copy(own, self._live)

    def keep(self) -> None:
        """See `NoAverage.keep`."""
        self._optimizer.eval()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights to evaluate, by name, for whoever reads a checkpoint without the optimizer."""
        with self.applied():
            return {"weights": {name: tensor.detach().clone() for name, tensor in self._live.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing: all of it follows from the weights and the state of the optimizer."""


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.detach().copy_(like(source[name], tensor))


@torch.no_grad()
def update_statistics(learner: Learner, interrupt: Interrupt) -> None:
    """Let batch norms that train hold mean and variance of the training rows under the weights that the model has.

    Each batch counts the same, as in `torch.optim.swa_utils.update_bn`. Of several processes each computes its part of
    the batches, and all get the means of what they found.

    Args:
        learner: The model, and the data.
        interrupt: Tells when a signal asked the run to end.

    Raises:
        AskedToEnd: A signal came while a batch was waited for.
    """
    model, engine, train = learner.model, learner.engine, learner.data.train
    norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training]
    norms = [part for part in norms if part.running_mean is not None]
    rows = learner.data.evaluation("train")
    if not norms or rows is None:
        return
    # In a new order: in that of classes, batches would vary less than all of the rows. A last one may be of one sample.
    whole = train.num_samples >= train.batch_size
    rows = rows.with_rows(train.rows, shuffle=train.options.shuffle, drop_last=whole)
    engine.seed_validation(learner.state.step)
    with _recounting(model, norms), closing(engine.prefetch(rows.epoch(learner.state.epoch))) as batches:
        while (batch := interrupt.wait(batches, None)) is not None:
            with engine.autocast():
                learner.task.step(model, engine.move(batch), learner.criterion)
    found = [tensor for norm in norms for tensor in (norm.running_mean, norm.running_var) if tensor is not None]
    told = engine.ranks.gather(found)
    means = engine.ranks.shared(
        lambda: [torch.stack(of_all).mean(0).cpu() for of_all in zip(*(own for _, own in told))]
    )
    for tensor, mean in zip(found, means, strict=True):
        tensor.copy_(mean)


@contextmanager
def _recounting(model: nn.Module, norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Let batch norms start anew and count all batches alike, while inside; all else computes as in evaluation."""
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    with kept_modes(model):
        model.eval()
        for norm in norms:
            # The count stays on the CPU: each norm asks for it at each batch, and would wait for a GPU.
            norm.training, norm.momentum, norm.num_batches_tracked = True, None, torch.tensor(0)
        try:
            yield
        finally:
            for norm, momentum, count in kept:
                norm.momentum, norm.num_batches_tracked = momentum, count
