"""Weights & Biases: https://docs.wandb.ai."""

from __future__ import annotations

import html
import logging
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.loggers.outbox import told
from lightkit.loggers.trackers.base import Medium, Row, Tracker, chosen_files, need, recalled, relations, remember

_LOG = logging.getLogger(__name__)
_QUIET = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
"""Variables for the client, where they are not set: it tells its makers of no errors, and prints nothing."""
_START_SECONDS = 30.0
"""Time in which the server has to answer when a run starts."""
_FINISH_SECONDS = 25.0
"""Time that the upload may take at the end of a run; what is left then is uploaded by `wandb sync`."""


class WandbLogger(Tracker):
    """Sends a run to Weights & Biases, or keeps it in the run's folder for `wandb sync`.

    A row of `metrics.jsonl` is one of the history there. Its `_step` follows from its number, so that the server says
    which rows it has; the curves are drawn over `step`. Where the server cannot be reached when a run starts, the run
    is kept as one that is offline.

    Args:
        folder: The run's folder.
        monitor: Name of the value of which the summary holds the best.
        mode: Whether `min` or `max` of it is better.
        project: Project there.
        entity: User or team there; None takes that of the key.
        name: Name of the run there; None takes that of its folder.
        group: Group of the run there; None groups the jobs of a sweep and the members of an ensemble.
        tags: Tags of the run.
        notes: What there is to say of it.
        files: Patterns of files in the run's folder that are uploaded at the end.
        offline: Keep it in the run's folder.
    """

    def __init__(
        self,
        folder: Path,
        monitor: str,
        mode: str,
        *,
        project: str = "lightkit",
        entity: str | None = None,
        name: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        files: Sequence[str] = (),
        offline: bool = False,
    ) -> None:
        need("wandb", "wandb")
        super().__init__(folder, monitor, mode, "wandb")
        own = relations(self.folder)
        self._facts: dict[str, Any] = {
            "project": project,
            "entity": entity,
            "name": name or own.name,
            "group": group or own.group or None,
            "job_type": own.role,
            "tags": [*tags],
            "notes": notes,
        }
        self._files, self._offline = files, offline or os.environ.get("WANDB_MODE") == "offline"
        self._run: Any = None
        self._begun = self._shift = 0
        self._exit_code, self._fallback, self._spare, self._sync = 1, "", "", "wandb sync"

    def open(self) -> int | None:
        """Open the run under its id; offline it is written anew, as such a file cannot be continued."""
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        known = {"id": secrets.token_hex(4), "shift": 0, **recalled(self.folder, self.kind)}
        remember(self.folder, self.kind, **known)
        self._finish(1)
        if not self._offline:
            self._go_online(known["id"], is_there="online" in known)
        for old in (self.home / "wandb").glob("offline-run-*"):
            shutil.rmtree(old, ignore_errors=True)
        if self._offline:
            self._run = self._init(self._spare or known["id"], "offline")
        self._begun, self._shift = int(self._run.starting_step), 0 if self._offline else int(known["shift"])
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric(self.monitor, step_metric="step", summary=self.mode)
        _LOG.info("wandb: %s", self._run.dir if self._offline else self._run.url)
        return None if self._offline else self._begun // 2 - self._shift

    def _go_online(self, name: str, *, is_there: bool) -> None:
        """Open the run on the server, which has it already or not; where that fails, it is one that is offline."""
        try:
            self._run = self._init(name, "online")
            remember(self.folder, self.kind, online=True)
        except Exception as error:
            self._offline, self._fallback = True, told(error)
            _LOG.warning("wandb is not online: %s; the run is kept in its folder", self._fallback)
            if isinstance(error, PermissionError):
                return
            self._spare = secrets.token_hex(4)  # the client takes the id that failed for one in use
            if is_there:
                self._sync = f"wandb sync --id {name}"  # so it joins what the server has of the run
            else:
                remember(self.folder, self.kind, id=self._spare)

    def _init(self, name: str, where: str) -> Any:
        import wandb

        if where == "online" and not has_key(wandb.setup().settings.base_url):  # it would ask on the terminal
            raise PermissionError("there is no key: set WANDB_API_KEY, or call `wandb login`")
        self.home.mkdir(exist_ok=True)
        settings = wandb.Settings(
            console="off",
            symlink=False,
            x_disable_stats=True,
            disable_code=True,
            reinit="create_new",
            init_timeout=_START_SECONDS if where == "online" else 10 * _START_SECONDS,
            finish_timeout=_FINISH_SECONDS,
            finish_timeout_raises=True,
        )
        modes: dict[str, Any] = {"mode": where, "resume": None if where == "offline" else "allow"}
        run = wandb.init(id=name, dir=str(self.home), settings=settings, **modes, **self._facts)
        for handler in logging.getLogger("wandb").handlers:  # of a full disk it would print a traceback a line
            handler.handleError = lambda record: None  # type: ignore[method-assign]
        return run

    def write(self, row: Row, at: int) -> None:
        """Write a row at a step of its own, as several may have one optimizer step."""
        told = {name: value for name, value in row.items() if name != "time"}
        seconds = {"_timestamp": row["time"]} if "time" in row else {}
        self._run.log({**told, **seconds}, step=2 * (at + self._shift) + 1, commit=True)

    def diverge(self, count: int) -> None:
        """Put all further rows behind those that cannot be taken back."""
        self._shift += count
        remember(self.folder, self.kind, shift=self._shift)
        what = f"{count} rows from step {self._ahead[0]['step']} on are of a part that the run has taken back"
        _LOG.warning("wandb: %s; the server keeps them beside the new ones", what)

    def has(self, medium: Medium, there: int) -> bool:
        """Tell whether the server has the step of a medium."""
        return 2 * (medium.at + self._shift) < self._begun

    def show(self, medium: Medium) -> None:
        """Show a medium at a step of its own, before the next row."""
        import numpy as np
        import wandb

        pictures = [wandb.Image(str(self.home / name)) for name in medium.files]
        shown: Any = pictures[0] if len(pictures) == 1 else pictures
        if medium.text:
            shown = wandb.Html(f"<pre>{html.escape(medium.text)}</pre>", inject=False)
        elif medium.histogram[0]:
            counts, edges = (np.asarray(numbers) for numbers in medium.histogram)
            shown = wandb.Histogram(np_histogram=(counts, edges))
        self._run.log({medium.name: shown, "step": medium.step}, step=2 * (medium.at + self._shift))

    def hparams(self, params: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        """Set the configuration of the run there."""
        self._run.config.update({**params, "overrides": [*overrides]}, allow_val_change=True)

    def end(self, status: str) -> None:
        """Set the status, and hand the files over."""
        self._exit_code = int(status != "finished")
        self._run.summary.update({"status": status})
        if self.best is not None:
            self._run.summary.update({f"best/{self.monitor}": self.best[0], "best/step": self.best[1]})
        for path in chosen_files(self.folder, self._files):
            self._run.save(str(path), base_path=str(self.folder.parent), policy="now")

    def suspend(self, status: str) -> None:
        """Set the status of a run that goes on later."""
        self._run.summary.update({"status": status})
        self._run.mark_preempting()

    def close(self) -> None:
        """Upload what is left."""
        if self._run is not None and self._fallback:
            where = Path(self._run.dir).parent
            _LOG.warning("wandb was not online: %s; this uploads the run: %s %s", self._fallback, self._sync, where)
        self._finish(self._exit_code)

    def _finish(self, code: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            try:
                run.finish(code)
            except TimeoutError:
                where = Path(run.dir).parent
                _LOG.warning("wandb: not all has arrived yet; this uploads the rest: wandb sync %s", where)


def has_key(address: str) -> bool:
    """Tell whether there is a key for a server of W&B: in the environment, or where `wandb login` keeps it."""
    import netrc
    from urllib.parse import urlsplit

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    with suppress(OSError, netrc.NetrcParseError):
        return netrc.netrc(os.environ.get("NETRC")).authenticators(urlsplit(address).hostname or "") is not None
    return False
