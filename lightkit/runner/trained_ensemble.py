"""The ensemble of a run as a sequence of its members, which predicts from new inputs: `lightkit.load_ensemble`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import overload

import numpy as np
from torch import Tensor, nn

from lightkit.assembly.ensemble import is_ensemble
from lightkit.common.errors import UserError
from lightkit.ensemble.combining import as_probabilities
from lightkit.ensemble.module import Ensemble
from lightkit.runner.predictor import Predictor, load
from lightkit.runs.catalog import find_run, project


class TrainedEnsemble:
    """The ensemble of a run: `len`, indexing and iteration give its members, `predict` and `evaluate` take new inputs.

    Inputs are as they are in the data set: missing values are filled in and inputs are scaled as in the run.

    Args:
        predictor: The ensemble as one model.
    """

    def __init__(self, predictor: Predictor) -> None:
        assert isinstance(predictor.network, Ensemble)
        self.module, self.info, self._predictor = predictor.network, predictor.info, predictor
        self.names: tuple[str, ...] = self.module.names
        """Names of the members."""
        self.weights: list[float] = self.module.weights.tolist()
        """How much each member counts."""

    def __len__(self) -> int:
        return len(self.module)

    def __getitem__(self, index: int) -> nn.Module:
        return self.module[index]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.module)

    @overload
    def predict(self, x: Tensor) -> Tensor: ...
    @overload
    def predict(self, x: np.ndarray) -> np.ndarray: ...
    def predict(self, x: Tensor | np.ndarray) -> Tensor | np.ndarray:
        """Return the probabilities of inputs `(N, ...)`, in regression the values, `(N, C)`: a tensor for a tensor.

        Values are in the unit of the data, as in the files of `lightkit predict`.

        Raises:
            UserError: The inputs are of another shape than those of the run.
        """
        found = self.info.in_unit(as_probabilities(self._predictor.outputs(x), self.info.task)).float()
        return found.to(x.device) if isinstance(x, Tensor) else found.numpy()

    def evaluate(self, x: Tensor | np.ndarray, y: Tensor | np.ndarray) -> dict[str, float]:
        """Return loss and metrics of the run's test split for other samples, by name.

        Args:
            x: Inputs `(N, ...)`.
            y: Targets as in the data set: numbers of classes, labels, or values, in the unit of `predict`.

        Raises:
            UserError: The inputs are of another shape than those of the run, or are none.
        """
        return self._predictor.evaluate(x, y)


def load_ensemble(run: str | Path, *, device: str = "cpu") -> TrainedEnsemble:
    """Load the ensemble of a run, one that was trained or one of finished runs; see `lightkit.load`.

    Args:
        run: Folder of the run, or its name.
        device: Where to compute: `cpu`, `cuda`, `auto`.

    Raises:
        UserError: There is no such run, it is no ensemble, or its file is damaged.

    Example:
        ```python
        ensemble = lightkit.load_ensemble("outputs/runs/2026-01-31/12-00-00-run")
        probabilities = ensemble.predict(inputs)
        ```
    """
    folder = find_run(str(run), project())
    if not is_ensemble(folder):
        fix = "a run with `ensemble=...`, or one that `lightkit ensemble` wrote"
        raise UserError("this run is no ensemble", key=str(folder), fix=fix, family="ensemble")
    return TrainedEnsemble(load(folder, device=device))
