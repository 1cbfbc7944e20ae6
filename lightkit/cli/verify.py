"""`lightkit verify-resume`: proof that a configuration can be killed and resumed."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import complain, say, table
from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from lightkit.runner.proving.verify import Verdict

PHASES = ("micro", "step", "save", "validation", "test")
HELP = {
    "verify-resume": """\
usage: lightkit verify-resume [OVERRIDES] [OPTIONS]

Prove that a run of this configuration can be killed and resumed: run it, run it again and kill it (SIGKILL), resume
it, and compare everything the two leave behind, bit by bit: the last checkpoint, metrics.jsonl, TensorBoard's curves
and result.json. Where something differs, the first such thing is named, and where it comes from.
The run is shortened and saves more often; nothing that is random is changed. OVERRIDES are those of `lightkit train`.

options:
  --at STEP|random      optimizer step to kill it at (default: random)
  --phase PHASE         what it is doing then: micro (before a batch), step (after an optimizer step), save, validation,
                        test (default: random)
  --epochs N            epochs to run at most (default: 2)
  --steps N             optimizer steps to run at most (default: 40)
  --keep                keep the folders of the runs, and say where they are
  --config-dir FOLDER   one more folder of options, searched first
  --config-name NAME    another file than config.yaml to start from

examples:
  lightkit verify-resume data=wine
  lightkit verify-resume experiment=my_idea --at 12 --phase save
  lightkit verify-resume data=shapes data.num_workers=2 --steps 200 --epochs 5

Exit status: 0 the same, 1 different, 2 wrong configuration or no such moment.""",
}


def verify_resume(args: list[str]) -> int:
    """Run, kill, resume, compare, and print what came of it."""
    options = _parser().read(args)
    if options.worker is not None:
        return _work(options.worker)
    at = _step(options.at)
    overrides = [text for text in options.overrides if not text.startswith("hydra.")]
    from lightkit.config import compose

    # Told here what is wrong with it, before torch is imported.
    compose(overrides, config_dir=options.config_dir, config_name=options.config_name)
    base = Path(tempfile.mkdtemp(prefix="lightkit-verify-"))
    try:
        return _verify(options, overrides, base, at=at)
    finally:
        if options.keep:
            say(f"kept in {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)


def _verify(options: argparse.Namespace, overrides: list[str], base: Path, *, at: int | None) -> int:
    from lightkit.runner.proving.traced import Job
    from lightkit.runner.proving.verify import verify

    job = Job(
        folder=str(base),
        trace="",
        overrides=tuple(overrides),
        config_dir=options.config_dir,
        config_name=options.config_name,
        epochs=options.epochs,
        steps=options.steps,
        at=at,
    )
    verdict = verify(job, phase=options.phase, progress=complain)
    _report(verdict)
    return 0 if verdict.same else 1


def _report(verdict: Verdict) -> None:
    from lightkit.runner.proving.verify import told

    moment = verdict.moment
    say(f"{verdict.steps} steps, killed {told(moment)}, resumed at step {verdict.resumed_at}")
    say(f"the same again: --at {moment.step} --phase {moment.phase}\n")
    rows = [(item.name, str(item.size), "different" if item.different else "same") for item in verdict.compared]
    say(table(["compared", "values", ""], rows, right=[1]))
    if verdict.reason is None:
        say("\nthe same bits with and without the kill")
    else:
        say(f"\nDIFFERENT: {verdict.reason}")


def _work(file: Path) -> int:
    """Do a job that another process wrote down."""
    from lightkit.runner.proving.traced import Job, work

    work(Job.read(file))
    return 0


def _step(text: str) -> int | None:
    if text == "random":
        return None
    if not text.isdecimal() or int(text) < 3:
        expected = "`random`, or a step from 3 on: the run has to save before it"
        raise UserError("no step to kill it at", key="--at", expected=expected, received=text)
    return int(text)


def _parser() -> Parser:
    parser = Parser("verify-resume")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--at", default="random")
    parser.add_argument("--phase", choices=PHASES)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default="config")
    return parser
