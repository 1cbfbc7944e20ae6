"""How long the training loop waits for a checkpoint, beside a bare copy of the tensors and other ways to write them.

The content is a model with the state of its Adam optimizer: three numbers per parameter, 12 bytes. In the background,
which is lightkit's default, the loop waits for a copy in host memory only.

    python -m benchmarks.checkpoint [--rounds 5] [--steps 10]
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness import Bar, Sample, check_same, interleave, judge, options, show
from lightkit.checkpoint import content
from lightkit.checkpoint.background import BackgroundStore
from lightkit.checkpoint.store import CheckpointStore
from lightkit.trainer import State

LIGHTKIT, DIRECT, COPY, PLAIN, SYNCED, LIGHTNING = (
    "lightkit",
    "lightkit, not in the background",
    "host copy",
    "torch.save",
    "torch.save, on the disk",
    "Lightning, atomic",
)
WIDTH = 500
"""Width of the square layers: 250,000 weights each."""
BARS = [Bar(LIGHTKIT, COPY, 1.1, kind="thread"), Bar(LIGHTKIT, COPY), Bar(LIGHTKIT, PLAIN), Bar(DIRECT, SYNCED)]
"""What the thread of the loop computes itself is judged; on a busy machine it also waits for a processor."""
SMALL = 1.3
"""The limit of 1M parameters, where the copy takes as long as asking for the state."""


def trained(layers: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with as many layers after one step of Adam."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def contestants(layers: int, folder: Path) -> dict[str, Callable[[], Sample]]:
    """Ways to write the same numbers."""
    model, optimizer = trained(layers)
    found = {
        LIGHTKIT: _store(BackgroundStore(folder / "background"), model, optimizer),
        DIRECT: _store(CheckpointStore(folder / "direct"), model, optimizer),
        COPY: _copy(model, optimizer),
        PLAIN: _plain(folder / "plain.pt", model, optimizer, sync=False),
        SYNCED: _plain(folder / "plain.pt", model, optimizer, sync=True),
    }
    if importlib.util.find_spec("lightning"):
        found[LIGHTNING] = _lightning(folder / "lightning.ckpt", model, optimizer)
    return found


def _store(store: CheckpointStore, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Sample]:
    state = State()
    store.prepare()

    def save() -> Sample:
        state.step += 1
        parts: dict[str, Any] = {"scheduler": _Stateless(), "precision": _Stateless(), "callbacks": {}, "metrics": {}}
        with Sample() as sample:
            saved = content.gather(model=model, optimizer=optimizer, state=state, **parts)
            path = store.save(saved, step=state.step, value=float(state.step))
        store.flush()
        sample.proof = {"MB": path.stat().st_size / 1e6}
        return sample

    return save


def _copy(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Sample]:
    """Nothing but asking for the state and copying it into memory that is there already: no save can do without."""

    def tensors() -> list[torch.Tensor]:
        moments = [value for values in optimizer.state_dict()["state"].values() for value in values.values()]
        return [*model.state_dict().values(), *moments]

    buffers = [torch.empty_like(tensor) for tensor in tensors()]

    def copy() -> Sample:
        with Sample() as sample:
            for buffer, tensor in zip(buffers, tensors()):
                buffer.copy_(tensor)
        sample.proof = {"MB": sum(buffer.numel() * buffer.element_size() for buffer in buffers) / 1e6}
        return sample

    return copy


def _plain(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, sync: bool) -> Callable[[], Sample]:
    def save() -> Sample:
        with Sample() as sample, path.open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        sample.proof = {"MB": path.stat().st_size / 1e6}
        return sample

    return save


def _lightning(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], Sample]:
    from lightning.fabric.utilities.cloud_io import _atomic_save

    def save() -> Sample:
        with Sample() as sample:
            _atomic_save({"state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}, path)
        sample.proof = {"MB": path.stat().st_size / 1e6}
        return sample

    return save


class _Stateless:
    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object], /) -> None:
        pass


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
        check_same(results, MB=0.1 + 0.01 * millions)  # names and settings beside the numbers
        show(f"{millions}M parameters", results, COPY)
        held.append(
            judge(results, [replace(bar, limit=bar.limit and (SMALL if millions == 1 else bar.limit)) for bar in BARS])
        )
        print()
    return all(held)


if __name__ == "__main__":
    raise SystemExit(not main())
