"""Rules between keys of groups but `finetune` and `device`: what does not go together, before PyTorch is imported."""

from __future__ import annotations

from typing import Any

from lightkit.common import argument_checks
from lightkit.common.argument_checks import IN_ORDER, check_cycles, check_fold, check_norm, check_rates, check_shares
from lightkit.common.doors import SHIPPED
from lightkit.common.lengths import EXPECTED as EXPECTED_LENGTH
from lightkit.common.lengths import EXPECTED_TIME, read_duration, read_length, read_slurm_time
from lightkit.common.names import name_problem
from lightkit.common.text import in_one_line
from lightkit.config.fields import defaults_of
from lightkit.config.schema.device import DeviceConfig
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.schema.learning import (
    CvConfig,
    DataConfig,
    EnsembleConfig,
    LossConfig,
    MemberConfig,
    MetricsConfig,
    OptimConfig,
    SchedulerConfig,
)
from lightkit.config.schema.running import CheckpointConfig, LoggerConfig, ResumeConfig, TrainerConfig
from lightkit.config.schema.sweeping import SweepConfig
from lightkit.config.tree import Node, Report, rules_in


def shares_of_split(data: DataConfig, report: Report) -> None:
    """Refuse shares that leave no training rows."""
    report.ask(("data",), check_shares, data.split.by, data.split.val, data.split.test)


def fold_of_split(data: DataConfig, report: Report) -> None:
    """Refuse a fold that is not one of the folds."""
    report.ask(("data",), check_fold, data.split.by, data.split.folds, data.split.fold)


_HOW = ("engine", "slots")
"""Keys of `cv` that say how folds are trained, which a file may say of all runs."""


