"""A run from its configuration to its result: build → resume → fit → evaluate → close."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import lightkit.trainer.summary as summary
from lightkit.assembly import Components, build, build_console, build_logger, build_store
from lightkit.assembly.origin import facts_of
from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config.marks import is_marked
from lightkit.config.received import check_received, without_grants
from lightkit.device.ranks import Ranks
from lightkit.diagnostics.memory import release
from lightkit.loggers import Logger, Loggers
from lightkit.metrics import Figures, Gathered
from lightkit.runner.evaluation import evaluate_split, load_weights
from lightkit.runner.exporting import export_run
from lightkit.runner.faults import as_user_error, translate_errors
from lightkit.runner.finetune_record import FinetuneRecord
from lightkit.runner.machine import Machine
from lightkit.runner.memory.batches import keep_resolved_batch_size, resolve_batch_size
from lightkit.runner.memory.oom import MemoryReport, release_frames
from lightkit.runner.merge import KeyChange, merge_configs
from lightkit.runner.messages import conclude, farewell, introduce
from lightkit.runner.models import with_checkpoint
from lightkit.runner.process_group import newest, process_group
from lightkit.runner.profiled import profiled
from lightkit.runner.restore import restore, start_logging
from lightkit.runner.training import make_saver, make_trainer
from lightkit.runs.folder import RunFolder, differences
from lightkit.trainer import State
from lightkit.trainer.interrupt import Interrupted, SharedSignals, Signals
from lightkit.trainer.predictions import Predictions

_LOG = logging.getLogger(__name__)


class Runner:
    """One run in one folder.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder; created when the run starts to write.
        overrides: What was typed on the command line, for the record.

    Example:
        ```python
        from lightkit import Runner, compose

        result = Runner(compose(["data=wine", "trainer.epochs=5"]).cfg, Path("outputs/runs/demo")).run()
        ```
    """

    def __init__(self, cfg: DictConfig, folder: Path, *, overrides: Sequence[str] = ()) -> None:
        self.cfg, self.folder, self.overrides = cfg, Path(folder), list(overrides)
        self._place, self._system, self._ranks = RunFolder(self.folder), dict[str, Any](), Ranks()
        self._scene, self._rows = MemoryReport(cfg, State()), dict[str, int]()

    def run(self, *, resume: bool = False) -> dict[str, Any]:
        """Train, test and write the result.

        Args:
            resume: Go on from the newest checkpoint in the folder. What it learnt from (rates, losses, data, seeds)
                stays as it was then, except for what `resume.override` names.

        Returns:
            The content of `result.json`.

        Raises:
            UserError: Something the user gave is wrong; nothing was written if it was wrong from the start.
            Interrupted: A signal asked the run to end; it has saved.
        """
        try:
            return self._run(resume)
        except UserError as error:
            release_frames(error)
            raise
        finally:
            self._scene = MemoryReport(self.cfg, State())
            release()  # for what comes next in this process: another run, a member of an ensemble

    def _run(self, resume: bool) -> dict[str, Any]:
        began, state, lines = time.monotonic(), State(), tuple[str, ...]()
        with ExitStack() as stack:
            self._scene = MemoryReport(self.cfg, state)
            stack.enter_context(translate_errors(self.folder, self._scene.report))
            self._ranks, self.cfg, self._place = stack.enter_context(process_group(self.cfg, self.folder))
            self.folder, resume = self._place.path, self._ranks.shared(lambda: resume)
            saved, changes = self._reopened(stack) if resume else (None, [])
            if saved is None:
                self.cfg, lines = resolve_batch_size(self.cfg, self._ranks, build_console(self.cfg).message)
            parts, notes = self._build(pretrained=saved is None), list[str]()
            stack.callback(parts.data.close)
            if saved is None:
                self._begin(stack, fresh=True)
            else:
                parts, notes = restore(saved, parts, state, changes)
            self._scene.cfg, self._scene.parts = self.cfg, parts
            notes += self._record(parts)
            stack.enter_context(self._outcome(state, began))
            signals = stack.enter_context(self._signals().caught())
            logger = stack.enter_context(self._logger(state))
            stack.enter_context(_kept(parts.store))
            notes = [*lines, *(notes if state.step else [])]
            introduce(self.cfg, self.folder, parts, logger, step=state.step, notes=notes)
            self._fit(parts, state, logger, signals)
            self._test(parts, state, logger, signals)
            export_run(self.cfg, self.folder, parts)
            return self._finish(parts, state, logger, time.monotonic() - began)

    def evaluate(self, split: str = "test", checkpoint: str = "best") -> dict[str, float]:
        """Metrics of a trained run on a split.

        Args:
            split: `train`, `val` or `test`.
            checkpoint: `best`, `last` or the path of a checkpoint file.

        Returns:
            Metrics by name, such as `test/accuracy`.

        Raises:
            UserError: There is no such split or checkpoint, or its weights do not fit the model.
        """
        return self.evaluate_splits([split], checkpoint)[split]

    def evaluate_splits(self, splits: Sequence[str], checkpoint: str = "best") -> dict[str, dict[str, float]]:
        """Metrics of a trained run on several splits, for which it is built once.

        Args:
            splits: Any of `train`, `val` and `test`.
            checkpoint: `best`, `last` or the path of a checkpoint file.

        Returns:
            The metrics of each split by name.

        Raises:
            UserError: There is no such split or checkpoint, or its weights do not fit the model.
        """
        with self._trained(checkpoint) as parts:
            return {split: evaluate_split(parts, split) for split in splits}

    def predict(self, split: str = "test", checkpoint: str = "best") -> list[dict[str, Any]]:
        """Outputs of a trained run for every sample of a split, in the order of the data.

        Args:
            split: `train`, `val` or `test`.
            checkpoint: `best`, `last` or the path of a checkpoint file.

        Returns:
            One row a sample: its row in the data set, target, prediction, and the probability of each class.

        Raises:
            UserError: There is no such split or checkpoint, or its weights do not fit the model.
        """
        with self._trained(checkpoint) as parts:
            collected = Predictions(parts.data.info.task, parts.data.info.class_names)
            evaluate_split(parts, split, [collected])
            return collected.rows(parts.data.rows[split])

    @contextmanager
    def _trained(self, checkpoint: str) -> Iterator[Components]:
        """The parts of a run that was trained, to evaluate with."""
        scene = MemoryReport(self.cfg, State())
        try:
            with translate_errors(memory=scene.report):
                scene.parts = parts = build(self.cfg, self.folder, pretrained=False, trains=False)
                for note in parts.data.notes:  # for `predict` too, whose output may be what is printed
                    _LOG.warning("%s", note)
                with closing(parts.data):
                    yield with_checkpoint(parts, checkpoint, self.folder, self.cfg)
        except UserError as error:
            release_frames(error)
            raise
        finally:
            release()

    def _begin(self, stack: ExitStack, *, fresh: bool = False) -> None:
        """Lock the folder and open its log."""
        stack.enter_context(self._place.begun(fresh=fresh))
        stack.enter_context(self._place.log())

    def _fit(self, parts: Components, state: State, logger: Logger, signals: Signals) -> None:
        tuned = FinetuneRecord(self.cfg, self.folder, parts, state=state, logger=logger)
        tuned.introduce()
        who: dict[str, Any] = {"state": state, "logger": logger, "save": self._saver(parts, state, logger)}
        machine = Machine(self.cfg, self.folder, parts)
        self._scene.memory = machine.memory
        who |= {"tuning": tuned.tuning, "clock": machine.clock}
        try:
            with machine, profiled(self.cfg, self.folder, parts, state=state, logger=logger) as kind:
                make_trainer(self.cfg, self._place, parts, kind=kind, signals=signals, **who).fit()
        finally:
            self._system = machine.summary()
            with suppress(OSError):
                tuned.write()

    def _saver(self, parts: Components, state: State, logger: Logger) -> Callable[[float | None], None]:
        return make_saver(self.cfg, parts, state, logger)

    def _build(self, *, pretrained: bool) -> Components:
        tell = build_console(self.cfg).message if self._ranks.main else _LOG.debug
        options: dict[str, Any] = {"ranks": self._ranks, "rows": self._rows, "report": tell}
        parts = build(self.cfg, self.folder, pretrained=pretrained, **options)
        return parts if self._ranks.main else replace(parts, store=None)

    def _signals(self) -> Signals:
        return Signals() if self._ranks.size == 1 else SharedSignals(self._ranks.vote)

    def _reopened(self, stack: ExitStack) -> tuple[dict[str, Any], list[KeyChange]]:
        """Lock the folder, read its newest checkpoint, and settle on the configuration to go on with."""
        self._begin(stack)
        self.overrides = [*dict.fromkeys([*self._place.typed(), *self.overrides])]
        found = newest(build_store(self.cfg, self.folder), self._ranks)
        if found is None:
            fix = "start a new run: lightkit train --from RUN"
            raise UserError("there is no checkpoint to go on from", key=str(self.folder), fix=fix)
        text = found["config"]
        known = self._ranks.shared(lambda: not text or is_marked(self.folder, text))
        text = text if known else without_grants(text)
        self.cfg, changes = merge_configs(keep_resolved_batch_size(self.cfg, text), text, self.cfg.resume.override)
        if not known:
            check_received(self.cfg, self.folder)
        return found, changes

    def _record(self, parts: Components) -> list[str]:
        """Write down what is about to run; returns what of it differs from the part of the run before."""
        before = self._place.facts()
        device, data = parts.engine.describe(parts.optimizer), parts.data.info.fingerprint
        facts = {"visible": parts.engine.placement.mapping, "data": data, **facts_of(parts.data)}
        self._place.record(self.cfg, self.overrides, device=device, **facts)
        if parts.store:
            parts.store.prepare()
        return differences(before, self._place.facts()) if before else []

    @contextmanager
    def _logger(self, state: State) -> Iterator[Logger]:
        logger = build_logger(self.cfg, self.folder) if self._ranks.main else Loggers([])
        start_logging(logger, self._place, state)
        try:
            yield logger
        except BaseException as error:
            with suppress(OSError):  # a full disk fails here once more, and says less
                if isinstance(error, Interrupted):
                    logger.message(farewell(error, self.folder, saved=self.cfg.checkpoint.enabled))
                logger.close()
            raise
        logger.close()

    @contextmanager
    def _outcome(self, state: State, began: float) -> Iterator[None]:
        """Write down how a run ended that did not reach its end, and say what the machine's errors mean."""
        try:
            yield
        except BaseException as error:
            shown = as_user_error(error, self.folder, self._scene.report) or error
            status = "interrupted" if isinstance(error, (KeyboardInterrupt, Interrupted)) else "failed"
            reason = str(shown) or type(error).__name__
            with suppress(OSError):
                _LOG.error("%s: %s", status, reason)
                self._write_result(status, state, seconds=time.monotonic() - began, reason=reason)
            if shown is error:
                raise
            raise shown from error

    def _test(self, parts: Components, state: State, logger: Logger, signals: Signals) -> None:
        """The final test, with figures; of the best weights where there are any on disk."""
        if self.cfg.trainer.test == "none" or parts.data.test is None:
            return
        wants_best = self.cfg.trainer.test == "best"
        best = self._ranks.shared(lambda: parts.store.best() if parts.store and wants_best else None)
        if best is not None:
            load_weights(parts, str(best), self.folder)
        else:
            parts.average.keep()
        info = parts.data.info
        figures = Figures(info.task, self.cfg.metrics.figures, info.class_names, info.num_classes)
        taken = Gathered(figures, self._ranks)
        values = evaluate_split(parts, "test", [taken], interrupt=signals, step=state.step)
        taken.exchange()
        state.last.update(values)
        logger.scalars(values, step=state.step, epoch=state.epoch)
        if self._ranks.main:
            figures.write(logger, self.folder / "figures", step=state.step)

    def _finish(self, parts: Components, state: State, logger: Logger, seconds: float) -> dict[str, Any]:
        """Hyperparameters, the closing table and the result file.

        That comes last: a run that is killed before counts as unfinished, one that has it is never gone on with.
        """
        if parts.store:
            parts.store.flush()
        conclude(self.cfg, self.folder, state, logger, overrides=self.overrides, system=self._system)
        logger.flush()
        return self._write_result("finished", state, seconds=seconds, reason=state.stop_reason)

    def _write_result(self, status: str, state: State, *, seconds: float, reason: str | None) -> dict[str, Any]:
        result = summary.result(
            state,
            status=status,
            monitor=self.cfg.metrics.monitor,
            mode=self.cfg.metrics.mode,
            reason=reason,
            name=self.cfg.name,
            seconds=round(seconds, 3),
            system=self._system,
        )
        self._place.write_result(result)
        return result


@contextmanager
def _kept(store: CheckpointStore | None) -> Iterator[None]:
    """Inside, checkpoints are written; afterwards all of them are on the disk, or the run did not end well."""
    with store or nullcontext():
        try:
            yield
        except Interrupted:
            if store is not None:
                store.flush()  # the promise that it is saved must not be given where it can't be kept
            raise
