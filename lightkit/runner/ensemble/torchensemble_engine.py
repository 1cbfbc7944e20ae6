"""`ensemble.engine=torchensemble`: its classes train the members, which are then members like all others.

Also ensembles of runs as files of that library, and the other way.
"""

from __future__ import annotations

import copy
import inspect
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.optim import Optimizer

from lightkit.assembly import Learner, Shared, build_engine, build_learner, build_own, build_splits
from lightkit.assembly.ensemble import build_ensemble, is_ensemble
from lightkit.assembly.learner import build_optimizer, build_scheduler
from lightkit.assembly.network import build_model, build_network
from lightkit.assembly.origin import facts_of
from lightkit.assembly.parts import build_timetable
from lightkit.checkpoint import content
from lightkit.checkpoint.fitting import fit as load_fitting
from lightkit.checkpoint.formats import open_file
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.stepping import needs_closure
from lightkit.config import to_plain, to_yaml, with_values
from lightkit.data import DataInfo
from lightkit.ensemble.bridge import TASKS, TorchEnsembleFit, read_file, rule_of, to_torchensemble, write_file
from lightkit.ensemble.file import StoredEnsemble, StoredMember, write_ensemble
from lightkit.ensemble.methods.base import NO_ENSEMBLE, MemberResult, RunMember
from lightkit.ensemble.module import Joint
from lightkit.loggers.files import write_json
from lightkit.runner.ensemble.trained import member_config
from lightkit.runner.evaluation import evaluate_split
from lightkit.runner.fit import Observer, fit
from lightkit.runner.member import MemberRun
from lightkit.runner.session import Session
from lightkit.runs.folder import RunFolder
from lightkit.runs.reading import read_json
from lightkit.trainer.average import averages_itself
from lightkit.trainer.learner import Network
from lightkit.trainer.report import Clock, Reporter
from lightkit.trainer.state import Timetable
from lightkit.trainer.tasks import fit_shape

_TIED = ("Snapshot", "FastGeometric", "GradientBoosting")
"""Methods whose members follow each other, so that torchensemble trains all of them or none."""


class _Part(NamedTuple):
    """A member of the run, as torchensemble gets it."""

    cfg: DictConfig
    """Its configuration."""
    shared: Shared
    """Its seeds and rows."""
    timetable: Timetable
    """Its lengths."""
    made: Network
    """Its network."""


