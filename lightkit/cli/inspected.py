"""`lightkit summary`, `graph`, `plan` and `params`: what a run would train, and what one has learnt."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser, check_checkpoint, whole_number
from lightkit.cli.terminal import complain, report, say, table
from lightkit.common import run_files
from lightkit.common.collecting import importing
from lightkit.common.errors import UserError
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lightkit.assembly import Learner
    from lightkit.assembly.phases import Match
    from lightkit.finetune.plan import FinetunePlan

# What imports torch is imported inside the functions: it takes seconds, and a wrong configuration is told before.

DIRECTIONS = ("TB", "LR")
FORMATS = ("svg", "png", "pdf", "dot")


def summary(args: list[str]) -> int:
    """Print the summary of a model."""
    options = Parser("summary", "overrides*").read(args)
    shape, depth = _read_shape(options), _read_depth(options)
    with built_model(options) as (cfg, parts):
        from lightkit.assembly.inspection import summary_of

        found = summary_of(cfg, parts, shape=shape)
    from lightkit.diagnostics.summary import DEPTH, RIGHT

    titles, rows = found.table(depth=DEPTH if depth is None else depth, every=options.long)
    below = "\n" + table([], found.lines())
    return report(options, found.to_json(), lambda: [table(titles, rows, right=RIGHT, cut=[0, 1]), below])


def graph(args: list[str]) -> int:
    """Draw a model."""
    options = Parser("graph", "overrides*", output="model.svg", direction=DIRECTIONS[0]).read(args)
    shape, depth, path = _read_shape(options), _read_depth(options), Path(options.output).expanduser()
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
    say(f"{found.boxes} boxes, {found.depth} level{'' if found.depth == 1 else 's'} of layers: {path}")
    return 0


def plan(args: list[str]) -> int:
    """Print what would be trained."""
    options = Parser("plan", "overrides*").read(args)
    with built_model(options) as (cfg, parts):
        from lightkit.assembly.origin import notes_on_base
        from lightkit.assembly.phases import build_plan_of, matches_of, notes_on_plan

        found, matches, notes = build_plan_of(parts), matches_of(cfg, parts), [*notes_on_plan(cfg, parts)]
        content, all_notes = _facts_of_plan(found, matches, parts), [*parts.data.notes, *notes]
        on_base = notes_on_base(cfg, parts.data) if parts.made.report and not options.json else ()

    def text() -> Iterator[str]:
        yield from parts.data.notes
        yield from _lines_of_plan(found, matches, parts, long=options.long)
        yield from (f"\n{note}" for note in (*on_base, *notes))

    return report(options, content | ({"notes": all_notes} if all_notes else {}), text)


def _lines_of_plan(found: FinetunePlan, matches: Sequence[Match], parts: Learner, *, long: bool) -> Iterator[str]:
    """Yield the plan as tables and lines."""
    from lightkit.assembly.phases import COLUMNS

    titles, rows = found.table(long=long)
    last = len(titles) - 1
    yield table(titles, rows, right=(2, 3), cut=[1, last - 1, last]) + "\n"
    yield from found.lines()
    if parts.made.prepared is not None:
        yield f"output layer: {parts.made.prepared.described_head}"
    if matches:
        yield "\n" + table(COLUMNS, [match.cells() for match in matches], right=(2, 3, 4), cut=[0, 1])
    if parts.made.report is not None:
        yield f"\nweights from {parts.made.report.source}: {parts.made.report.summary()}"
        if more := parts.made.report.table()[1][1:]:
            yield table([], [["", *row] for row in more])


def _facts_of_plan(found: FinetunePlan, matches: Sequence[Match], parts: Learner) -> dict[str, Any]:
    """Return all of it as plain values, without an output layer in plain training, which does not ask for it."""
    content, prepared, weights = dict(found.to_json()), parts.made.prepared, parts.made.report
    if prepared is not None:
        content["head"] = prepared.head and {**prepared.head.to_json(), "new": prepared.replaced}
    content["patterns"] = [match.to_json() for match in matches]
    if weights is not None:
        names = {group: list(getattr(weights, group)) for group in ("loaded", "missing", "unexpected", "left")}
        more = {"reshaped": dict(weights.reshaped), "reasons": dict(weights.reasons)}
        content["weights"] = {"source": str(weights.source), **names, **more}
    return content


def params(args: list[str]) -> int:
    """Print the weights of a run, and their gradients."""
    options = Parser("params", "run", "overrides*", checkpoint="best").read(args)
    which, picture = options.checkpoint, Path(options.output).expanduser() if options.output else None
    check_checkpoint(which)
    folder = find_run(options.run, project())
    cfg = read_run(folder, ["device.name=cpu", *options.overrides]).cfg
    with importing():
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
    titles = (*TITLES, *(GRADIENT_TITLES if options.grads else ()))
    rows, below = [one.cells(gradients=options.grads) for one in found], lines_about(found, gradients=options.grads)
    content = [one.to_json() for one in found]
    report(options, content, lambda: [table(titles, rows, right=RIGHT, cut=[0]) + "\n", *below])
    if picture is not None:
        count = draw_histograms(found, picture)
        if not options.json:
            say(f"{count} of {len(found)} drawn: {picture}")
    return 0


def configuration(options: Namespace, *more: str) -> tuple[DictConfig, Path]:
    """Compose what is typed, or read the configuration of the run that `--from` names.

    Args:
        options: With `overrides`, `source`, `config_dir` and `config_name` as typed.
        *more: Further overrides, after those.

    Returns:
        The configuration, and the folder of that run; without one the folder of all runs.

    Raises:
        UserErrors: Everything that is wrong with it.
        UserError: There is no such run, or one is named in the place of an override.
    """
    overrides = [*options.overrides, *more]
    if options.source is not None:
        folder = find_run(options.source, project())
        return read_run(folder, overrides, new=True).cfg, folder
    for word in options.overrides:
        named = None
        if "=" not in word and not word.startswith(("~", "+")):
            with suppress(UserError):
                named = find_run(word, project())
        if named is not None:
            raise UserError(f"this is a run ({named}), not an override", received=word, fix=f"--from {word}")
    from lightkit.config import compose

    composed = compose(overrides, config_dir=options.config_dir, config_name=options.config_name)
    return composed.cfg, project() / run_files.OUTPUTS


@contextmanager
def built_model(options: Namespace) -> Iterator[tuple[DictConfig, Learner]]:
    """Build the parts of the run that is meant, on the CPU; nothing is written.

    Raises:
        UserError: The configuration is wrong, or a part cannot be built.
    """
    cfg, folder = configuration(options, "device.name=cpu")
    with importing():
        from lightkit.assembly import build

    parts = build(cfg, folder, report=complain)
    with closing(parts.data):
        yield cfg, parts


def _read_shape(options: Namespace) -> tuple[int, ...] | None:
    """Read the option `--input`.

    Raises:
        UserError: It is no shape.
    """
    if options.input is None:
        return None
    parts = options.input.strip("()[] ").replace("x", ",").replace(" ", "").removesuffix(",").split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        expected = "whole numbers from 1, without that of the samples: 3,224,224"
        raise UserError("not a shape", key="--input", expected=expected, received=options.input)
    return tuple(map(int, parts))


def _read_depth(options: Namespace) -> int | None:
    return None if options.depth is None else whole_number("--depth", options.depth, what="not a number of levels")
