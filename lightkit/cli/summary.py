"""`lightkit summary`: layers, parameters, operations and memory of a model before it trains."""

from __future__ import annotations

from lightkit.cli.arguments import Parser
from lightkit.cli.inspected import built_model, read_depth, read_shape
from lightkit.cli.terminal import json_text, say, table


def summary(args: list[str]) -> int:
    """Print the summary of a model."""
    options = Parser("summary", "overrides*").read(args)
    shape, depth = read_shape(options.input), read_depth(options.depth)
    with built_model(options) as (cfg, parts):
        from lightkit.assembly.inspection import summary_of

        found = summary_of(cfg, parts, shape=shape)
    if options.json:
        say(json_text(found.to_json()))
        return 0
    from lightkit.diagnostics.summary import DEPTH, RIGHT

    titles, rows = found.table(depth=DEPTH if depth is None else depth, every=options.long)
    say(table(titles, rows, right=RIGHT, cut=[0, 1]))
    say("\n" + table([], found.lines()))
    return 0
