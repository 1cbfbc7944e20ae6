"""One composition, checked and complete, beside a plain merge of the same files by OmegaConf.

    python -m benchmarks.composing [--rounds 9]

The merge parses the files each time; a composition in the same process knows them. The first one of a process, with all
imports done, also reads sources of what the configuration builds, and is shown without a bar.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from omegaconf import OmegaConf

from benchmarks.harness import Bar, Sample, interleave, judge, options, show
from benchmarks.startup import environment
from lightkit.config import compose
from lightkit.config.origins import dotted

MERGED, USUAL, MANY, FIRST = "plain merge of the same files", "one composition", "with many overrides", "the first one"
OVERRIDES = (
    "data=digits", "model=mlp", "model.hidden=[64,64]", "optim=sgd", "optim.lr=0.05", "optim.weight_decay=1e-4",
    "scheduler=cosine", "trainer.epochs=7", "trainer.ema.decay=0.99", "data.batch_size=32", "seed=3", "device=cpu",
    "logger.every_steps=10", "~metrics.val.f1", "extra.note=one", "name=many", "checkpoint.keep_last=2",
)  # fmt: skip
BARS = [
    Bar(USUAL, "", 0.08, kind="cpu"),
    Bar(MANY, "", kind="cpu"),
    Bar(USUAL, MERGED, kind="cpu"),
    Bar(FIRST, "", kind="cpu"),
]
_FRESH = """
import time
from lightkit.config import compose
began = time.process_time()
compose()
print(time.process_time() - began)
"""


def merged() -> Sample:
    """Read and merge the files of the default configuration."""
    layers = [(path, dotted(package)) for path, package in compose().sources.layers]
    made = OmegaConf.create()
    with Sample() as sample:
        for path, package in layers:
            OmegaConf.update(made, package, OmegaConf.load(path)) if package else made.merge_with(OmegaConf.load(path))
    sample.proof["keys"] = len(made)
    return sample


def composed(*overrides: str) -> Sample:
    """Compose once."""
    with Sample() as sample:
        made = compose(overrides)
    sample.proof["keys"] = len(made.cfg)
    return sample


def first() -> Sample:
    """Compose once in a process that has imported all of it."""
    done = subprocess.run([sys.executable, "-c", _FRESH], env=environment(), capture_output=True, text=True, check=True)
    return Sample(cpu=float(done.stdout), wall=float(done.stdout))


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    chosen = options("what one composition costs", rounds=9).parse_args(arguments)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            contestants = {MERGED: merged, USUAL: composed, MANY: partial(composed, *OVERRIDES), FIRST: first}
            results = interleave(contestants, rounds=chosen.rounds)
        finally:
            os.chdir(before)
    show("a configuration", results, MERGED)
    return judge(results, BARS)


if __name__ == "__main__":
    raise SystemExit(not main())
