"""Probabilities that can be believed, and sets or intervals that hold the truth as often as asked, after a training.

Both are fitted on rows that the model has not learnt from, kept beside the run, and used wherever it predicts.

Shapes: N rows, C classes or labels (1 of binary), K knots.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import NUMBER, TEXT, WHOLE
from lightkit.ensemble.calibration import fit_temperature, reliability
from lightkit.ensemble.combining import as_probabilities, log_likelihood
from lightkit.runs.reading import read_json
from lightkit.trainer.evaluate import AsTheyAre

METHODS = ("temperature", "vector", "isotonic")
FEWEST = 20
"""Rows at least that something is fitted to."""
_PARTS, _ROUNDS = 5, 200
_SHAPE = {"method": TEXT, "task": TEXT, "rows": WHOLE, "result": TEXT, "coverage": NUMBER, "quantile": NUMBER}


class Curves(nn.Module):
    """Makes logits of logits: straight lines (temperature and vector scaling), or steps of probabilities (isotonic).

    Guo et al. 2017, https://arxiv.org/abs/1706.04599; Zadrozny & Elkan 2002, https://doi.org/10.1145/775047.775151.

    Args:
        task: Kind of target.
        scale: `(C,)` or `(1,)`: multiplies logits.
        shift: The same: is added to them.
        knots: For each class the probabilities `(K,)` and what they become, ascending; empty takes the lines.
    """

    def __init__(
        self, task: str, scale: Sequence[float], shift: Sequence[float], knots: Sequence[Sequence[Sequence[float]]] = ()
    ) -> None:
        super().__init__()
        self.task, self.count = task, len(knots)
        self.scale, self.shift = nn.Buffer(torch.tensor(scale)), nn.Buffer(torch.tensor(shift))
        for number, (x, y) in enumerate(knots):
            self.register_buffer(f"x{number}", torch.tensor(x))
            self.register_buffer(f"y{number}", torch.tensor(y))

    def forward(self, outputs: Tensor) -> Tensor:
        """Return logits `(N, C)` or `(N,)` as the given ones."""
        if not self.count:
            return outputs * self.scale + self.shift
        chance = as_probabilities(outputs, self.task)
        columns = [_steps(chance[:, i], self.get_buffer(f"x{i}"), self.get_buffer(f"y{i}")) for i in range(self.count)]
        found = torch.stack(columns, 1).clamp(1e-6, 1 - 1e-6)
        logits = found.log() if self.task == "multiclass" else torch.logit(found)
        return logits.reshape(outputs.shape)


def _steps(values: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return where values `(N,)` lie on the line through knots; beyond its ends its ends."""
    width = (x[1:] - x[:-1]).clamp_min(1e-12)
    inside = torch.minimum((values[:, None] - x[:-1]).clamp_min(0.0), width)
    return y[0] + (inside * ((y[1:] - y[:-1]) / width)).sum(1)


def fit_curves(method: str, logits: Tensor, targets: Tensor, task: str) -> dict[str, Any]:
    """Fit what makes probabilities believable; returns the arguments of `Curves`.

    Args:
        method: One of `METHODS`.
        logits: `(N, C)`.
        targets: `(N,)` classes, or `(N, C)` labels.
        task: Kind of target.
    """
    if method == "temperature":
        return {"scale": [1 / fit_temperature(as_probabilities(logits, task), targets, task)], "shift": [0.0]}
    if method == "vector":
        return _fit_vector(logits.double(), targets, task)
    from sklearn.isotonic import IsotonicRegression  # takes half a second

    chance, truth = as_probabilities(logits, task).double(), _as_table(targets, logits.shape[1], task)
    knots = list[tuple[list[float], list[float]]]()
    for column in range(logits.shape[1]):
        fitted = IsotonicRegression(out_of_bounds="clip", y_min=0.0, y_max=1.0)
        fitted.fit(chance[:, column].numpy(), truth[:, column].numpy())
        x, y = fitted.X_thresholds_.tolist(), fitted.y_thresholds_.tolist()
        knots.append((x, y) if len(x) > 1 else ([x[0], x[0] + 1e-6], [y[0], y[0]]))
    return {"scale": [1.0], "shift": [0.0], "knots": knots}


