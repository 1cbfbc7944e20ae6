"""What it costs a run to watch its machine: blocks of steps of one run, in turn with and without samples being taken.

The thread samples twice a second, twenty times as often as by default, so that every block has a sample; in the other
blocks it wakes up as often and does nothing. Where there is a GPU its driver is asked too.

    python -m benchmarks.monitor [--rounds 60] [--steps 3000]
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch

from benchmarks.harness import Bar, Results, Sample, judge, options, show
from benchmarks.work import BATCH, trained_in_blocks
from lightkit.monitor.monitor import Monitor, Watch
from lightkit.trainer import Callback, Trainer

ON, OFF = "watched twice a second", "not watched"
SECONDS = 0.5
BARS = [Bar(ON, OFF, 1.01, kind="cpu"), Bar(ON, OFF)]
TURN = (ON, OFF, OFF, ON)
"""Neither side always comes first."""


class InTurn(Watch):
    """Samples only while it is told to."""

    active = False
    taken = 0

    def take(self, *, last: bool = False) -> None:
        """Sample, or do nothing."""
        if self.active:
            self.taken += 1
            super().take(last=last)


class Blocks(Callback):
    """Times blocks of steps of a run that is started by its configuration.

    Args:
        steps: Optimizer steps of a block.
    """

    last: Blocks
    """The newest, for whoever started the run."""

    def __init__(self, steps: int) -> None:
        self.steps, self.results = steps, Results({ON: [], OFF: []})
        self.watch = InTurn(Path.cwd(), list(range(torch.cuda.device_count())))
        self._monitor, self._sample, self._taken = Monitor(self.watch, SECONDS), Sample(), 0
        Blocks.last = self

    def on_fit_start(self, trainer: Trainer) -> None:
        """Let the loop log what is seen."""
        self._monitor.start()
        trainer._clock.vitals = self._monitor.read

    def on_step(self, trainer: Trainer) -> None:
        """Begin a block after the last step of another; the first one is not counted."""
        block, step = divmod(trainer.state.step, self.steps)
        if step:
            return
        if block > 1:
            self._sample.__exit__(None, None, None)
            self._sample.proof["samples"] = self.watch.taken - self._taken
            self.results[TURN[block % 4]].append(self._sample)
        self.watch.active = TURN[(block + 1) % 4] == ON
        self._taken, self._sample = self.watch.taken, Sample()
        self._sample.__enter__()

    def on_fit_end(self, trainer: Trainer) -> None:
        """End the thread."""
        self._monitor.stop()


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bar holds."""
    args = options("cost of watching the machine", rounds=60, steps=3000).parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = trained_in_blocks("monitor", steps=args.steps, rounds=args.rounds)
    logging.disable(logging.NOTSET)
    show(f"a step, batch {BATCH}", results, OFF, per=args.steps, unit="µs")
    return judge(results, BARS)


if __name__ == "__main__":
    raise SystemExit(not main())
