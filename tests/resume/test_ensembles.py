"""Ensembles that are killed, damaged or made larger: they end with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lightkit.checkpoint.store import CheckpointStore
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.ensemble.oof import MemberPredictions
from lightkit.runner import Runner
from lightkit.runner.comparison import compare_runs
from lightkit.runner.ensemble import run as ensemble_run
from lightkit.runner.ensemble.member_files import MemberFiles
from lightkit.runner.trace import Moment, kill, traced_runner
from lightkit.runs.folder import RunFolder
from tests.resume.ensembles import BASE, METHODS, config, differences, go_on, train
from tests.resume.harness import forked
from tests.waiting import until

ALONE = "ensemble.engine=sequential"
"""A member that is trained alone ends with other last bits than one that is trained with others at once."""


@pytest.fixture(scope="module")
def voting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three members that vote; they train in this process, which imports all that others are forked with."""
    place = tmp_path_factory.mktemp("ensembles") / "whole"
    Runner(config("voting", ALONE), place).run()
    return place


@pytest.fixture
def copy(voting: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(voting, tmp_path / "run"))


def resumed(place: Path, *overrides: str) -> None:
    """Go on in another process."""
    forked(lambda: go_on(None, place, *overrides), place.with_name("log"))


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_kills_in_several_members_folds_rounds_and_cycles_change_nothing(
    method: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cfg = config(method)
    if "engine" in cfg.ensemble:
        cfg = config(method, ALONE)
    place = tmp_path / "run"
    if method == "voting":
        whole = request.getfixturevalue("voting")
    else:
        train(cfg, whole := tmp_path / "whole")
    names = sorted(path.name for path in (whole / "members").iterdir())
    for name in sorted({names[len(names) // 2], names[-1]}):

        def job(name: str = name) -> None:
            moment = Moment("step", 5, 0, name)
            traced_runner(cfg, place, trace=tmp_path / "trace", end_at=moment).run(resume=place.is_dir())

        forked(job, tmp_path / "log", want=-signal.SIGKILL)
        assert not (place / "members" / name / "result.json").exists()
    resumed(place)
    assert differences(whole, place) == []


@pytest.mark.thorough
def test_members_in_processes_end_with_the_one_that_started_them_and_go_on(tmp_path: Path) -> None:
    more = ("ensemble.size=2", "trainer.epochs=30")
    train(config("voting", ALONE, *more), tmp_path / "whole")
    cfg, place = config("voting", "ensemble.engine=processes", "ensemble.slots=2", *more), tmp_path / "run"

    def job() -> None:
        def wait_and_kill() -> None:
            saved = [place / "members" / name / "checkpoints" / "manifest.json" for name in ("00", "01")]
            until(lambda: any(path.exists() for path in saved), "a member to save")
            kill()

        threading.Thread(target=wait_and_kill, daemon=True).start()
        Runner(cfg, place).run()

    forked(job, tmp_path / "log", want=-signal.SIGKILL)
    resumed(place)
    settings = ("ensemble.safetensors: ", "plan.settings.")  # the engine is in both
    assert [found for found in differences(tmp_path / "whole", place) if not found.startswith(settings)] == []


@pytest.mark.thorough(first=1)
@pytest.mark.parametrize("engine", ["vectorized", "processes", "sequential"])
def test_a_cross_validation_that_is_killed_in_its_folds_ends_with_the_same_bits(engine: str, tmp_path: Path) -> None:
    epochs = 30 if engine == "processes" else 3  # these are killed by another process, before they end
    cfg = compose([*BASE, "cv=2", f"cv.engine={engine}", f"trainer.epochs={epochs}"]).cfg
    whole, place = tmp_path / "whole", tmp_path / "run"
    train(cfg, whole)

    def job() -> None:
        def wait_and_kill() -> None:
            until(lambda: any(place.glob("**/manifest.json")), "a fold to save")
            kill()

        if engine == "processes":
            threading.Thread(target=wait_and_kill, daemon=True).start()
        else:
            killed_at(MemberFiles if engine == "vectorized" else CheckpointStore, "save", 0, after=True)()
        Runner(cfg, place).run()

    forked(job, tmp_path / "log", want=-signal.SIGKILL)
    assert not (place / "result.json").exists()
    resumed(place)
    assert [item for item in compare_runs(whole, place) if item.different] == []
    one, other = (MemberPredictions.read(run / "oof.safetensors") for run in (whole, place))
    assert torch.equal(one.predictions, other.predictions)


def killed_at(owner: Any, name: str, number: int, *, after: bool) -> Callable[[], None]:
    """Return what has a process kill itself before or after a call of a function, the first of which is 0."""

    def patch() -> None:
        calls, inner = [0], getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            now, calls[0] = calls[0], calls[0] + 1
            if now == number and not after:
                kill()
            found = inner(*args, **options)
            if now == number:
                kill()
            return found

        setattr(owner, name, call)

    return patch


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        pytest.param(MemberPredictions, "write", 1, id="the predictions of a member"),
        pytest.param(RunFolder, "record", 0, id="the configuration, before the first member begins"),
        pytest.param(RunFolder, "write_result", 1, id="the result of a member"),
        pytest.param(ensemble_run, "write_ensemble", 0, id="the file of all"),
    ],
)
def test_a_kill_while_files_are_written_changes_nothing(
    owner: Any, name: str, number: int, after: bool, voting: Path, tmp_path: Path
) -> None:
    cfg, place, patch = config("voting", ALONE), tmp_path / "run", killed_at(owner, name, number, after=after)

    def job() -> None:
        patch()
        Runner(cfg, place).run()

    forked(job, tmp_path / "log", want=-signal.SIGKILL)
    forked(lambda: go_on(cfg, place), tmp_path / "log")
    assert differences(voting, place) == []


def damage_checkpoint(member: Path) -> None:
    for path in (member / "checkpoints").glob("step-*.pt"):
        path.write_bytes(path.read_bytes()[:-100])


def damage_best(member: Path) -> None:
    oldest = min((member / "checkpoints").glob("step-*.pt"))
    content = bytearray(oldest.read_bytes())
    content[len(content) // 2] ^= 1
    oldest.write_bytes(content)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage",
    [
        damage_checkpoint,
        damage_best,
        shutil.rmtree,
        lambda member: (member / "oof.safetensors").write_bytes(b"nothing"),
        lambda member: (member / "config.yaml").unlink(),
        lambda member: (member / "config.yaml").write_text("a: [b"),
        lambda member: (member / "result.json").unlink(),
    ],
    ids=["checkpoints", "best", "folder", "oof", "no-config", "config", "no-result"],
)
def test_a_damaged_member_is_made_whole_again_alone(damage: Callable[[Path], Any], voting: Path, copy: Path) -> None:
    damage(copy / "members" / "01")
    before = {path: path.stat().st_mtime_ns for path in (copy / "members" / "00").rglob("*") if path.is_file()}
    resumed(copy)
    assert differences(voting, copy) == []
    after = {path: path.stat().st_mtime_ns for path in (copy / "members" / "00").rglob("*") if path.is_file()}
    assert after == before


def far(one: Path, other: Path) -> list[str]:
    """What of the weights and predictions of two ensembles differs by more than rounding."""
    files = {
        path.relative_to(one): load_file(path) for path in [one / "ensemble.safetensors", *one.rglob("oof.safetensors")]
    }
    return [
        f"{file}: {name}"
        for file, tensors in files.items()
        for name, tensor in load_file(other / file).items()
        if not torch.allclose(tensor.double(), tensors[name].double(), rtol=0, atol=1e-5, equal_nan=True)
    ]


@pytest.mark.thorough
def test_members_made_whole_or_added_where_all_train_at_once_differ_by_rounding_at_most(tmp_path: Path) -> None:
    together = ("ensemble.engine=vectorized", "ensemble.weights=uniform")
    whole, damaged, grown = tmp_path / "whole", tmp_path / "damaged", tmp_path / "grown"
    train(config("voting", *together), whole)
    shutil.copytree(whole, damaged)
    shutil.rmtree(damaged / "members" / "01")
    train(config("voting", *together, "ensemble.size=2"), grown)
    kept = {path: path.read_bytes() for run in (damaged, grown) for path in (run / "members" / "00").rglob("*.*")}
    resumed(damaged, "ensemble.engine=auto")
    resumed(grown, "ensemble.size=3", "ensemble.engine=auto")
    assert far(whole, damaged) == []
    assert far(whole, grown) == []
    assert {path: path.read_bytes() for path in kept} == kept


@pytest.mark.thorough
def test_a_damaged_round_is_trained_again_and_later_rounds_stay(tmp_path: Path) -> None:
    train(config("gradient_boosting"), tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    damage_checkpoint(tmp_path / "run" / "members" / "01-round")
    last = tmp_path / "run" / "members" / "02-round" / "result.json"
    before = last.stat().st_mtime_ns
    resumed(tmp_path / "run")
    assert differences(tmp_path / "whole", tmp_path / "run") == []
    assert last.stat().st_mtime_ns == before


@pytest.mark.thorough(first=0)
def test_a_finished_ensemble_takes_more_members_and_fewer(voting: Path, tmp_path: Path) -> None:
    train(config("voting", ALONE, "ensemble.size=2"), tmp_path / "run")
    first = tmp_path / "run" / "members" / "00" / "result.json"
    before = first.stat().st_mtime_ns
    resumed(tmp_path / "run", "ensemble.size=3")
    assert first.stat().st_mtime_ns == before
    assert differences(voting, tmp_path / "run") == []
    resumed(tmp_path / "run", "ensemble.size=2", "ensemble.weights=uniform")
    plan = load_run(tmp_path / "run").cfg.ensemble
    assert (plan.size, plan.weights) == (2, "uniform")
    assert (tmp_path / "run" / "members" / "02").is_dir(), "it stays, for when there are three again"


@pytest.mark.thorough
def test_folds_grow_by_repeats_and_snapshots_with_their_epochs(tmp_path: Path) -> None:
    train(config("folds", ALONE), tmp_path / "two")
    train(config("folds", ALONE, "ensemble.repeats=1"), tmp_path / "one")
    resumed(tmp_path / "one", "ensemble.repeats=2")
    assert differences(tmp_path / "two", tmp_path / "one") == []
    train(config("snapshot"), tmp_path / "three")
    train(config("snapshot", "ensemble.size=2", "trainer.epochs=4"), tmp_path / "cycles")
    resumed(tmp_path / "cycles", "ensemble.size=3", "trainer.epochs=6")
    assert differences(tmp_path / "three", tmp_path / "cycles") == []
    with pytest.raises(UserError, match="member 00-cycle has finished, and 01-cycle went on from it"):
        go_on(None, tmp_path / "cycles", "trainer.epochs=9")


@pytest.mark.thorough
def test_a_network_of_several_does_not_grow(tmp_path: Path) -> None:
    train(config("fusion"), tmp_path / "run")
    with pytest.raises(UserError, match="member 00-fusion of this run was trained as another one"):
        go_on(None, tmp_path / "run", "ensemble.size=3")


@pytest.mark.thorough
def test_members_of_a_vote_are_trained_on(tmp_path: Path) -> None:
    constant = "scheduler=constant"
    train(config("voting", ALONE, constant, "trainer.epochs=3"), tmp_path / "long")
    train(config("voting", ALONE, constant), tmp_path / "run")
    resumed(tmp_path / "run", "trainer.epochs=3")
    long, run = (MemberPredictions.read(tmp_path / name / "oof.safetensors") for name in ("long", "run"))
    assert long.predictions.equal(run.predictions)


@pytest.mark.thorough
def test_a_signal_ends_all_of_it_and_names_the_ensemble(voting: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    moment, end = Moment("step", 5, 0, "01"), lambda: os.kill(os.getpid(), signal.SIGTERM)
    cut = lambda: traced_runner(config("voting", ALONE), place, trace=tmp_path / "trace", end_at=moment, end=end).run()  # noqa: E731
    forked(cut, tmp_path / "log", want=128 + signal.SIGTERM)
    assert f"lightkit resume {place}\n" in (place / "members" / "01" / "run.log").read_text()
    resumed(place)
    assert differences(voting, place) == []
