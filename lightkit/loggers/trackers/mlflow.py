"""MLflow: https://mlflow.org/docs/latest/ml/tracking."""

from __future__ import annotations

import logging
import os
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lightkit.common.ledger import FACTS, MACHINE
from lightkit.common.run_files import CONFIG
from lightkit.loggers.tensorboard import flat
from lightkit.loggers.trackers.base import Medium, Row, Tracker, chosen_files, need, recalled, relations, remember

_LOG = logging.getLogger(__name__)
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "paused": "SCHEDULED"}
_MARK = "lightkit.mark"
"""A tag by which a run is found again whose id nobody has kept."""
_MOST_PARAMS, _MOST_LETTERS = 100, 500
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # it is tried again here
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


class MlflowLogger(Tracker):
    """Sends a run to MLflow: to the server or the database that MLFLOW_TRACKING_URI names, or to `mlflow.db`.

    MLflow keeps every point that it was ever given. So where a run goes on, its points are read first, and those that
    are there are not sent again.

    Args:
        folder: The run's folder.
        monitor: Name of the value of which the best is a metric of its own, `best/NAME`.
        mode: Whether `min` or `max` of it is better.
        experiment: Experiment there; made where there is none.
        name: Name of the run there; None takes that of its folder.
        tags: Tags of the run.
        notes: What there is to say of it.
        files: Patterns of files in the run's folder that become artifacts at the end.
    """

    def __init__(
        self,
        folder: Path,
        monitor: str,
        mode: str,
        *,
        experiment: str = "lightkit",
        name: str | None = None,
        tags: Mapping[str, str] | None = None,
        notes: str | None = None,
        files: Sequence[str] = (CONFIG,),
    ) -> None:
        need("mlflow", "mlflow")
        super().__init__(folder, monitor, mode, "mlflow")
        self._experiment, self._name, self._files = experiment, name, files
        self._tags = {**(tags or {}), **({"mlflow.note.content": notes} if notes else {})}
        self._run = ""
        self._points: dict[tuple[str, int], set[str]] | None = None
        self._sent: set[tuple[str, int]] = set()
        self._told = False

    @cached_property
    def _client(self) -> Any:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        import mlflow

        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        return mlflow.MlflowClient()

    def open(self) -> int | None:
        """Open the run; what it has is found out point by point."""
        self._run, self._points = self._run_of(self.folder, self._name, self._tags), None
        return None

    def _run_of(self, folder: Path, name: str | None, tags: Mapping[str, str]) -> str:
        """Return the id of the run of a folder; it is made where there is none."""
        from mlflow.exceptions import MlflowException
        from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

        kept = recalled(folder, self.kind)
        known, mark = kept.get("run", ""), kept.get("mark", "")
        if mark and not known:  # this process may have been killed before it kept the id of a run that it had made
            found = self._client.search_runs([self._experiment_id()], f"tags.`{_MARK}` = '{mark}'", max_results=1)
            known = found[0].info.run_id if found else ""
        if known:
            try:
                self._client.update_run(known, status="RUNNING")
                remember(folder, self.kind, run=known)
                return str(known)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        mark = uuid.uuid4().hex
        remember(folder, self.kind, mark=mark, run="")
        own, whole = relations(folder), {_MARK: mark, "lightkit.folder": str(folder), **tags}
        whole |= {"lightkit.role": own.role, **({"lightkit.group": own.group} if own.group else {})}
        if own.parent is not None:
            whole[MLFLOW_PARENT_RUN_ID] = self._run_of(own.parent, None, {})
        run = self._client.create_run(self._experiment_id(), tags=whole, run_name=name or own.name)
        remember(folder, self.kind, run=run.info.run_id)
        return str(run.info.run_id)

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self._experiment))

    def write(self, row: Row, at: int) -> None:
        """Send the values of a row that are not there."""
        from mlflow.entities import Metric

        now, step = int(1000 * row.get("time", time.time())), int(row["step"])
        values = {_allowed(name): float(value) for name, value in row.items() if name not in FACTS}
        new = {name: value for name, value in values.items() if self._is_new(name, value, step)}
        try:
            self._client.log_batch(self._run, [Metric(name, value, now, step) for name, value in new.items()])
        except Exception:
            self._points = None  # some of them may have arrived
            raise
        finally:
            self._sent |= {(name, step) for name in new}
        for name, value in new.items():
            self._known()[name, step].add(str(value))

    def _known(self) -> dict[tuple[str, int], set[str]]:
        """Return what is there: by name and step, values as text."""
        if self._points is None:
            points = defaultdict[tuple[str, int], set[str]](set)
            for key in self._client.get_run(self._run).data.metrics:
                for point in self._client.get_metric_history(self._run, key):
                    points[key, point.step].add(str(point.value))
            self._points = points
        return self._points

    def _is_new(self, name: str, value: float, step: int) -> bool:
        there = self._known()[name, step]
        if not there or str(value) in there or name.startswith(MACHINE):
            return not there
        if not self._told and (name, step) not in self._sent:  # an ensemble measures its last step twice
            self._told = True
            what = f"step {step} has another {name} than before the run was stopped"
            _LOG.warning("mlflow: %s; the server keeps such points beside the new ones", what)
        return True

    def show(self, medium: Medium) -> None:
        """Keep pictures and texts as artifacts; a histogram is none."""
        where = f"media/{_allowed(medium.name)}"
        for file in medium.files:
            self._client.log_artifact(self._run, str(self.home / file), where)
        if medium.text:
            self._client.log_text(self._run, medium.text, f"{where}/{medium.step:07d}.md")

    def hparams(self, params: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        """Log the settings by dotted name. MLflow keeps the first value of each: one that has changed is a tag."""
        from mlflow.entities import Param

        there = self._client.get_run(self._run).data.params
        given = {_allowed(name): str(value)[:_MOST_LETTERS] for name, value in flat(params).items()}
        new = [Param(name, value) for name, value in given.items() if name not in there]
        for first in range(0, len(new), _MOST_PARAMS):
            self._client.log_batch(self._run, params=new[first : first + _MOST_PARAMS])
        changed = {f"changed.{name}": value for name, value in given.items() if there.get(name, value) != value}
        for name, value in {**changed, "lightkit.overrides": " ".join(overrides)}.items():
            self._client.set_tag(self._run, name, value)

    def end(self, status: str) -> None:
        """Set the status, the best value and the artifacts."""
        if self.best is not None:
            self.write({"step": self.best[1], f"best/{self.monitor}": self.best[0]}, self.at)
        for path in chosen_files(self.folder, self._files):
            below = path.relative_to(self.folder).parent
            self._client.log_artifact(self._run, str(path), None if below == Path() else str(below))
        self.suspend(status)

    def suspend(self, status: str) -> None:
        """Set the status."""
        self._client.set_tag(self._run, "lightkit.status", status)
        self._client.set_terminated(self._run, _STATUS[status])


def _allowed(name: str) -> str:
    """Return a name with `_` for what MLflow takes in none."""
    return re.sub(r"[^-\w. /]", "_", name).strip("/")[:250]
