"""What `logger.trace` costs: blocks of steps of one run, in turn with and without its lines.

python -m benchmarks.traced [--rounds 40] [--steps 400]
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from benchmarks.harness import Bar, Results, Sample, judge, options, show
from benchmarks.work import trained_in_blocks
from lightkit.trainer.traced import StepTrace

ON, OFF = "traced", "not traced"
TURN = (ON, OFF, OFF, ON)
"""Neither side always comes first."""
SIZES = (("16", 32, 200, 4), ("512,512", 64, 200, 1))
"""Hidden layers, batch, steps between two lines, and how many times `--steps` a block is."""


class Blocks(StepTrace):
    """Times blocks of steps, every other one of which is traced; in the others no hook of the trace is called.

    Args:
        every: Optimizer steps between two lines.
        steps: Optimizer steps of a block.
    """

    last: Blocks
    """The newest, for whoever started the run."""

    def __init__(self, every: int, steps: int) -> None:
        super().__init__(every)
        self.steps, self.results, self._sample = steps, Results({ON: [], OFF: []}), Sample()
        self._clock = Clock(self)
        Blocks.last = self

    def on_fit_start(self, trainer: Any) -> None:
        """Take the hooks of the trace out of the loop, to put them back for a block."""
        super().on_fit_start(trainer)
        self.hooks = trainer._hooks
        self.hooks["on_step"].insert(0, self._clock)

    def turn(self, step: int) -> None:
        """End a block, and begin another one; the first is not counted."""
        block = step // self.steps
        if block > 1:
            self._sample.__exit__(None, None, None)
            self.results[TURN[block % 4]].append(self._sample)
        traced = TURN[(block + 1) % 4] == ON
        self.hooks["on_before_update"] = [self] if traced else []
        self.hooks["on_step"] = [self._clock, *([self] if traced else [])]
        self._sample = Sample()
        self._sample.__enter__()


class Clock:
    """Tells `Blocks` that a block is over.

    Args:
        blocks: Whom to tell.
    """

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def on_step(self, trainer: Any) -> None:
        """See `Callback.on_step`."""
        if trainer.state.step % self._blocks.steps == 0:
            self._blocks.turn(trainer.state.step)


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    args = options("cost of a trace", rounds=40, steps=400).parse_args(arguments)
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    fine = True
    for hidden, batch, every, times in SIZES:
        rounds, steps = (
            (args.rounds, args.steps * times) if times > 1 else (max(4, args.rounds // 4), max(every, args.steps // 2))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = trained_in_blocks("traced", steps=steps, rounds=rounds, hidden=hidden, batch=batch, every=every)
        show(f"a step, MLP of [{hidden}], batch {batch}, a line every {every}", results, OFF, per=steps, unit="µs")
        fine = judge(results, [Bar(ON, OFF, 1.01, kind="cpu")]) and fine
    logging.disable(logging.NOTSET)
    return fine


if __name__ == "__main__":
    raise SystemExit(not main())
