"""Who looks on while a run trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lightkit.config import compose
from lightkit.runner import Runner
from lightkit.runner.fit import Observer
from lightkit.trainer.learner import Learner


class Noting(Observer):
    """Shortens the training split, and notes what it is shown."""

    rows: Mapping[str, int] = {"train": 32}

    def __init__(self) -> None:
        self.seen: list[str] = []

    def watch(self, learner: Learner) -> Learner:
        self.seen.append(f"{learner.data.train.num_samples} rows at step {learner.state.step}")
        return learner

    @contextmanager
    def saving(self, learner: Learner) -> Iterator[None]:
        self.seen.append(f"saves step {learner.state.step}")
        yield
        self.seen.append("saved")


def test_an_observer_sees_the_learner_before_it_trains_and_every_save(tmp_path: Path) -> None:
    options = ["data=wine", "data.batch_size=16", "model.hidden=[8]", "trainer.epochs=2", "trainer.test=none"]
    cfg = compose([*options, "device=cpu", "metrics.monitor=train/loss"]).cfg
    noting = Noting()
    Runner(cfg, tmp_path / "run", observer=noting).run()
    assert noting.seen == ["32 rows at step 0", "saves step 2", "saved", "saves step 4", "saved"]
