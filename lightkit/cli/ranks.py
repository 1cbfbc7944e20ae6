"""Being one of several processes that train one model, or the one that starts them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from lightkit.cli.terminal import say
from lightkit.common import run_files
from lightkit.common.signals import held
from lightkit.processes.children import lightkit_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

# What only the processes of such a run need is imported inside the functions: every command comes by here.


def launched() -> bool:
    """Tell whether this process was started by a launcher as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def follows() -> bool:
    """Tell whether this process is one of several and another one of them writes."""
    return launched() and os.environ.get("RANK", "0") != "0"


def leave(status: int) -> NoReturn:
    """End this process, one of several, without taking Python apart.

    PyTorch's threads that talk to processes which are gone may hang or crash then.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


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
        from lightkit.cli.launcher import Launcher
        from lightkit.config import to_yaml

        job = {"cfg": to_yaml(cfg), "folder": str(folder), "overrides": list(overrides), "resume": resume}
        command = lightkit_command("train", "--rank")
        return Launcher(command, cfg.device.nproc, json.dumps(job)).run(log=folder / run_files.LOG)
    if "torch" not in sys.modules and not follows() and cfg.logger.console.style != "quiet":
        say(f"{cfg.name}: PyTorch, data and model are being prepared …")
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with held():
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
