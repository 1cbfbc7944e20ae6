"""The models of a cross-validation as one predictor: the mean of what they predict, each by its own preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly.parts import build_loss, build_metrics
from lightkit.common.errors import UserError
from lightkit.data.reader import Faults, NewRows
from lightkit.data.targets import AS_IT_IS
from lightkit.ensemble.combining import as_logits, as_probabilities
from lightkit.ensemble.oof import TASKS
from lightkit.runner.evaluation import collected
from lightkit.runner.predictor import Predictor
from lightkit.runner.run import Runner
from lightkit.trainer.evaluate import Predictions


class FoldedPredictor(Predictor):
    """The models of a cross-validation, which predict together: the mean of probabilities, or of values.

    Args:
        folds: The model of each fold.
        cfg: The configuration of the whole run.
        folder: Its folder.

    Raises:
        UserError: What they predict has no mean.
    """

    def __init__(self, folds: Sequence[Predictor], cfg: DictConfig, folder: Path) -> None:
        first, self.folds = folds[0], list(folds)
        if first.info.task not in TASKS:
            what, fix = "what the folds predict has no mean", f"the model of a fold: {first.folder}"
            raise UserError(what, key=str(folder), received=first.info.task, choices=TASKS, fix=fix, family="ensemble")
        info = replace(first.info, transform=AS_IT_IS)
        super().__init__(first.network, replace(first.preprocessing, info=info), first._engine, cfg, folder)
        self.network = nn.ModuleList(fold.network for fold in folds).eval()

    def inputs(self, given: Any, *, skip_bad: bool = False) -> Tensor:
        """Refuse: each fold scales inputs by its own training rows.

        Raises:
            UserError: Always.
        """
        what, fix = "each fold scales inputs in its own way", "`.folds[0].inputs(...)` for one of them"
        raise UserError(what, argument="", fix=fix)

    def evaluate(self, given: Any = "test", targets: Any = None) -> dict[str, float]:
        """See `Predictor.evaluate`; of the run's own rows there is only the split `test`, which is all of them."""
        if isinstance(given, str) and targets is None and given in ("train", "val", "test"):
            found = Runner(self._cfg, self.folder).evaluate(given)
            return {name.partition("/")[2]: value for name, value in found.items()}
        y = self._targets([*self._pieces(given, Faults())], targets)
        outputs = self.outputs(given)
        if len(y) != len(outputs) or not len(y):
            what, expected = "as many targets as inputs are needed", f"{len(outputs)} targets"
            raise UserError(what, argument="", expected=expected, received=len(y))
        metrics = build_metrics(self._cfg.metrics, self.info, self._engine)["test"]
        criterion, is_value = build_loss(self._cfg.loss, self.info, self._engine), self.info.task == "regression"
        learnt = [fold.info.transform for fold in self.folds] if is_value else [torch.Tensor.detach]
        losses = [criterion(transform(outputs), transform(y)) for transform in learnt]  # as each fold has learnt values
        metrics.update(outputs, y, torch.stack(losses).mean(), len(y))
        return {name.partition("/")[2]: value for name, value in metrics.compute().items()}

    def _outputs(self, given: Any, faults: Faults) -> Iterator[tuple[NewRows, Predictions, dict[str, list[Any]]]]:
        """See `Predictor._outputs`: rows that any fold cannot use are left out, or an error."""
        if isinstance(given, str) and given == "-":
            what, fix = "each fold reads the rows, which come once only", "a file"
            raise UserError(what, argument="", received="standard input", fix=fix)
        info, notes = self.info, [faults, *(Faults(skip=faults.skip) for _ in self.folds[1:])]
        both = zip(*(fold._outputs(given, own) for fold, own in zip(self.folds, notes)), strict=True)
        for found in both:
            piece = found[0][0]
            if any(own.numbers != piece.numbers for own, _, _ in found):
                what, fix = "a row can be used by some folds only", "leave out rows that are not like those of the data"
                raise UserError(what, argument="", fix=fix, family="data-setting")
            values = [self._plain(fold, own.outputs()) for fold, (_, own, _) in zip(self.folds, found)]
            together = torch.stack(values)
            outputs = as_logits(together.mean(0), info.task)
            outputs = outputs[:, 0] if info.task in ("binary", "regression") and info.num_classes == 1 else outputs
            yield piece, collected(outputs, None, info, self.after), self._spread(together)

    def _plain(self, fold: Predictor, outputs: Tensor) -> Tensor:
        """Return the probabilities of a fold, or its values without the transform of its targets, `(N, C)`."""
        return as_probabilities(fold.info.undo(outputs), fold.info.task)

    def _spread(self, values: Tensor) -> dict[str, list[Any]]:
        """Return how much the folds differ about values, as an ensemble tells it."""
        if self.info.task != "regression" or len(values) < 2:
            return {}
        spread = self.info.in_unit(values).std(0)
        return {"std": (spread[:, 0] if spread.shape[1] == 1 else spread).tolist()}
