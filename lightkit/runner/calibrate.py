"""Probabilities that can be believed, and sets or intervals that hold the truth as often as asked, after a training.

Both are fitted on rows that the model has not learnt from, kept beside the run, and used wherever it predicts.

Shapes: N rows, C classes or labels (1 of binary), K knots.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.reading import NUMBER, OBJECT, TEXT, WHOLE, is_number, yaml_or_nothing
from lightkit.ensemble.calibration import fit_temperature, reliability
from lightkit.ensemble.combining import as_probabilities, log_likelihood
from lightkit.runs.reading import read_json
from lightkit.trainer.evaluate import AsTheyAre

METHODS = ("temperature", "vector", "isotonic")
FEWEST = 20
"""Rows at least that something is fitted to."""
_PARTS, _ROUNDS = 5, 200
_SHAPE = {"method": TEXT, "task": TEXT, "rows": WHOLE, "result": TEXT, "coverage": NUMBER, "quantile": NUMBER}
_SHAPE |= {"thresholds": OBJECT}


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


@dataclass(frozen=True)
class Goal:
    """What thresholds are tuned for.

    Args:
        name: What it is called.
        value: Computes it from the numbers of true and false positive, false and true negative decisions.
        sign: 1 where more is better, else -1.
    """

    name: str
    value: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    sign: int = 1

    def reached(self, said: Tensor, truth: Tensor) -> float:
        """Return what decisions `(N, K)` reach, the mean over columns."""
        pairs = ((said & truth), (said & ~truth), (~said & truth), (~said & ~truth))
        return float(self.value(*(pair.sum(0).double() for pair in pairs)).nan_to_num(0.0).mean())

    def thresholds(self, chance: Tensor, truth: Tensor) -> list[float]:
        """Return the best threshold of each column `(N, K)`, of equal ones the nearest to a half.

        All that decide differently are tried: those in the middle between two probabilities.
        """
        found = list[float]()
        for scores, yes in zip(chance.double().T, truth.T):
            known, place = scores.unique(return_inverse=True)
            ends = torch.cat([known.new_tensor([-1e-9]), known, known.new_tensor([1 + 1e-9])])
            below = [place.bincount(side.double(), len(known)).cumsum(0) for side in (yes, ~yes)]
            fn, tn = (torch.cat([ends.new_zeros(1), counts]) for counts in below)
            values = self.sign * self.value(fn[-1] - fn, tn[-1] - tn, fn, tn).nan_to_num(0.0)
            best = ((ends[1:] + ends[:-1]) / 2)[values >= values.max() - 1e-12]
            found.append(float(best[(best - 0.5).abs().argmin()]))
        return found


GOALS = {
    "f1": lambda tp, fp, fn, tn: 2 * tp / (2 * tp + fp + fn),
    "accuracy": lambda tp, fp, fn, tn: (tp + tn) / (tp + fp + fn + tn),
    "balanced_accuracy": lambda tp, fp, fn, tn: (tp / (tp + fn) + tn / (tn + fp)) / 2,
    "youden": lambda tp, fp, fn, tn: tp / (tp + fn) + tn / (tn + fp) - 1,
    "mcc": lambda tp, fp, fn, tn: (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)).sqrt(),
}
"""Metrics of decisions that thresholds may be tuned for."""
_COSTS = ("false_positive", "false_negative")


def goal_of(threshold: str, cost: str) -> Goal | None:
    """Return what thresholds are to be tuned for; None where nothing is named.

    Args:
        threshold: One of `GOALS`, or nothing.
        cost: What wrong decisions cost, as a mapping in YAML, or nothing.

    Raises:
        UserError: There is no such metric, both are given, or these are no costs.
    """
    if threshold and threshold not in GOALS:
        raise UserError("not a metric of decisions", key="--threshold", received=threshold, choices=GOALS)
    if not cost:
        return Goal(threshold, GOALS[threshold]) if threshold else None
    given = yaml_or_nothing(cost)
    up, down = (float(given.get(name, -1)) if is_number(given.get(name)) else -1.0 for name in _COSTS)
    if threshold or len(given) != 2 or min(up, down) < 0 or not up + down:
        what, form = "thresholds are tuned for one metric, or for costs", "'{false_positive: 1, false_negative: 5}'"
        rule = "without --threshold; 0 or more, not both 0, with a space after each colon"
        raise UserError(what, key="--cost", received=cost, expected=f"{form}, {rule}")
    return Goal("cost", lambda tp, fp, fn, tn: (up * fp + down * fn) / (tp + fp + fn + tn), -1)


def sides(chance: Tensor, targets: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """Return the probabilities that thresholds are for, `(N, K)`, and what is true: of labels, or the second class."""
    truth, first = _as_table(targets, chance.shape[1], task) > 0.5, int(task == "multiclass")
    return chance[:, first:], truth[:, first:]


@dataclass
class Calibration(AsTheyAre):
    """What was found for a run: how its outputs become probabilities, and what covers the truth.

    Args:
        task: Kind of target.
        curves: Makes logits of logits; None leaves them.
        coverage: Share of rows that sets or intervals cover; None makes none.
        quantile: The largest score in them.
        thresholds: From which probability on there is a label, or the second of two classes; empty for the likeliest.
    """

    task: str
    curves: Curves | None = None
    coverage: float | None = None
    quantile: float = math.inf
    thresholds: Sequence[float] = ()

    def decided(self, chance: Tensor, task: str) -> Tensor:
        """See `AsTheyAre.decided`."""
        if not self.thresholds:
            return super().decided(chance, task)
        over = chance[:, -len(self.thresholds) :].double() > torch.tensor(self.thresholds, dtype=torch.float64)
        return over[:, 0].long() if task == "multiclass" else over

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
        thresholds = [float(value) for value in (found.get("thresholds") or {}).values()]
    except (TypeError, ValueError) as error:
        fix = f"lightkit calibrate {folder}, or remove the file"
        raise UserError("what it says of probabilities is damaged", key=str(folder), fix=fix, family="file") from error
    quantile = math.inf if found.get("quantile") is None else found["quantile"]
    return Calibration(found["task"], curves, found.get("coverage"), quantile, thresholds)


def result_mark(folder: Path) -> str:
    """Return a digest of what a run has come to, which is another one when it has gone on; empty before its end."""
    with suppress(OSError):
        return hashlib.blake2b((folder / run_files.RESULT).read_bytes(), digest_size=8).hexdigest()
    return ""


def measures(
    logits: Tensor, targets: Tensor, task: str, decided: Tensor | None = None, goal: Goal | None = None
) -> dict[str, float]:
    """Return how far probabilities can be believed: expected calibration error, log loss, Brier score, accuracy.

    Args:
        logits: `(N, C)`.
        targets: `(N,)` classes, or `(N, C)` labels.
        task: Kind of target.
        decided: What was decided, see `AsTheyAre.decided`; None takes the likeliest.
        goal: What decisions are measured by, too.
    """
    chance = as_probabilities(logits, task)
    truth = _as_table(targets, chance.shape[1], task)
    said = AsTheyAre().decided(chance, task) if decided is None else decided
    found = {
        "ece": reliability(chance, targets, task).error,
        "log_loss": -float(log_likelihood(chance, targets, task).mean()),
        "brier": float((chance - truth).square().sum(1).mean()),
        "accuracy": float((said == (targets.reshape(-1) if task == "multiclass" else truth > 0.5)).double().mean()),
    }
    yes = sides(chance, targets, task)[1]
    return found if goal is None else {**found, goal.name: goal.reached(said.reshape(yes.shape).bool(), yes)}


def in_parts(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the places of the other rows, and those of each of five random parts of rows."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    for part in order.tensor_split(_PARTS):
        yield (~torch.isin(torch.arange(count), part)).nonzero()[:, 0], part


def crossed(method: str, logits: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return what the method makes of rows each of which had no part in its fitting, `(N, C)`."""
    found = torch.empty_like(logits)
    for kept, part in in_parts(len(targets)):
        found[part] = Curves(task, **fit_curves(method, logits[kept], targets[kept], task))(logits[part])
    return found


def crossed_decisions(goal: Goal, chance: Tensor, targets: Tensor, task: str) -> Tensor:
    """Return decisions about rows each of which had no part in the choice of its thresholds."""
    found = AsTheyAre().decided(chance, task)
    for kept, part in in_parts(len(targets)):
        own = Calibration(task, thresholds=goal.thresholds(*sides(chance[kept], targets[kept], task)))
        found[part] = own.decided(chance[part], task)
    return found
