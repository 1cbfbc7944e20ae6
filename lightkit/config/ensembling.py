"""Rules between the keys of `ensemble` and others, as far as they can be told without the data."""

from __future__ import annotations

from typing import Any

from lightkit.common.names import name_problem
from lightkit.config.report import Report, Rule
from lightkit.config.schema import Config
from lightkit.config.schema.learning import MemberConfig

_METHODS = "lightkit.ensemble.methods."


def _method(cfg: Config) -> str:
    """Return the name of the class that makes several models one; empty for one of the user's own."""
    target = cfg.ensemble._target_
    return target.removeprefix(_METHODS) if target.startswith(_METHODS) else ""


def checkpoints_of_members(cfg: Config, report: Report) -> None:
    """Refuse an ensemble without checkpoints, which is made of those of its members."""
    if _method(cfg) != "NoEnsemble" and not cfg.checkpoint.enabled:
        what = "an ensemble is made of the checkpoints of its members"
        report.add(("checkpoint", "enabled"), what, received=False, fix="no checkpoint=none, or ensemble=none")


def roles_of_members(cfg: Config, report: Report) -> None:
    """Refuse a role of the ensemble itself: its members have roles, which the method gives them."""
    role, plain = cfg.ensemble.member, MemberConfig()
    differ = [name for name, value in vars(plain).items() if getattr(role, name) != value]
    if _method(cfg) != "NoEnsemble" and differ:
        what = "the method of an ensemble says what its members are"
        key = ("ensemble", "member", differ[0])
        report.add(key, what, received=getattr(role, differ[0]), fix=f"remove it: ~ensemble.member.{differ[0]}")


def names_of_members(cfg: Config, report: Report) -> None:
    """Refuse names of other members that would lead a run from elsewhere out of the folder of members."""
    role = cfg.ensemble.member
    named: dict[str, Any] = {"weights_of": role.weights_of, "adds_to": role.adds_to, "refits": role.refits}
    named |= {"computed_from": role.computed_from, "features": [name for names in role.features for name in names]}
    for key, found in named.items():
        for name in [found] if isinstance(found, str) else found or []:
            problem = name_problem(name)
            if problem and not (key == "refits" and not name):
                facts: dict[str, Any] = {"expected": "the name of a member", "received": name, "family": "wrong-value"}
                report.add(("ensemble", "member", key), problem, **facts)


def folds_of_bagging(cfg: Config, report: Report) -> None:
    """Refuse folds that no member leaves out, a number of members beside folds, and draws against the order of time."""
    if _method(cfg) != "Bagging":
        return
    folds, size = getattr(cfg.ensemble, "resample", "bootstrap") == "folds", getattr(cfg.ensemble, "size", None)
    if folds and size is not None:
        fix = "ensemble.size=null; ensemble.folds and ensemble.repeats say how many there are"
        report.add(("ensemble", "size"), "the folds are the members", received=size, fix=fix, family="ensemble")
    for name in ("folds", "repeats"):
        if not folds and report.sources.on_command_line(("ensemble", name)):
            what, fix = "rows are drawn with replacement, and no folds are dealt out", "ensemble.resample=folds"
            received = getattr(cfg.ensemble, name, None)
            report.add(("ensemble", name), what, received=received, fix=fix, family="ensemble")
    if not folds and cfg.data.split.by == "ordered":
        what, fix = "a random draw does not keep the order of time", "ensemble.resample=folds, or ensemble=voting"
        report.add(("ensemble", "resample"), what, received="bootstrap", fix=fix, family="ensemble")


def cycles_of_snapshots(cfg: Config, report: Report) -> None:
    """Refuse cycles that do not divide the epochs of the run."""
    size, epochs = getattr(cfg.ensemble, "size", None) or 5, cfg.trainer.epochs
    if _method(cfg) != "Snapshot" or (cfg.trainer.steps is None and epochs is not None and epochs % size == 0):
        return
    counted = cfg.trainer.steps is not None or epochs is None
    report.add(
        ("trainer", "steps" if counted else "epochs"),
        "the cycles of snapshots are as long as each other, in epochs",
        expected=f"trainer.epochs a multiple of {size}, the cycles (ensemble.size)",
        received=cfg.trainer.steps if counted else epochs,
        family="ensemble",
    )


