"""`lightkit summary`: layers, parameters, operations and memory of a model before it trains."""

from __future__ import annotations

from lightkit.cli.inspected import OPTIONS, built_model, parser_of_model, read_depth, read_shape
from lightkit.cli.terminal import json_text, say, table

HELP = {
    "summary": f"""\
usage: lightkit summary [OVERRIDES] [--from RUN] [--depth N] [--long] [--input SHAPE] [--json]

Show the model of `lightkit train OVERRIDES`, without training: for every layer its class, its output shape for one
sample, its parameters and whether they train, and its multiply-accumulate operations (MACs; two FLOPs each). Equal
neighbouring layers share a row, and × is their number; for a single layer, × is the number of its calls. Parameters
and MACs are those of one layer; the share is that of all layers in the row.

Below the table: the operations of a forward pass and of training (fewer if layers are frozen), the operators that
were counted and those without a rule, and the memory of a training step: weights, gradients, optimizer state, average
of weights, activations for the backward pass, and the batch. Everything is built on the CPU and counted without
computing it; nothing is written.

options:
  --depth N             levels of layers below the model (default: 3)
  --long                a row for each of several layers that are alike
  --json                all of it as JSON, with every layer
{OPTIONS}

examples:
  lightkit summary experiment=digits_cnn
  lightkit summary data=digits model=resnet18 --input 1,224,224
  lightkit summary model=transformer finetune=lora --depth 5 --json""",
}


def summary(args: list[str]) -> int:
    """Print the summary of a model."""
    parser = parser_of_model("summary")
    parser.add_argument("--depth")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.read(args)
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
