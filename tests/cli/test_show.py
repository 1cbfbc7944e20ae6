from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Outcome
from tests.runner.finished_runs import trained

Cli = Callable[..., Outcome]


def test_data_as_page_and_picture(cli: Cli, project: Path) -> None:
    done = cli("show", "data", "data=wine", "--split", "val", "--count", "3")
    assert done.code == 0, done.err
    place = project / "outputs" / "show" / "wine_mlp"
    assert {path.name for path in place.iterdir()} == {"data-val.html", "data-val.png"}
    assert str(place / "data-val.html") in done.out
    assert "no runs" in cli("runs").out  # a page is no run


def test_worst_of_a_run(cli: Cli, project: Path) -> None:
    folder = trained(project / "outputs" / "runs" / "2026-01-31" / "12-00-00-run")
    done = cli("show", "worst", "last", "--count", "4", "--split", "val")
    assert done.code == 0, done.err
    assert done.out.splitlines()[1].split() == ["row", "loss", "target", "prediction"]
    assert (folder / "show" / "worst-val.html").is_file()
    rows = json.loads(cli("show", "results", "run", "--json", "--count", "2", "--output", "here").out)
    assert [sorted(row) for row in rows["samples"]] == [
        ["confidence", "loss", "prediction", "right", "row", "target"]
    ] * 2
    assert (project / "here" / "results-test.png").is_file()
    assert cli("show", "data", "--from", "run", "--count", "1").code == 0
