"""Samples a second of training on a GPU: lightkit beside a loop that was optimised by hand.

A ResNet-50 on images, a small MLP and a transformer, in bf16. Both sides start from the same weights and learn from the
same batches, which come from memory; lightkit runs from a composed configuration, with its usual logging and its watch
over the machine. Without a CUDA GPU there is nothing to measure.

    python -m benchmarks.gpu_throughput [--rounds 7] [--steps 200] [--warm 50] [--device cpu --small]
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial

from benchmarks.gpu import SAME, Case, Work, arguments, by_hand, judge, lightkit
from benchmarks.harness import check_same, interleave, show

LIGHTKIT, HAND = "lightkit", "by hand"
LEAST = 0.98
"""Share of the throughput of the loop by hand."""
CASES = [
    Case(
        "ResNet-50, 128 images of 224 × 224",
        "resnet50",
        {},
        shape=(3, 224, 224),
        batch=128,
        small=({"width": 4}, (3, 16, 16), 8),
        images=True,
    ),
    Case(
        "MLP 64 → 256 → 256 → 10, batch 256",
        "mlp",
        {"hidden": [256, 256]},
        shape=(64,),
        batch=256,
        small=({"hidden": [8]}, (4,), 4),
    ),
    Case(
        "transformer, 8 blocks of width 512, 64 × 256 positions",
        "transformer",
        {"dim": 512, "depth": 8, "heads": 8},
        shape=(256, 64),
        batch=64,
        small=({"dim": 8, "depth": 1, "heads": 2}, (4, 4), 4),
    ),
]


def measure(work: Work, *, rounds: int, least: float | None) -> bool:
    """Measure one network; returns whether the bar holds."""
    results = interleave(
        {LIGHTKIT: partial(lightkit, work), HAND: partial(by_hand, work)},
        rounds=rounds,
        warm_ups=int(work.device == "cuda"),
    )
    check_same(results, **SAME)
    show(work.case.title, results, HAND, per=work.steps)
    return judge(work.case.title, results, LIGHTKIT, base=HAND, least=least)


def main(given: Sequence[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold, or True where nothing can be measured."""
    args = arguments("throughput on a GPU beside a loop by hand", given, rounds=7, steps=200)
    if args is None:
        return True
    logging.disable(logging.WARNING)
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in CASES:
            work = Work(case.shrunk() if args.small else case, args.device, args.steps, args.warm, "bf16")
            held.append(measure(work, rounds=args.rounds, least=LEAST if args.device == "cuda" else None))
            print()
    logging.disable(logging.NOTSET)
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
