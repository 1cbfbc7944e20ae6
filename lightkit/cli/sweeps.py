"""`lightkit sweep`: how far a sweep is, going on with it, and ending it."""

from __future__ import annotations

import shlex

from lightkit.cli.arguments import Parser
from lightkit.common.errors import UserError
from lightkit.common.suggest import nearest

ACTIONS = ("status", "resume", "stop")


def sweep(args: list[str]) -> int:
    """Look at a sweep, go on with it, or end it."""
    options = Parser("sweep", "action", "sweep?", "overrides*").read(args)
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
