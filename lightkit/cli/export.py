"""`lightkit export`: a trained model as files that predict without lightkit."""

from __future__ import annotations

from lightkit.cli.arguments import Parser, check_checkpoint
from lightkit.cli.terminal import report
from lightkit.common.collecting import importing
from lightkit.common.errors import UserError
from lightkit.common.text import counted


def export(args: list[str]) -> int:
    """Write the model of a run, and say how near it is to the run."""
    options = Parser("export", "run", "file", "overrides*", checkpoint="best", members="", tolerance=1e-4).read(args)
    check_checkpoint(options.checkpoint)
    if not options.tolerance >= 0:
        raise UserError("not a difference", key="--tolerance", received=options.tolerance, expected="0 or above")
    # Here, not above: importing torch takes seconds, and a wrong command line is told before.
    with importing():
        from lightkit.runner.export import export as write
    done = write(
        options.run,
        options.file,
        checkpoint=options.checkpoint,
        members=[name for name in options.members.split(",") if name],
        tolerance=options.tolerance,
        overwrite=options.overwrite,
        overrides=options.overrides,
    )
    lines = [
        f"loaded again and compared on {counted(done.rows, 'row')} of the data: "
        f"the largest difference is {done.difference:.2g} ({options.tolerance:g} is allowed)",
        "written to " + "\n           ".join(map(str, done.files)),
    ]
    return report(options, {**done._asdict(), "tolerance": options.tolerance}, lambda: lines)
