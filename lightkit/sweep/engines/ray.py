"""Jobs of a sweep as tasks of Ray (https://docs.ray.io), on this machine or on a cluster that runs already."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightkit.common import run_files
from lightkit.common.errors import FAILED, IN_USE, UserError
from lightkit.processes import guard
from lightkit.processes.children import Child, Hung
from lightkit.processes.files import without_links
from lightkit.sweep.engines.base import JobEngine, SweepPlan, job_command
from lightkit.sweep.job import Start

_IN_USE_SECONDS = 120.0
"""How long a task waits for a folder that is in use: the job's process on a node that was lost still saves."""
_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.5
_NOW = "now"
_ANSWER_SECONDS = 10.0
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Without this, Ray reports its use to its makers."""
_SAFE = {"RAY_AUTH_MODE": "token"}
"""Without this, Ray lets whoever reaches its port run code. On a cluster that runs already, the user decides."""
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Only with this does Ray listen on 127.0.0.1; the address that it is given is replaced otherwise."""


def work(command: Sequence[str], cwd: str, env: Mapping[str, str], log: str, stop_file: str) -> int:
    """Run a job on a node; return its exit status.

    Ray loads this function on the node. It ends the job when the sweep asks for it through a file beside the job, which
    every node sees. When Ray ends this process, the guard tells the job.

    Args:
        command: What runs the job.
        cwd: Working directory.
        env: Variables of its environment.
        log: File for what it prints.
        stop_file: The job is to save and to end when this file exists.
    """
    begun = time.monotonic()
    while True:
        code = _run(command, cwd, env, log, Path(stop_file))
        if code != IN_USE or time.monotonic() - begun > _IN_USE_SECONDS:
            return code
        time.sleep(_POLL_SECONDS)


def _run(command: Sequence[str], cwd: str, env: Mapping[str, str], log: str, stop_file: Path) -> int:
    given = {**os.environ, **env}
    # A task without GPUs sees all of its node if the variable is not set.
    given.setdefault("CUDA_VISIBLE_DEVICES", "")
    with Path(log).open("ab") as file:
        guarded = [sys.executable, guard.__file__, *command]
        job = Child(guarded, cwd=cwd, output=file, variables=given, own_session=False)
        told = set[str]()
        while True:
            try:
                return job.wait(timeout=_POLL_SECONDS)
            except Hung:
                asked = stop_file.read_text(encoding="utf-8") if stop_file.exists() else None
                if asked is not None and asked not in told:
                    job.send_signal(guard.KILL if asked == _NOW else signal.SIGTERM)
                    told.add(asked)