class TorchEnsembleEngine:
    """Trains the members of a run by torchensemble.

    Args:
        run: The run.
        shared: What its members share.
        train: Trains one member, by a `fit` that is given to it; here that takes the trained weights over, and measures
            and writes them.
    """

    def __init__(self, run: Session, shared: Shared, train: Callable[..., MemberResult]) -> None:
        self.run, self.shared, self.train_one = run, shared, train
        self.method = str(run.cfg.ensemble._target_).rpartition(".")[2]

    def train(self, members: Sequence[RunMember], left: Sequence[RunMember]) -> list[MemberResult]:
        """Train members in one go.

        Args:
            members: All members of the run.
            left: Those that an earlier part of the run has not trained.

        Returns:
            The results of those that were trained.

        Raises:
            UserError: torchensemble cannot train them.
            Interrupted: A signal asked the run to end; nothing of the members is kept.
        """
        members = self._anew(members, left)
        cfg, folder = member_config(self.run.cfg, members[0]), self.run.place.member(members[0].name).path
        first = build_learner(cfg, build_own(cfg, self.shared, folder), folder)
        sample = self._check(first)
        self.run.begin(first.engine, first.data, first)
        self.run.members.message(
            "torchensemble trains: the weights of the last epoch count, and are measured at the end; a run that is "
            "interrupted before that begins its members anew"
        )
        names = [member.name for member in members]
        parts = [self._part(member, first if member is members[0] else None) for member in members]
        training = self._training(parts, first, sample, partial(self._show, names, parts))
        container = training.run()
        del first
        joint = parts[0].made.model
        trained = [joint] if isinstance(joint, Joint) else container
        states: list[Mapping[str, Tensor]] = [network.state_dict() for network in trained]
        if training.start is not None:
            states.insert(0, training.start)
        return [
            self.train_one(self.run, member, self.shared, partial(_take, state, losses))
            for member, state, losses in zip(members, states, training.losses)
        ]

    def _anew(self, members: Sequence[RunMember], left: Sequence[RunMember]) -> list[RunMember]:
        """Return the members to be trained; what an earlier part of the run has left of them is removed."""
        run, tied = self.run, self.method in _TIED
        if tied and len(left) < len(members) and (run.place.path / run_files.ENSEMBLE_WEIGHTS).exists():
            what = (
                f"torchensemble trains the members of {self.method} in one go, and cannot add to those that are there"
            )
            fix = "a new run: lightkit train --from RUN; or ensemble.engine=sequential"
            raise UserError(what, key="ensemble.size", received=len(members), fix=fix, family="ensemble")
        chosen = list(members if tied else left)
        if run.resumes:
            names = ", ".join(member.name for member in chosen)
            run.tell(f"torchensemble keeps nothing of a training that was interrupted: {names} begin anew")
        for member in chosen:
            shutil.rmtree(run.place.member(member.name).path, ignore_errors=True)
        return chosen

    def _check(self, learner: Learner) -> tuple[Tensor, Tensor]:
        """Refuse what only data, network and optimizer tell; returns outputs and targets of a batch."""
        batch = next(iter(learner.data.train.epoch(0)))
        key, what = self._unable(learner, batch)
        if not what:
            x, y = learner.engine.move(batch)
            network = learner.model.estimators[0] if isinstance(learner.model, Joint) else learner.model
            with torch.no_grad():
                output = copy.deepcopy(network).train()(x)
            if isinstance(output, Tensor):
                return output, y
            key, what = "model", "takes networks that give one tensor"
        fix = "ensemble.engine=sequential"
        raise UserError(f"torchensemble {what}", key=key, received="torchensemble", fix=fix, family="ensemble")

    def _unable(self, learner: Learner, batch: Any) -> tuple[str, str]:
        """Return the key of what torchensemble cannot train, and why; empty where there is nothing."""
        if learner.made.prepared is not None:
            return "finetune", "steps every parameter from the first epoch on, and fine-tunes nothing"
        if self.run.cfg.ensemble.get("members"):
            return "ensemble.members", "trains members that are alike"
        if learner.data.info.task not in TASKS:
            known, task = " and ".join(TASKS), learner.data.info.task
            return "ensemble.engine", f"has no ensemble for {task} targets, only for {known}"
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2 and all(isinstance(one, Tensor) for one in batch)):
            return "ensemble.engine", "is given batches of one tensor of inputs and one of targets"
        if needs_closure(learner.optimizer) or averages_itself(learner.optimizer):
            return "optim", "steps by one gradient, and never asks an optimizer for the weights to evaluate"
        if learner.scheduler.monitored:
            return "scheduler", "gives a schedule no validated value"
        if self.method == "FastGeometric" and len({group["lr"] for group in learner.optimizer.param_groups}) > 1:
            return "optim.rules", "writes one rate into every group in its cycles"
        return "", ""

    def _part(self, member: RunMember, first: Learner | None) -> _Part:
        """Build the network of a member, with its first weights, its seeds and its rows."""
        run, cfg = self.run, member_config(self.run.cfg, member)
        if first is not None:
            return _Part(cfg, Shared(first.engine, first.data), first.timetable, first.made)
        own = build_own(cfg, self.shared, run.place.member(member.name).path)
        run.stack.callback(own.data.close)
        timetable = build_timetable(cfg, own.data)
        made = build_network(cfg, own.data.info, own.engine, timetable, data=own.data)
        return _Part(cfg, own, timetable, replace(made, model=own.engine.place_model(made.model)))

    def _training(
        self, parts: Sequence[_Part], first: Learner, sample: tuple[Tensor, Tensor], show: Callable[..., None]
    ) -> TorchEnsembleFit:
        """Gather what torchensemble is given."""
        options, info = to_plain(self.run.cfg.ensemble), first.data.info
        joint = parts[0].made.model
        networks = [*joint.estimators] if isinstance(joint, Joint) else [part.made.model for part in parts]
        size = len(networks) - (self.method == "FastGeometric")
        made, fitted = dict[str, Any](), dict[str, Any]()
        if self.method.endswith("GradientBoosting"):
            made["shrinkage_rate"] = options["shrinkage"]
        elif self.method == "Adversarial":
            fitted["epsilon"] = options["epsilon"]
        elif self.method == "FastGeometric":
            rate = first.optimizer.param_groups[0]["initial_lr"]
            fitted = {"cycle": options["cycle_epochs"], "lr_1": rate * options["high"], "lr_2": rate * options["low"]}
        output, target = sample
        return TorchEnsembleFit(
            method=self.method,
            task=info.task,
            outputs=info.num_classes or output.shape[-1],
            device=first.engine.device,
            networks=networks[:1] if self.method in ("Snapshot", "FastGeometric") else networks,
            size=size,
            epochs=[part.cfg.trainer.epochs for part in parts],
            length=len(first.data.train),
            batches=partial(self._batches, parts, output.shape[1:] if info.task == "regression" else target.shape[1:]),
            criterion=_Loss(first.criterion, target.shape[1:]),
            optimizer=partial(self._optimizer, parts),
            made=made,
            fitted=fitted,
            show=show,
            tell=lambda line: self.run.members.message(f"torchensemble  {line}", always=False),
        )

    def _batches(
        self, parts: Sequence[_Part], shape: torch.Size, member: int, epoch: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch, in the order that the member would have them in if lightkit trained it."""
        own, done, steps = parts[member].shared, 0, parts[member].timetable.steps_per_epoch
        for number, batch in enumerate(own.data.train.epoch(epoch)):
            self.run.signals.raise_at(epoch * steps + number)
            x, y = own.engine.move(batch)
            own.engine.seed(epoch, done)
            done += len(x)
            yield x, y.reshape(len(y), *shape)  # of one number and a target without a dimension it would make a table

    def _optimizer(self, parts: Sequence[_Part], number: int) -> Optimizer:
        """Build the optimizer of a member, whose schedule moves on with each of its steps."""
        part = parts[number]
        optimizer = build_optimizer(part.cfg.optim, part.made, part.timetable, part.shared.engine)
        own_rates = self.method == "Snapshot" or (self.method == "FastGeometric" and number > 0)
        if not own_rates:
            schedule = build_scheduler(part.cfg.scheduler, optimizer, part.timetable, mode=part.cfg.metrics.mode)
            optimizer.register_step_post_hook(lambda *_: schedule.step())
        return optimizer

    def _show(self, names: Sequence[str], parts: Sequence[_Part], member: int, epochs: int, loss: float) -> None:
        """Show how far a member is."""
        run, whole = self.run, int(parts[member].cfg.trainer.epochs)
        run.members.update(names[member], epoch=epochs, epochs=whole, share=min(1.0, epochs / whole))
        run.members.message(f"{names[member]}  epoch {epochs}/{whole}, torchensemble/loss {loss:.4g}", always=False)


class _Loss:
    """The loss of a run, for outputs and targets of the same shape; no module, as its weights would be trained.

    Args:
        criterion: The loss.
        shape: Shape of a target as the loss takes it.
    """

    def __init__(self, criterion: Callable[[Tensor, Tensor], Tensor], shape: torch.Size) -> None:
        self.criterion, self.shape = criterion, shape

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        target = target.reshape(len(target), *self.shape)
        return self.criterion(fit_shape(output, target), target)


def _take(
    state: Mapping[str, Tensor], losses: Sequence[float], run: MemberRun, learner: Learner, observer: Observer
) -> bool:
    """Take over what torchensemble has trained, and close the run of the member with it; see `lightkit.runner.fit`."""
    content.load_model(learner.model, dict(state))
    counters, table = learner.state, learner.timetable
    report = Reporter(run.logger, counters, table, Clock())
    for epoch, loss in enumerate(losses, 1):
        counters.step, counters.epoch = epoch * table.steps_per_epoch, epoch
        report.values({"torchensemble/loss": loss})
    counters.step, counters.epoch = table.total_steps, table.total_epochs - 1  # the loop ends this last epoch
    counters.samples_done = table.epoch_samples
    learner.scheduler.load_state_dict({"count": table.total_steps})
    # The loop takes the metrics over.
    evaluate_split(learner, "train", interrupt=run.session.signals, step=counters.step)
    return fit(run, learner, observer)


def export_torchensemble(run: Path, cfg: DictConfig, folder: Path) -> tuple[Path, str]:
    """Write the ensemble of a run for torchensemble.

    Args:
        run: The folder of the run.
        cfg: Its configuration.
        folder: Where to.

    Returns:
        The file, and the lines of Python that load it.

    Raises:
        UserError: It is no ensemble, or torchensemble has no such ensemble.
    """
    if not is_ensemble(run):
        fix = "a run with `ensemble=...`, or one that `lightkit ensemble` wrote"
        raise UserError("this run is no ensemble", key=str(run), fix=fix, family="ensemble")
    engine = build_engine(cfg)
    data = build_splits(cfg, engine, run)
    data.close()
    ensemble = build_ensemble(run, data.info, engine, trust=to_plain(cfg.trust))
    method = read_json(run / run_files.ENSEMBLE).get("method", "Voting")
    container = to_torchensemble(ensemble, method=method, outputs=data.info.num_classes)
    return write_file(container, folder), _call(container, cfg, data.info, folder)


def _call(container: Any, cfg: DictConfig, info: DataInfo, folder: Path) -> str:
    """Return the lines that load a file of torchensemble."""
    kind, network = type(container).__name__, container.base_estimator_
    taken = inspect.signature(network).parameters
    known = {name: value for name, value in info.sizes().items() if name in taken}
    arguments = {**known, **{name: value for name, value in to_plain(cfg.model).items() if name in taken}}
    more = "".join(
        f", {name}={getattr(container, name)!r}"
        for name in ("shrinkage_rate", "voting_strategy")
        if name in inspect.signature(type(container)).parameters and getattr(container, name) not in (1.0, "soft")
    )
    return "\n".join(
        (
            f"from {network.__module__} import {network.__name__}",
            f"from torchensemble import {kind}",
            "from torchensemble.utils import io",
            "",
            f"arguments = {arguments!r}",
            f"more = {{'n_estimators': {len(container)}, 'cuda': False}}",
            f"model = {kind}(estimator={network.__name__}, estimator_args=arguments{more}, **more)",
            f"io.load(model, {str(folder)!r})",
        )
    )


def import_torchensemble(file: Path, like: Path, cfg: DictConfig, folder: Path, *, trust: bool = False) -> None:
    """Write the ensemble in a file of torchensemble as a run, which can be measured and predicts.

    Args:
        file: The file.
        like: Folder of a run with such a network, whose data and scaling are taken.
        cfg: The configuration of that run.
        folder: Folder of the new run.
        trust: Open a file with Python objects, which runs the code in it.

    Raises:
        UserError: The file cannot be read, or its networks are not those of the run.
    """
    found = read_file(file, open_file(file, trust=trust))
    engine = build_engine(cfg)
    data = build_splits(cfg, engine, like)
    data.close()
    if data.info.task != found.task:
        what = "the ensemble has learnt another kind of target"
        raise UserError(what, key="--like", expected=found.task, received=data.info.task, family="ensemble")
    model = build_model(cfg, data.info, engine)
    for number, state in enumerate(found.states):
        load_fitting(model, state, source=f"{file.name}: network {number}")
    vote, shrinkage = cfg.ensemble.get("vote", "soft"), cfg.ensemble.get("shrinkage", 1.0)
    rule, weight = rule_of(found.kind, vote=vote, size=len(found.states))
    weight *= shrinkage if found.kind.endswith("GradientBoosting") else 1.0
    names = [f"{number:02}" for number in range(len(found.states))]
    own = with_values(cfg, {"ensemble": {"_target_": NO_ENSEMBLE}})
    members = [StoredMember(name, to_yaml(own), weight, state) for name, state in zip(names, found.states)]
    stored = StoredEnsemble(members, rule, data.info.task, tuple(data.info.class_names))
    place = RunFolder(folder)
    with place.begun(fresh=True):
        place.record(own, (), data=data.info.fingerprint, source=str(file), **facts_of(data))
        write_ensemble(folder / run_files.ENSEMBLE_WEIGHTS, stored)
        facts: dict[str, Any] = {"status": "finished", "depends_on": [], "weight": weight}
        rows = [{"name": name, **facts} for name in names]
        write_json(folder / run_files.ENSEMBLE, {"method": "Voting", "settings": {}, "members": rows})
        result: dict[str, Any] = {"status": "finished", "reason": None, "name": cfg.name, "objective": None}
        place.write_result({**result, "best": {}, "test": {}, "metrics": {}})