def rates_of_cycles(cfg: Config, report: Report) -> None:
    """Refuse a cycle of rates that does not rise."""
    low, high = getattr(cfg.ensemble, "low", 0.005), getattr(cfg.ensemble, "high", 0.5)
    if _method(cfg) == "FastGeometric" and low >= high:
        what = "the rate of a cycle rises and falls"
        report.add(("ensemble", "low"), what, expected=f"below ensemble.high ({high})", received=low, family="ensemble")


def processes_of_members(cfg: Config, report: Report) -> None:
    """Refuse members side by side that each need several processes."""
    if getattr(cfg.ensemble, "engine", None) == "processes" and cfg.device.nproc > 1:
        what, fix = f"each member has {cfg.device.nproc} processes (device.nproc) already", "ensemble.engine=sequential"
        report.add(("ensemble", "engine"), what, received="processes", fix=fix)


_BY_TORCHENSEMBLE = (
    *("Voting", "Bagging", "Greedy", "Adversarial", "Snapshot", "FastGeometric"),
    *("Fusion", "GradientBoosting", "SoftGradientBoosting"),
)
_ONLY_SO: dict[str, tuple[tuple[Any, ...], str]] = {
    "ensemble.resample": (("bootstrap",), "its bagging draws rows with replacement, and deals out no folds"),
    "trainer.steps": ((None,), "it counts epochs"),
    "trainer.accumulate": ((1,), "it makes a step of every batch"),
    "trainer.clip_norm": ((None,), "it clips no gradients"),
    "trainer.clip_value": ((None,), "it clips no gradients"),
    "trainer.validate_every": ((1,), "its members are validated once, at their end"),
    "trainer.early_stopping.patience": ((None,), "its members train to their end"),
    "trainer.ema.decay": ((None,), "it keeps no average of the weights"),
    "trainer.nonfinite.action": (("stop",), "it makes every step"),
    "trainer.overfit.samples": ((None,), "it trains to the end"),
    "trainer.task._target_": (
        ("lightkit.trainer.tasks.Supervised",),
        "it computes the loss of inputs and targets itself",
    ),
    "trainer.callbacks": (({},), "it calls nobody"),
    "device.precision": (("fp32", "tf32"), "it has no autocast and no loss scale"),
    "device.parallel": (("none",), "it trains in one process on one device"),
    "device.compile": (("none",), "it calls the networks as they are"),
    "device.cuda_graphs": ((False,), "it calls the networks as they are"),
    "device.activation_checkpointing": (([],), "it calls the networks as they are"),
    "data.mixup.alpha": ((None,), "it takes a class for a target, and no shares of classes"),
    "profile": ((False,), "its steps are not looked into"),
}
"""What a key has to be for torchensemble, and why."""


def abilities_of_torchensemble(cfg: Config, report: Report) -> None:
    """Refuse what torchensemble cannot train, and would leave out without a word."""
    if getattr(cfg.ensemble, "engine", None) != "torchensemble":
        return
    method, facts = _method(cfg), {"family": "ensemble"}
    if method not in _BY_TORCHENSEMBLE:
        received, fix = method or cfg.ensemble._target_, "ensemble.engine=sequential"
        what = "torchensemble has no such method"
        report.add(("ensemble", "engine"), what, received=received, choices=_BY_TORCHENSEMBLE, fix=fix, **facts)
        return
    for path, (values, why) in _ONLY_SO.items():
        key, node = tuple(path.split(".")), cfg
        for name in key:
            node = getattr(node, name, values[0])
        found: Any = getattr(node, "__dict__", node)
        if found not in values:
            shown = (
                "null" if values[0] is None else str(values[0]).lower() if isinstance(values[0], bool) else values[0]
            )
            fix = f"{path}={shown}, or ensemble.engine=sequential"
            what = f"ensemble.engine=torchensemble: {why}"
            report.add(key, what, received=found if not isinstance(found, dict) else ", ".join(found), fix=fix, **facts)
    cycle = getattr(cfg.ensemble, "cycle_epochs", 2)
    if cycle % 2:
        what = "torchensemble keeps its networks in the middle of a cycle, which has to be the end of an epoch"
        fix = "ensemble.cycle_epochs=4, or ensemble.engine=sequential"
        report.add(("ensemble", "cycle_epochs"), what, expected="an even number", received=cycle, fix=fix, **facts)


ENSEMBLE_RULES: tuple[Rule, ...] = (
    checkpoints_of_members,
    roles_of_members,
    names_of_members,
    folds_of_bagging,
    cycles_of_snapshots,
    rates_of_cycles,
    processes_of_members,
    abilities_of_torchensemble,
)
