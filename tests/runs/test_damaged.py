"""Damage to one file of one run costs no command anything but what that file would have said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, cycle, islice
from pathlib import Path

import pytest

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UNREADABLE, UserError
from lightkit.detached.folders import entry_of
from lightkit.doctor.after_run import History
from lightkit.runs.index import all_records
from lightkit.sweep.journal import read_journal
from tests.conftest import Outcome
from tests.runs.damaging import ENSEMBLE, FILES, OTHER, RUN, SWEEP, clear, damages, make_project

Cli = Callable[..., Outcome]


def commands(text: str) -> list[tuple[str, ...]]:
    return [tuple(command.split()) for line in text.splitlines() for command in line.split(" | ")]


OVERVIEWS = commands("ps --all | runs --limit 0 | compare outputs | ps --all --json | runs --json --sort val/loss")
"""Commands about all runs."""
OTHERS = commands(f"""\
sweep status {SWEEP} | sweep status last --json | resume -d --all-lost | logs {RUN} | stop last | attach {RUN}
wait {RUN} | doctor {RUN} | doctor outputs | stop a grid | wait {SWEEP} | ckpt list {RUN} | sweep stop {SWEEP}
compare {RUN} {OTHER} | runs --where optim.lr>0 | logs {SWEEP} | board --list""")
SLOW = commands(f"""\
show results {RUN} | params {RUN} | plan --from {RUN} | eval {RUN} | predict {RUN} | ensemble {RUN} {OTHER}
resume {ENSEMBLE} --help | config show --from {RUN} | train --from {RUN} --cfg job | ckpt info {RUN}
doctor {ENSEMBLE} | eval {ENSEMBLE}""")
"""Commands that import PyTorch, or build data and a model."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a project with runs, an ensemble and a sweep."""
    folder = tmp_path_factory.mktemp("made")
    make_project(folder)
    return folder / "outputs"


@pytest.fixture
def damaged(project: Path, made: Path) -> Path:
    """A project with a copy of these, in which each test damages a file."""
    shutil.copytree(made, project / "outputs")
    return project


def cases(path: Path, seed: int, count: int, first: int = 0) -> Iterator[str]:
    """Damage a file again and again, each time from what it was, and put it back in the end."""
    whole = path.read_bytes()
    for name, damage in islice(damages(seed), first, first + count):
        damage(path)
        yield name
        if path.exists() and not path.is_dir():
            path.chmod(0o644)
        clear(path)
        path.write_bytes(whole)


def check(done: Outcome, case: str) -> None:
    assert "Traceback (most recent" not in done.err, (case, done.err)
    assert done.code in (0, 1, 2, UNREADABLE), (case, done)


@pytest.mark.thorough(first=3)
@pytest.mark.parametrize("kind", FILES)
def test_no_damage_takes_a_command_down(damaged: Path, cli: Cli, kind: str) -> None:
    """Some of all kinds of damage to each kind of file, each with another command; half of them are about all runs."""
    at = list(FILES).index(kind)
    tried = islice(cycle(chain.from_iterable(zip(cycle(OVERVIEWS), OTHERS))), 5 * at, None)
    for case, command in zip(cases(damaged / FILES[kind], len(kind), 10, first=5 * (at % 6)), tried):
        done = cli(*command)
        check(done, f"{kind}, {case}: {command}")
        if command in OVERVIEWS:
            shown = "val/loss" if "compare" in command else "chosen"
            assert (done.code, shown in done.out) == (0, True), (kind, case, command, done)


