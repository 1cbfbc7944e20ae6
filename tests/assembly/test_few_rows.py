"""The few rows that smoke and overfit runs leave of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightkit.assembly import build_shared
from lightkit.config import compose


def data_of(*overrides: str, **options: Any) -> Any:
    cfg = compose(["data=digits", "device=cpu", *overrides]).cfg
    return build_shared(cfg, Path("unused"), **options).data


def test_all_rows_stay_in_other_runs() -> None:
    assert data_of().train.num_samples > 1000
    assert not any("trainer." in note for note in data_of().notes)


@pytest.mark.parametrize("size", [64, 10])
def test_the_last_batch_is_as_large_as_in_the_whole_run(size: int) -> None:
    whole, few = data_of(f"data.batch_size={size}"), data_of("trainer=smoke", f"data.batch_size={size}")
    assert 32 <= few.train.num_samples <= max(2 * size, 32 + size)
    for name, loader in few.loaders().items():
        assert loader.num_samples % size == whole.loaders()[name].num_samples % size
    assert set(few.rows["train"].tolist()) <= set(whole.rows["train"].tolist())
    assert any("trainer.smoke: " in note and f"of {whole.train.num_samples:,} train" in note for note in few.notes)


def test_how_many_rows_are_left() -> None:
    assert data_of("trainer=smoke", "data.batch_size=20", "trainer.accumulate=8").train.num_samples > 60
    alone, several = (data_of("trainer=smoke", f"ensemble={kind}").train.num_samples for kind in ("none", "bagging"))
    assert several >= 2 * alone - 64, "members have rows to share"
    assert data_of("trainer=smoke", "data=wine", "data.batch_size=500").train.num_samples == 124, "never more"
    assert data_of("trainer=smoke", rows={"train": 20}).train.num_samples == 20, "a proof takes its own"


def test_samples_come_again_and_again_in_an_epoch() -> None:
    data = data_of("trainer=overfit")
    assert len(data.rows["train"]) == 8
    assert data.train.num_samples == 25 * 8
    batches = [y.tolist() for _, y in data.train.epoch(3)]
    assert batches == [batches[0]] * 25
    assert data.val.num_samples == 8


def test_more_samples_than_a_batch() -> None:
    data = data_of("trainer=overfit", "trainer.overfit.samples=50", "data.batch_size=16")
    assert data.train.batch_size == 16
    assert data.train.num_samples % 50 == 0
    assert len(data.train) >= 20
    data = data_of("trainer=overfit", "data=wine", "trainer.overfit.samples=5000", "data.batch_size=5000")
    assert len(data.rows["train"]) == 124
