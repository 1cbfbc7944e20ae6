"""Metrics of a split whose batches several processes compute together: rank 0 counts what all of them found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightkit.common.modules import mapped, tensors

_NOTHING = torch.empty(0)
"""Stands where a tensor is sent by itself."""
BLOCK = 32
"""Batches whose results are exchanged at once."""
BLOCK_BYTES = 1 << 26
"""Fewer of them where the results of one process take more than this."""


class Peers(Protocol):
    """The processes: see `lightkit.device.ranks.Ranks`."""

    @property
    def main(self) -> bool:
        """Tell whether this process is rank 0."""

    @property
    def leads_replica(self) -> bool:
        """Tell whether this is the first of the processes that compute the same part of a batch."""

    def shared(self, make: Callable[[], Any]) -> Any:
        """Return what rank 0 makes, in every process."""

    def least(self, number: int) -> int:
        """Return the smallest number that any process gives."""

    def gather(self, tensors: Sequence[Tensor], note: Any) -> list[tuple[Any, list[Tensor]]]:
        """Return tensors and note of every process, on rank 0."""


class Gathered:
    """Collects the results of all processes on rank 0, in the order of the samples.

    There the meter gets them as if one process had computed all of it: no sample is counted twice, any metric will do,
    and its state is that of a run with one process. Results are exchanged a block of batches at a time; all processes
    do so after the same batch.

    Args:
        meter: Metrics, or anything else with their `update`; used on rank 0 only.
        ranks: The processes.
        block: Most batches in a block.
    """

    def __init__(self, meter: Any, ranks: Peers, *, block: int = BLOCK) -> None:
        self.meter, self._ranks, self._most = meter, ranks, block
        self._forget()

    def _forget(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._sizes: list[int] = []
        self._block = 1

    def update(
        self,
        preds: Any,
        target: Any,
        loss: Tensor,
        size: int,
        kwargs: Mapping[str, Any] | None = None,
        weight: Tensor | int | None = None,
        log: Mapping[str, Any] | None = None,
    ) -> None:
        """Queue the results of this process's part of a batch.

        Args:
            preds: Output of the model, samples in dimension 0, or texts; None leaves the metrics alone.
            target: What it was compared with.
            loss: Mean loss over the samples of the part.
            size: Samples in the part; 0 where the process had to compute something that counts for nothing.
            kwargs: What the metrics get besides, by the names of their arguments.
            weight: What the loss weighs; None stands for `size`.
            log: Further numbers by name; see `SplitMetrics.update`.
        """
        size = size if self._ranks.leads_replica else 0
        means = {name: torch.as_tensor(value, dtype=torch.float64).mean() for name, value in (log or {}).items()}
        found: dict[str, Any] = {"loss": (loss, weight, means)}
        if preds is not None and target is not None:
            found |= {"preds": preds, "target": target, **(kwargs or {})}
        self._found.append(mapped(Tensor.detach, found) if size else {})
        self._sizes.append(size)
        if len(self._sizes) >= self._block:
            self.exchange()

    def exchange(self) -> None:
        """Hand what is queued to the meter; every process calls it after the same batch."""
        results, sizes, self._found, self._sizes = self._found, self._sizes, [], []
        if not sizes:
            return
        flat = [*tensors(results)]
        each = max(1, sum(tensor.nbytes for tensor in flat) // len(sizes))
        self._block = self._ranks.least(max(1, min(self._most, BLOCK_BYTES // each)))
        note = list(zip(sizes, mapped(lambda tensor: _NOTHING, results)))
        of_ranks = list[list[tuple[int, dict[str, Any]]]]()
        for told, sent in self._ranks.gather(flat, note):
            rest = iter(sent)
            of_ranks.append([(size, mapped(lambda _, rest=rest: next(rest), found)) for size, found in told])  # type: ignore[misc]
        # A batch after the other, and of each the parts in the order of the ranks: that of the samples.
        for parts in zip(*of_ranks):
            for size, part in parts:
                if size:
                    loss, weight, log = part.pop("loss")
                    preds, target = part.pop("preds", None), part.pop("target", None)
                    self.meter.update(preds, target, loss, size, part or None, weight, log)


class SharedMetrics(Gathered):
    """`SplitMetrics` over several processes; the values are those of rank 0 in all of them."""

    @property
    def prefix(self) -> str:
        """Name of the split."""
        return self.meter.prefix

    @property
    def figures_data(self) -> dict[str, Any]:
        """Results that are no numbers; on rank 0."""
        return self.meter.figures_data

    def anew(self) -> SharedMetrics:
        """Return the same metrics made anew, with nothing counted."""
        return SharedMetrics(self.meter.anew(), self._ranks)

    def check(self) -> None:
        """Make the metrics once; see `SplitMetrics.check`."""
        self.meter.check()

    def higher_is_better(self, name: str) -> bool | None:
        """Tell what a metric says of its values; see `SplitMetrics.higher_is_better`."""
        return self._ranks.shared(lambda: self.meter.higher_is_better(name))

    def reset(self) -> None:
        """Forget everything."""
        self._forget()
        self.meter.reset()

    def compute(self) -> dict[str, float]:
        """Return the values since `reset`, by name."""
        self.exchange()
        return self._ranks.shared(self.meter.compute)

    def state_dict(self) -> dict[str, Any]:
        """Return everything counted, as one process would have it, on rank 0; nothing counted elsewhere."""
        self.exchange()
        return self.meter.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state, on rank 0; the others begin with nothing."""
        self._forget()
        if self._ranks.main:
            self.meter.load_state_dict(state)
        else:
            self.meter.reset()
