"""What a member of an ensemble predicts of rows that it did not learn from, and at validations, kept in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly.parts import role_of
from lightkit.assembly.run_rows import ensemble_of
from lightkit.checkpoint import content
from lightkit.common import run_files
from lightkit.common.modules import mapped, tensors
from lightkit.data import DataInfo, Loader
from lightkit.ensemble.combining import as_probabilities
from lightkit.ensemble.methods.base import MemberResult
from lightkit.ensemble.oof import SPLITS, TASKS, MemberPredictions, write_all
from lightkit.ensemble.stack import StackedLoader, StackMember, same_rows
from lightkit.ensemble.validations import KEPT_BYTES, SharedValidationOutputs, ValidationOutputs
from lightkit.ensemble.vmapped import Computation, StackedModel, StackedTask
from lightkit.metrics import Gathered
from lightkit.metrics.stacked import StackedMetrics
from lightkit.runner.evaluation import load_counted, pass_over
from lightkit.runner.member import MemberRun
from lightkit.runner.session import Session
from lightkit.trainer.evaluate import Predictions, ValidationMeter, evaluate
from lightkit.trainer.interrupt import AskedToEnd, Interrupt
from lightkit.trainer.learner import Evaluable, Learner


class Outputs(NamedTuple):
    """What a member gives for the rows of a split."""

    rows: Tensor
    """Rows of the data set, `(N,)`."""
    outputs: Tensor
    """Raw outputs, `(N, ...)`."""
    targets: Tensor
    """Their targets, `(N, ...)`."""


HELD_OUT = {"train": "left_out", "val": "val", "test": "test"}
"""Of each split, which of its rows a member has not learnt from."""


_MOST_NUMBERS = 1_000_000
"""A member with more weights gives its memory back."""


def is_member(folder: Path) -> bool:
    """Tell whether a folder is that of a member of an ensemble."""
    return folder.parent.name == run_files.MEMBERS


def keep_predictions(run: MemberRun, learner: Learner, *, loaded: bool = False) -> dict[str, Tensor] | None:
    """Write what the weights that count predict of all rows that were held out, of targets that can be kept.

    Args:
        run: The member.
        learner: Its model, with its data; its weights are replaced by those that count.
        loaded: It has these already.

    Returns:
        These weights, which the ensemble would read again, of a small model; None of others.

    Raises:
        UserError: The file cannot be written.
        Interrupted: A signal asked the run to end.
    """
    if learner.data.info.task not in TASKS:
        return None
    if not loaded:
        load_counted(run, learner)
    found = predict_held_out(learner, source=str(run.path), interrupt=run.session.signals, step=learner.state.step)
    run.session.ranks.shared(lambda: found.write(run.path / run_files.PREDICTIONS_HELD_OUT))
    state: dict[str, Any] = learner.model.state_dict() if run.session.ranks.size == 1 and learner.store else {}
    small = sum(tensor.numel() for tensor in tensors(state)) <= _MOST_NUMBERS
    return mapped(lambda tensor: tensor.detach().cpu().clone(), dict(state)) if state and small else None


def predict_held_out(
    learner: Learner, *, source: str, interrupt: Interrupt | None = None, step: int = 0
) -> MemberPredictions:
    """Predict all rows that a model did not learn from.

    Args:
        learner: The model with the weights that count, and its data.
        source: What error messages call the predictions.
        interrupt: Tells when a signal asked the run to end.
        step: Optimizer step that the run ends at.

    Raises:
        Interrupted: A signal asked the run to end.
    """
    info, data, found = learner.data.info, learner.data, dict[str, Outputs]()
    for split, held_out in HELD_OUT.items():
        loader = data.evaluation(held_out)
        if loader is None:
            continue
        taken = Predictions(info.task, info.class_names)
        gathered = Gathered(taken, learner.engine.ranks)
        pass_over(learner, loader, [gathered], interrupt=interrupt, step=step)
        gathered.exchange()
        if learner.engine.ranks.main:
            found[split] = Outputs(loader.rows, *taken.tensors())
    return as_predictions(found, info, source=source)


def keep_outputs(
    outputs: Mapping[str, Sequence[Outputs]], members: Sequence[tuple[DataInfo, Path]]
) -> list[MemberPredictions]:
    """Write and return what members predict of rows that they did not learn from, where their outputs are known.

    Args:
        outputs: Those of each member, by the names of `HELD_OUT`.
        members: Facts about the data of each, and its folder.

    Raises:
        UserError: A file cannot be written.
    """
    found = {split: outputs[held_out] for split, held_out in HELD_OUT.items() if held_out in outputs}
    alike = found and len({id(info) for info, _ in members}) == 1
    pairs = [(one, own[0]) for own in found.values() for one in own]
    alike = alike and all(one.rows.equal(first.rows) and one.targets.equal(first.targets) for one, first in pairs)
    kept = [
        as_predictions({split: own[place] for split, own in found.items()}, info, source=str(folder))
        for place, (info, folder) in enumerate(members[:1] if alike else members)
    ]
    if alike:  # over the last dimension a softmax takes long
        columns = [torch.stack([one.outputs.reshape(len(one.rows), -1).T for one in own]) for own in found.values()]
        chances = as_probabilities(torch.cat(columns, 2), kept[0].task).mT.contiguous()
        kept = [replace(kept[0], predictions=own, source=str(folder)) for own, (_, folder) in zip(chances, members)]
    write_all(kept, [folder / run_files.PREDICTIONS_HELD_OUT for _, folder in members])
    return kept


def as_predictions(outputs: Mapping[str, Outputs], info: DataInfo, *, source: str) -> MemberPredictions:
    """Make predictions of the raw outputs for rows that were held out.

    Args:
        outputs: By split; of `train` those of rows that were left out.
        info: Facts about the data.
        source: What error messages call the predictions.
    """
    parts = [
        (
            own.rows,
            torch.full((len(own.rows),), SPLITS.index(split), dtype=torch.uint8),
            as_probabilities(own.outputs, info.task),
            own.targets,
        )
        for split, own in outputs.items()
    ]
    if not parts:
        nothing = torch.zeros(0)
        parts = [(nothing.long(), nothing.to(torch.uint8), nothing[:, None], nothing)]
    rows, split, predictions, targets = map(torch.cat, zip(*parts))
    facts = info.task, info.fingerprint, tuple(info.class_names)
    return MemberPredictions(rows, split, torch.ones_like(rows), predictions, targets, *facts, source)


def validation_meters(run: MemberRun, learner: Learner) -> list[ValidationMeter]:
    """Return what keeps the outputs of a run's validations: of a member of an ensemble that learns by itself.

    Args:
        run: The run, which has begun.
        learner: Its model, with its state.
    """
    role = role_of(run.cfg)
    tied = role.weights_of or role.computed_from or role.adds_to is not None or role.features or role.joint
    if ensemble_of(run.path) is None or tied or learner.data.val is None:
        return []
    ranks = learner.engine.ranks
    kept = ValidationOutputs(run.path / run_files.VALIDATIONS, learner.timetable, tell=run.logger.message)
    if ranks.main:
        kept.start(learner.state.step)
    return [kept if ranks.size == 1 else SharedValidationOutputs(kept, ranks)]


def forget_validations(members: Sequence[MemberResult]) -> None:
    """Remove the large ones of the files with the outputs of validations, of an ensemble that is combined."""
    for member in members:
        path = member.folder / run_files.VALIDATIONS
        if path.exists() and path.stat().st_size > KEPT_BYTES:
            path.unlink()


def evaluate_ended(
    parts: Sequence[StackMember], splits: Sequence[str], *, cfg: DictConfig, saves: bool, run: Session
) -> tuple[list[dict[str, Tensor]], dict[str, list[Outputs]]]:
    """Test members that have ended, with the weights that count.

    Args:
        parts: The members; the values of their tests are logged.
        splits: Splits whose outputs are needed.
        cfg: The configuration of all.
        saves: Whether there are checkpoints, and so best weights.
        run: The run.

    Returns:
        These weights of each by the model's names, and the outputs of each by split.
    """
    test, states = cfg.trainer.test, list[dict[str, Tensor]]()
    bests = saves and cfg.checkpoint.keep_best > 0 and test != "last"
    for part in parts:
        saved = part.best if bests and part.best is not None else part.last
        assert saved is not None, "ended"
        states.append(content.model_state(saved))
    tested = test != "none" and parts[0].learner.data.test is not None
    figures = bool(cfg.metrics.figures) and test != "none"
    outputs: dict[str, list[Outputs]] = {}
    for split in dict.fromkeys([*splits, *(["test"] if tested else [])]):
        like = parts[0].learner.metrics.get(split) if tested and split == "test" else None
        found, values = _evaluate_at_once(parts, states, split, like, collect=split in splits or figures, run=run)
        if found:
            outputs[split] = found
        for part, own in zip(parts, values):
            part.state.last.update(own)
            part.history.scalars(own, step=part.state.step, epoch=part.state.epoch)
    return states, outputs


def _evaluate_at_once(
    parts: Sequence[StackMember], states: Sequence[Any], split: str, like: Any, *, collect: bool, run: Session
) -> tuple[list[Outputs], list[dict[str, float]]]:
    """Evaluate the models of members on a split, each on its own rows, with metrics like others where there are some.

    Returns:
        The outputs of each where they are collected, and the values of its metrics where it is measured.
    """
    first = parts[0].learner
    loaders = [part.learner.data.evaluation(split) for part in parts]
    known = [loader for loader in loaders if loader is not None]
    if len(known) < len(parts):
        return [], []
    if len({loader.num_samples for loader in known}) > 1:
        pairs = zip(parts, states)
        pieces = [_evaluate_at_once([part], [own], split, like, collect=collect, run=run) for part, own in pairs]
        return [found for own, _ in pieces for found in own], [values for _, own in pieces for values in own]
    shared = all(same_rows(loader, known[0]) for loader in known)
    model = StackedModel([part.learner.model for part in parts])
    device = first.engine.device  # what was read from a file is on the CPU
    model.load_state_dict({name: torch.stack([own[name].to(device) for own in states]) for name in states[0]})
    task = StackedTask(Computation(model, first.network, first.task, first.criterion), shared=shared)
    meters: list[Any] = [StackedMetrics(like, len(parts))] if like is not None else []
    taken = _Taken()
    first.engine.seed_validation(0)
    try:
        evaluate(
            Evaluable(model, task, first.criterion, first.engine),
            known[0] if shared else StackedLoader(known),
            [*meters, *([taken] if collect else [])],
            each=lambda _batch: run.signals.raise_at(parts[0].state.step),
            interrupt=run.signals,
        )
    except AskedToEnd:
        run.signals.raise_at(parts[0].state.step)
        raise
    values = meters[0].compute() if meters else []
    return taken.of(known) if collect else [], values


class _Taken:
    """Collects the outputs of many models."""

    def __init__(self) -> None:
        self._batches: list[tuple[Tensor, Tensor]] = []

    def update(self, preds: Tensor | None, target: Tensor | None, *_more: Any) -> None:
        """Take in a batch, `(M, B, ...)`."""
        if preds is not None and target is not None:
            self._batches.append((preds.detach().float().cpu(), target.detach().cpu()))

    def of(self, loaders: Sequence[Loader]) -> list[Outputs]:
        """Return what each model gave for the rows of its loader."""
        if not self._batches:
            return []
        preds, targets = (torch.cat(parts, 1) for parts in zip(*self._batches))
        return [Outputs(loader.rows, *pair) for loader, *pair in zip(loaders, preds, targets)]
