"""The record of a run's fine-tuning: its plan, reported at the beginning and written down with what the audit found."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lightkit.assembly import Learner
from lightkit.assembly.matches import matches_of
from lightkit.assembly.origin import notes_on_base
from lightkit.assembly.phases import build_plan_of, build_tuning, notes_on_plan
from lightkit.common import run_files
from lightkit.common.shapes import OBJECTS
from lightkit.common.shards import is_shard
from lightkit.finetune.audit.formatting import format_names
from lightkit.finetune.audit.plan import Plan
from lightkit.finetune.tuning import NoTuning, Tuning
from lightkit.loggers import Logger
from lightkit.loggers.files import write_json
from lightkit.runs.reading import read_json
from lightkit.trainer import State

_MAX_ROWS = 12  # `lightkit plan` shows all of them


class FinetuneRecord:
    """Phases of a run and what is known of them.

    Args:
        cfg: The configuration.
        folder: The run's folder, which gets `finetune.json`.
        parts: The parts of the run, as they are in its first step.
        state: The counters.
        logger: Takes lines and the table.
    """

    def __init__(self, cfg: DictConfig, folder: Path, parts: Learner, *, state: State, logger: Logger) -> None:
        self.tuning, self._path, self._parts, self._logger = NoTuning(), folder / run_files.FINETUNE, parts, logger
        self._cfg, self._resumed = cfg, state.step > 0
        self._plan, self._rows_before = Plan(()), list[dict[str, Any]]()
        if parts.made.prepared is None:
            return
        self._plan, self._matches = build_plan_of(parts), matches_of(cfg, parts)
        ranks, sharded = parts.engine.ranks, any(map(is_shard, parts.model.parameters()))
        with suppress(OSError, ValueError, TypeError, LookupError):  # an older lightkit, or a power cut
            if self._resumed:  # what an earlier part of the run found of phases that had ended by then
                rows = read_json(self._path, {"audit": OBJECTS})["audit"]
                self._rows_before = [row for row in rows if row["to_step"] <= state.step]
        self.tuning = build_tuning(
            parts,
            self._plan,
            # One does for all, as all see the same, unless each holds a part of the model.
            audit=cfg.finetune.get("audit", "fail") if ranks.main or sharded else "none",
            report=logger.message,
            skipped=lambda: state.skipped + parts.engine.skipped(),
            on_phase_end=self._try_write,
            peers=ranks if sharded else None,
        )

    def introduce(self) -> None:
        """Report what was loaded, and what trains when."""
        report, lines = self._parts.made.report, list[str]()
        if report is not None:
            lines += [f"weights {report.source}: {report.summary()}", *report.text().splitlines()]
            lines += notes_on_base(self._cfg, self._parts.data)
        for line in lines if self._resumed else [*lines, *notes_on_plan(self._cfg, self._parts)]:
            self._logger.message(line)
        prepared = self._parts.made.prepared
        if prepared is None:
            return
        held = sorted(prepared.norms_held_by_model)
        if held:
            self._logger.message(f"the network itself holds norm layers in eval mode: {format_names(held)}")
        columns, rows = self._plan.table()
        if len(rows) <= _MAX_ROWS:
            self._logger.table("plan of the fine-tuning", columns, rows)
        if prepared.head is not None:
            self._logger.message(f"output layer: {prepared.described_head}")
        for line in self._plan.lines():
            self._logger.message(line)
        self.write()

    def write(self) -> None:
        """Write the plan, and what the audit found so far, into the run's folder."""
        prepared = self._parts.made.prepared
        if prepared is not None and self._parts.engine.ranks.main:
            content = {
                "plan": self._plan.to_json(),
                "head": prepared.head and prepared.head.to_json(),
                "layers": dict(self._parts.made.depths or {}),
                "patterns": [match.to_json() for match in self._matches],
                "audit": self.audit_rows(),
            }
            write_json(self._path, content)

    def audit_rows(self) -> list[dict[str, Any]]:
        """Return what the audit saw of the phases that have ended, also in earlier parts of a resumed run."""
        auditor = self.tuning.auditor if isinstance(self.tuning, Tuning) else None
        return [*self._rows_before, *(auditor.table() if auditor else [])]

    def _try_write(self) -> None:
        """Write down what was found, for the run may be killed; a disk that is full is reported elsewhere."""
        with suppress(OSError):
            self.write()