class RayEngine(JobEngine):
    """Run jobs as tasks of Ray, each with its processors and GPUs. A job whose node is lost goes on on another one.

    Jobs are told to save and end when the process of the sweep ends.

    Args:
        folder: Folder of the sweep, on a disk that the nodes see.
        command: Makes the command that runs a job or lets it go on.
        address: Of a running cluster; None starts Ray on this machine, where nothing outside of it can reach it.
        cpus: Processors of a job.
        gpus: GPUs of a job; a share of one below 1.
        lost_nodes: How often a job may go on elsewhere.
        slots: Jobs at once; None for as many as there is room for.

    Raises:
        UserError: Ray is missing, the cluster does not answer, or no node is large enough for a job.
    """

    def __init__(
        self,
        folder: Path,
        command: Callable[[Start], Sequence[str]],
        *,
        address: str | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        lost_nodes: int = 3,
        slots: int | None = None,
    ) -> None:
        self._ray = _connected(address)
        self._own = folder.resolve() / run_files.SWEEP_RAY
        _shorten_messages(self._ray, self._own / "messages.log")
        self._command, self._slots = command, slots
        self._needs = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=lost_nodes)(work)
        self._jobs: dict[Any, str] = {}
        self._why, self._lost_nodes = dict[str, str](), lost_nodes
        try:
            self._need_room()
        except UserError:
            self.close()
            raise

    @classmethod
    def build(cls, plan: SweepPlan, **options: Any) -> RayEngine:
        """Build it with the options of `sweep.ray`."""
        share = float(plan.options["gpus_per_job"] or 0)
        return cls(plan.folder, job_command, **plan.options["ray"], gpus=share, slots=plan.options["slots"])

    def room(self) -> int:
        """Return how many jobs more fit on the nodes that are alive."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fit = sum(int(min(node.get(kind, 0) / amount for kind, amount in self._needs.items())) for node in nodes)
        return max(0, min(fit, self._slots or fit) - len(self._jobs))

    def start(self, start: Start) -> None:
        """Hand a job to Ray."""
        stop_file = self._stop_file(start.job.name)
        stop_file.parent.mkdir(parents=True, exist_ok=True)
        stop_file.unlink(missing_ok=True)
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
        log = start.job.folder / run_files.OUTPUT_LOG
        task = self._task.remote(list(self._command(start)), str(Path.cwd()), env, str(log), str(stop_file))
        self._jobs[task] = start.job.name

    def stop(self, name: str, *, now: bool = False) -> None:
        """Tell a job to save and to end, or kill it; one that has not begun ends as soon as it does."""
        stop_file = self._stop_file(name)
        stop_file.parent.mkdir(parents=True, exist_ok=True)
        stop_file.write_text(_NOW if now else "", encoding="utf-8")

    def wait(self, seconds: float) -> Mapping[str, int]:
        """Wait until jobs have ended, at most so long; return their exit statuses."""
        if not self._jobs:
            time.sleep(min(seconds, _POLL_SECONDS))
            return {}
        ended: dict[str, int] = {}
        ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        more, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0)
        for task in {*ready, *more}:
            name = self._jobs.pop(task)
            try:
                ended[name] = int(self._ray.get(task))
            except self._ray.exceptions.RayError:
                ended[name] = FAILED
                self._why[name] = f"its node was lost, more often than sweep.ray.lost_nodes={self._lost_nodes} allows"
        return ended

    def attach(self, names: Sequence[str]) -> Sequence[str]:
        """Return nothing: jobs end with the process of the sweep that started them."""
        return []

    def place(self, name: str) -> str:
        """Say where a job is."""
        return "ray" if name in self._jobs.values() else ""

    def why(self, name: str) -> str:
        """Say why a job has ended that Ray has lost."""
        return self._why.pop(name, "")

    def close(self) -> None:
        """Leave the cluster; jobs that still run save and end."""
        for name in self._jobs.values():
            self.stop(name)
        if self._jobs:
            self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=60)
        self._ray.shutdown()

    def _stop_file(self, name: str) -> Path:
        return self._own / "told-to-end" / name

    def _need_room(self) -> None:
        """Refuse jobs that no node can take, for which Ray would wait for ever."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(kind, 0) >= amount for kind, amount in self._needs.items()) for node in nodes):
            return
        largest = [", ".join(f"{node.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU")) for node in nodes]
        raise UserError(
            "no node of the cluster is large enough for a job",
            key="sweep.ray.cpus",
            expected=" and ".join(f"at least {amount:g} {kind}" for kind, amount in self._needs.items()),
            received="; ".join(largest) or "no node",
            fix="sweep.ray.cpus and sweep.gpus_per_job say what a job needs",
        )


def _shorten_messages(ray: Any, file: Path) -> None:
    """Tell in a line what Ray reports of its nodes, which it prints with dozens of lines of its own log.

    Ray has no setting for that: its thread calls this function of the package, where this version has it.

    Args:
        ray: The package.
        file: Gets the whole text.
    """
    worker: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if not hasattr(worker, "print_to_stdstream"):
        return

    def tell(data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        text = "\n".join(map(str, data.get("lines") or ()))
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with open(file, "a", encoding="utf-8", opener=without_links) as kept:
                kept.write(f"{text}\n")
        _LOG.warning("Ray reports: %s; the whole report is in %s", text.strip().partition(". ")[0][:200], file)

    worker.print_to_stdstream = tell


def _connected(address: str | None) -> Any:
    """Connect to a cluster or start Ray here; return the package."""
    os.environ |= _QUIET if address is not None else _QUIET | _SAFE
    os.environ.setdefault("RAY_AUTH_MODE", _SAFE["RAY_AUTH_MODE"])
    # A program that has connected already keeps its connection.
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "ignore_reinit_error": True}
    if address is None:
        # Its sockets need short paths; the folder of the sweep may be deep.
        own = Path(tempfile.mkdtemp(prefix="ray-"))
        os.environ |= _LOOPBACK
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
            token = own / "token"
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(32))
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
        # Ray lets everybody write to its own folder, which is why it is inside of this one.
        options |= {"include_dashboard": False, "_temp_dir": str(own / "r")}
    try:
        import ray
    except ImportError as error:
        fix = "pip install 'lightkit[ray]'"
        raise UserError("this engine needs the package ray", key="sweep.engine", received="ray", fix=fix) from error
    try:
        host, colon, port = (address or "").rpartition(":")
        if colon and port.isdecimal():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
        ray.init(address, **options)
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:
        raise UserError(
            "the Ray cluster cannot be joined without its token",
            key="sweep.ray.address",
            expected="RAY_AUTH_TOKEN_PATH, the file of the token that the cluster was started with, or RAY_AUTH_TOKEN",
            received=f"{address}, with RAY_AUTH_MODE={os.environ['RAY_AUTH_MODE']}",
            fix="of a cluster without a token, in a network that you trust: export RAY_AUTH_MODE=disabled",
        ) from error
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"the Ray cluster does not answer: {str(error).splitlines()[0]}",
            key="sweep.ray.address",
            received=address,
            fix="the address that `ray start --head` says (with RAY_AUTH_MODE=token), or null for this machine",
        ) from error
    return ray
