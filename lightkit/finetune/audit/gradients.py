"""Which parameters a gradient reached, without waiting for the device in the training loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lightkit.common.shards import part


class GradientListener:
    """Listens to parameters until each has had a gradient that is finite and not zero everywhere.

    Of one that processes share out, the part of this process is looked at. On a CPU each gradient is looked at as it
    comes. On other devices its largest element stays there until `read` asks for it.

    Args:
        parameters: The parameters to listen to, by name; all of them need gradients.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.nonzero: set[str] = set()
        """Names of those that had such a gradient, as far as it is known."""
        self.seen: set[str] = set()
        """Names of those that had any gradient."""
        self.largest: dict[str, float] = {}
        """Largest element of the first such gradient of each that had one."""
        self.nonfinite = False
        """Whether a gradient was not finite."""
        self._range: dict[str, tuple[Tensor, Tensor]] = {}
        """Highest and lowest of the largest elements that are not on the host yet; -1 stands for one not finite."""
        self._handles: dict[str, RemovableHandle] = {}
        for name, parameter in parameters.items():
            self._handles[name] = parameter.register_post_accumulate_grad_hook(partial(self._look, name))

    def read(self) -> None:
        """Bring what is known up to date; waits once for every device with news."""
        for device in {high.device for high, _ in self._range.values()}:
            names = [name for name, (high, _) in self._range.items() if high.device == device]
            values = torch.stack([torch.stack(self._range.pop(name)) for name in names]).tolist()
            for name, (high, low) in zip(names, values):
                self._take(name, high)
                self.nonfinite |= low < 0.0

    def close(self) -> None:
        """Stop listening."""
        while self._handles:
            self._handles.popitem()[1].remove()

    def _look(self, name: str, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        self.seen.add(name)
        gradient = part(parameter.grad)
        values = (gradient._values() if gradient.is_sparse else gradient).detach()
        if not values.numel():
            return
        largest = torch.linalg.vector_norm(values, math.inf).nan_to_num(nan=-1.0, posinf=-1.0).float()
        self._note(name, largest)

    def _note(self, name: str, largest: Tensor) -> None:
        """Note the largest absolute value of a gradient, -1 for one that is not finite."""
        if largest.device.type == "cpu":
            self._take(name, largest.item())
        else:
            self._defer(name, largest)

    def _defer(self, name: str, largest: Tensor) -> None:
        """Leave the value on its device until `read` asks for it."""
        high, low = self._range.get(name, (largest, largest))
        self._range[name] = torch.maximum(high, largest), torch.minimum(low, largest)

    def _take(self, name: str, largest: float) -> None:
        self.nonfinite |= largest < 0.0
        if largest > 0.0 and name in self._handles:
            self.nonzero.add(name)
            self.largest[name] = largest
            self._handles.pop(name).remove()
