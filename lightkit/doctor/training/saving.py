"""Whether a checkpoint brings everything back, and whether there is room for those that will come."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lightkit.assembly import Learner
from lightkit.checkpoint import content
from lightkit.checkpoint.facts import size_text
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common import run_files
from lightkit.common.modules import mapped
from lightkit.diagnostics.memory import release
from lightkit.doctor.checks import ExaminedRun
from lightkit.doctor.finding import Finding, able, named
from lightkit.doctor.training.probing import alike, compute, differing, some_steps, state_of, train_step
from lightkit.runner.restore import stateful
from lightkit.runs.catalog import project
from lightkit.trainer.state import Timetable

_STEPS = 2
_TIGHT = 0.5
"""Share of the free disk from which on checkpoints are worth a warning."""
_ROUNDING, _GPU_ROUNDING = 1e-5, 1e-3


@able(as_run=True)
def check(run: ExaminedRun) -> Iterator[Finding]:
    """Save a model in mid-training, load it into a fresh one, and let both make the same step."""
    if not run.cfg.checkpoint.enabled:
        why = "a run that ends early has to start anew"
        measured = "none will be written (checkpoint.enabled=false)"
        yield Finding("checkpoint", "note", measured, why, "checkpoint.enabled")
        return
    learner = run.learner()
    *_, last = some_steps(learner, _STEPS, run.rows(learner.data.train.batch_size))
    store = CheckpointStore(run.folder / run_files.CHECKPOINTS)
    store.prepare()
    path = store.save(content.gather(**stateful(learner), config_text=""), step=_STEPS)
    yield disk(run, learner.timetable, path.stat().st_size)
    kept = state_of(learner)
    here, exact = _going_on(learner, last), learner.engine.device.type == "cpu"
    del learner  # two of a large model may not fit beside each other
    release()
    other = run.learner()
    content.apply(store.load(path), **stateful(other))
    path.unlink()
    lost = differing(kept, state_of(other))
    yield _compared(here, _going_on(other, last), exact=exact, lost=lost)


class NextStep(NamedTuple):
    """What becomes of a model from where it was saved."""

    evaluated: float
    """The loss of a batch in evaluation."""
    loss: float
    """The loss of the next training step."""
    weights: dict[str, torch.Tensor]
    """The weights after that step."""


def _going_on(learner: Learner, batch: Any) -> NextStep:
    learner.network.eval()
    with torch.no_grad():
        evaluated = float(compute(learner, mapped(torch.clone, batch)).loss)
    learner.network.train()
    loss = train_step(learner, mapped(torch.clone, batch), key=_STEPS)
    return NextStep(evaluated, loss, {name: each.cpu() for name, each in learner.model.state_dict().items()})


def _compared(here: NextStep, there: NextStep, *, exact: bool, lost: Sequence[str] = ()) -> Finding:
    """Compare how training goes on with and without a checkpoint in between.

    Args:
        here: Without.
        there: With.
        exact: The device gives the same twice; a GPU does so only nearly, which an optimizer may enlarge.
        lost: Attributes that are not what they were.
    """
    differing = [
        name for name, each in here.weights.items() if exact and not alike(each, there.weights[name], 1e-3, 1e-5)
    ]
    numbers = {"evaluated": here[0:1] + there[0:1], "losses": here[1:2] + there[1:2], "differing": differing}
    pairs = {
        "the loss of a batch in evaluation": (here.evaluated, there.evaluated),
        "the loss of the next step": (here.loss, there.loss),
    }
    limit = _ROUNDING if exact else _GPU_ROUNDING
    faults = [
        f"{what} is {a:.6g}, and {b:.6g} after loading" for what, (a, b) in pairs.items() if not _near(a, b, limit)
    ]
    faults += [f"after one more step {named(differing)} are not the same"] if differing else []
    if not faults:
        measured = "saved, loaded into a fresh model, and trained on: the same"
        return Finding("checkpoint", "ok", measured, numbers=numbers)
    measured = faults[0]
    why = "a resumed or evaluated run is another one: something that counts is in no checkpoint"
    fix = "keep it in register_buffer(...) or a parameter, not in a plain attribute or with persistent=False"
    if lost:
        measured += f": {named([f'`{each}`' for each in lost])} begins anew"
        attribute = lost[0].rpartition(".")[2]
        fix = f'self.register_buffer("{attribute}", torch.tensor(...)) and self.{attribute}.copy_(...)'
    return Finding("checkpoint", "error", measured, why, "model", fix, numbers)


def _near(one: float, other: float, limit: float) -> bool:
    return abs(one - other) <= limit * max(1.0, abs(one)) or (math.isnan(one) and math.isnan(other))


def disk(run: ExaminedRun, timetable: Timetable, size: int) -> Finding:
    """Compare the checkpoints that will be kept at once with the room on the disk.

    Args:
        run: The run.
        timetable: Its lengths.
        size: Bytes of one checkpoint.
    """
    options = run.full_cfg.checkpoint
    count = kept_at_once(timetable, last=options.keep_last, best=options.keep_best, every=options.keep_every)
    outputs = project() / run_files.OUTPUTS
    place = next(each for each in (outputs, *outputs.parents) if each.is_dir())
    free, needed = shutil.disk_usage(place).free, count * size
    numbers = {"checkpoint_bytes": size, "checkpoints": count, "needed_bytes": needed, "free_bytes": free}
    each = f"checkpoints of {size_text(size)}" if count > 1 else f"checkpoint of {size_text(size)}"
    measured = f"{count:,} {each} at a time take {size_text(needed)} of {size_text(free)} free at {place}"
    if needed <= _TIGHT * free:
        return Finding("disk", "ok", measured, numbers=numbers)
    why = "a run that cannot save ends in mid-training"
    keys = ("keep_every", "null") if options.keep_every else ("keep_last", "1")
    key = f"checkpoint.{keys[0]}"
    fix = f"{key}={keys[1]}, or another place: hydra.run.dir=FOLDER"
    return Finding("disk", "error" if needed > free else "warning", measured, why, key, fix, numbers)


def kept_at_once(timetable: Timetable, *, last: int, best: int, every: int | None) -> int:
    """Count the checkpoints of a run that lie on the disk at the end; one is written before another is deleted."""
    total = timetable.total_steps
    saves = max(1, total // (timetable.save_steps or timetable.steps_per_epoch * (timetable.save_epochs or 1)))
    forever = min(saves, total // every) if every else 0
    return min(saves, last + best) + forever + 1
