"""`lightkit graph`: a picture of a model."""

from __future__ import annotations

from pathlib import Path

from lightkit.cli.arguments import Parser
from lightkit.cli.inspected import built_model, read_depth, read_shape
from lightkit.cli.terminal import say
from lightkit.common.errors import UserError

DIRECTIONS = ("TB", "LR")
FORMATS = ("svg", "png", "pdf", "dot")


def graph(args: list[str]) -> int:
    """Draw a model."""
    options = Parser("graph", "overrides*", output="model.svg", direction=DIRECTIONS[0]).read(args)
    shape, depth, path = read_shape(options.input), read_depth(options.depth), Path(options.output).expanduser()
    direction = options.direction.upper()
    if direction not in DIRECTIONS:
        raise UserError("no such direction", key="--direction", received=options.direction, choices=DIRECTIONS)
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        expected = f"a name that ends in .{', .'.join(FORMATS)}"
        raise UserError("not a picture", key="--output", expected=expected, received=options.output)
    with built_model(options) as (_, parts):
        from lightkit.assembly.inspection import call_of
        from lightkit.diagnostics.graph import draw

        found = draw(parts.model, call_of(parts, shape=shape), depth=depth, direction=direction)
    found.write(path)
    levels = f"{found.depth} level{'' if found.depth == 1 else 's'}"
    say(f"{found.boxes} boxes, {levels} of layers: {path}")
    return 0
