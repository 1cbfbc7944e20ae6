"""What it costs a run to be watched: blocks of steps of one run, in turn with and without `trainer.watch`.

A block has as many looks as the default has in it, one in two hundred steps; in the other blocks nobody looks. With a
tiny network a step is short and a look is dear beside it; a larger one shows what the fingerprints of weights cost.

    python -m benchmarks.watch [--rounds 60] [--steps 1000]
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from benchmarks.harness import Bar, Results, Sample, judge, options, show
from benchmarks.work import BATCH, HIDDEN, trained_in_blocks
from lightkit.trainer import Callback
from lightkit.trainer.audit.watch import NoWatch, Watcher
from lightkit.trainer.learner import Learner

ON, OFF = "watched every 200 steps", "not watched"
EVERY = 200
BARS = [Bar(ON, OFF, 1.02, kind="cpu"), Bar(ON, OFF)]
TURN = (ON, OFF, OFF, ON)
"""Neither side always comes first."""


class InTurn(NoWatch):
    """Looks only while it is told to."""

    active = False

    def __init__(self) -> None:
        self._watcher: Watcher | None = None

    def on_step(self, learner: Learner) -> None:
        """Look where that is due, or do nothing."""
        if self.active:
            self._watcher = self._watcher or Watcher(EVERY, action="stop")
            self._watcher.on_step(learner)
        elif self._watcher is not None:
            self._watcher = None
            learner.optimizer._optimizer_step_pre_hooks.clear()  # which count steps
            learner.optimizer._optimizer_step_post_hooks.clear()


class Blocks(Callback):
    """Times blocks of steps of a run that is started by its configuration.

    Args:
        steps: Optimizer steps of a block.
    """

    last: Blocks
    """The newest, for whoever started the run."""

    def __init__(self, steps: int) -> None:
        self.steps, self.results = steps, Results({ON: [], OFF: []})
        self.watch, self._sample = InTurn(), Sample()
        Blocks.last = self

    def on_fit_start(self, trainer: Any) -> None:
        """Take the place of the run's own."""
        trainer.watch = self.watch

    def on_step(self, trainer: Any) -> None:
        """Begin a block after the last step of another; the first one is not counted."""
        block, step = divmod(trainer.state.step, self.steps)
        if step:
            return
        if block > 1:
            self._sample.__exit__(None, None, None)
            self.results[TURN[block % 4]].append(self._sample)
        self.watch.active = TURN[(block + 1) % 4] == ON
        self._sample = Sample()
        self._sample.__enter__()


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    args = options("cost of watching a run", rounds=60, steps=1000).parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    fine = True
    for rounds, steps, hidden, batch in (
        (args.rounds, args.steps, str(HIDDEN), BATCH),
        (max(1, args.rounds // 2), max(1, args.steps // 5), "512,512", 64),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = trained_in_blocks("watch", steps=steps, rounds=rounds, hidden=hidden, batch=batch)
        show(f"a step, MLP of [{hidden}], batch {batch}", results, OFF, per=steps, unit="µs")
        fine = judge(results, BARS) and fine
    logging.disable(logging.NOTSET)
    return fine


if __name__ == "__main__":
    raise SystemExit(not main())
