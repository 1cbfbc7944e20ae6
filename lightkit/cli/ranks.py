"""Training as one process, or as several that share every batch (`device.nproc`): starting them, and being one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.entry import launched
from lightkit.cli.terminal import complain, say
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.errors import LOST_RANK, POINTER, family_named, of_process, pointer
from lightkit.common.signals import handled
from lightkit.processes.children import NOTHING, PIPE, Child, Hung, lightkit_command, lightkit_path

if TYPE_CHECKING:
    from omegaconf import DictConfig

# What only a process that trains needs is imported inside the functions: a mistake is told before.

GRACE_SECONDS = 30.0
"""How long the others may take to end after one has: a checkpoint may still be on its way to the disk."""
HUNG_SECONDS = 5.0
"""The same where the others ended because they waited in vain for it."""
TRACE_SECONDS = 3.0
"""How long a process that hangs has to write down where."""
POLL_SECONDS = 0.05


def follows() -> bool:
    """Tell whether this process is one of several and another one of them writes."""
    return launched() and os.environ.get("RANK", "0") != "0"


def start(cfg: DictConfig, folder: Path, *, overrides: Sequence[str] = (), resume: bool = False) -> int:
    """Train in this process, or start those that the configuration asks for and wait for them.

    Args:
        cfg: A composed and checked configuration.
        folder: The run's folder.
        overrides: What was typed on the command line.
        resume: Go on from the newest checkpoint in the folder.

    Returns:
        0, or the exit status of the process that failed first.
    """
    if cfg.device.nproc > 1 and not launched():
        from lightkit.config import to_yaml

        job = {"cfg": to_yaml(cfg), "folder": str(folder), "overrides": list(overrides), "resume": resume}
        command = lightkit_command("train", "--rank")
        return Launcher(command, cfg.device.nproc, json.dumps(job)).run(log=folder / run_files.LOG)
    if "torch" not in sys.modules and not follows() and cfg.logger.console.style != "quiet":
        say(f"{cfg.name}: PyTorch, data and model are being prepared …")
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with importing():
        from lightkit.runner import Runner

    Runner(cfg, folder, overrides=list(overrides), on_end=False).run(resume=resume)  # the command or the sweep calls it
    return 0


def train_job(cfg: DictConfig) -> float | None:
    """Train a job for one of Hydra's launchers, or go on with it, and return its objective.

    Args:
        cfg: Its configuration; its folder is known to Hydra.

    Raises:
        UserError: Its folder holds a run, with which it is not to go on.
        RuntimeError: One of its processes failed.
    """
    from lightkit.config import to_yaml
    from lightkit.config.loader import HydraConfig
    from lightkit.config.native import job_overrides
    from lightkit.runs.catalog import has_checkpoints, has_configuration, has_members, status
    from lightkit.runs.placement import check_free
    from lightkit.runs.reading import read_result

    folder = Path(HydraConfig.get().runtime.output_dir)
    goes_on = cfg.resume.mode == "auto" and (has_checkpoints(folder) or has_members(folder))
    if cfg.resume.mode != "auto":
        check_free(folder)
    if not (goes_on and status(folder) == "finished" and has_configuration(folder, to_yaml(cfg))):
        code = start(cfg, folder, overrides=job_overrides(), resume=goes_on)
        if code:
            raise RuntimeError(f"{folder.name} ended with exit status {code}")
    value = read_result(folder)["objective"]["value"]
    return None if value is None else float(value)


def work() -> int:
    """Work as one of several processes: read from standard input what to do, and do it."""
    import faulthandler
    import threading

    from omegaconf import OmegaConf

    from lightkit.config.project import make_importable, project_root

    faulthandler.enable()  # a launcher that finds this process hanging asks it where, by SIGABRT
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_watch_launcher, daemon=True).start()
    make_importable(project_root())
    cfg: Any = OmegaConf.create(job["cfg"])
    OmegaConf.set_readonly(cfg, True)
    return start(cfg, Path(job["folder"]), overrides=job["overrides"], resume=job["resume"])


def _watch_launcher() -> None:
    """End in good order when the launcher is gone: the other end of standard input is then closed."""
    with contextlib.suppress(OSError, ValueError):
        os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class _Rank:
    """One process; standard error of the first goes to ours, that of the others is kept."""

    number: int
    process: Child
    aborted: bool = False
    """Whether it had to be told to end because it did not by itself."""


@dataclass
class Launcher:
    """Processes that end together.

    Each is in a session of its own, so that a signal from the terminal reaches it once, through the launcher. What rank
    0 says is seen; what the others say only where one of them is the reason for a failure.

    Args:
        command: What to start.
        count: How often.
        job: A line for the standard input of each.
    """

    command: Sequence[str]
    count: int
    job: str
    _ranks: list[_Rank] = field(default_factory=list)
    _ended: list[_Rank] = field(default_factory=list)

    def run(self, log: Path | None = None) -> int:
        """Start them and wait for their end.

        Args:
            log: File to which the reason of a failure is appended, if it is there.

        Returns:
            0, or the exit status of the process that failed first, 128 + n where signal n ended it.
        """
        with self._forwarding():
            try:
                self._start()
                self._wait()
            finally:
                self._kill()
        return self._outcome(log)

    def _start(self) -> None:
        """Start the processes, tell each which one it is by the variables that `torchrun` uses, and give it its job."""
        import socket  # which takes long, for a run that starts no processes

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        threads = max(1, (os.cpu_count() or 1) // self.count)
        shared = {
            **os.environ,
            "PYTHONPATH": lightkit_path(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
        }
        for number in range(self.count):
            output, own = NOTHING if number else None, {"RANK": str(number), "LOCAL_RANK": str(number)}
            child = Child(self.command, stdin=PIPE, output=output, keeps=number > 0, variables={**shared, **own})
            self._ranks.append(_Rank(number, child))
        for rank in self._ranks:
            rank.process.tell(self.job)

    def _wait(self) -> None:
        """Wait until all have ended; some time after one has failed, end those that have not."""
        deadline = float("inf")
        while True:
            alive = [rank for rank in self._ranks if rank not in self._ended]
            news = [rank for rank in alive if rank.process.poll() is not None]
            self._ended += news
            if len(self._ended) == self.count:
                return
            failed = [rank for rank in self._ended if rank.process.returncode]
            if failed and news:
                known = any(rank.process.returncode != LOST_RANK for rank in failed)
                deadline = min(deadline, time.monotonic() + (GRACE_SECONDS if known else HUNG_SECONDS))
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        hung = [rank for rank in self._ranks if rank not in self._ended]
        for rank in hung:  # they say where they are before they end
            rank.aborted = True
            rank.process.send_signal(signal.SIGABRT)
            rank.process.send_signal(signal.SIGCONT)  # one that was stopped gets no other signal
        end = time.monotonic() + TRACE_SECONDS
        for rank in hung:
            with contextlib.suppress(Hung):
                rank.process.wait(max(0.0, end - time.monotonic()))
        self._kill()
        self._ended += hung

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.process.end()

    def _outcome(self, log: Path | None) -> int:
        """Say why the processes ended, and return the exit status for all of them."""
        failed = [rank for rank in self._ended if rank.process.returncode]
        if not failed:
            return 0
        first = next((rank for rank in failed if rank.process.returncode != LOST_RANK), failed[0])
        main = next((rank for rank in failed if rank.number == 0), None)
        if main is not None and main.process.returncode == first.process.returncode:
            first = main  # the same thing happened to all, and this one has said what
        code = first.process.returncode
        text = _reason(first)
        if text:
            complain(text)
            if log is not None and log.is_file() and not log.is_symlink():
                with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
                    file.write(f"{text}\n")
        return of_process(code)

    @contextmanager
    def _forwarding(self) -> Iterator[None]:
        """Pass signals that ask this process to end on to the others while inside; these save and end."""

        def forward(number: int, _frame: Any) -> None:
            for rank in self._ranks:
                if rank.process.poll() is None:
                    rank.process.send_signal(number)

        with handled(forward):
            yield


def _reason(rank: _Rank) -> str:
    """Say why the processes ended; empty where rank 0 has said so itself."""
    code = rank.process.returncode
    if rank.aborted:
        head = f"error: rank {rank.number} (process {rank.process.pid}) did not answer; this is where it was"
    elif code < 0:
        head = f"error: rank {rank.number} (process {rank.process.pid}) was ended by {signal.Signals(-code).name}"
    elif rank.number == 0:
        return ""
    else:
        head = f"error: rank {rank.number} ended with status {code}"
    fix = "`lightkit resume RUN` goes on from the last checkpoint"
    told = rank.process.said.splitlines()
    last = [line for line in told if line.startswith(POINTER)] or [pointer([family_named("lost-process")])]
    return "\n".join([head, *(line for line in told if line not in last), f"    fix:      {fix}", last[-1]])
