"""`lightkit verify-resume`: proof that a configuration can be killed and resumed."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, json_text, say, table
from lightkit.common.errors import UserError
from lightkit.common.text import counted

if TYPE_CHECKING:
    from lightkit.runner.verify import VerifyResult


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
        if getattr(options, name) < 1:
            raise UserError("out of range", key=f"--{name}", expected="1 or more", received=getattr(options, name))
    if options.at != "random" and (not options.at.isdecimal() or int(options.at) < 3):
        expected = "`random`, or a step from 3 on: the run has to save before it"
        raise UserError("no step to kill it at", key="--at", expected=expected, received=options.at)
    overrides = [text for text in options.overrides if not text.startswith("hydra.")]
    from lightkit.config import compose

    # Told here what is wrong with it, before torch is imported.
    compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    from lightkit.runner.verify import TracedJob, verify

    base = Path(tempfile.mkdtemp(prefix="lightkit-verify-"))
    job = TracedJob(
        folder=str(base),
        trace="",
        overrides=tuple(overrides),
        config_dir=options.config_dir,
        config_name=options.config_name,
        epochs=options.epochs,
        steps=options.steps,
        member=options.member,
        at=None if options.at == "random" else int(options.at),
    )
    try:
        result = verify(job, phase=options.phase, progress=complain)
        if options.json:
            say(json_text(_facts(result)))
        else:
            _report(result)
        return 0 if result.same else 1
    finally:
        if options.keep:
            (complain if options.json else say)(f"kept in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)


def _report(result: VerifyResult) -> None:
    """Print where the run was killed, what was compared, and what differs."""
    moment = result.moment
    say(f"{counted(result.steps, 'step')}, killed {moment.describe()}, resumed at step {result.resumed_at}")
    if result.rows:
        say("shortened: " + ", ".join(f"{name} to {count:,} rows" for name, count in result.rows.items()))
    member = f" --member {moment.member}" if moment.member else ""
    say(f"the same again: --at {moment.step} --phase {moment.phase}{member}\n")
    rows = [(item.name, str(item.size), "different" if item.different else "same") for item in result.compared]
    say(table(["compared", "values", ""], rows, right=[1]))
    say("\nthe same bits with and without the kill" if result.same else f"\nDIFFERENT: {result.reason}")


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
