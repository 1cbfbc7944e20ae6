"""`lightkit train` and `lightkit resume`; `verify-resume` proves that a run can be killed and resumed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.detach import carry_out, leave_session, quoted
from lightkit.cli.ranks import follows, start, work
from lightkit.cli.terminal import complain, report, say, table
from lightkit.common.errors import UserError, UserErrors, of_process
from lightkit.common.patterns import named
from lightkit.common.text import counted
from lightkit.config import Composed, compose, to_yaml
from lightkit.config.compose import compose_hydra
from lightkit.config.hydra_settings import job_environment
from lightkit.config.native import is_multirun
from lightkit.config.saved import with_values_of
from lightkit.processes.children import Child, lightkit_command
from lightkit.runs import catalog, placement
from lightkit.runs.catalog import find_run, has_members, no_project_note, project, status
from lightkit.runs.reading import read_run, read_run_unchanged

if TYPE_CHECKING:
    from lightkit.runner.verify import VerifyResult


_SAYS = {"resume.mode": "resume=auto", "resume.file": "lightkit resume FILE"}
"""What says the same as a key that is set by it."""


def train(args: list[str]) -> int:
    """Train, sweep, or print what would be trained."""
    for key in dict.fromkeys(text.lstrip("+").partition("=")[0] for text in args):
        if key in _SAYS:
            complain(f"{key} is set by `{_SAYS[key]}`, which is the way to say it")
    return _train(args)


def _train(args: list[str]) -> int:
    options = _read(args)
    if options.rank or options.measure or options.warm or options.job is not None:
        return _serve(options)
    if options.shell_completion:
        from lightkit.cli.completion import completion

        return completion(options.overrides)
    if options.info or options.hydra_help:
        from lightkit.cli.config import print_hydra

        return print_hydra(args)
    if not options.cfg:
        leave_session("train", args, options)
    composed = None if _is_sweep(options) else _compose(options)
    options.multirun = composed is None
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
    options = parser.read(args)
    if options.code and (options.source is None or _is_sweep(options)):
        raise UserError("only a single run takes kept code", key="--code", fix="--from RUN, without -m")
    return options


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
        from lightkit.cli.again import kept_variables

        run = find_run(options.source, project())
        os.environ.update(kept_variables(run) if options.code else {})
        return read_run(run, own, new=True)
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
        from lightkit.cli.entry import leave, run
        from lightkit.sweep.warm_server import serve

        leave(run(serve()), orderly=True)  # in a process that was forked; the server itself does not come back
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
        return carry_out(work, folder, options, on_end=cfg.on_end)
    finally:
        placement.discard_if_empty(folder, root)


def resume(args: list[str]) -> int:
    """Go on with a stopped run."""
    parser = Parser("resume", "run?", "overrides*")
    options = parser.read(args)
    leave_session("resume", args, options)
    if options.all_lost and (options.run is not None or not options.detach):
        what, fix = "all runs that were lost go on beside each other", "lightkit resume -d --all-lost"
        raise UserError(what, key="--all-lost", fix=fix, family="wrong-command")
    if options.all_lost:
        return _resume_all_lost([text for text in args if text != "--all-lost"])
    if options.run is None:
        parser.error("the following arguments are required: run")
    if Path(options.run).is_file():
        return _train([*(text for text in args if text != options.run), f"resume.file={quoted(Path(options.run))}"])
    try:
        folder = find_run(options.run, project())
    except UserError as error:
        raise _of_sweep(options.run, detached=options.detach) or error from None
    return _resume(folder, options)


def _of_sweep(text: str, *, detached: bool) -> UserError | None:
    """Return what to tell whoever means a sweep: which command goes on with it; None for any other name."""
    from lightkit.detached.folders import find_folder, is_sweep

    try:
        if not is_sweep(find_folder(text, project())):
            return None
    except UserError:
        return None
    fix = f"lightkit sweep resume {'-d ' if detached else ''}{text}"
    return UserError("this is a sweep", received=text, fix=fix, family="wrong-command")


def _resume_all_lost(args: Sequence[str]) -> int:
    """Go on, detached, with all runs and sweeps of the project that ended with the machine they ran on.

    Args:
        args: What each of them is gone on with.

    Returns:
        0, or the exit status of the first that could not be gone on with.
    """
    from lightkit.detached.folders import all_folders, is_sweep, sweep_of
    from lightkit.detached.liveness import look

    begun = [folder for folder in all_folders(project()) if catalog.is_whole(folder) and sweep_of(folder) is None]
    lost = [folder for folder in begun if look(folder).state == "lost"]
    if not lost:
        say("no run has ended with its machine")
        if note := no_project_note():  # after a reboot one is easily in another folder
            say(note)
    sys.stdout.flush()
    # Each in a process of its own: what is wrong with one does not concern the others.
    commands = [[*(["sweep"] if is_sweep(folder) else []), "resume", *args, str(folder)] for folder in lost]
    codes = [Child(lightkit_command(*words), own_session=False).wait() for words in commands]
    return next((of_process(code) for code in codes if code), 0)


def _resume(folder: Path, options: argparse.Namespace) -> int:
    composed = read_run(folder, options.overrides)
    # Of an earlier `resume.override` another value that is typed now wants its own.
    given, keys = composed.cfg.resume.override, [text.lstrip("+~").partition("=")[0] for text in options.overrides]
    allowed = [pattern for pattern in given if not any(named(key, (pattern,)) for key in keys)]
    if allowed != given and "resume.override" not in keys:
        quoted = ",".join(f"'{pattern}'" for pattern in allowed)
        composed = read_run(folder, [*options.overrides, f"resume.override=[{quoted}]"])
    # Of an ensemble that has finished, a member may be damaged: its run looks after that.
    if (
        status(folder) == "finished"
        and not has_members(folder)
        and (not options.overrides or composed.cfg == read_run_unchanged(folder, options.overrides).cfg)
    ):
        return finished(folder)
    work = partial(start, composed.cfg, folder, overrides=options.overrides, resume=True)
    return carry_out(work, folder, options, on_end=composed.cfg.on_end)


def verify_resume(args: list[str]) -> int:
    """Run, kill, resume, compare, and print what came of it."""
    parser = Parser("verify-resume", "overrides*", at="random", epochs=3, steps=75)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.read(args)
    if options.worker is not None:
        from lightkit.runner.verify import run_job

        run_job(options.worker)
        return 0
    for name in ("epochs", "steps"):
        if (value := getattr(options, name)) < 1:
            raise UserError("out of range", key=f"--{name}", expected="1 or more", received=value)
    if options.at != "random" and (not options.at.isdecimal() or int(options.at) < 3):
        expected = "`random`, or a step from 3 on: the run has to save before it"
        raise UserError("no step to kill it at", key="--at", expected=expected, received=options.at)
    overrides = [text for text in options.overrides if not text.startswith("hydra.")]
    from lightkit.config import compose

    # Told here what is wrong with it, before torch is imported.
    compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    import tempfile

    from lightkit.runner.verify import TracedJob, verify

    base = Path(tempfile.mkdtemp(prefix="lightkit-verify-"))
    typed = {name: getattr(options, name) for name in ("config_dir", "config_name", "epochs", "steps", "member")}
    at = None if options.at == "random" else int(options.at)
    job = TracedJob(folder=str(base), trace="", overrides=tuple(overrides), at=at, **typed)
    try:
        result = verify(job, phase=options.phase, progress=complain)
        report(options, _facts(result), lambda: _lines(result))
        return int(not result.same)
    finally:
        if options.keep:
            (complain if options.json else say)(f"kept in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)


def _lines(result: VerifyResult) -> Iterator[str]:
    """Yield where the run was killed, what was compared, and what differs."""
    moment = result.moment
    yield f"{counted(result.steps, 'step')}, killed {moment.describe()}, resumed at step {result.resumed_at}"
    if result.rows:
        yield "shortened: " + ", ".join(f"{name} to {count:,} rows" for name, count in result.rows.items())
    member = f" --member {moment.member}" if moment.member else ""
    yield f"the same again: --at {moment.step} --phase {moment.phase}{member}\n"
    rows = [(item.name, str(item.size), "different" if item.different else "same") for item in result.compared]
    yield table(["compared", "values", ""], rows, right=[1])
    yield "\nthe same bits with and without the kill" if result.same else f"\nDIFFERENT: {result.reason}"


def _facts(result: VerifyResult) -> dict[str, Any]:
    """Return what came of it as plain values."""
    return {
        "same": result.same,
        "steps": result.steps,
        "killed": result.moment._asdict(),
        "resumed_at": result.resumed_at,
        "shortened": dict(result.rows),
        "compared": [
            {"name": item.name, "values": item.size, "different": bool(item.different)} for item in result.compared
        ],
        "reason": result.reason,
    }
