"""One pass over a split without training, and collecting what the model predicts in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.common.modules import kept_modes
from lightkit.diagnostics.spans import NoSpans
from lightkit.trainer.interrupt import Interrupt
from lightkit.trainer.learner import Evaluable
from lightkit.trainer.tasks import loss_weight

_END, _PLAIN = object(), NoSpans()


class Meter(Protocol):
    """What collects the results of batches: metrics of a split, figures, predictions."""

    def update(
        self,
        preds: Any,
        target: Any,
        loss: Tensor,
        size: int,
        kwargs: Mapping[str, Any] | None = None,
        weight: Tensor | int | None = None,
        log: Mapping[str, Any] | None = None,
    ) -> None:
        """Take in one batch of `size` samples, whose loss weighs so much among those of others, and its own numbers."""


class ValidationMeter(Meter, Protocol):
    """What looks at every validation of a run beside its metrics."""

    def reset(self) -> None:
        """Forget what was taken in: a validation begins."""

    def validated(self, step: int, epoch: float) -> None:
        """Take note that a validation has come to its end.

        Args:
            step: Optimizer steps taken before it.
            epoch: Epochs done before it, with the part done of the one under way.
        """


def evaluate(
    trained: Evaluable,
    loader: Any,
    meters: Iterable[Meter],
    *,
    each: Callable[[int], None] | None = None,
    interrupt: Interrupt | None = None,
    span: Callable[[str], AbstractContextManager[None]] = _PLAIN.span,
) -> None:
    """Run the model over a whole split in eval mode and without gradients.

    The mode of the model is put back afterwards, module by module: a frozen part that was in eval stays there.

    Args:
        trained: The model, and how it runs over batches.
        loader: Batches of the split; always read in the same order.
        meters: Collectors that get every batch.
        each: Called with the number of finished batches after each of them.
        interrupt: Tells when a signal asked to end; it ends the wait for a batch.
        span: Names the stretches of time.

    Raises:
        AskedToEnd: A signal came while a batch was waited for.
    """
    model, engine, awaited = trained.network, trained.engine, interrupt or Interrupt()
    with kept_modes(model), torch.no_grad():
        model.eval()
        left, done, batches = loader.num_samples, 0, iter(engine.prefetch(loader.epoch(0)))
        while True:
            with span("data"):
                batch = awaited.wait(batches, _END)
                if batch is _END:
                    break
                batch = engine.move(batch)
            size = min(loader.batch_size, left)
            left -= size
            with span("forward"), engine.autocast():
                step = trained.task.step(model, batch, trained.criterion)
            with span("metrics"):
                own, weight = engine.ranks.own(size)[1], loss_weight(step, trained.criterion)
                for meter in meters:
                    meter.update(step.preds, step.target, step.loss, own, step.metric_kwargs, weight, step.log)
            done += 1
            if each is not None:
                each(done)


def task_of(task: str, class_names: tuple[str, ...], outputs: Tensor, targets: Tensor | None) -> str:
    """Return the kind of target, which of samples of another form, such as dictionaries, is told by their outputs.

    Args:
        task: Kind of target as far as the data set tells; see `DataInfo`.
        class_names: Names of the classes.
        outputs: Outputs `(N, ...)`.
        targets: What they were compared with, `(N, ...)`.
    """
    is_class = targets is not None and targets.ndim == 1 and not targets.is_floating_point() and outputs.ndim == 2
    return "multiclass" if task == "custom" and is_class and outputs.shape[1] == len(class_names) else task


class AsTheyAre:
    """Leaves outputs as the network gives them, and says no more of them."""

    def outputs(self, outputs: Tensor) -> Tensor:
        """Return logits `(N, ...)` whose probabilities can be believed."""
        return outputs

    def decided(self, chance: Tensor, task: str) -> Tensor:
        """Return classes `(N,)`, or which labels there are, `(N, C)` bool, by their probabilities `(N, C)`."""
        return chance.argmax(1) if task == "multiclass" else chance > 0.5

    def columns(self, values: Tensor, names: Sequence[str]) -> dict[str, list[Any]]:
        """Return more columns, of probabilities `(N, C)` of classes by these names, or of values in their unit."""
        del values, names
        return {}


class Predictions:
    """Collects what a task hands to the metrics, for every sample, as rows of a table.

    Args:
        task: Kind of target, as in `DataInfo`.
        class_names: Names of the classes or labels; numbers where empty.
        in_unit: Turns learnt numbers into those of the data, see `DataInfo.in_unit`.
    """

    def __init__(
        self, task: str, class_names: tuple[str, ...], in_unit: Callable[[Tensor], Tensor] = torch.Tensor.detach
    ) -> None:
        self._task, self._names, self._in_unit = task, class_names, in_unit
        self._preds: list[Tensor] = []
        self._targets: list[Any] = []
        self._texts: list[Any] = []
        self.after = AsTheyAre()
        self._heads: dict[str, Predictions] = {}

    def update(self, preds: Any, target: Any, loss: Tensor, size: int, *_more: Any) -> None:
        """Take in one batch; see `Meter.update`. Several outputs by name are predictions of their own each."""
        for name, own in preds.items() if isinstance(preds, Mapping) else ():
            own = own.flatten() if own.shape[1:] == (1,) else own
            classes = tuple(map(str, range(own.shape[1]))) if own.ndim == 2 and own.shape[1] > 1 else ()
            head = self._heads.setdefault(name, Predictions("custom", classes))
            head.update(own, target[name] if isinstance(target, Mapping) else None, loss, size)
        if isinstance(preds, Mapping):
            return
        if preds is None or len(preds) != size:
            raise UserError(
                "the task hands no prediction per sample on", key="trainer.task", fix="return StepOutput(loss, preds)"
            )
        if self._task == "tagging":  # a list for each text, without what only fills up the batch
            self._texts += self._tags(preds.argmax(1), target)
            self._targets += self._tags(target, target)
            return
        if not isinstance(preds, Tensor):
            self._texts += [self._boxes(one) if isinstance(one, Mapping) else str(one) for one in preds]
            self._targets += [None] * size if target is None else target
            return
        if self._task == "segmentation":  # the outputs of a split would fill the memory
            self._preds.append(preds.detach().argmax(1).to(torch.uint8).cpu())
            return
        self._preds.append(preds.detach().float().cpu())
        if target is not None:
            self._targets.append(target.detach().cpu())

    def _tags(self, numbers: Tensor, target: Tensor) -> list[list[str]]:
        """Return the names of tags where there are targets."""
        return [[self._names[tag] for tag in own[marks >= 0].tolist()] for own, marks in zip(numbers, target)]

    def _boxes(self, found: Mapping[str, Tensor]) -> dict[str, list[Any]]:
        """Return the boxes of a picture in plain values, with the names of their classes."""
        values = {name: found[name].tolist() for name in ("boxes", "labels", "scores")}
        return {**values, "labels": [self._names[label] for label in values["labels"]]}

    def outputs(self) -> Any:
        """Return the outputs of all samples, `(N, ...)` float32; of several those of each by name.

        Of segmentation they are classes `(N, H, W)`, of detection a list with the boxes of each picture.
        """
        if self._heads:
            return {name: head.outputs() for name, head in self._heads.items()}
        return torch.cat(self._preds) if self._preds else self._texts

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return the outputs of all samples, `(N, ...)` float32, and their targets."""
        return self.outputs(), torch.cat(self._targets)

    def rows(self, numbers: Tensor) -> list[dict[str, Any]]:
        """Make a row for each sample.

        Args:
            numbers: Row of each sample in the data set, `(N,)`.
        """
        if self._texts:
            found = zip(numbers.tolist(), self._targets, self._texts, strict=True)
            return [{"row": row, "target": target, "prediction": text} for row, target, text in found]
        if self._heads:
            rows: list[dict[str, Any]] = [{"row": row} for row in numbers.tolist()]
            for name, head in self._heads.items():
                for row, own in zip(rows, head.rows(numbers), strict=True):
                    row |= {f"{name}/{key}": cell for key, cell in own.items() if key != "row"}
            return rows
        outputs = self._in_unit(self.outputs())
        known = self._in_unit(torch.cat(self._targets)) if self._targets else None
        targets = [None] * len(outputs) if known is None else known.tolist()
        task = task_of(self._task, self._names, outputs, known)
        if task == "multiclass" and self._names:
            targets = [self._names[target] if isinstance(target, int) else target for target in targets]
        columns = self._named(outputs, task)
        return [
            {"row": row, "target": target, **{name: values[i] for name, values in columns.items()}}
            for i, (row, target) in enumerate(zip(numbers.tolist(), targets, strict=True))
        ]

    def columns(self, outputs: Any) -> dict[str, list[Any]]:
        """Return what outputs `(N, ...)` without targets predict, a column each: `prediction`, and probabilities."""
        if self._heads:
            heads = ((name, head.columns(outputs[name])) for name, head in self._heads.items())
            return {f"{name}/{key}": cells for name, own in heads for key, cells in own.items()}
        if not isinstance(outputs, Tensor):
            return {"prediction": outputs}
        known = torch.zeros(len(outputs), dtype=torch.int64) if self._task == "custom" else None
        return self._named(self._in_unit(outputs), task_of(self._task, self._names, outputs, known))

    def _named(self, outputs: Tensor, task: str) -> dict[str, list[Any]]:
        """Turn outputs `(N, ...)` into predictions, and probabilities where there are some."""
        outputs = self.after.outputs(outputs) if task in ("binary", "multiclass", "multilabel") else outputs
        if task == "binary":
            probabilities = outputs.reshape(len(outputs)).sigmoid()
            yes = self.after.decided(probabilities[:, None], task)[:, 0].int()
            return {"prediction": yes.tolist(), "p": probabilities.tolist()}
        if task == "language_modeling":
            return {"prediction": outputs.argmax(-1).tolist()}
        if task == "segmentation":
            return {"prediction": [*outputs.numpy()]}
        names = self._names or tuple(map(str, range(outputs.shape[-1])))
        if task not in ("multiclass", "multilabel") or outputs.shape[1:] != (len(names),):  # embeddings are no classes
            more = self.after.columns(outputs, ()) if task == "regression" else {}
            return {"prediction": outputs.tolist(), **more}
        probabilities = outputs.softmax(1) if task == "multiclass" else outputs.sigmoid()
        chosen: list[Any] = self.after.decided(probabilities, task).int().tolist()
        chosen = [names[index] for index in chosen] if task == "multiclass" else chosen
        columns = {f"p({name})": probabilities[:, i].tolist() for i, name in enumerate(names)}
        more = self.after.columns(probabilities, names) if task == "multiclass" else {}
        return {"prediction": chosen, **columns, **more}
