"""Sweeps' jobs that are forked, in a process of their own: `main([scenario])` runs a function of this module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightkit.config import compose, to_yaml
from lightkit.sweep import warm_server
from lightkit.sweep.engines.local import LocalEngine, Slot
from lightkit.sweep.job import Job, Start
from lightkit.sweep.journal import Journal
from lightkit.sweep.warm import WarmJob
from tests.waiting import until

SMALL = (
    "data=wine", "model.hidden=[8]", "model.dropout=0.1", "device=cpu", "metrics.figures=[]", "logger.every_steps=1",
    "checkpoint.export=safetensors",
)  # fmt: skip
SAYS = """\
from lightkit.trainer import Callback
class Says(Callback):
    def on_fit_start(self, trainer):
        """


def main(args: list[str]) -> int:
    """Run a scenario in the working directory."""
    globals()[args[0]]()
    return 0


def planned(name: str, *overrides: str) -> Start:
    """Plan a job in a sweep of its own."""
    sweep = Path.cwd() / f"sweep-{name}"
    folder = sweep / name
    folder.mkdir(parents=True)
    config = to_yaml(compose([*SMALL, *overrides]).cfg)
    with Journal(sweep) as journal:
        journal.head(command={}, options={})
        journal.plan([Job(name, folder, overrides, config)])
    return Start(Job(name, folder, overrides, config))


@contextmanager
def opened(*, warm: bool = True, **options: Any) -> Iterator[LocalEngine]:
    """Open an engine with one slot."""
    engine = LocalEngine([Slot("slot 0", {"SLOT": "0"})], warm=warm, **options)
    try:
        yield engine
    finally:
        engine.close()


def code_of(engine: LocalEngine, start: Start) -> int:
    """Run a job; return its exit status."""
    engine.start(start)
    return ended(engine, start)


def ended(engine: LocalEngine, start: Start) -> int:
    """Wait for the end of a job; return its exit status."""
    return dict(until(lambda: engine.wait(0.05), "the job to end"))[start.job.name]


def forked(engine: LocalEngine, start: Start) -> WarmJob:
    """Return the process of a job, which was forked."""
    process = engine._running[start.job.name].process
    assert isinstance(process, WarmJob)
    return process


def rows(start: Start) -> list[dict[str, Any]]:
    """What a job has logged, but for the times."""
    path = start.job.folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [json.loads(line).items() for line in lines if line.endswith("\n")]
    return [
        {key: value for key, value in row if key != "time" and not key.startswith(("speed/", "system/"))}
        for row in whole
    ]


def result(start: Start) -> Any:
    """What a job has left."""
    return json.loads((start.job.folder / "result.json").read_text())


def same(start: Start, other: Start) -> None:
    """Compare two jobs bit by bit."""
    assert rows(start) == rows(other)
    weights = [(each.job.folder / "weights.safetensors").read_bytes() for each in (start, other)]
    assert weights[0] == weights[1]


def output(start: Start) -> str:
    """What a job has printed, but for its name, and for what it says on a slow machine only."""
    lines = (start.job.folder / "output.log").read_text().replace(start.job.name, "x").splitlines(keepends=True)
    return "".join(line for line in lines if not line.endswith("are being prepared …\n"))


def bits_are_those_of_a_fresh_process() -> None:
    first, second, fresh = (planned(name, "trainer.epochs=2") for name in ("first", "second", "fresh"))
    with opened() as engine:
        engine.start(first)
        assert forked(engine, first).pid is None
        assert ended(engine, first) == 0
        assert code_of(engine, second) == 0
        server = engine._server
        assert server is not None
    assert server._process.returncode is not None
    with opened(warm=False) as engine:
        assert code_of(engine, fresh) == 0
        assert engine._server is None
    same(first, fresh)
    same(second, fresh)
    assert output(first) == output(second) == output(fresh)


def statuses_are_those_of_a_fresh_process() -> None:
    Path("gone.py").write_text(f"{SAYS}pass\n")
    wrong = planned("wrong", "trainer.callbacks={says: {_target_: gone.Says}}")
    Path("gone.py").unlink()
    infinite = planned("infinite", "optim.lr=1e30", "trainer.epochs=3")
    killed, told = planned("killed", "trainer.epochs=9999"), planned("told", "trainer.epochs=9999")
    for warm in (True, False):
        with opened(warm=warm) as engine:
            assert code_of(engine, wrong) == 2
            assert result(wrong)["status"] == "failed"
            assert code_of(engine, infinite) == 3
            engine.start(told)
            engine.stop("told")
            assert ended(engine, told) == 143
            assert engine._warm == warm
    with opened() as engine:
        engine.start(killed)
        until(lambda: engine.wait(0.05) or rows(killed), "the job to train")
        os.kill(forked(engine, killed).pid or 0, signal.SIGKILL)
        assert ended(engine, killed) == 137
        engine.start(killed)
        before = len(rows(killed))
        until(lambda: engine.wait(0.05) or len(rows(killed)) > before, "the job to go on")
        engine.stop("killed")
        assert ended(engine, killed) == 143
    assert result(killed)["status"] == "interrupted"
    assert list((killed.job.folder / "checkpoints").glob("step-*.pt"))


def a_server_that_is_killed() -> None:
    start, fresh, told = (planned(name, "trainer.epochs=60") for name in ("start", "fresh", "told"))
    with opened() as engine:
        engine.start(start)
        until(lambda: engine.wait(0.05) or len(rows(start)) > 20, "the job to train")
        assert engine._server is not None
        os.kill(engine._server.pid, signal.SIGKILL)
        assert ended(engine, start) == 0
        assert not engine._warm
        assert code_of(engine, fresh) == 0
    same(start, fresh)
    with opened() as engine:
        engine.start(told)
        until(lambda: engine.wait(0.05) or rows(told), "the job to train")
        assert engine._server is not None
        os.kill(engine._server.pid, signal.SIGKILL)
        engine.stop("told")
        assert ended(engine, told) == 143
    assert result(told)["status"] == "interrupted"


def a_server_that_forks_nothing() -> None:
    gone, threads = planned("gone", "trainer.epochs=1"), planned("threads", "trainer.epochs=1")
    warm_server.missed_threads = lambda: ["pool"]  # which a fork would miss
    with opened() as engine:
        assert code_of(engine, threads) == 0
        assert not engine._warm
    warm_server._fork = lambda *_args: os._exit(1)  # type: ignore[assignment]
    with opened() as engine:
        assert code_of(engine, gone) == 0
        assert not engine._warm


def a_job_that_hangs() -> None:
    become = warm_server._become
    start, slow = planned("start", "trainer.epochs=1"), planned("slow", "trainer.epochs=1")

    def hang(request: Any, log: int, server: int) -> list[str]:
        return become(request, log, server) if time.sleep(600) else []  # type: ignore[func-returns-value]

    def compute(request: Any, log: int, server: int) -> list[str]:
        while time.process_time() < limit:
            pass
        return become(request, log, server)

    limit = time.process_time() + 1.5
    warm_server._become = compute
    with opened(hang_seconds=0.5) as engine:
        assert code_of(engine, slow) == 0
        assert engine._warm
    warm_server._become = hang
    with opened(hang_seconds=0.5) as engine:
        engine.start(start)
        hanging = until(lambda: engine.wait(0.05) or forked(engine, start).pid, "the job to be forked")
        assert ended(engine, start) == 0
        assert not engine._warm
        with suppress(ProcessLookupError):
            os.kill(hanging, 0)
            raise AssertionError("what hung is still there")


def a_job_is_as_a_fresh_process_and_reads_the_project_anew() -> None:
    facts = "[os.environ['SLOT'], os.getpid() == os.getsid(0), sys.path, os.getcwd(), sys.stdin.read()]"
    given = ("trainer.epochs=1", "trainer.callbacks={says: {_target_: mine.Says}}")
    path = Path("mine.py")
    path.write_text(f"{SAYS}pass\n")
    starts = [planned(name, *given) for name in ("before", "warm", "fresh")]
    with opened() as engine, opened(warm=False) as other:
        assert code_of(engine, starts[0]) == 0
        path.write_text(f"import os, sys\n{SAYS}print('says', {facts})\n")
        assert (code_of(engine, starts[1]), code_of(other, starts[2])) == (0, 0), output(starts[1])
    assert "says ['0', True, [" in output(starts[1])
    assert output(starts[1]) == output(starts[2])


def forever() -> None:
    start = planned("start", "trainer.epochs=9999")
    with opened() as engine:
        engine.start(start)
        until(lambda: engine.wait(0.05) or rows(start), "the job to train")
        Path("pid").write_text(str(forked(engine, start).pid))
        subprocess.run(["sleep", "600"], check=False)
