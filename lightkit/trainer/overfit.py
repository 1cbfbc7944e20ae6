"""`trainer.overfit`: whether a model learns a few samples by heart, and if not, why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from lightkit.common.errors import FAILED, UserError
from lightkit.common.modules import kept_modes
from lightkit.common.text import counted
from lightkit.trainer.callbacks import Callback, Training

if TYPE_CHECKING:
    from lightkit.trainer.learner import Learner
    from lightkit.trainer.loop import Trainer

KEY = "trainer.overfit"
_ZERO = 1e-3
"""Loss that is zero wherever it began."""
_SAME, _FALLING, _RISEN = 0.95, 0.9, 1.5
"""Share of the loss before, above which it is the same, below which it still falls, and above which it has risen."""


class Overfit(Callback):
    """Ends training where the loss of the samples is zero, and fails where it never becomes that.

    Args:
        share: Loss that counts as zero, as a share of the first one.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.first, self.floor = 0.0, 0.0
        self.losses: list[float] = []

    def on_fit_start(self, trainer: Training) -> None:
        """Measure the loss before the first step."""
        if not self.losses:
            self.first, self.floor = _measure(cast("Trainer", trainer))

    def on_epoch(self, trainer: Training, values: dict[str, float]) -> None:
        """End training where the loss is zero."""
        self.losses.append(values["train/loss"])
        if self._reached():
            trainer.stop(f"{KEY}: the samples are learnt by heart")

    def on_fit_end(self, trainer: Training) -> None:
        """Say that the loss is zero, and fail where it has stayed above that.

        Raises:
            UserError: It has; it says what is behind that, as far as can be told.
        """
        if self._reached():
            said = f"the loss has come down from {self.first:.3g} to {self.losses[-1]:.3g}"
            cast("Trainer", trainer).logger.message(
                f"overfit {said} in {counted(trainer.state.step, 'step')}: the model can learn"
            )
            return
        last, goal = self.losses[-1], self.floor + max(_ZERO, self.share * (self.first - self.floor))
        steps = counted(trainer.state.step, "step")
        what = f"the model does not learn the samples by heart: the loss is {last:.3g} after {steps}"
        reason, fix = explain(cast("Trainer", trainer), self.first, self.losses)
        expected = f"at most {goal:.3g}, from {self.first:.3g} at the start"
        raise UserError(
            f"{what}\n{reason}", key=KEY, expected=expected, fix=fix, exit_code=FAILED, family="not-learning"
        )

    def _reached(self) -> bool:
        left = self.losses[-1] - self.floor if self.losses else float("inf")
        return left <= max(_ZERO, self.share * (self.first - self.floor))

    def state_dict(self) -> dict[str, Any]:
        """Return the losses so far."""
        return {"first": self.first, "floor": self.floor, "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the checkpoint stood."""
        self.first, self.floor, self.losses = state["first"], state["floor"], list(state["losses"])


def _measure(trainer: Trainer) -> tuple[float, float]:
    """Return the loss of a batch with the weights as they are, and the least that the loss function can give for it."""
    learner = trainer.learner
    batch = learner.engine.move(_samples(learner))
    with kept_modes(learner.network), torch.no_grad(), learner.engine.autocast():
        learner.network.eval()
        loss = learner.task.step(learner.network, batch, learner.criterion).loss
    lowest = getattr(learner.criterion, "lowest", None)
    pair = learner.data.train.unweighted(batch)
    target = pair[1] if isinstance(pair, (tuple, list)) and len(pair) == 2 else None
    return float(loss), float(lowest(target)) if lowest is not None and isinstance(target, Tensor) else 0.0


def explain(trainer: Trainer, first: float, losses: list[float]) -> tuple[str, str]:
    """Say why a model has not learnt its samples by heart, and what to do about it.

    Args:
        trainer: The training that has ended.
        first: Loss before the first step.
        losses: Mean loss of each epoch.

    Returns:
        The reason, and what to try.
    """
    learner, last, least = trainer.learner, losses[-1], min(losses)
    contradicting = _contradicting(learner.data.train.unweighted(_samples(learner)))
    if contradicting:
        return (
            f"{contradicting} of the samples have the same input as another one, and a different target",
            "look at the data: labels that contradict each other, or inputs that have lost what tells them apart",
        )
    if last > min(_RISEN * first, 2 * least):
        return (
            f"the loss has risen, from {min(first, least):.3g}: the steps are too large",
            "a smaller optim.lr (lightkit find lr), or trainer.clip_norm=1.0",
        )
    unused = _without_gradient(learner)
    if unused:
        names = ", ".join(unused[:3]) + (f" and {len(unused) - 3} more" if len(unused) > 3 else "")
        return (
            f"no gradient reaches {names}, which should train",
            "look for .detach(), .item(), torch.no_grad(), a dead activation or an argmax between these and the loss",
        )
    if last < _FALLING * losses[-min(len(losses), 4)]:
        return (
            "the loss still falls: there were too few steps, or they were too small",
            f"{KEY}.steps=N, or a larger optim.lr (lightkit find lr)",
        )
    if last > _SAME * first:
        return (
            "the loss has hardly changed: what trains does not decide about it, or the steps are far too small",
            "a larger optim.lr (lightkit find lr); `lightkit plan` shows what trains",
        )
    if isinstance(learner.criterion, nn.CrossEntropyLoss) and _sum_to_one(learner):
        return (
            "the loss stays where it is: the outputs are probabilities, and the loss applies a softmax of its own",
            "let the model return its logits, without a softmax behind the last layer",
        )
    drops = nn.modules.dropout._DropoutNd
    dropping = [name for name, module in learner.model.named_modules() if isinstance(module, drops) and module.p > 0]
    hint = f"; {dropping[0]} drops values at random" if dropping else ""
    return (
        f"the loss stays where it is{hint}",
        "a larger model, other optim.lr; an activation after the last layer, or a loss that cannot be zero "
        f"({KEY}.loss=0.2 asks for less)",
    )


def _contradicting(batch: Any) -> int:
    """Count the samples of a batch of pairs that have the input of another one and not its target."""
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        return 0
    x, y = batch
    found = 0
    for index in range(len(x)):
        same = (x == x[index]).flatten(1).all(dim=1) if x.ndim > 1 else x == x[index]
        found += bool((y[same] != y[index]).any())
    return found


def _samples(learner: Learner) -> Any:
    """Read the samples, or as many of them as make a batch."""
    train = learner.data.train
    rows = train.rows[: train.batch_size]
    return next(iter(train.with_rows(rows, shuffle=False, drop_last=False, num_workers=0).epoch(0)))


def _without_gradient(learner: Learner) -> list[str]:
    """Name the parameters that train and get no gradient from the samples; of weights also those that get only zeros.

    Only zeros are usual for biases, where a norm layer takes them out again.
    """
    engine, network = learner.engine, learner.network
    network.train()
    with engine.autocast():
        step = learner.task.step(network, engine.move(_samples(learner)), learner.criterion)
    engine.backward(step.loss)
    found = []
    for name, parameter in learner.model.named_parameters():
        gradient, parameter.grad = parameter.grad, None
        zero = gradient is None or (gradient.ndim > 1 and not bool(gradient.any()))
        if parameter.requires_grad and zero:
            found.append(name)
    return found


def _sum_to_one(learner: Learner) -> bool:
    """Tell whether what the model gives for the samples are probabilities."""
    learner.network.eval()
    with torch.no_grad(), learner.engine.autocast():
        preds = learner.task.step(learner.network, learner.engine.move(_samples(learner)), learner.criterion).preds
    if not isinstance(preds, torch.Tensor):
        return False
    return bool((preds >= 0).all()) and bool(((preds.float().sum(1) - 1).abs() < 1e-3).all())
