"""Everything the loop asks of the device room, in one object."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.randomness import mix
from lightkit.device.clip import make_clip
from lightkit.device.parallel import make_parallel
from lightkit.device.placement import Placement, choose
from lightkit.device.precision import make_precision
from lightkit.device.ranks import Ranks
from lightkit.device.seed import MicroSeed, seed_everything, set_threads, use_deterministic
from lightkit.device.stepping import leave_compiler_out


class Engine:
    """Placement, parallelism, precision, clipping and seeding of one run.

    Building it sets what is global in a process: threads, deterministic algorithms, and every random generator.

    Args:
        name: Device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.
        precision: `fp32` or `bf16`.
        parallel: `none`, `dp`, `ddp` or `fsdp`.
        parallel_options: Settings of `ddp` or `fsdp`.
        ranks: The processes that train together; None where this one is alone.
        deterministic: Only algorithms that give the same bits every time.
        threads: CPU threads of one operation; None leaves PyTorch's choice.
        seed: Seed of the run.
        clip_norm: Largest total norm of the gradients.
        clip_value: Largest absolute value of a gradient element.

    Raises:
        UserError: There is no such device, or a value is out of range.
    """

    def __init__(
        self,
        name: str = "cpu",
        *,
        precision: str = "fp32",
        parallel: str = "none",
        parallel_options: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
        deterministic: bool = False,
        threads: int | None = None,
        seed: int = 0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
    ) -> None:
        leave_compiler_out()
        set_threads(threads)
        use_deterministic(deterministic)
        self.ranks = ranks or Ranks()
        self.placement = Placement(choose(self.ranks.device_name(name)))
        self.parallel = make_parallel(parallel, self.device, self.ranks, parallel_options)
        self.precision = make_precision(precision, self.device)
        self.clip = make_clip(norm=clip_norm, value=clip_value)
        self._seed = seed
        seed_everything(seed)
        self._micro = MicroSeed(seed, self.parallel.devices)

    @property
    def device(self) -> torch.device:
        """The main device."""
        return self.placement.device

    @property
    def pins_memory(self) -> bool:
        """Whether page-locked host memory makes copies to the device faster."""
        return self.placement.pins_memory

    def describe(self) -> str:
        """One line for logs and files: device, precision, parallelism."""
        return f"{self.placement.describe()}, {self.precision.name}{self.parallel.describe()}"

    def place(self, module: nn.Module) -> nn.Module:
        """Move a model or a loss to the main device; before its optimizer is built."""
        return module.to(self.device)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The placed model as the loop calls it."""
        return self.parallel.wrap(self.precision.prepare(model))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The bare model, with the names that are saved."""
        return self.parallel.unwrap(model)

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[Any]:
        """Context of forward and backward of one batch; `more` of them come before the optimizer step."""
        return self.parallel.accumulating(model, more)

    def seed_init(self) -> None:
        """Give the building of the model its own random numbers, whatever was drawn before."""
        seed_everything(mix(self._seed, "init"))

    def seed(self, epoch: int, samples_done: int) -> None:
        """Make the randomness of the next batch a function of its place in the run."""
        self._micro(epoch, samples_done)

    def seed_validation(self, step: int) -> None:
        """Give the validation after `step` its own random numbers; training seeds itself again."""
        seed_everything(mix(self._seed, "validation", step))

    def move(self, batch: Any) -> Any:
        """The batch on the device."""
        return self.placement.move(batch)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass."""
        return self.precision.autocast()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the parameters."""
        self.precision.backward(loss)

    def step(self, optimizer: Optimizer, *, want_norm: bool = False) -> Tensor | None:
        """Unscale, clip, step and clear; returns the norm of the gradients where it is wanted or free."""
        return self.precision.step(optimizer, clip=self.clip, want_norm=want_norm)

    def discard(self, optimizer: Optimizer) -> None:
        """Throw the gathered gradients away instead of stepping."""
        self.precision.discard(optimizer)
