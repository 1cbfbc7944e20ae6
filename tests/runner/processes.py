"""Runs in several forked processes that share every batch, as a launcher would start them."""

from __future__ import annotations

import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed

import tests.forkable
import tests.preloaded
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runs import folder
from lightkit.runs.reading import read_jsonl
from tests.ports import reserved_port
from tests.waiting import PATIENCE_SECONDS

FOR_THE_CHILDREN = (tests.forkable, tests.preloaded, torch.distributed)
BASE = (
    "data=wine",
    "device=cpu",
    "device.parallel=ddp",
    "logger=quiet",
    "logger.every_steps=1",
    "logger.tensorboard.enabled=false",
    "metrics.figures=[]",
    "model.hidden=[8]",
    "data.batch_size=16",
    "trainer.epochs=2",
    "optim.lr=0.01",
)


def configured(*overrides: str, base: Sequence[str] = BASE) -> Any:
    return compose([*base, *overrides]).cfg


def together(job: Callable[[], Any], count: int, log: Path, *, seconds: float = PATIENCE_SECONDS) -> list[int]:
    """Do a job in `count` processes; returns their exit statuses, negative for signals."""
    children = []
    log.parent.mkdir(parents=True, exist_ok=True)
    with reserved_port() as port, warnings.catch_warnings():  # the children hold it, too
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, in later Pythons
        for rank in range(count):
            child = os.fork()
            if child == 0:
                _child(job, rank, count, port, log.with_name(f"{log.name}-{rank}"))
            children.append(child)
    codes: dict[int, int] = {}
    end = time.monotonic() + seconds
    while len(codes) < count:
        for child in [child for child in children if child not in codes]:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                os.kill(child, signal.SIGABRT)
        time.sleep(0.01)
    return [codes[child] for child in children]


def _child(job: Callable[[], Any], rank: int, count: int, port: int, log: Path) -> None:
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        import faulthandler

        faulthandler.enable(file=output)
        named = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        os.environ |= {name: str(value) for name, value in named.items()} | {"MASTER_ADDR": "127.0.0.1"}
        folder.environment = lambda **facts: {"named": {}, **facts}  # asking git takes longer than a run
        os.fsync = lambda handle: None
        job()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except UserError as error:
        os.write(2, traceback.format_exc().encode())
        code = error.exit_code
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def train(place: Path, cfg: Any, count: int, *, resume: bool = False, want: Sequence[int] | None = None) -> Path:
    """Train in `count` processes, or go on."""

    def job() -> None:
        Runner(cfg, place).run(resume=resume)

    log = place.with_name(f"{place.name}.log")
    codes = together(job, count, log)
    told = "\n".join(path.read_text() for path in sorted(log.parent.glob(f"{log.name}-*")))
    assert codes == list(want or [0] * count), f"ended with {codes}:\n{told}"
    return place


def go_on(place: Path, count: int, *overrides: str, want: Sequence[int] | None = None) -> Path:
    """Resume in `count` processes."""
    return train(place, load_run(place, overrides).cfg, count, resume=True, want=want)


def series(place: Path) -> dict[tuple[int, str], float]:
    """Every logged value by step and name, but for those of the clock and of the machine."""
    rows = read_jsonl(place / "metrics.jsonl")
    return {
        (row["step"], name): value
        for row in rows
        for name, value in row.items()
        if "/" in name and not name.startswith(("speed/", "system/"))
    }


def far(one: Path, other: Path, *, relative: float = 2e-4, absolute: float = 2e-5) -> list[str]:
    """Values that differ between two runs by more than rounding."""
    first, second = series(one), series(other)
    assert first.keys() == second.keys(), sorted(set(first) ^ set(second))[:6]
    assert len(first) > 10
    return [
        f"{key}: {value} and {second[key]}"
        for key, value in first.items()
        if abs(value - second[key]) > absolute + relative * abs(value)
    ]