def _fit_vector(logits: Tensor, targets: Tensor, task: str) -> dict[str, Any]:
    """Find a factor and a summand for each class that make the rows most likely."""
    count = logits.shape[1]
    scale = torch.ones(count, dtype=torch.float64, requires_grad=True)
    shift = torch.zeros(count, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([scale, shift], max_iter=_ROUNDS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        found = logits * scale + shift
        if task == "multiclass":
            value = nn.functional.cross_entropy(found, targets.reshape(-1).long())
        else:
            truth = _as_table(targets, count, task)
            value = nn.functional.binary_cross_entropy_with_logits(found, truth)
        value = value + 1e-4 * ((scale - 1).square().mean() + shift.square().mean())  # finite where all rows are right
        value.backward()
        return value

    search.step(loss)
    return {"scale": scale.tolist(), "shift": shift.tolist()}


def _as_table(targets: Tensor, count: int, task: str) -> Tensor:
    """Return classes or labels as 0 and 1, `(N, C)` float64."""
    if task == "multiclass":
        return nn.functional.one_hot(targets.reshape(-1).long(), count).double()
    return targets.reshape(len(targets), count).double()


def conformal_quantile(predictions: Tensor, targets: Tensor, task: str, coverage: float) -> float:
    """Return the score that a share of new rows stays below, by split conformal prediction.

    The score of a row is 1 less the probability of its class (https://doi.org/10.1080/01621459.2017.1395341), or the
    distance of its value. With n rows it is the ceil((n + 1) coverage)-th smallest one, so that a new row is covered
    with at least this probability where rows are exchangeable (Vovk et al. 2005).

    Args:
        predictions: `(N, C)`: probabilities or values.
        targets: `(N,)` classes, or `(N, C)` values.
        task: `multiclass` or `regression`.
        coverage: Share of rows to cover.
    """
    rank = math.ceil((len(targets) + 1) * coverage)
    return float("inf") if rank > len(targets) else float(_scores(predictions, targets, task).sort().values[rank - 1])


def _scores(predictions: Tensor, targets: Tensor, task: str) -> Tensor:
    if task == "multiclass":
        return 1 - predictions.double().gather(1, targets.reshape(-1, 1).long())[:, 0]
    return (predictions.double() - targets.reshape(predictions.shape)).abs().amax(1)


@dataclass
class Calibration(AsTheyAre):
    """What was found for a run: how its outputs become probabilities, and what covers the truth.

    Args:
        task: Kind of target.
        curves: Makes logits of logits; None leaves them.
        coverage: Share of rows that sets or intervals cover; None makes none.
        quantile: The largest score in them.
    """

    task: str
    curves: Curves | None = None
    coverage: float | None = None
    quantile: float = math.inf

    def outputs(self, outputs: Tensor) -> Tensor:
        """See `AsTheyAre.outputs`."""
        if self.curves is None:
            return outputs
        known, count = self.curves.count or len(self.curves.scale), 1 if outputs.ndim == 1 else outputs.shape[1]
        if known not in (1, count):  # of a file that is another run's
            what, fix = "the calibration is for another number of classes", "lightkit calibrate RUN"
            key = run_files.CALIBRATION
            raise UserError(what, key=key, expected=str(count), received=known, fix=fix, family="file")
        return self.curves(outputs)

    def columns(self, values: Tensor, names: Sequence[str]) -> dict[str, list[Any]]:
        """See `AsTheyAre.columns`: the classes that may be true, or the ends of the interval."""
        if self.coverage is None:
            return {}
        if self.task == "multiclass":
            inside = values >= 1 - self.quantile
            inside |= nn.functional.one_hot(values.argmax(1), values.shape[1]).bool()  # an empty set helps nobody
            return {"set": [" ".join(name for name, one in zip(names, row) if one) for row in inside.tolist()]}
        return {"low": (values - self.quantile).tolist(), "high": (values + self.quantile).tolist()}


def calibration_of(folder: Path, checkpoint: str = "best", members: Sequence[str] = ()) -> AsTheyAre:
    """Return what was found for a run; nothing where it was never asked for, or was found for other weights.

    Args:
        folder: That of the run.
        checkpoint: Which of its weights predict.
        members: Which members of an ensemble do; empty for all.

    Raises:
        UserError: The file cannot be read.
    """
    if members or checkpoint != "best":
        return AsTheyAre()
    damage = list[str]()
    found = read_json(folder / run_files.CALIBRATION, _SHAPE, damage)
    try:
        if damage or (found and not {"task", "result"} <= found.keys()):
            raise ValueError("damaged")
        if not found or found["result"] != result_mark(folder):
            return AsTheyAre()
        curves = Curves(found["task"], **found["curves"]) if found.get("curves") else None
    except (TypeError, ValueError) as error:
        fix = f"lightkit calibrate {folder}, or remove the file"
        raise UserError("what it says of probabilities is damaged", key=str(folder), fix=fix, family="file") from error
    quantile = math.inf if found.get("quantile") is None else found["quantile"]
    return Calibration(found["task"], curves, found.get("coverage"), quantile)


def result_mark(folder: Path) -> str:
    """Return a digest of what a run has come to, which is another one when it has gone on; empty before its end."""
    with suppress(OSError):
        return hashlib.blake2b((folder / run_files.RESULT).read_bytes(), digest_size=8).hexdigest()
    return ""


def measures(logits: Tensor, targets: Tensor, task: str) -> dict[str, float]:
    """Return how far probabilities can be believed: expected calibration error, log loss, Brier score, accuracy."""
    chance = as_probabilities(logits, task)
    truth = _as_table(targets, chance.shape[1], task)
    decided = chance.argmax(1) == targets.reshape(-1) if task == "multiclass" else (chance > 0.5) == (truth > 0.5)
    return {
        "ece": reliability(chance, targets, task).error,
        "log_loss": -float(log_likelihood(chance, targets, task).mean()),
        "brier": float((chance - truth).square().sum(1).mean()),
        "accuracy": float(decided.double().mean()),
    }


def crossed(method: str, logits: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return what the method makes of rows each of which had no part in its fitting, `(N, C)`."""
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    found = torch.empty_like(logits)
    for part in order.tensor_split(_PARTS):
        kept = ~torch.isin(torch.arange(len(targets)), part)
        found[part] = Curves(task, **fit_curves(method, logits[kept], targets[kept], task))(logits[part])
    return found
