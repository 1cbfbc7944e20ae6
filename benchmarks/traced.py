"""What `logger.trace` costs: blocks of steps of one run, in turn with and without its lines.

python -m benchmarks.traced [--rounds 40] [--steps 400]
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Bar, Results, Sample, judge, options, show
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


def run(rounds: int, steps: int, hidden: str, batch: int, every: int) -> Results:
    """Train an MLP from a composed configuration with its usual files, without checkpoints."""
    from benchmarks import traced  # this module by the name that the configuration has for it, not as `__main__`
    from lightkit import Runner, compose

    overrides = [
        "data=custom", "data.dataset._target_=benchmarks.work.data_set", f"+data.dataset.rows={200 * batch}",
        "data.split.val=0", "data.split.test=0", f"data.batch_size={batch}", "model=mlp", f"model.hidden=[{hidden}]",
        "checkpoint=none", "device.name=cpu", "device.threads=1", "metrics=none", "metrics.monitor=train/loss",
        "metrics.mode=min", f"trainer.steps={(2 * rounds + 1) * steps}", "trainer.test=none",
        "logger.console.style=quiet", "logger.system.enabled=false",
        f"trainer.callbacks={{blocks: {{_target_: benchmarks.traced.Blocks, every: {every}, steps: {steps}}}}}",
    ]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        Runner(compose(overrides).cfg, Path(folder)).run()
    return traced.Blocks.last.results


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
            results = run(rounds, steps, hidden, batch, every)
        show(f"a step, MLP of [{hidden}], batch {batch}, a line every {every}", results, OFF, per=steps, unit="µs")
        fine = judge(results, [Bar(ON, OFF, 1.01, kind="cpu")]) and fine
    logging.disable(logging.NOTSET)
    return fine


if __name__ == "__main__":
    raise SystemExit(not main())
