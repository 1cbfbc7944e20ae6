"""What recording kernels gains for tiny networks on a GPU, which waits for Python most of the time.

lightkit with CUDA graphs and with `torch.compile` in its mode `reduce-overhead`, beside the eager loop by hand and that
loop with the same `torch.compile`. All start from the same weights and learn from the same batches, in fp32. Without a
CUDA GPU there is nothing to measure.

    python -m benchmarks.gpu_graphs [--rounds 5] [--steps 2000] [--warm 50] [--device cpu --small]
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from benchmarks.gpu import SAME, Case, Work, arguments, by_hand, judge, lightkit
from benchmarks.harness import Sample, check_same, interleave, show
from lightkit.device import switches as compiling

EAGER, GRAPHS, COMPILED = "lightkit", "lightkit, CUDA graphs", "lightkit, reduce-overhead"
HAND, HAND_COMPILED = "by hand", "by hand, reduce-overhead"
LEAST = 3.0
"""Times the throughput of the eager loop by hand."""
CASES = [
    Case(
        "MLP 64 → 64 → 64 → 64 → 10, batch 32",
        "mlp",
        {"hidden": [64, 64, 64], "dropout": 0.0},
        shape=(64,),
        batch=32,
        small=({"hidden": [8]}, (4,), 4),
    ),
    Case(
        "transformer, 4 blocks of width 64, 16 × 16 positions",
        "transformer",
        {"dim": 64, "depth": 4, "heads": 4},
        shape=(16, 16),
        batch=16,
        small=({"dim": 8, "depth": 1, "heads": 2}, (4, 4), 4),
    ),
]


def compiled(model: nn.Module) -> Callable[..., torch.Tensor]:
    """The model as `torch.compile` has it; nobody keeps its outputs, which the next step overwrites."""
    found: Callable[..., torch.Tensor] = torch.compile(model, **compiling._backend("reduce-overhead", graphs=False))
    return found


def contestants(work: Work) -> dict[str, Callable[[], Sample]]:
    """All of them."""
    return {
        HAND: partial(by_hand, work),
        HAND_COMPILED: partial(by_hand, work, compiled),
        EAGER: partial(lightkit, work),
        GRAPHS: partial(lightkit, work, "device.cuda_graphs=true"),
        COMPILED: partial(lightkit, work, "device.compile=reduce-overhead"),
    }


def measure(work: Work, *, rounds: int, least: float | None) -> bool:
    """Measure one network; returns whether the bar holds."""
    torch._dynamo.reset()
    results = interleave(contestants(work), rounds=rounds, warm_ups=int(work.device == "cuda"))
    check_same(results, **SAME)
    show(work.case.title, results, HAND, per=work.steps, unit="µs")
    judge(work.case.title, results, GRAPHS, base=HAND, least=None)
    return judge(work.case.title, results, COMPILED, base=HAND, least=least)


def main(given: Sequence[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold, or True where nothing can be measured."""
    args = arguments("recorded kernels of tiny networks on a GPU", given, rounds=5, steps=2000)
    if args is None:
        return True
    logging.disable(logging.WARNING)
    held = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in CASES:
            work = Work(case.shrunk() if args.small else case, args.device, args.steps, args.warm, "fp32")
            held.append(measure(work, rounds=args.rounds, least=LEAST if args.device == "cuda" else None))
            print()
    logging.disable(logging.NOTSET)
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
