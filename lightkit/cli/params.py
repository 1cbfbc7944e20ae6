"""`lightkit params`: weights and gradients of a run by name."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from lightkit.cli.arguments import Parser, check_checkpoint
from lightkit.cli.terminal import complain, json_text, say, table
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.runs.catalog import find_run, project


def params(args: list[str]) -> int:
    """Print the weights of a run, and their gradients."""
    options = Parser("params", "run", "overrides*", checkpoint="best").read(args)
    which, picture = options.checkpoint, Path(options.output).expanduser() if options.output else None
    check_checkpoint(which)
    from lightkit.runs.reading import read_run

    folder = find_run(options.run, project())
    cfg = read_run(folder, ["device.name=cpu", *options.overrides]).cfg
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    from lightkit.assembly import build
    from lightkit.assembly.inspection import loss_of_batch
    from lightkit.diagnostics.params import GRADIENT_TITLES, RIGHT, TITLES, draw_histograms, lines_about, parameters_of
    from lightkit.runner.models import holds_ensemble, with_checkpoint

    if holds_ensemble(folder, which, ()):
        fix = f"lightkit params {folder}/{run_files.MEMBERS}/NAME"
        raise UserError("an ensemble has several models", key="RUN", received=options.run, fix=fix, family="ensemble")
    parts = build(cfg, folder, pretrained=False, trains=options.grads, report=complain)
    with closing(parts.data):
        parts = with_checkpoint(parts, which, folder, cfg)
        loss = loss_of_batch(parts) if options.grads else None
        found = parameters_of(parts.model, match=options.match, buffers=options.buffers, loss=loss)
    if options.json:
        say(json_text([one.to_json() for one in found]))
    else:
        titles = [*TITLES, *(GRADIENT_TITLES if options.grads else ())]
        say(table(titles, [one.cells(gradients=options.grads) for one in found], right=RIGHT, cut=[0]) + "\n")
        for line in lines_about(found, gradients=options.grads):
            say(line)
    if picture is not None:
        count = draw_histograms(found, picture)
        if not options.json:
            say(f"{count} of {len(found)} drawn: {picture}")
    return 0