def folds_of_cv(cv: CvConfig, trainer: TrainerConfig, ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse what a cross-validation needs where there is none, and what its folds cannot do."""
    if cv.folds is None:
        typed = report.sources.on_command_line
        for name, usual in defaults_of(CvConfig).items():
            given, in_file = getattr(cv, name), report.starting and name not in _HOW and not typed(("cv", "folds"))
            if given != usual and (in_file or typed(("cv", name))):
                fix = "cv.folds=5; or cv.folds=null on the command line, for one model"
                report.add(("cv", name), "there are no folds", received=given, fix=fix, family="contradiction")
        return
    if trainer.stop_at is not None:
        what, fix = "the folds are trained to their ends", "trainer.stop_at=null, or cv.folds=null"
        report.add(("trainer", "stop_at"), what, received=trainer.stop_at, fix=fix)
    if cv.engine == "vectorized" and _method(ensemble) != "NoEnsemble":
        what, fix = "folds that are ensembles train as processes", "cv.engine=auto"
        report.add(("cv", "engine"), what, received=cv.engine, fix=fix)
    if cv.repeats > 1 and cv.by == "time":
        what, fix = "in order of time the folds are always the same", "cv.repeats=1"
        report.add(("cv", "repeats"), what, received=cv.repeats, fix=fix)


def end_of_training(trainer: TrainerConfig, report: Report) -> None:
    """Refuse a run without an end."""
    if trainer.epochs is None and trainer.steps is None:
        facts = {"expected": "a number of epochs or of steps", "received": "null"}
        report.add(("trainer", "epochs"), "training has no end", **facts)


def pause_of_training(
    trainer: TrainerConfig, checkpoint: CheckpointConfig, ensemble: EnsembleConfig, report: Report
) -> None:
    """Refuse to pause at what is no length, and where nothing could go on."""
    key, stop = ("trainer", "stop_at"), trainer.stop_at
    if stop is None:
        return
    try:
        read_length(stop)
    except ValueError as error:
        report.add(key, str(error), expected=f"{EXPECTED_LENGTH}, or null", received=stop, family="wrong-value")
        return
    if not checkpoint.enabled:
        report.add(key, "a run without checkpoints cannot go on", received=stop, fix="no checkpoint=none")
    if ensemble._target_ != "lightkit.ensemble.methods.NoEnsemble":
        what = "an ensemble trains its members to their ends"
        report.add(key, what, received=stop, fix="trainer.stop_at=null, or ensemble=none", family="ensemble")


def epoch_of_early_stopping(trainer: TrainerConfig, report: Report) -> None:
    """Refuse an epoch from which early stopping counts where there is no early stopping."""
    asked = trainer.early_stopping
    if asked.from_epoch > 1 and asked.patience is None and asked.target is None:
        what, fix = "nothing ends training early", "trainer.early_stopping.patience=5, or target=VALUE"
        report.add(("trainer", "early_stopping", "from_epoch"), what, received=asked.from_epoch, fix=fix)


def one_average(trainer: TrainerConfig, ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse two averages of the weights, and one that reaches over cycles of which each gives a member."""
    key, facts = ("trainer", "swa", "from_epoch"), {"received": trainer.swa.from_epoch}
    if trainer.swa.from_epoch is not None and trainer.ema.decay is not None:
        fix = "trainer.swa.from_epoch=null or trainer.ema.decay=null"
        report.add(key, "trainer.ema.decay averages the weights as well", fix=fix, **facts)
    if trainer.swa.from_epoch is not None and _method(ensemble) in ("Snapshot", "FastGeometric"):
        what = "members are taken from one training, and this averages over all of it"
        report.add(key, what, fix="trainer.swa.from_epoch=null", **facts)


def start_from_file(ensemble: EnsembleConfig, finetune: FinetuneConfig, resume: ResumeConfig, report: Report) -> None:
    """Refuse a checkpoint of another program to start from beside other weights, or for several models."""
    if resume.file is None:
        if resume.epoch is not None:
            what = "these are the epochs of resume.file, and there is none"
            report.add(("resume", "epoch"), what, received=resume.epoch, fix="resume.file=FILE")
        return
    key = ("resume", "file")
    if ensemble._target_ != "lightkit.ensemble.methods.NoEnsemble":
        what = "one checkpoint cannot be that of several models"
        report.add(key, what, received=resume.file, fix="ensemble=none", family="ensemble")
    if getattr(getattr(finetune, "weights", None), "path", None) is not None:
        fix = "resume.file=null or finetune.weights.path=null"
        report.add(key, "finetune.weights.path gives weights as well", received=resume.file, fix=fix)


def order_of_clipping(trainer: TrainerConfig, report: Report) -> None:
    """Refuse a norm that is none, and one that limits nothing."""
    key, order = ("trainer", "clip_type"), trainer.clip_type
    if report.ask(("trainer",), check_norm, order) and order != 2 and trainer.clip_norm is None:
        what, fix = "this norm limits nothing without trainer.clip_norm", "trainer.clip_norm=1.0"
        report.add(key, what, received=order, fix=fix)


def one_short_run(trainer: TrainerConfig, report: Report) -> None:
    """Refuse a run that is both cut down and to learn its samples by heart."""
    samples = trainer.overfit.samples
    if trainer.smoke and samples is not None:
        what, fix = "a smoke run is too short to learn samples by heart", "trainer=overfit, or trainer=smoke"
        report.add(("trainer", "overfit", "samples"), what, received=samples, fix=fix)


def monitored_metric(metrics: MetricsConfig, trainer: TrainerConfig, data: DataConfig, report: Report) -> None:
    """Refuse to monitor what is not measured: `val/f1` gives parts such as `val/f1/cat` only without an average."""
    monitor, splits = (
        metrics.monitor,
        {"train": metrics.train, **dict.fromkeys(("val", *getattr(data, "more", ())), metrics.val)},
    )
    nodes = {f"{split}/{name}": node for split, own in splits.items() for name, node in own.items()}
    measured = [f"{split}/{name}" for split, own in splits.items() for name in ("loss", *own)]
    one = [name for name in measured if getattr(nodes.get(name), "average", None) in ("micro", "macro", "weighted")]
    one += [f"{split}/loss" for split in splits]
    if monitor.partition("/")[0] in splits and not trainer.task._target_.startswith("lightkit."):
        return  # a task of one's own may log it: `StepOutput(..., log={...})`
    if not any(monitor == name or (monitor.startswith(f"{name}/") and name not in one) for name in measured):
        what = "no metric of that name is measured"
        report.add(("metrics", "monitor"), what, received=monitor, choices=measured, family="loss-or-metric")


def mean_of_loss(loss: LossConfig, report: Report) -> None:
    """Refuse a loss of PyTorch that is no mean: it would be weighted by samples a second time."""
    reduction = getattr(loss, "reduction", "mean")
    if loss._target_.startswith("torch.nn.") and reduction not in ("mean", "batchmean"):
        what = "a loss is the mean over the samples of its batch"
        report.add(("loss", "reduction"), what, received=reduction, fix="loss.reduction=mean", family="loss-or-metric")


def rates_of_optimizer(optim: OptimConfig, report: Report) -> None:
    """Refuse tensors, which PyTorch takes too: our groups and schedules are made from numbers."""
    for name in ("lr", "weight_decay"):
        if isinstance(getattr(optim, name, None), dict):
            facts = {"expected": "a number", "received": "a `_target_`", "family": "wrong-value"}
            report.add(("optim", name), "wrong type", **facts)


def one_warmup(scheduler: SchedulerConfig, report: Report) -> None:
    """Refuse the warm-up of a schedule of ours in both ways in which it can be given."""
    given = {name: getattr(scheduler, name, None) for name in ("warmup_steps", "warmup_epochs")}
    if scheduler._target_.startswith("lightkit.optim.") and all(given.values()):
        received = ", ".join(f"{name}: {value}" for name, value in given.items())
        places = [name for name in given if report.sources.on_command_line(("scheduler", name))]
        fix = "scheduler.warmup_steps=0 or scheduler.warmup_epochs=0"
        report.add(("scheduler", (places or [*given])[-1]), "the warm-up is given twice", received=received, fix=fix)


def name_of_run(name: str | None, report: Report) -> None:
    """Refuse a name that no folder can have."""
    if name is not None and (not name.strip() or "/" in name or "\\" in name or name in (".", "..")):
        what, expected = "can't be part of a folder's name", "text without slashes"
        report.add(("name",), what, expected=expected, received=name, family="wrong-value")


def texts_of_engines(sweep: SweepConfig, report: Report) -> None:
    """Refuse line breaks and control characters in what a queue or a cluster is told: they would begin another line."""
    nodes = {part: node for part in SHIPPED["sweep.engine"] if isinstance(node := vars(sweep).get(part), Node)}
    for part, name, value in [(part, *item) for part, node in nodes.items() for item in vars(node).items()]:
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        odd = [text for text in texts if in_one_line(text) != text]
        if odd:
            what, fix = "a line break or another control character", "an item of the list for each line"
            facts = {"received": odd[0], "fix": fix if isinstance(value, list) else None, "family": "wrong-value"}
            report.add(("sweep", part, name), what, expected="plain text in one line", **facts)


def time_of_training(trainer: TrainerConfig, report: Report) -> None:
    """Refuse a limit of training that is no length of time."""
    _duration(trainer.max_time, ("trainer", "max_time"), report)


def _duration(value: Any, key: tuple[str, ...], report: Report) -> None:
    """Refuse what is neither null nor a length of time."""
    try:
        if value is not None:
            read_duration(value)
    except ValueError as error:
        facts = {"expected": f"{EXPECTED_TIME}, or null", "received": value, "family": "wrong-value"}
        report.add(key, str(error), **facts)


def times_of_sweep(sweep: SweepConfig, report: Report) -> None:
    """Refuse limits of a sweep that are no lengths of time."""
    for name in ("time_limit", "stall_limit", "budget"):
        _duration(getattr(sweep, name), ("sweep", name), report)


def replicates_of_sweep(sweep: SweepConfig, data: DataConfig, report: Report) -> None:
    """Refuse replicates that do not repeat a run with other luck, or one of them twice."""
    for key, values in sweep.over.items():
        report.ask(("sweep", "over"), argument_checks.check_replicates, key, values, data.split.by)


def time_of_slurm(sweep: SweepConfig, report: Report) -> None:
    """Refuse a time limit that YAML has misread, and one that leaves no time before a job is told to save."""
    asked, key = sweep.slurm, ("sweep", "slurm", "time")
    counts = vars(sweep).get(sweep.engine) is asked
    written = report.sources.written(key)
    if isinstance(asked.time, int) and written is not None and ":" in written:
        what, fix = "YAML reads this time as a number of seconds, and Slurm would count minutes", f'time: "{written}"'
        report.add(key, what, expected="a text in quotes", received=f"{written} = {asked.time}", fix=fix)
        return
    seconds = read_slurm_time(asked.time)
    if counts and seconds is not None and asked.save_before >= seconds:
        what, fix = "a job would be told to save before it has begun", "a longer sweep.slurm.time, or a smaller"
        facts = {"received": asked.save_before, "fix": f"{fix} sweep.slurm.save_before"}
        expected = f"less than the {seconds:g} seconds of sweep.slurm.time={asked.time}"
        report.add(("sweep", "slurm", "save_before"), what, expected=expected, **facts)


_METHODS = "lightkit.ensemble.methods."


def _method(ensemble: EnsembleConfig) -> str:
    """Return the name of the class that makes several models one; empty for one of the user's own."""
    target = ensemble._target_
    return target.removeprefix(_METHODS) if target.startswith(_METHODS) else ""


def checkpoints_of_members(ensemble: EnsembleConfig, checkpoint: CheckpointConfig, report: Report) -> None:
    """Refuse an ensemble without checkpoints, which is made of those of its members."""
    if _method(ensemble) != "NoEnsemble" and not checkpoint.enabled:
        what = "an ensemble is made of the checkpoints of its members"
        report.add(("checkpoint", "enabled"), what, received=False, fix="no checkpoint=none, or ensemble=none")


def roles_of_members(ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse a role of the ensemble itself: its members have roles, which the method gives them."""
    role, plain = ensemble.member, MemberConfig()
    differ = [name for name, value in vars(plain).items() if getattr(role, name) != value]
    if _method(ensemble) != "NoEnsemble" and differ:
        what = "the method of an ensemble says what its members are"
        key = ("ensemble", "member", differ[0])
        report.add(key, what, received=getattr(role, differ[0]), fix=f"remove it: ~ensemble.member.{differ[0]}")


def names_of_members(ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse names of other members that would lead a run from elsewhere out of the folder of members."""
    role = ensemble.member
    named: dict[str, Any] = {"weights_of": role.weights_of, "adds_to": role.adds_to, "refits": role.refits}
    named |= {"computed_from": role.computed_from, "features": [name for names in role.features for name in names]}
    for key, found in named.items():
        for name in [found] if isinstance(found, str) else found or []:
            problem = name_problem(name)
            if problem and not (key == "refits" and not name):
                facts: dict[str, Any] = {"expected": "the name of a member", "received": name, "family": "wrong-value"}
                report.add(("ensemble", "member", key), problem, **facts)


def folds_of_bagging(data: DataConfig, ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse folds that no member leaves out, a number of members beside folds, and draws against the order of time."""
    if _method(ensemble) != "Bagging":
        return
    folds, size = getattr(ensemble, "resample", "bootstrap") == "folds", getattr(ensemble, "size", None)
    if folds and size is not None:
        fix = "ensemble.size=null; ensemble.folds and ensemble.repeats say how many there are"
        report.add(("ensemble", "size"), "the folds are the members", received=size, fix=fix, family="ensemble")
    for name in ("folds", "repeats"):
        if not folds and report.sources.on_command_line(("ensemble", name)):
            what, fix = "rows are drawn with replacement, and no folds are dealt out", "ensemble.resample=folds"
            received = getattr(ensemble, name, None)
            report.add(("ensemble", name), what, received=received, fix=fix, family="ensemble")
    if not folds and data.split.by in IN_ORDER:
        what, fix = "a random draw does not keep the order of time", "ensemble.resample=folds, or ensemble=voting"
        report.add(("ensemble", "resample"), what, received="bootstrap", fix=fix, family="ensemble")


def cycles_of_snapshots(ensemble: EnsembleConfig, trainer: TrainerConfig, report: Report) -> None:
    """Refuse cycles that do not divide the epochs of the run."""
    if _method(ensemble) == "Snapshot":
        size = getattr(ensemble, "size", None) or 5
        report.ask(("trainer",), check_cycles, size, trainer.epochs, trainer.steps)


def rates_of_cycles(ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse a cycle of rates that does not rise."""
    if _method(ensemble) == "FastGeometric":
        report.ask(("ensemble",), check_rates, getattr(ensemble, "low", 0.005), getattr(ensemble, "high", 0.5))


def processes_of_members(device: DeviceConfig, ensemble: EnsembleConfig, report: Report) -> None:
    """Refuse members side by side that each need several processes."""
    if getattr(ensemble, "engine", None) == "processes" and device.nproc > 1:
        what, fix = f"each member has {device.nproc} processes (device.nproc) already", "ensemble.engine=sequential"
        report.add(("ensemble", "engine"), what, received="processes", fix=fix)


_BY_TORCHENSEMBLE = (
    *("Voting", "Bagging", "Greedy", "Adversarial", "Snapshot", "FastGeometric"),
    *("Fusion", "GradientBoosting", "SoftGradientBoosting"),
)
_ONLY_SO: dict[str, tuple[tuple[Any, ...], str]] = {
    "ensemble.resample": (("bootstrap",), "its bagging draws rows with replacement, and deals out no folds"),
    "trainer.steps": ((None,), "it counts epochs"),
    "trainer.epoch_steps": ((None,), "its epochs are passes over the data"),
    "trainer.accumulate": ((1,), "it makes a step of every batch"),
    "trainer.clip_norm": ((None,), "it clips no gradients"),
    "trainer.clip_value": ((None,), "it clips no gradients"),
    "trainer.validate_every": ((1,), "its members are validated once, at their end"),
    "trainer.early_stopping.patience": ((None,), "its members train to their end"),
    "trainer.early_stopping.target": ((None,), "its members train to their end"),
    "trainer.ema.decay": ((None,), "it keeps no average of the weights"),
    "trainer.swa.from_epoch": ((None,), "it keeps no average of the weights"),
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
    "data.mixup.cutmix_alpha": ((None,), "it takes a class for a target, and no shares of classes"),
    "profile": ((False,), "its steps are not looked into"),
    "logger.tensorboard.histograms": ((None, 0), "its steps are not looked into"),
    "logger.trace": ((None,), "its steps are not looked into"),
}
"""What a key has to be for torchensemble, and why."""


def abilities_of_torchensemble(
    data: DataConfig,
    device: DeviceConfig,
    ensemble: EnsembleConfig,
    trainer: TrainerConfig,
    logger: LoggerConfig,
    profile: bool,
    report: Report,
) -> None:
    """Refuse what torchensemble cannot train, and would leave out without a word."""
    if getattr(ensemble, "engine", None) != "torchensemble":
        return
    method, facts = _method(ensemble), {"family": "ensemble"}
    if method not in _BY_TORCHENSEMBLE:
        received, fix = method or ensemble._target_, "ensemble.engine=sequential"
        what = "torchensemble has no such method"
        report.add(("ensemble", "engine"), what, received=received, choices=_BY_TORCHENSEMBLE, fix=fix, **facts)
        return
    sections: dict[str, Any] = {"data": data, "device": device, "ensemble": ensemble, "trainer": trainer}
    sections |= {"logger": logger, "profile": profile}
    for path, (values, why) in _ONLY_SO.items():
        section, *names = key = tuple(path.split("."))
        node: Any = sections[section]
        for name in names:
            node = getattr(node, name, values[0])
        found: Any = getattr(node, "__dict__", node)
        if found not in values:
            shown = "null" if values[0] is None else "false" if values[0] is False else values[0]
            fix = f"{path}={shown}, or ensemble.engine=sequential"
            received = found if not isinstance(found, dict) else ", ".join(found)
            report.add(key, f"ensemble.engine=torchensemble: {why}", received=received, fix=fix, **facts)
    cycle = getattr(ensemble, "cycle_epochs", 2)
    if cycle % 2:
        what = "torchensemble keeps its networks in the middle of a cycle, which has to be the end of an epoch"
        fix = "ensemble.cycle_epochs=4, or ensemble.engine=sequential"
        report.add(("ensemble", "cycle_epochs"), what, expected="an even number", received=cycle, fix=fix, **facts)


RULES = rules_in(globals())
