"""An ensemble of finished runs, as a run of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightkit.assembly import build_shared
from lightkit.config.member_values import with_values
from lightkit.ensemble.plan import MemberResult
from lightkit.runner.ensemble.engines import train_members
from lightkit.runner.ensemble.finished import FinishedRun, FinishedRuns, check_run, scaling_of
from lightkit.runner.ensemble.run import build_plan
from lightkit.runner.run import Runner
from lightkit.runner.session import memory_released, session


def combine_runs(
    runs: Sequence[FinishedRun],
    folder: Path,
    *,
    method: Mapping[str, Any],
    name: str,
    weights: Sequence[float] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Make an ensemble of finished runs, as a run folder like that of an ensemble that was trained.

    Args:
        runs: The runs. The first one says on what device and by which metrics.
        folder: The new folder.
        method: The node `ensemble` of its configuration: a method and its settings.
        name: Name of the new run.
        weights: How much each run counts; None leaves that to the method.
        overrides: What was typed, for the record.

    Returns:
        The content of `result.json`.

    Raises:
        UserError: The runs do not go together, have no checkpoint, or no row is left that none of them trained on.
    """
    for member in runs:
        check_run(member)
    changed: dict[str, Any] = {
        "ensemble": dict(method),
        "name": name,
        "device.parallel": "none",
        "device.batch_size": None,
    }
    changed |= {"data.normalize": "none"} if scaling_of(runs) else {}
    trusted = [entry for member in runs for entry in member.cfg.get("trust") or ()]
    cfg = with_values(runs[0].cfg, {**changed, "trust": [*dict.fromkeys(trusted)]})
    with memory_released(), session(cfg, folder, overrides=overrides) as run:
        shared = build_shared(run.cfg, runs[0].folder, pretrained=False, trains=False, ranks=run.ranks)
        run.stack.callback(shared.data.close)
        plan = build_plan(run, shared, FinishedRuns(run, shared, runs, weights or ()))
        run.begin(shared.engine, shared.data)
        train, done = Runner(run.cfg, folder).train_member, list[MemberResult]()
        while members := plan.next(done):
            done += train_members(run, members, shared, train)
        result = plan.combine(done)
        run.place.write_result(result)
        return result
