"""Which parameters a gradient reached, without waiting for the device in the training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lightkit.common.shards import part


class Gradients:
    """Listens to parameters until each has had a gradient that is finite and not zero everywhere.

    Of one that processes share out, the part of this process is looked at.

    On a CPU each is looked at as it comes. On other devices its largest element stays there until `read` asks for it.

    Args:
        parameters: The parameters to listen to, by name; all of them need gradients.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.reached: set[str] = set()
        """Names of those that had such a gradient, as far as it is known."""
        self.touched: set[str] = set()
        """Names of those that had any gradient."""
        self.largest: dict[str, float] = {}
        """Largest element of the first such gradient of each that had one."""
        self.broken = False
        """Whether a gradient was not finite."""
        self._range: dict[str, tuple[Tensor, Tensor]] = {}
        self._handles: dict[str, RemovableHandle] = {}
        for name, parameter in parameters.items():
            self._handles[name] = parameter.register_post_accumulate_grad_hook(self._listener(name))

    def read(self) -> None:
        """Bring what is known up to date; waits once for every device with news."""
        for device in {high.device for high, _ in self._range.values()}:
            names = [name for name, (high, _) in self._range.items() if high.device == device]
            values = torch.stack([torch.stack(self._range.pop(name)) for name in names]).tolist()
            for name, (high, low) in zip(names, values):
                self._take(name, high)
                self.broken |= low < 0.0

    def close(self) -> None:
        """Stop listening."""
        while self._handles:
            self._handles.popitem()[1].remove()

    def _listener(self, name: str) -> Callable[[Tensor], None]:
        def look(parameter: Tensor) -> None:
            gradient = parameter.grad
            if gradient is None:
                return
            self.touched.add(name)
            gradient = part(gradient)
            values = (gradient._values() if gradient.is_sparse else gradient).detach()
            if values.numel():
                largest = torch.linalg.vector_norm(values, math.inf).nan_to_num(nan=-1.0, posinf=-1.0).float()
                self._note(name, largest)

        return look

    def _note(self, name: str, largest: Tensor) -> None:
        """Take in the largest absolute value of a gradient, -1 for one that is not finite."""
        if largest.device.type == "cpu":
            self._take(name, largest.item())
        else:
            self._keep(name, largest)

    def _keep(self, name: str, largest: Tensor) -> None:
        high, low = self._range.get(name, (largest, largest))
        self._range[name] = torch.maximum(high, largest), torch.minimum(low, largest)

    def _take(self, name: str, largest: float) -> None:
        self.broken |= largest < 0.0
        if largest > 0.0 and name in self._handles:
            self.reached.add(name)
            self.largest[name] = largest
            self._handles.pop(name).remove()
