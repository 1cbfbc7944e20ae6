"""The strategies to train one model on several devices, and what the rest of lightkit may ask of them.

Whoever has to know what a strategy does asks it here instead of comparing its name. PyTorch is not imported: the rules
between configuration keys ask too, and what `device.gpus` may hold. The classes that wrap a
model have their entry as `strategy`; which names stand for them, and how a project adds its own, is told
by `lightkit.common.doors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Unsupported:
    """Why something does not go with a strategy."""

    what: str
    """The sentence for the user."""
    fix: str
    """What to set instead."""


ELSEWHERE = {"peft": "finetune.peft", "batch_size": "trainer.find_batch_size"}
"""Features that a strategy may refuse and that are no keys of `device`, with their keys."""


@dataclass(frozen=True)
class Strategy:
    """What one value of `device.parallel` does."""

    name: str
    """What it is called in messages."""
    processes: bool = False
    """Whether several processes train one model, one a device (`device.nproc`, or `torchrun`)."""
    splits_batches: bool = True
    """Whether each of these processes computes a part of every batch; otherwise all compute the whole batch, and
    `batch_size` is among what is refused: its search measures one process with its part."""
    several_gpus: bool = False
    """Whether one process computes on all GPUs that it sees."""
    shards_parameters: bool = False
    """Whether each process holds a part of every parameter and of the optimizer's state only."""
    settings: str | None = None
    """Node of `device` whose values are arguments of its class, but for `timeout_seconds`."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Further arguments of its class, each with the key of `device` that its value stands under."""
    lighter: str | None = None
    """The strategy for the same devices that takes less memory on each."""
    refuses: Mapping[str, Unsupported] = field(default_factory=dict)
    """Features that do not go with it: keys below `device`, and those of `ELSEWHERE`."""

    def refused(self, features: Mapping[str, Any]) -> Iterator[tuple[str, Unsupported]]:
        """Yield what is asked for and does not go with it, with the reason.

        Args:
            features: The values of `device`, and of the keys of `ELSEWHERE` by their names there.
        """
        for name, why in self.refuses.items():
            if features.get(name) not in (None, "none", False):
                yield name, why

    def arguments(self, device: Mapping[str, Any]) -> dict[str, Any]:
        """Pick the arguments of its class out of the values of `device`."""
        node = device[self.settings] if self.settings else {}
        own = {name: value for name, value in node.items() if name != "timeout_seconds"}
        return own | {argument: device[key] for argument, key in self.keys.items()}


def _of_threads(setting: str, off: str) -> Unsupported:
    what = "this does not go with DataParallel, whose copies of the model run in threads"
    return Unsupported(what, f"device.{setting}={off} or device.parallel=none")


def _of_shards(why: str) -> Unsupported:
    return Unsupported(f"not with fsdp, where each process holds a part of the model: {why}", "device.parallel=ddp")


PLAIN = Strategy("none")
"""One model on one device."""
STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        PLAIN,
        Strategy(
            "dp",
            several_gpus=True,
            keys={"dim": "dp_dim", "output": "dp_output"},
            refuses={"compile": _of_threads("compile", "none"), "cuda_graphs": _of_threads("cuda_graphs", "false")},
        ),
        Strategy("ddp", processes=True, settings="ddp", lighter="fsdp"),
        Strategy(
            "fsdp",
            processes=True,
            shards_parameters=True,
            settings="fsdp",
            refuses={
                "compile": _of_shards("code is compiled for a whole model"),
                "cuda_graphs": _of_shards("kernels are recorded for a whole model"),
                "channels_last": _of_shards("PyTorch shares out parameters in their usual order in memory only"),
                "batch_size": Unsupported(
                    "each process holds a part of the model, and cannot find out by itself what fits",
                    "trainer.find_batch_size=null or device.parallel=ddp",
                ),
                "peft": Unsupported(
                    "not with fsdp: the layers of peft know nothing of weights that are shared out",
                    "finetune.lora, adapter or prefix, or device.parallel=ddp",
                ),
            },
        ),
    )
}
"""Every strategy of lightkit's own by the value of `device.parallel` that names it."""
WITH_PROCESSES = tuple(name for name, strategy in STRATEGIES.items() if strategy.processes)
"""Names of those for several processes."""


_OWN = Strategy("", processes=True, splits_batches=False)
"""What is taken of a class of a project or package until it is imported: nothing is refused."""


def strategy_of(chosen: object) -> Strategy:
    """Return what is known of a value of `device.parallel` before its class is imported."""
    return STRATEGIES.get(chosen, _OWN) if isinstance(chosen, str) else _OWN


EXPECTED_GPUS = "a list of GPU numbers such as [0, 2], or of UUIDs, or auto:N for the N with the most free memory"
_UUID = re.compile(r"(GPU|MIG)-[\w/.-]+")
_AUTO = re.compile(r"auto(?::([1-9]\d*))?")


def read_gpus(value: Any) -> tuple[int | str, ...] | int:
    """Read the numbers or UUIDs of the GPUs that are meant, or how many are.

    Raises:
        ValueError: It is neither; the text says what is wrong with it.
    """
    if isinstance(value, str) and _UUID.fullmatch(value):
        return (value,)
    if isinstance(value, str):
        found = _AUTO.fullmatch(value)
        if found is None:
            raise ValueError("not a choice of GPUs")
        return int(found[1] or 1)
    numbers = tuple(value)
    if not numbers:
        raise ValueError("this chooses no GPU")
    # A UUID may be that of a GPU or of a MIG instance, or the beginning of one.
    named = (_UUID.fullmatch(item) if isinstance(item, str) else type(item) is int and item >= 0 for item in numbers)
    if not all(named):
        raise ValueError("not the numbers or UUIDs of GPUs")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a GPU is named twice")
    return numbers


def own_part(size: int, replica: int, replicas: int) -> tuple[int, int]:
    """Return which samples of a batch one of several replicas of a model computes.

    The parts are neighbours in the order of the replicas and differ by one sample at most; where there are fewer
    samples than replicas, the last ones have none.

    Args:
        size: Samples in the batch.
        replica: Number of the replica, from 0.
        replicas: Number of replicas.

    Returns:
        Position of the first sample in the batch, and the number of samples.
    """
    base, rest = divmod(size, replicas)
    return replica * base + min(replica, rest), base + (replica < rest)
