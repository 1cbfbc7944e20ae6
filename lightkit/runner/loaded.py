"""A trained ensemble as an object: its members, what it predicts of new inputs, and how well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, overload

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly import build_engine, build_splits
from lightkit.assembly.ensemble import build_ensemble, is_ensemble
from lightkit.assembly.parts import build_loss, build_metrics
from lightkit.common.errors import UserError
from lightkit.config import to_plain
from lightkit.data import Data
from lightkit.device import Engine
from lightkit.ensemble.combining import as_logits, as_probabilities
from lightkit.ensemble.module import Ensemble
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run
from lightkit.trainer.tasks import fit_shape

if TYPE_CHECKING:
    import numpy as np

_AT_ONCE = 1024
"""Samples that are predicted at once."""


class TrainedEnsemble:
    """The ensemble of a run: `len`, indexing and iteration give its members, `predict` and `evaluate` take new inputs.

    Inputs are as they are in the data set: missing values are filled in and inputs are scaled as in the run.

    Args:
        module: The networks, as one.
        data: The data of the run, which know their scaling.
        engine: The device.
        cfg: The configuration of the run.
    """

    def __init__(self, module: Ensemble, data: Data, engine: Engine, cfg: DictConfig) -> None:
        self.module, self._engine, self._cfg = engine.place_model(module).eval(), engine, cfg
        self.info, self._filling, self._normalizer = data.info, data.filling, data.normalizer
        self._unit = data.info.target_scale if data.info.task == "regression" else 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members."""
        return self._ensemble.names

    @property
    def weights(self) -> list[float]:
        """Return how much each member counts."""
        found: list[float] = self._ensemble.weights.tolist()
        return found

    @property
    def _ensemble(self) -> Ensemble:
        assert isinstance(self.module, Ensemble)
        return self.module

    def __len__(self) -> int:
        return len(self._ensemble)

    def __getitem__(self, index: int) -> nn.Module:
        return self._ensemble[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._ensemble)

    @overload
    def predict(self, x: Tensor) -> Tensor: ...
    @overload
    def predict(self, x: np.ndarray) -> np.ndarray: ...
    def predict(self, x: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """Return the probabilities of inputs `(N, ...)`, in regression the values, `(N, C)`: a tensor for a tensor.

        Values are in the unit from before `data.dataset.target_scale`, as in the files of `lightkit predict`.

        Raises:
            UserError: The inputs are of another shape than those of the run.
        """
        predictions = self._predict(x if isinstance(x, Tensor) else torch.as_tensor(x)) * self._unit
        return predictions.to(x.device) if isinstance(x, Tensor) else predictions.numpy()

    def _predict(self, given: Tensor) -> Tensor:
        """Predict in the unit that the networks learnt in, on the CPU."""
        shape = self.info.input_shape
        if given.dtype == torch.float64:
            given = given.float()
        if self._filling is not None:
            given = self._filling(given.cpu())
        if shape and tuple(given.shape[1:]) != tuple(shape):
            raise UserError(
                "these are no inputs of the run", argument="x", expected=str(("N", *shape)), received=tuple(given.shape)
            )
        found = []
        with torch.no_grad():
            for part in given.split(_AT_ONCE):
                moved = part.to(self._engine.device)
                moved = moved if self._normalizer is None else self._normalizer(moved)
                with self._engine.autocast():
                    found.append(as_probabilities(self.module(moved), self.info.task).cpu())
        return torch.cat(found) if found else torch.zeros(0, self.info.num_classes)

    def evaluate(self, x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> dict[str, float]:
        """Return loss and metrics of the run's test split for other samples, by name.

        Args:
            x: Inputs `(N, ...)`.
            y: Targets as in the data set: numbers of classes, labels, or values, in the unit of `predict`.

        Raises:
            UserError: The inputs are of another shape than those of the run, or are none.
        """
        predictions = self._predict(torch.as_tensor(x))
        target = torch.as_tensor(y)
        if not len(target) or len(target) != len(predictions):
            raise UserError("as many targets as inputs are needed", argument="y", received=len(target))
        target = target.long() if self.info.task == "multiclass" else target.float() / self._unit
        target, device = target.to(self._engine.device), self._engine.device
        metrics = build_metrics(self._cfg.metrics, self.info, self._engine)["test"]
        criterion = build_loss(self._cfg.loss, self.info, self._engine)
        output = fit_shape(as_logits(predictions.to(device), self.info.task), target)
        metrics.update(output, target, criterion(output, target), len(target))
        return {name.partition("/")[2]: value for name, value in metrics.compute().items()}


def load_ensemble(run: str | Path, *, device: str = "cpu") -> TrainedEnsemble:
    """Load the ensemble of a run, one that was trained or one of finished runs.

    Args:
        run: Folder of the run, or its name.
        device: Where to compute: `cpu`, `cuda`, `auto`.

    Raises:
        UserError: There is no such run, it is no ensemble, or its file is damaged.

    Example:
        ```python
        import lightkit

        ensemble = lightkit.load_ensemble("outputs/runs/2026-01-31/12-00-00-run")
        probabilities = ensemble.predict(inputs)
        ```
    """
    folder = find_run(str(run), project())
    if not is_ensemble(folder):
        fix = "a run with `ensemble=...`, or one that `lightkit ensemble` wrote"
        raise UserError("this run is no ensemble", key=str(folder), fix=fix, family="ensemble")
    cfg = read_run(folder, [f"device.name={device}", "device.parallel=none"]).cfg
    engine = build_engine(cfg)
    data = build_splits(cfg, engine, folder)
    data.close()
    return TrainedEnsemble(build_ensemble(folder, data.info, engine, trust=to_plain(cfg.trust)), data, engine, cfg)
