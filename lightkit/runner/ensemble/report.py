"""What an ensemble came to: against its members, how much they differ, how far it can be believed, what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from lightkit.assembly import Shared
from lightkit.assembly.parts import build_loss, build_metrics
from lightkit.common.text import counted
from lightkit.config import to_plain
from lightkit.ensemble.calibration import (
    calibrated_log_likelihood,
    independent_networks,
    reliability,
    useful_temperature,
    with_temperature,
)
from lightkit.ensemble.combining import as_logits, log_likelihood
from lightkit.ensemble.diversity import disagreement, double_fault, error_correlation
from lightkit.ensemble.methods import Combination
from lightkit.ensemble.methods.base import MemberResult
from lightkit.ensemble.oof import SPLITS, MemberPredictions, aligned, stacked
from lightkit.losses import mean_weight
from lightkit.metrics.stacked import StackedMetrics
from lightkit.trainer.tasks import WeighedMean, fit_shape

_SHOWN = ("val", "test", "oof", "holdout")
_ROWS = {"oof": "rows left out", "holdout": "rows held out", "val": "validation rows", "test": "test rows"}
_DRAWS = 100
"""Subsets of members at most, over all sizes, that tell how many networks an ensemble is worth."""
_FEW = 20
"""Members whose number of independent networks is always told."""


@dataclass(frozen=True)
class Outcome:
    """An ensemble whose members are trained and combined."""

    method: str
    """Name of its method."""
    rule: str
    """How members are combined; see `lightkit.ensemble.methods.Method.rule`."""
    made: Combination
    """What the members come to together."""
    values: Mapping[str, float]
    """Loss and metrics of the ensemble."""
    member_values: Mapping[str, Mapping[str, float]]
    """Loss and metrics of each member by its name; those on training rows that it did not learn from are `oof/...`, or
    `holdout/...` of rows that decide whether a stack is used."""
    monitor: str
    """Name of the value that decides what is best."""
    mode: str
    """Whether `min` or `max` of it is better."""

    @property
    def names(self) -> list[str]:
        """Names of the members."""
        return [result.member.name for result in self.made.members]

    @property
    def networks(self) -> int:
        """Number of networks: a member may be several that were trained together."""
        return sum(_role(result).get("networks", 1) for result in self.made.members)

    @property
    def independent(self) -> bool:
        """Tell whether each member was trained on its own, beginning with its own weights."""
        ties = ("weights_of", "computed_from", "adds_to", "features", "joint")
        return self.rule != "last" and not any(_role(result).get(tie) for result in self.made.members for tie in ties)

    @property
    def split(self) -> str:
        """The split that says most: `test`, else `val`, else `train` (rows that a member did not learn from)."""
        there = self.made.predictions.split[self.made.predictions.predicted]
        return next((name for name in ("test", "val") if (there == SPLITS.index(name)).any()), "train")

    @property
    def metric(self) -> str:
        """Name of the monitored metric on that split, such as `test/accuracy`; elsewhere where it is not there."""
        name = self.monitor.partition("/")[2]
        return next(
            (known for split in ("test", "val", "oof", "holdout") if (known := f"{split}/{name}") in self.values), ""
        )

    def on(self, split: str) -> tuple[Tensor, MemberPredictions]:
        """Return the predictions of the members `(M, N, C)`, and of the ensemble, on a split."""
        chosen = self.made.predictions.split == SPLITS.index(split)
        return self.beside[:, chosen], self.made.predictions.take(chosen)

    @cached_property
    def beside(self) -> Tensor:
        """Return what the members predict of the rows of the ensemble, `(M, N, C)`; NaN where one predicts nothing."""
        whole, own = self.made.predictions, self.made.own
        own = [one if torch.equal(one.rows, whole.rows) else one.take(torch.isin(one.rows, whole.rows)) for one in own]
        return stacked(aligned([*own, whole])[:-1])


class SplitMeter:
    """Measures predictions by loss and metrics of the run, which are built once.

    Args:
        cfg: The configuration.
        shared: What all models of the run share.
        split: What is measured, which the values are called by: `val`, `test`; or training rows that were left out
            (`oof`, `holdout`), with the metrics of `val`.
        only: Name of the one metric that is wanted; empty measures all.
        rows: Row of the data set that each number of a row stands for; None for itself.
    """

    def __init__(
        self, cfg: DictConfig, shared: Shared, split: str, *, only: str = "", rows: Tensor | None = None
    ) -> None:
        self._kind, self._name = split if split in ("val", "test") else "val", split
        nodes = to_plain(cfg.metrics[self._kind])
        if only in (*nodes, "loss"):
            chosen = {self._kind: {only: nodes[only]} if only in nodes else {}}
            cfg = OmegaConf.create({**cfg, "metrics": {**cfg.metrics, **chosen}})
        self._device = shared.engine.device
        # One process has all rows.
        self.metrics: Any = build_metrics(cfg.metrics, shared.data.info, shared.engine, alone=True)[self._kind]
        self._criterion = build_loss(cfg.loss, shared.data.info, shared.engine)
        loader = shared.data.loaders().get(split)
        self._batch = None if loader is None else loader.batch_size
        train = shared.data.train
        weights = train.options.weights if loader is None or loader is train else loader.weights
        self._weights = weights if weights is None or rows is None else weights[rows]

    def at_once(self, rows: MemberPredictions, predictions: Sequence[Tensor]) -> list[dict[str, float]]:
        """Return the values of different predictions `(N, C)` of the same rows."""
        target, metrics = rows.targets.to(self._device), StackedMetrics(self.metrics, len(predictions))
        outputs = [fit_shape(as_logits(one, rows.task).to(self._device), target) for one in predictions]
        losses = torch.stack([self._loss(output, target, rows.rows)[0] for output in outputs])
        metrics.update(torch.stack(outputs), target.expand(len(outputs), *target.shape), losses, len(rows))
        return [self._named(values) for values in metrics.compute()]

    def __call__(self, rows: MemberPredictions, places: Tensor | None = None) -> dict[str, float]:
        """Return the values of some rows, all of which were predicted.

        They are taken in the batches of an evaluation: of shares of votes many are equal, and a softmax rounds by where
        a row stands in its batch.

        Args:
            rows: The rows.
            places: Which of them are measured, some several times; None for all.
        """
        chosen: Any = slice(None) if places is None else places
        target, numbers = rows.targets[chosen].to(self._device), rows.rows[chosen]
        output = fit_shape(as_logits(rows.predictions[chosen], rows.task).to(self._device), target)
        self.metrics.reset()
        size = self._batch or len(target)
        for own, truth, number in zip(output.split(size), target.split(size), numbers.split(size)):
            loss, weight = self._loss(own, truth, number)
            self.metrics.update(own, truth, loss, len(truth), weight=weight)
        return self._named(self.metrics.compute())

    def _loss(self, output: Tensor, target: Tensor, rows: Tensor) -> tuple[Tensor, Any]:
        """Return the mean loss of rows, and what it weighs among those of others."""
        if self._weights is None:
            return self._criterion(output, target), mean_weight(self._criterion, output, target)
        criterion = WeighedMean(self._criterion, self._weights[rows].to(output.device))
        return criterion(output, target), criterion.total

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        return {f"{self._name}/{key.partition('/')[2]}": value for key, value in values.items()}


def make_report(
    outcome: Outcome, *, seconds: float, parameters: int, seed: int = 0, patient: bool = True
) -> dict[str, Any]:
    """Return what `result.json` says of an ensemble beside what it says of every run.

    Args:
        outcome: The ensemble.
        seconds: What it took.
        parameters: Parameters of all networks.
        seed: Seed of subsets and halves.
        patient: Take the time to tell of many members how many independent networks they are worth.
    """
    members = {name: dict(values) for name, values in outcome.member_values.items()}
    names = dict.fromkeys(name for own in members.values() for name in own)
    known = {name: [own[name] for own in members.values() if name in own] for name in names}
    mean = {name: math.fsum(values) / len(values) for name, values in known.items()}
    sign = -1 if outcome.mode == "min" else 1
    reached = {name: sign * own.get(outcome.monitor, math.nan) for name, own in members.items()}
    # Of equal ones the first.
    best = max(reached, key=lambda name: -math.inf if math.isnan(reached[name]) else reached[name])
    gain: dict[str, Any] = {}
    if outcome.rule != "last" and (name := outcome.metric) in mean and name in members[best]:
        value, others = outcome.values[name], {"over_mean": mean[name], "over_best": members[best][name]}
        gain = {"metric": name, **{key: sign * (value - other) for key, other in others.items()}}
    epochs = sum(result.result.get("epochs") or 0 for result in outcome.made.members)
    return {
        "method": outcome.method,
        "rule": outcome.rule,
        "members": members,
        "weights": dict(outcome.made.weights),
        "mean": mean,
        "best_member": best,
        "selected_on": list(outcome.made.selected_on),
        "gain": gain,
        "diversity": diversity(outcome),
        "calibration": calibration(outcome, seed=seed),
        "independent_networks": worth(outcome, seed=seed) if patient or len(members) <= _FEW else None,
        "cost": {"seconds": seconds, "epochs": epochs, "networks": outcome.networks, "parameters": parameters},
    }


def values_of(result: MemberResult, *, last: bool = False, more: Iterable[str] = ()) -> dict[str, float]:
    """Return the loss and the metrics of the weights of a member that count.

    Args:
        result: The member.
        last: Whether its last weights count, and not the best.
        more: Names of further sets (`data.more`).
    """
    found, splits = result.result, (*SPLITS, *more)
    best = {} if last else found.get("best", {})
    values = {**found["metrics"], **best, **found["test"]}
    return {
        name: value for name, value in values.items() if name.partition("/")[0] in splits and "loss_step" not in name
    }


def diversity(outcome: Outcome) -> dict[str, Any]:
    """Return how much two members differ, in the mean over all pairs; nothing where they are not side by side."""
    if len(outcome.made.own) < 2 or outcome.rule == "last":
        return {}
    predictions, rows = outcome.on(outcome.split)
    targets, task = rows.targets, rows.task
    found = {"error_correlation": error_correlation(predictions, targets, task)}
    if task != "regression":
        found["disagreement"] = disagreement(predictions, task)
        found["double_fault"] = double_fault(predictions, targets, task)
    pairs = ~torch.eye(len(predictions), dtype=torch.bool)
    means = {name: float(matrix[pairs].nanmean()) for name, matrix in found.items()}
    return {"split": outcome.split, **{name: value for name, value in means.items() if not math.isnan(value)}}


def calibration(outcome: Outcome, *, seed: int = 0) -> dict[str, Any]:
    """Return how far the probabilities can be believed, before and after a temperature.

    The temperature is fitted on validation rows and measured on the test split; without one, on halves of the
    validation rows. It stays 1 where cross-validation does not show that another one helps. Of regression there is
    only the log-likelihood of a normal distribution of the errors.
    """
    chosen, fitting = _judged(outcome)
    rows = outcome.made.predictions.take(chosen)
    if len(rows) < 2:
        return {}
    task, data = rows.task, (rows.predictions, rows.targets, rows.task)
    found: dict[str, Any] = {"split": outcome.split}
    measured = rows if fitting is None else rows.take(~fitting)
    if task != "regression":
        found["ece"] = reliability(measured.predictions, measured.targets, task).error
        found["log_likelihood"] = float(log_likelihood(measured.predictions, measured.targets, task).mean())
    if task != "regression" and fitting is not None:
        held = rows.take(fitting)
        found["temperature"] = useful_temperature(held.predictions, held.targets, task, seed=seed)
        found["temperature_rows"] = len(held)
        scaled = with_temperature(measured.predictions, found["temperature"], task)
        found["ece_calibrated"] = reliability(scaled, measured.targets, task).error
        found["log_likelihood_calibrated"] = float(log_likelihood(scaled, measured.targets, task).mean())
    else:
        found["log_likelihood_calibrated"] = calibrated_log_likelihood(*data, fitting=fitting, seed=seed)
    return found


def worth(outcome: Outcome, *, seed: int = 0) -> float | None:
    """Tell how many independent networks the ensemble is worth; see `independent_networks`.

    Returns:
        None where its members are not independent, so that there is nothing to compare with, or where it is better
        than all of them together.
    """
    size = len(outcome.made.own)
    chosen, fitting = _judged(outcome)
    if size < 2 or chosen.sum() < 2 or not outcome.independent:
        return None
    rows = outcome.made.predictions.take(chosen)
    members = outcome.beside[:, chosen]
    if members.isnan().any():
        return None
    draws = min(20, max(1, _DRAWS // size))
    data = (members, rows.predictions, rows.targets, rows.task)
    found = independent_networks(*data, fitting=fitting, draws=draws, seed=seed)
    return found if math.isfinite(found) else None


def _judged(outcome: Outcome) -> tuple[Tensor, Tensor | None]:
    """Return which rows to judge by, and on which of these a temperature is fitted; None where halves take turns."""
    together, split = outcome.made.predictions, outcome.split
    val, test = (together.predicted & (together.split == SPLITS.index(name)) for name in ("val", "test"))
    if split == "test" and val.any():
        chosen = val | test
        return chosen, val[chosen]
    return together.predicted & (together.split == SPLITS.index(split)), None


def comparison(
    report: Mapping[str, Any], values: Mapping[str, float], monitor: str
) -> tuple[list[str], list[list[str]]]:
    """Make heads and rows of a table: each metric of the mean member, the best one and the ensemble.

    Args:
        report: See `make_report`.
        values: Loss and metrics of the ensemble.
        monitor: The monitored value, whose metric comes first.
    """
    monitored = monitor.partition("/")[2]
    splits = dict.fromkeys((*_SHOWN, *(name.partition("/")[0] for name in values)))
    names = [name for split in splits for name in values if name.startswith(f"{split}/")]
    metrics = dict.fromkeys([monitored, *(name.partition("/")[2] for name in names)])
    ordered = [name for metric in metrics for name in names if name.partition("/")[2] == metric]
    heads, columns = ["ensemble"], [values]
    if len(report["members"]) > 1 and report["rule"] == "last":  # each is the sum up to it
        first = next(iter(report["members"]))
        heads, columns = [f"first member ({first})", *heads], [report["members"][first], *columns]
    elif len(report["members"]) > 1:
        best = report["best_member"]
        heads = ["mean member", f"best member ({best})", *heads]
        columns = [report["mean"], report["members"][best], *columns]
    chosen = [f"{split}/" for split in report["selected_on"]]
    rows = [
        [
            f"{name} (selected on)" if name.startswith((*chosen,)) else name,
            *(f"{column[name]:.4f}" if name in column else "" for column in columns),
        ]
        for name in ordered
    ]
    return ["metric", *heads], rows


def summary_lines(report: Mapping[str, Any]) -> list[str]:
    """Put the rest of a report into a few lines."""
    found, size = list[tuple[str, str]](), len(report["members"])
    if chosen := report["selected_on"]:
        meant = " and ".join(_ROWS[name] for name in chosen)
        found.append(("selected", f"by the {meant}: values on these are better than they will be on new rows"))
    if gain := report["gain"]:
        mean, best = _by(gain["over_mean"]), _by(gain["over_best"])
        if size > 1:
            found.append(
                ("gain", f"{gain['metric']}: {mean} the mean member, {best} the best ({report['best_member']})")
            )
    if differ := report["diversity"]:
        found.append(("diversity", _differing(differ)))
    if sure := report["calibration"]:
        found.append(("calibration", _calibrated(sure)))
    if (worth_ := report["independent_networks"]) is not None and worth_ < size - 0.05:
        found.append(("worth", f"{worth_:.1f} of {size} independent networks, by log-likelihood"))
    cost = report["cost"]
    several = f"{cost['networks']} network{'s' * (cost['networks'] != 1)}"
    spent = f"{counted(cost['epochs'], 'epoch')}, " if cost["epochs"] else ""
    found.append(("cost", f"{several}, {cost['parameters']:,} parameters, {spent}{cost['seconds']:.1f} s"))
    width = max(len(head) for head, _ in found)
    return [f"{head.ljust(width)}  {text}" for head, text in found]


def _differing(values: Mapping[str, Any]) -> str:
    """Word how much the members differ."""
    parts = []
    if "disagreement" in values:
        rows = {"train": "oof"}.get(values["split"], values["split"])
        parts.append(f"two members disagree on {values['disagreement']:.1%} of the {_ROWS[rows]}")
        parts.append(f"both are wrong on {values['double_fault']:.1%}")
    if "error_correlation" in values:
        parts.append(f"errors of two members correlate by {values['error_correlation']:.2f}")
    return ", ".join(parts)


def _calibrated(values: Mapping[str, Any]) -> str:
    """Word how far the probabilities can be believed."""
    parts = [f"error (ECE) {values['ece']:.3f}"] if "ece" in values else []
    if values.get("temperature") == 1:
        parts.append(f"temperature 1, as no other proved better on the {values['temperature_rows']} validation rows")
    elif "temperature" in values:
        parts.append(f"{values['ece_calibrated']:.3f} after temperature {values['temperature']:.2f}")
    normal = "" if parts else " with errors of a normal distribution"
    return ", ".join([*parts, f"log-likelihood {values['log_likelihood_calibrated']:.4f}{normal}"])


def _by(gain: float) -> str:
    """Word a difference: `0.0123 better than`."""
    if abs(gain) < 5e-5:
        return "equal to"
    return f"{abs(gain):.4f} {'better' if gain > 0 else 'worse'} than"


def _role(result: MemberResult) -> Mapping[str, Any]:
    """Return what the plan says of a member."""
    found: Mapping[str, Any] = result.member.values.get("ensemble", {}).get("member", {})
    return found
