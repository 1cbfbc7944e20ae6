"""`lightkit resume`, and `lightkit verify-resume`: proof that a configuration can be killed and resumed."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.detach import carry_out, leave_session
from lightkit.cli.ranks import start
from lightkit.cli.terminal import complain, report, say, table
from lightkit.cli.train import finished, train
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import of_process
from lightkit.common.patterns import named
from lightkit.common.text import counted
from lightkit.processes.children import Child, lightkit_command
from lightkit.runs.catalog import all_runs, find_run, has_members, no_project_note, project, status
from lightkit.runs.reading import read_run, read_run_unchanged

if TYPE_CHECKING:
    from lightkit.runner.verify import VerifyResult


def resume(args: list[str]) -> int:
    """Go on with a stopped run."""
    parser = Parser("resume", "run?", "overrides*")
    options = parser.read(args)
    if options.detach:
        leave_session("resume", args)
    if options.all_lost and (options.run is not None or not options.detach):
        what, fix = "all runs that were lost go on beside each other", "lightkit resume -d --all-lost"
        raise UserError(what, key="--all-lost", fix=fix, family="wrong-command")
    if options.all_lost:
        return _resume_all_lost()
    if options.run is None:
        parser.error("the following arguments are required: run")
    if Path(options.run).is_file():
        path = str(Path(options.run).absolute()).replace("\\", "\\\\").replace("'", "\\'")
        return train([*options.overrides, f"resume.file='{path}'", *(["-d"] if options.detach else [])])
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


def _resume_all_lost() -> int:
    """Go on, detached, with all runs and sweeps of the project that ended with the machine they ran on.

    Returns:
        0, or the exit status of the first that could not be gone on with.
    """
    from lightkit.detached.liveness import look
    from lightkit.sweep.plan import all_sweeps

    sweeps = all_sweeps(project(), everywhere=True)
    runs = [run for run in all_runs(project()) if not any(sweep in run.parents for sweep in sweeps)]
    commands: dict[Path, tuple[str, ...]] = {run: ("resume", "-d", str(run)) for run in runs}
    commands |= {sweep: ("sweep", "resume", "-d", str(sweep)) for sweep in sweeps}  # with all of its jobs
    lost = [folder for folder in commands if look(folder).state == "lost"]
    if not lost:
        say("no run has ended with its machine")
        if note := no_project_note():  # after a reboot one is easily in another folder
            say(note)
    sys.stdout.flush()
    # Each in a process of its own: what is wrong with one does not concern the others.
    codes = [Child(lightkit_command(*commands[folder]), own_session=False).wait() for folder in lost]
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
    return carry_out(work, folder, detached=options.detach, on_end=composed.cfg.on_end)


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