@pytest.mark.thorough
@pytest.mark.slow
def test_no_damage_of_a_thousand_takes_a_reader_down(damaged: Path, cli: Cli) -> None:
    """A thousand kinds of damage to each kind of file: each is read directly, and every tenth by a command."""
    tried = cycle(chain(OVERVIEWS, OTHERS, SLOW))
    for kind, name in FILES.items():
        for number, case in enumerate(cases(damaged / name, 1000 + len(kind), 1000)):
            folder = (damaged / name).parent
            History.of(folder).log_tail()
            entry_of(folder).facts()
            CheckpointStore(folder / "checkpoints", mode="min").entries()
            all_records(damaged)
            with suppress(UserError):
                read_journal(damaged / SWEEP)
            if number % 10 == 0:
                command = next(tried)
                check(cli(*command), f"{kind}, {case}: {command}")


def test_the_damaged_run_is_a_row_that_says_so(damaged: Path, cli: Cli) -> None:
    (damaged / RUN / "result.json").write_text('{"status": "finished", "metrics": [[1]], "objective": {"value": []}}')
    (damaged / SWEEP / "lr=1" / "config.yaml").write_text("[" * 100_000)
    rows = {row["folder"]: row for row in json.loads(cli("runs", "--json", "--limit", "0").out)}
    assert rows[RUN]["status"] == "damaged"
    assert rows[RUN]["damage"] == [
        "result.json: `metrics` is not an object",
        "result.json: `objective.value` is not a number",
    ]
    assert rows[f"{SWEEP}/lr=1"]["damage"] == ["config.yaml: nested too deeply"]
    assert (rows[OTHER]["status"], rows[OTHER]["damage"]) == ("finished", [])
    assert f"{RUN}: result.json: `metrics` is not an object" in cli("runs").err


def test_a_result_that_cannot_be_read_is_no_unfinished_run(damaged: Path, cli: Cli) -> None:
    (damaged / RUN / "result.json").write_bytes(b"\0" * 100)
    rows = {row["folder"]: row for row in json.loads(cli("ps", "--all", "--json").out)}
    row = rows[str(damaged / RUN)]
    assert (row["state"], row["error"]) == ("damaged", "result.json: only zeros, as after a power cut")
    assert rows[str(damaged / OTHER)]["state"] == "finished"


def test_a_named_run_that_is_damaged_is_refused(damaged: Path, cli: Cli) -> None:
    (damaged / RUN / "config.yaml").write_text("a: &a [x]\nb: [*a, *a]\n")
    for command in (("compare", RUN, OTHER), ("params", RUN), ("eval", RUN)):
        done = cli(*command)
        assert done.code == 2, (command, done)
        assert "a reference of YAML" in done.err, (command, done.err)
    whole = cli("compare", "outputs")
    assert whole.code == 0
    assert f"left out, as they are damaged: {RUN} (config.yaml: a reference of YAML" in whole.out


def test_a_sweep_whose_first_line_is_damaged_is_refused_alone(damaged: Path, cli: Cli) -> None:
    journal = damaged / SWEEP / "sweep.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(["{\n", *lines[1:]]))
    for action in ("status", "resume"):
        done = cli("sweep", action, SWEEP)
        assert done.code == 2
        assert "this sweep is damaged: line 1: not JSON" in done.err
    row = {row["folder"]: row for row in json.loads(cli("ps", "--all", "--json").out)}[str(damaged / SWEEP)]
    journal.write_text(lines[0][:-5])
    assert "this sweep is damaged: its journal has no whole line" in cli("sweep", "status", SWEEP).err
    assert (row["state"], row["error"][:31]) == ("damaged", "this sweep is damaged: line 1: ")


def test_a_damaged_line_of_a_journal_costs_its_job_alone(damaged: Path, cli: Cli) -> None:
    journal = damaged / SWEEP / "sweep.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    planned = next(at for at, line in enumerate(lines) if '"planned", "name": "lr=2"' in line)
    lines[planned] = lines[planned].replace('"overrides": []', '"overrides": 3')
    journal.write_text("".join(lines))
    done = cli("sweep", "status", SWEEP)
    assert done.code == 0
    assert "lr=1" in done.out
    assert f"sweep.jsonl: line {planned + 1}: `overrides` is not a list of texts" in done.err
