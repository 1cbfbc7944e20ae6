"""A process that measures: it is told what to do by a line of JSON, and answers with lines of JSON.

What it does to weights, random numbers, memory and limits ends with it. Nothing of that can reach the run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lightkit.common.collecting import importing
from lightkit.common.doors import import_path
from lightkit.common.errors import FAILED, OUT_OF_MEMORY, UserError
from lightkit.common.failures import in_short, is_out_of_memory
from lightkit.common.strategies import strategy_of
from lightkit.config import to_yaml, with_values
from lightkit.config.project import make_importable, project_root
from lightkit.processes.children import PIPE, Child, lightkit_command, lightkit_path

ALONE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher has told this process, and the one that measures must not know: it is alone."""
KILLED = (-int(getattr(signal, "SIGKILL", 9)), 137)
"""Exit statuses of a process that the system ended, as it does where memory runs out."""
_VICTIM = "1000"
"""What tells Linux to end this process, and no other one, where memory runs out all the same."""
_TAIL = 2000
Answer = Callable[[dict[str, Any]], None]
"""Writes an answer."""


class MeasuringProcess:
    """A process that measures, while inside; it does not outlive that.

    Args:
        job: What it has to know, in one line.
        command: Arguments of Python.
        key: The key of the configuration that it measures for, which errors name.
        fix: What to do where the process ends by itself.
    """

    def __init__(self, job: str, command: Sequence[str], *, key: str, fix: str | None = None) -> None:
        self._job, self._command, self._key, self._fix = job, command, key, fix

    def __enter__(self) -> MeasuringProcess:
        env = {name: value for name, value in os.environ.items() if name not in ALONE}
        own, command = {**env, "PYTHONPATH": lightkit_path()}, [sys.executable, *self._command]
        self._process = Child(command, stdin=PIPE, output=PIPE, keeps=True, variables=own, own_session=False)
        self.write(self._job)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    def answer(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            UserError: The process answers with an error, or has ended.
        """
        found = self.read()
        if found is None:
            raise self.lost()
        if "error" in found:
            raise UserError(found["error"], exit_code=found["exit_code"], family=found.get("family"))
        return found

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield answers up to one with `end`, which is the last.

        Raises:
            UserError: See `answer`.
        """
        while True:
            found = self.answer()
            yield found
            if found.get("end"):
                return

    def write(self, line: str) -> None:
        """Tell the process something."""
        self._process.tell(line)

    def read(self) -> dict[str, Any] | None:
        """Wait for an answer; None where the process has ended."""
        line = self._process.stdout.readline()  # type: ignore[union-attr]
        found: dict[str, Any] | None = json.loads(line) if line.endswith(b"\n") else None
        return found

    def was_killed(self) -> bool:
        """Wait for the end of the process; tell whether the system ended it."""
        return self._process.wait() in KILLED

    def lost(self) -> UserError:
        """Return the error of a process that has ended by itself, with what it said last."""
        code = self._process.wait()
        self._process.end()
        said = self._process.said[-_TAIL:]
        what = f"the process that measures ended with status {code}" + (f":\n{said}" if said else "")
        return UserError(what, key=self._key, fix=self._fix, exit_code=FAILED)


def begin() -> tuple[dict[str, Any], DictConfig, Answer]:
    """Begin to be such a process; return the job, its configuration, and what answers.

    What the user's own code prints goes to standard error: it is no answer.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_VICTIM)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    job: dict[str, Any] = json.loads(sys.stdin.readline())
    make_importable(project_root())
    cfg = OmegaConf.create(job["cfg"])
    OmegaConf.set_readonly(cfg, True)
    return job, cfg, answer


def failure(error: Exception) -> dict[str, Any]:
    """Return the answer that tells of an error."""
    if isinstance(error, UserError):
        return {"error": str(error), "exit_code": error.exit_code, "family": error.families[0].slug}
    if is_out_of_memory(error):
        return {"error": f"out of memory: {in_short(error)}", "exit_code": OUT_OF_MEMORY}
    return {"error": in_short(error), "exit_code": FAILED}


def finder_process(
    what: str, cfg: str, options: Mapping[str, Any], *, key: str, fix: str | None = None
) -> MeasuringProcess:
    """Make the process of a finder, `lightkit find --measure`.

    Args:
        what: What it measures: a name in `MEASURES`.
        cfg: The configuration: see `single_process`.
        options: Arguments of that measurement.
        key: See `MeasuringProcess`.
        fix: See `MeasuringProcess`.
    """
    job = json.dumps({"what": what, "cfg": cfg, "options": options})
    return MeasuringProcess(job, lightkit_command("find", "--measure")[1:], key=key, fix=fix)


def single_process(cfg: DictConfig, values: Mapping[str, Any] | None = None) -> str:
    """Return a configuration as YAML, for a process that measures by itself what several processes will share.

    Args:
        cfg: That of the run.
        values: Other values by key.
    """
    own: dict[str, Any] = {"trainer.find_batch_size": None, "trainer.find_lr": False}
    if cfg.device.nproc > 1 or strategy_of(cfg.device.parallel).processes:
        own |= {"device.nproc": 1, "device.parallel": "none"}
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        own["device.gpus"] = None  # it sees the GPUs that this process was shown
    return to_yaml(with_values(cfg, own | {**(values or {})}))


MEASURES = {"lr": "lr.measure", "batch": "speeds.measure_batch", "workers": "speeds.measure_workers"}
"""What the process of a finder can measure: the functions of this room."""


def work() -> int:
    """Measure in this process (`lightkit find --measure`), and answer with a line of JSON each on standard output."""
    job, cfg, answer = begin()
    try:
        with importing():
            import_path("lightkit.finders.steps.TrialSteps")
        import_path(f"lightkit.finders.{MEASURES[job['what']]}")(cfg, answer, **job["options"])
    except Exception as error:
        answer(failure(error))
    return 0
