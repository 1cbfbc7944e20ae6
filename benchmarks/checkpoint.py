"""How long the training loop waits for a checkpoint, beside `torch.save` of the same content.

The content is a model with the state of its Adam optimizer: three numbers per parameter, 12 bytes.

    python -m benchmarks.checkpoint [--rounds 5] [--steps 10]
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from lightkit.checkpoint import content
from lightkit.checkpoint.store import CheckpointStore
from lightkit.trainer import State

LIGHTKIT, PLAIN, SYNCED = "lightkit", "torch.save", "torch.save, on the disk"
WIDTH = 500
"""Width of the square layers: 250,000 weights each."""


def trained(layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with as many layers after one step of Adam."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def contestants(layers: int, folder: Path) -> dict[str, Callable[[], Sample]]:
    """Ways to write the same numbers."""
    model, optimizer = trained(layers)
    store, state = CheckpointStore(folder / "store"), State()
    store.prepare()

    def ours() -> Sample:
        state.step += 1
        parts = {"model": model, "optimizer": optimizer, "scheduler": _Stateless(), "precision": _Stateless()}
        with Sample() as sample:
            saved = content.gather(**parts, callbacks={}, metrics={}, state=state, ema=None, config_text="")
            path = store.save(saved, step=state.step, value=float(state.step))
        sample.proof = {"MB": path.stat().st_size / 1e6}
        return sample

    def plain(*, sync: bool) -> Sample:
        with Sample() as sample, (folder / "plain.pt").open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        sample.proof = {"MB": (folder / "plain.pt").stat().st_size / 1e6}
        return sample

    return {LIGHTKIT: ours, PLAIN: lambda: plain(sync=False), SYNCED: lambda: plain(sync=True)}


class _Stateless:
    def state_dict(self) -> dict[str, object]:
        return {}


def main(arguments: list[str] | None = None) -> bool:
    """Run the benchmark; returns whether the bars hold."""
    parser = options("time the loop waits for a checkpoint", rounds=5, steps=10)
    parser.epilog = "--steps is the size of the larger model in millions of parameters."
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    held = []
    for millions in sorted({1, args.steps}):
        with tempfile.TemporaryDirectory() as folder:
            results = interleave(contestants(4 * millions, Path(folder)), rounds=args.rounds)
        check_same(results, MB=0.1)
        show(f"{millions}M parameters", results, PLAIN)
        held.append(judge(results, [Bar(LIGHTKIT, PLAIN), Bar(LIGHTKIT, SYNCED)]))
        print()
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
