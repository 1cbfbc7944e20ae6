"""`lightkit sweep`: how far a sweep is, going on with it, and ending it."""

from __future__ import annotations

import shlex

from lightkit.cli.arguments import Parser
from lightkit.cli.live import USUAL_SECONDS
from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest

ACTIONS = ("status", "resume", "stop")
HELP = {
    "sweep": f"""\
usage: lightkit sweep status SWEEP [--watch [SECONDS]] [--json]
       lightkit sweep resume SWEEP [sweep.KEY=VALUE ...] [--stopped] [--trust] [-d]
       lightkit sweep stop SWEEP

Show, continue or stop a sweep that `lightkit train -m` started, in any terminal. SWEEP is its folder, the end of the
folder's name, or `last` for the newest one.

status  what each job is doing: read from the folders of the jobs at this moment, whoever runs them
resume  go on: jobs that have finished stay as they are, those under way go on from their last checkpoint, those that
        failed are tried again, those that `lightkit stop` has ended only with --stopped. The configurations that were
        stored at the start count, not those of today
stop    ask the process that runs the sweep to let all jobs save, and wait until they have. Jobs that are in the queue
        of Slurm while nobody watches are told to save, too

options:
  --watch [SECONDS]  draw it again and again, every {USUAL_SECONDS} seconds if not told otherwise, until the sweep ends
  --json             as JSON; with --watch one line each time
  -d, --detach       resume without this terminal: the sweep survives hang-up, logout and a closed ssh
  --stopped          resume also jobs that were ended by `lightkit stop SWEEP/JOB`
  --trust            resume a sweep from elsewhere as your own, if you know who made it: its options and its
                     configurations may then run any command as you
  sweep.KEY=VALUE    other options than at the start: sweep.slots=2 sweep.retries=1

examples:
  lightkit sweep status last
  lightkit sweep status outputs/sweeps/2026-01-31/12-00-00-wine_mlp --watch
  lightkit sweep stop last
  lightkit sweep resume last sweep.slots=2

Exit status of resume: that of the sweep, as of `lightkit train -m`; 75 when another process runs it.""",
}


def sweep(args: list[str]) -> int:
    """Look at a sweep, go on with it, or end it."""
    parser = Parser("sweep")
    parser.add_argument("action")
    parser.add_argument("sweep", nargs="?")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--watch", nargs="?", const=USUAL_SECONDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("-d", "--detach", action="store_true")
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--stopped", action="store_true")
    options = parser.read(args)
    if options.action not in ACTIONS:
        meant = next(iter(nearest(options.action, ACTIONS)), None)
        named = [options.sweep or "SWEEP"] if meant else args
        fix = shlex.join(["lightkit", "sweep", meant or "status", *named])
        raise UserError("no such action", key="lightkit sweep", received=options.action, choices=ACTIONS, fix=fix)
    if options.sweep is None:
        fix = f"lightkit sweep {options.action} last"
        raise UserError(
            "SWEEP is missing", key=f"lightkit sweep {options.action}", expected="its folder or name", fix=fix
        )
    if options.trust and options.action != "resume":
        raise UserError("only what is resumed needs trust", key="--trust", received=options.action)
    if options.stopped and options.action != "resume":
        raise UserError("only `resume` goes on with jobs", key="--stopped", received=options.action)
    if options.detach:
        if options.action != "resume":
            raise UserError("only what trains can be detached", key="--detach", received=options.action)
        from lightkit.cli.detach import leave_session

        leave_session("sweep", args)
    from lightkit.cli.sweep_actions import act

    return act(options)
