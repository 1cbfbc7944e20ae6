"""`lightkit plan`: what a run would train, at which rate and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.inspected import built_model
from lightkit.cli.terminal import json_text, say, table

if TYPE_CHECKING:
    from lightkit.assembly import Learner
    from lightkit.assembly.matches import Match
    from lightkit.finetune.plan import Plan


def plan(args: list[str]) -> int:
    """Print what would be trained."""
    options = Parser("plan", "overrides*").read(args)
    with built_model(options) as (cfg, parts):
        from lightkit.assembly.matches import matches_of
        from lightkit.assembly.origin import notes_on_base
        from lightkit.assembly.phases import build_plan_of, notes_on_plan

        found, matches = build_plan_of(parts), matches_of(cfg, parts)
        if options.json:
            content, notes = _facts(found, matches, parts), [*parts.data.notes, *notes_on_plan(cfg, parts)]
            say(json_text({**content, **({"notes": notes} if notes else {})}))
        else:
            for note in parts.data.notes:
                say(note)
            _print(found, matches, parts, long=options.long)
            on_base = notes_on_base(cfg, parts.data) if parts.made.report else ()
            for note in (*on_base, *notes_on_plan(cfg, parts)):
                say(f"\n{note}")
    return 0


def _print(found: Plan, matches: Sequence[Match], parts: Learner, *, long: bool) -> None:
    """Print the plan as tables and lines."""
    from lightkit.assembly.matches import COLUMNS

    titles, rows = found.table(long=long)
    last = len(titles) - 1
    say(table(titles, rows, right=(2, 3), cut=[1, last - 1, last]))
    say()
    for line in found.lines():
        say(line)
    if parts.made.prepared is not None:
        say(f"output layer: {parts.made.prepared.described_head}")
    if matches:
        say("\n" + table(COLUMNS, [match.cells() for match in matches], right=(2, 3, 4), cut=[0, 1]))
    report = parts.made.report
    if report is not None:
        say(f"\nweights from {report.source}: {report.summary()}")
        more: Sequence[Sequence[str]] = report.table()[1][1:]
        if more:
            say(table([], [["", *row] for row in more]))


def _facts(found: Plan, matches: Sequence[Match], parts: Learner) -> dict[str, Any]:
    """Return all of it as plain values, without an output layer in plain training, which does not ask for it."""
    content, prepared, report = dict(found.to_json()), parts.made.prepared, parts.made.report
    if prepared is not None:
        content["head"] = prepared.head and {**prepared.head.to_json(), "new": prepared.replaced}
    content["patterns"] = [match.to_json() for match in matches]
    if report is not None:
        names = {group: list(getattr(report, group)) for group in ("loaded", "missing", "unexpected", "left")}
        more = {"reshaped": dict(report.reshaped), "reasons": dict(report.reasons)}
        content["weights"] = {"source": str(report.source), **names, **more}
    return content
