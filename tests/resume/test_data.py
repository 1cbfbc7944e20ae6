"""What is read across a resume: every sample once an epoch, and nothing again."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightkit.assembly import build_engine, build_splits
from lightkit.config import compose, load_run
from lightkit.runner import Runner
from lightkit.runner.trace import Moment, traced_runner
from lightkit.runs.reading import read_jsonl
from tests.resume.harness import BASE, foreign_draws, forked

ROWS = 50
EPOCHS = 3


def counting(tmp_path: Path, *overrides: str) -> list[str]:
    return [
        *BASE,
        "data=custom",
        "data.dataset._target_=tests.resume.sets.Counting",
        f"data.dataset.path={tmp_path / 'reads'}",
        f"data.dataset.rows={ROWS}",
        "+trainer.callbacks.begins._target_=tests.resume.sets.Begins",
        f"+trainer.callbacks.begins.path={tmp_path / 'reads'}",
        "data.split.val=0",
        "data.split.test=0",
        "metrics.monitor=train/loss",
        "metrics.mode=min",
        "trainer.test=none",
        "data.batch_size=8",
        "checkpoint.every_steps=1",
        "checkpoint.asynchronous=false",
        *overrides,
    ]


def reads(tmp_path: Path) -> list[int]:
    """Rows read by the last process since its training began."""
    rows = [int(line) for line in (tmp_path / "reads").read_text().split()]
    return rows[len(rows) - rows[::-1].index(-1) :]


def killed(tmp_path: Path, overrides: list[str], step: int) -> Path:
    """Kill a run right after the save of a step."""
    run, cfg = tmp_path / "run", compose(overrides).cfg

    def job() -> None:
        runner = traced_runner(cfg, run, trace=tmp_path / "trace", end_at=Moment("micro", step + 1, 0))
        runner.run()

    forked(job, tmp_path / "log", want=-9)
    return run


def resumed(tmp_path: Path, run: Path, *overrides: str) -> None:
    def job() -> None:
        foreign_draws()
        Runner(load_run(run, overrides).cfg, run).run(resume=True)

    forked(job, tmp_path / "log")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        (4, ["data.drop_last=true"], ["data.batch_size=15"]),
        (9, [], ["data.num_workers=2"]),
        (10, ["data.num_workers=2"], ["data.num_workers=0"]),
        (3, [], []),
        (9, [], ["data.batch_size=13"]),
        (5, ["data.drop_last=true"], ["data.batch_size=7"]),
        (6, ["data.drop_last=true"], ["data.batch_size=20"]),
        (2, ["trainer.accumulate=3"], ["data.batch_size=3"]),
    ],
)
def test_every_sample_is_read_once_an_epoch(tmp_path: Path, step: int, before: list[str], after: list[str]) -> None:
    run = killed(tmp_path, counting(tmp_path, *before), step)
    resumed(tmp_path, run, *after)
    drop, batch = "data.drop_last=true" in before, _batch(after)
    window = 8 * (3 if "trainer.accumulate=3" in before else 1)
    epoch, samples = _stands(step, ROWS - ROWS % 8 if drop else ROWS, window)
    end = ROWS - ROWS % batch if drop else ROWS
    orders = _orders(run)
    wanted = [orders[epoch][samples:end], *(order[:end] for order in orders[epoch + 1 :])]
    found = reads(tmp_path)
    for rows in wanted:  # workers read the rows of an epoch in any order
        assert sorted(found[: len(rows)]) == sorted(rows), "read again, or left out"
        found = found[len(rows) :]
    assert found == []


def _batch(overrides: list[str]) -> int:
    return next((int(text.partition("=")[2]) for text in overrides if text.startswith("data.batch_size")), 8)


def _stands(step: int, per_epoch: int, window: int) -> tuple[int, int]:
    """Epoch and samples done in it after so many steps."""
    steps = -(-per_epoch // window)
    return step // steps, (step % steps) * window


def _orders(run: Path) -> list[list[int]]:
    cfg = OmegaConf.load(run / "config.yaml")
    data = build_splits(cfg, build_engine(cfg))
    data.close()
    return [data.train.order(epoch).tolist() for epoch in range(EPOCHS)]


@pytest.mark.thorough
def test_another_batch_size_keeps_the_number_of_epochs(tmp_path: Path) -> None:
    batch = 20
    run = killed(tmp_path, counting(tmp_path), 9)
    resumed(tmp_path, run, f"data.batch_size={batch}")
    rows = [row for row in read_jsonl(run / "metrics.jsonl") if "train/loss" in row]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    left = -(-(ROWS - 16) // batch) + -(-ROWS // batch)
    assert rows[-1]["step"] == 9 + left


def test_the_order_of_epochs_does_not_depend_on_who_else_draws(tmp_path: Path) -> None:
    run = killed(tmp_path, counting(tmp_path), 9)
    orders = _orders(run)
    foreign_draws()
    assert _orders(run) == orders
