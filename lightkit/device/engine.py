"""Everything the loop asks of the device room, in one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.randomness import mix
from lightkit.device.casting import ChannelsLast, weights_channels_last
from lightkit.device.clip import make_clip
from lightkit.device.compiling import NoCompiler, make_compiler
from lightkit.device.implementation import arguments, implementation_of
from lightkit.device.notes import Notes
from lightkit.device.parallel import make_parallel
from lightkit.device.placement import Placement, located
from lightkit.device.precision import make_precision
from lightkit.device.prefetch import Batches, PrefetchToDevice
from lightkit.device.ranks import Ranks
from lightkit.device.recompute import recompute
from lightkit.device.seed import (
    TOO_LATE,
    MicroSeed,
    seed_everything,
    set_threads,
    use_benchmark,
    use_deterministic,
)
from lightkit.device.stepping import leave_compiler_out
from lightkit.device.support import check_support
from lightkit.device.switches import Switches


class Engine:
    """Placement, parallelism, precision, speed, clipping and seeding of one run.

    Building it sets what is global in a process: visible GPUs, threads, deterministic algorithms, exactness of matrix
    products, and every random generator.

    Args:
        name: Device: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`.
        gpus: GPUs to see, by their physical numbers or UUIDs, or `auto:N`; None sees all. The CPU and Apple's GPU
            ignore it.
        precision: `fp32`, `tf32`, `bf16`, `fp16`, `bf16-true` or `fp64`.
        parallel: `none`, `dp`, `ddp` or `fsdp`.
        parallel_options: Settings of `parallel`, such as `dim` of `dp`; see `lightkit.device.parallel`.
        ranks: The processes that train together; None where this one is alone.
        switches: What makes the run faster or smaller.
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
        gpus: Sequence[int | str] | str | None = None,
        precision: str = "fp32",
        parallel: str = "none",
        parallel_options: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
        switches: Switches | None = None,
        deterministic: bool = False,
        threads: int | None = None,
        seed: int = 0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
    ) -> None:
        self.notes, self.switches, self._seed = Notes(), switches or Switches(), seed
        if self.switches.compile == "none" and not self.switches.cuda_graphs:
            leave_compiler_out()
        set_threads(threads)
        if not use_deterministic(deterministic):  # here, before anything asks for GPUs
            self.notes.add(TOO_LATE)
        self.ranks = ranks or Ranks()
        device, self.mapping = located(self.ranks.device_name(name), gpus)
        if device.type == "cuda":  # whoever asks for no device, such as page-locking, would wake up the first one
            torch.cuda.set_device(device)
        use_benchmark(self.switches.cudnn_benchmark and not deterministic)
        self.placement = Placement(device)
        self.parallel = make_parallel(parallel, device, self.ranks, parallel_options)
        self.precision = make_precision(precision, device)
        self.precision.set_matmul(self.switches.matmul_level)
        self.compiler = make_compiler(self.switches, device, deterministic=deterministic, tell=self.notes.add)
        self._prefetch = PrefetchToDevice(self.move, device) if device.type == "cuda" else None
        unused = (
            [f"device.gpus={gpus}: not used, as the run is on {device.type}"] if gpus and device.type != "cuda" else []
        )
        idle = (*self.parallel.idle(), *self.switches.idle(device))
        for line in (*self.mapping, *unused, *check_support(precision, device), *idle):
            self.notes.add(line)
        self.clip = make_clip(norm=clip_norm, value=clip_value)
        seed_everything(seed)
        self._micro = MicroSeed(seed, self.parallel.devices)

    @property
    def device(self) -> torch.device:
        """The main device."""
        return self.placement.device

    @property
    def compiles(self) -> bool:
        """Whether models are compiled, or their kernels recorded."""
        return type(self.compiler) is not NoCompiler

    @property
    def pins_memory(self) -> bool:
        """Whether page-locked host memory makes copies to the device faster."""
        return self.placement.pins_memory

    def describe(self, optimizer: Optimizer | None = None) -> str:
        """One line for logs and files: device, precision, what is switched on, parallelism, kind of optimizer steps."""
        line = f"{self.placement.describe()}, {self.precision.name}{self.switches.describe(self.device)}"
        steps = implementation_of(optimizer) if optimizer is not None else ""
        return f"{line}{self.parallel.describe()}" + (f", {steps} optimizer" if steps else "")

    def place(self, module: nn.Module) -> nn.Module:
        """Move what computes beside the model, such as a teacher, to the main device."""
        return self.precision.place(module)

    def place_model(self, model: nn.Module) -> nn.Module:
        """Move the model to the main device, in the format it is trained in; before its optimizer is built."""
        model = self.precision.place_model(model)
        return weights_channels_last(model) if self.switches.channels_last else model

    def place_loss(self, loss: Any) -> Any:
        """Move a loss to the main device; it is computed in fp32 at least."""
        return self.precision.place_loss(loss)

    def implementation(self, model: nn.Module, kind: str = "AdamW") -> dict[str, bool]:
        """Arguments for the optimizer of a placed model, as far as a class of that name takes them."""
        return arguments(self.switches.optimizer, model, self.device, kind=kind)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The placed model as the loop calls it."""
        recompute(model, self.switches.activation_checkpointing)
        if self.switches.channels_last:
            model.register_forward_pre_hook(ChannelsLast(), with_kwargs=True)
        return self.parallel.wrap(self.compiler.wrap(self.precision.prepare(model)))

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
        """The batch on the device, in the format it is computed in."""
        return self.precision.batch(self.placement.move(batch))

    def prefetch(self, batches: Batches) -> Batches:
        """The same batches, copied to a GPU while the ones before are computed."""
        return batches if self._prefetch is None else self._prefetch(batches)

    def autocast(self) -> AbstractContextManager[Any]:
        """Context of the forward pass."""
        return self.precision.autocast()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the parameters."""
        self.precision.backward(loss)

    def waste(self, loss: Tensor) -> None:
        """Instead of `backward`, where the step will not be taken: `discard` then finds all gradients of the window."""
        self.parallel.waste(loss)

    def step(self, optimizer: Optimizer, *, want_norm: bool = False) -> Tensor | None:
        """Unscale, clip, step and clear; returns the norm of the gradients where it is wanted or free."""
        norm = self.precision.step(optimizer, clip=self.clip, want_norm=want_norm)
        self.compiler.next_step()
        return norm

    def skipped(self) -> int:
        """Steps left out so far because gradients overflowed; waits for the device where there may be some."""
        return self.precision.skipped()

    def vitals(self) -> dict[str, float]:
        """What to log beside a loss; waits for the device."""
        return self.precision.vitals()

    def discard(self, optimizer: Optimizer) -> None:
        """Throw the gathered gradients away instead of stepping."""
        self.precision.discard(optimizer)
        self.compiler.next_step()
