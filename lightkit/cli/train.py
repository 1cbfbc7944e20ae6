"""`lightkit train`."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from lightkit.cli.arguments import Parser
from lightkit.cli.detach import carry_out, leave_session
from lightkit.cli.ranks import follows, start, work
from lightkit.cli.terminal import say
from lightkit.common.errors import UserError, UserErrors
from lightkit.config import Composed, compose, to_yaml
from lightkit.config.compose import compose_hydra
from lightkit.config.hydra_settings import job_environment
from lightkit.config.native import is_multirun
from lightkit.config.saved import with_values_of
from lightkit.runs import catalog, placement
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run


def train(args: list[str]) -> int:
    """Train, sweep, or print what would be trained."""
    options = _read(args)
    if options.rank or options.measure or options.warm or options.job is not None:
        return _serve(options)
    if options.shell_completion:
        from lightkit.cli.completion import completion

        return completion(options.overrides)
    if options.info or options.hydra_help:
        from lightkit.cli.config import print_hydra

        return print_hydra(args)
    if options.detach and not options.cfg:
        leave_session("train", args)
    composed = None if _is_sweep(options) else _compose(options)
    if composed is None:
        from lightkit.cli.multirun import multirun

        return multirun(options)
    if of_sweep := [text.lstrip("+~") for text in options.overrides if text.lstrip("+~").startswith("sweep.")]:
        what, fix = "this says how a sweep is run, and a single run takes none of it", "add -m, or leave it out"
        raise UserError(what, key=of_sweep[0].partition("=")[0], fix=fix, family="wrong-command")
    if options.cfg:
        from lightkit.cli.config import print_run

        return print_run(composed, options)
    return _start(composed, options)


def _read(args: list[str]) -> argparse.Namespace:
    parser = Parser("train", "overrides*")
    parser.add_argument("-sc", "--shell-completion", "--shell_completion", action="store_true")
    # For processes that commands start: a job of a sweep reads a file, the others standard input.
    parser.add_argument("--job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stop-at", help=argparse.SUPPRESS)
    for name in ("--warm", "--rank", "--measure"):
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    return parser.read(args)


def _is_sweep(options: argparse.Namespace) -> bool:
    """Tell whether a sweep is typed: by `-m`, or by `hydra.mode`."""
    typed = [text.partition("=")[2] for text in options.overrides if text.lstrip("+").startswith("hydra.mode=")]
    if options.multirun and "RUN" in typed[-1:]:
        what, fix = "-m starts a sweep, and this one run", "leave one of them out"
        raise UserError(what, key="hydra.mode", received="RUN", fix=fix, family="wrong-command")
    return bool(options.multirun or "MULTIRUN" in typed[-1:])


def _compose(options: argparse.Namespace) -> Composed | None:
    """Compose a run, or a job of a sweep; None where a file asks for a sweep by `hydra.mode`."""
    if options.source is not None:
        own = [override for override in options.overrides if not override.startswith("hydra.")]
        return read_run(find_run(options.source, project()), own, new=True)
    files = {"config_dir": options.config_dir, "config_name": options.config_name}
    try:
        composed = compose(options.overrides, **files, sweep=False)
    except UserErrors:
        if is_multirun(options.overrides, **files):
            return None
        raise
    mode = composed.hydra_cfg.hydra.mode if composed.hydra_cfg is not None else None
    return None if mode is not None and mode.name == "MULTIRUN" else composed


def _serve(options: argparse.Namespace) -> int:
    """Be one of the processes that other commands start."""
    if options.rank:
        return work()
    if options.measure:
        from lightkit.runner import bench

        return bench.work()
    if options.warm:
        from lightkit.cli.entry import run
        from lightkit.sweep.warm_server import end, serve

        end(run(serve()))  # in a process that was forked; the server itself does not come back
    from lightkit.sweep.run_job import run_job

    return run_job(options.job, stop_at=options.stop_at, train=start)


def finished(folder: Path) -> int:
    """Say that there is nothing left to do."""
    say(f"{folder} has finished already; make it longer with trainer.epochs=N")
    return 0


def _start(composed: Composed, options: argparse.Namespace) -> int:
    """Train in a new folder, or with `resume=auto` go on in that of an earlier run."""
    own = [text for text in options.overrides if text.startswith("hydra.")]
    os.environ.update(job_environment(composed.hydra_cfg or compose_hydra(own)[0]))  # before PyTorch reads it
    root, cfg, goes_on = project(), composed.cfg, composed.cfg.resume.mode == "auto"
    earlier: Path | None = None
    chosen = placement.hydra_folder(composed, "run", options.overrides) if goes_on or not follows() else None
    if goes_on and chosen is not None and (catalog.has_checkpoints(chosen) or catalog.has_members(chosen)):
        earlier = chosen
    elif goes_on and (chosen is None or placement.has_dated_folder(composed, "run", options.overrides)):
        earlier = catalog.find_unfinished(root, to_yaml(cfg), composed.dated)
    if earlier is not None:
        cfg = with_values_of(earlier, cfg, composed.dated)
        if catalog.status(earlier) == "finished" and catalog.has_configuration(earlier, to_yaml(cfg)):
            return finished(earlier)
    # Of several processes that torchrun started, rank 0 has a folder for all.
    folder = earlier or root
    if earlier is None and not follows():
        if chosen is None:
            folder = placement.new_run_folder(root, str(cfg.name))
        else:
            folder = chosen if goes_on else placement.chosen_run_folder(chosen)
    work = partial(start, cfg, folder, overrides=options.overrides, resume=earlier is not None)
    try:
        return carry_out(work, folder, detached=options.detach, on_end=cfg.on_end)
    finally:
        placement.discard_if_empty(folder, root)
