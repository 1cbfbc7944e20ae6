"""Everything the loop asks of the device, in one object."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lightkit.common.errors import UserError
from lightkit.common.randomness import mix
from lightkit.device.casting import ChannelsLast, weights_channels_last
from lightkit.device.parallel import Parallel, make_parallel
from lightkit.device.placement import Placement, choose
from lightkit.device.precision import make_precision
from lightkit.device.process import MicroSeed, seed_everything
from lightkit.device.ranks import Ranks
from lightkit.device.recompute import recompute
from lightkit.device.stepping import arguments, implementation_of, make_clip
from lightkit.device.switches import Switches, make_compiler


class Notes:
    """Keeps lines for people until there is a logger; from then on hands each over at once. No line is told twice."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._tell: Callable[[str], None] | None = None

    def add(self, line: str) -> None:
        """Tell a line, or keep it."""
        if line in self.lines:
            return
        self.lines.append(line)
        if self._tell is not None:
            self._tell(line)

    def hand_to(self, tell: Callable[[str], None]) -> None:
        """Tell all lines so far, and those to come."""
        self._tell = tell
        for line in self.lines:
            tell(line)


class Engine:
    """Placement, parallelism, precision, speed, clipping and seeding of one run.

    Building it sets nothing in the process: `lightkit.device.process.configure_process` does so before, once for all
    engines, with the same precision, switches and seed.

    Args:
        placement: The device as `configure_process` gives it; by its name alone it is only looked up.
        precision: `fp32`, `tf32`, `bf16`, `fp16`, `bf16-true` or `fp64`.
        parallel: The strategy for several devices: a subclass of `Parallel`, or the name of one of lightkit's own.
        parallel_options: Settings of `parallel`, such as `dim` of `dp`; see `lightkit.device.parallel`.
        ranks: The processes that train together; None where this one is alone.
        switches: What makes the run faster or smaller.
        deterministic: Whether compiled code must not depend on the batches before.
        seed: Seed of the run.
        clip_norm: Largest total norm of the gradients.
        clip_value: Largest absolute value of a gradient element.
        clip_type: Order of the norm that `clip_norm` limits.

    Raises:
        UserError: There is no such device, or a value is out of range.
    """

    def __init__(
        self,
        placement: Placement | str = "cpu",
        *,
        precision: str = "fp32",
        parallel: str | type[Parallel] = "none",
        parallel_options: Mapping[str, Any] | None = None,
        ranks: Ranks | None = None,
        switches: Switches | None = None,
        deterministic: bool = False,
        seed: int = 0,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        clip_type: float = 2.0,
    ) -> None:
        self.placement = placement if isinstance(placement, Placement) else Placement(choose(placement))
        self.switches, self.ranks, self._seed = switches or Switches(), ranks or Ranks(), seed
        device, self.notes = self.device, Notes()
        self.parallel = make_parallel(parallel, device, self.ranks, parallel_options)
        self.precision = make_precision(precision, device)
        self.compiler = make_compiler(self.switches, device, deterministic=deterministic, tell=self.notes.add)
        self._prefetch = (
            PrefetchToDevice(self.placement.move, device, self.precision.batch) if device.type == "cuda" else None
        )
        idle = (*self.parallel.idle(), *self.switches.idle(device))
        for line in (*self.placement.notes, *check_support(precision, device), *idle):
            self.notes.add(line)
        self.clip = make_clip(norm=clip_norm, value=clip_value, order=clip_type)
        self._micro = MicroSeed(seed, self.parallel.devices)

    def reseeded(self, seed: int) -> Engine:
        """Return the same engine with the random numbers of another seed."""
        other = copy.copy(self)
        other._seed, other._micro = seed, MicroSeed(seed, self.parallel.devices)
        return other

    @property
    def device(self) -> torch.device:
        """The main device."""
        return self.placement.device

    def describe(self, optimizer: Optimizer | None = None) -> str:
        """Tell device, precision, switches, parallelism and kind of optimizer steps in one line, for logs and files."""
        line = f"{self.placement.describe()}, {self.precision.name}{self.switches.describe(self.device)}"
        steps = implementation_of(optimizer) if optimizer is not None else ""
        return f"{line}{self.parallel.describe()}" + (f", {steps} optimizer" if steps else "")

    def place_model(self, model: nn.Module) -> nn.Module:
        """Move the model to the main device, in the format it is trained in; before its optimizer is built."""
        model = self.precision.place_model(model)
        return weights_channels_last(model) if self.switches.channels_last else model

    def place_loss(self, loss: Any) -> Any:
        """Move a loss to where the outputs of the model come together; what it gives is on the main device."""
        return self.parallel.place_loss(self.precision.place_loss(loss))

    def implementation(self, model: nn.Module, kind: str = "AdamW") -> dict[str, bool]:
        """Return arguments for the optimizer of a placed model, as far as a class of that name takes them."""
        return arguments(self.switches.optimizer, model, self.device, kind=kind)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the placed model as the loop calls it."""
        recompute(model, self.switches.activation_checkpointing)
        if self.switches.channels_last:
            model.register_forward_pre_hook(ChannelsLast(), with_kwargs=True)
        return self.parallel.wrap(self.compiler.wrap(self.precision.prepare(model)))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the bare model, with the names that are saved."""
        return self.parallel.unwrap(model)

    def accumulating(self, model: nn.Module, more: bool) -> AbstractContextManager[Any]:
        """Return a context for forward and backward of one batch; `more` of them come before the optimizer step."""
        return self.parallel.accumulating(model, more)

    def seed_init(self, number: int = 0) -> None:
        """Give the building of a model its own random numbers, whatever was drawn before.

        Args:
            number: Which of several networks in the model is built.
        """
        seed_everything(mix(self._seed, "init", *([number] if number else [])))

    def seed(self, epoch: int, samples_done: int) -> None:
        """Make the randomness of the next batch a function of its place in the run."""
        self._micro(epoch, samples_done)

    def seed_validation(self, step: int) -> None:
        """Give the validation after `step` its own random numbers; training seeds itself again."""
        seed_everything(mix(self._seed, "validation", step))

    def move(self, batch: Any) -> Any:
        """Move a batch to the device, in the format it is computed in."""
        return self.precision.batch(self.placement.move(batch))

    def place(self, batches: Batches) -> Iterable[Any]:
        """Move batches to the device, for what is done to them there before they are computed; see `prefetch`."""
        return map(self.placement.move, self.prefetch(batches))

    def prefetch(self, batches: Batches) -> Batches:
        """Copy batches to a GPU while the ones before are computed; elsewhere they come as they are."""
        return batches if self._prefetch is None else self._prefetch(batches)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context for the forward pass."""
        return self.precision.autocast()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to the parameters."""
        self.precision.backward(loss)

    def waste(self, loss: Tensor) -> None:
        """Call this instead of `backward` where the step will not be taken: `discard` then finds all gradients."""
        self.parallel.waste(loss)

    def step(self, optimizer: Optimizer, *, want_norm: bool = False) -> Tensor | None:
        """Unscale, clip, step and clear; returns the norm of the gradients where it is wanted or free."""
        norm = self.precision.step(optimizer, clip=self.clip, want_norm=want_norm)
        self.compiler.next_step()
        return norm

    def skipped(self) -> int:
        """Count the steps left out because gradients overflowed; waits for the device where there may be some."""
        return self.precision.skipped()

    def vitals(self) -> dict[str, float]:
        """Return what to log beside a loss; waits for the device."""
        return self.precision.vitals()

    def discard(self, optimizer: Optimizer) -> None:
        """Throw the gathered gradients away instead of stepping."""
        self.precision.discard(optimizer)
        self.compiler.next_step()


Batches = Generator[Any, None, None]
_END = object()


class PrefetchToDevice:
    """Copies one batch ahead on a stream of its own. Which batches come, and in which order, is the same.

    Batches that are cut from one page-locked block (see `lightkit.data.loaders.Loader`) are copied as that block, once:
    for a small network, giving a GPU a copy takes as long as giving it a layer.

    A batch that was copied and is not asked for any more is dropped: it counts as not read.

    Args:
        place: The way of a batch to the device.
        device: A CUDA device.
        form: What is made of a batch there, on the stream that computes.
    """

    def __init__(
        self, place: Callable[[Any], Any], device: torch.device, form: Callable[[Any], Any] = lambda batch: batch
    ) -> None:
        self._place, self._device, self._form = place, device, form
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batches: Batches) -> Batches:
        """Yield the batches, each on the device when it comes out; `batches` is closed when this is."""
        copies = _Copies(self._place, self._device, self._stream)
        with closing(batches):
            ahead = copies.of(next(batches, _END))
            while ahead is not _END:
                copies.awaited()
                batch, ahead = ahead, copies.of(next(batches, _END))
                yield self._form(batch)
                del batch


class _Copies:
    """Copies of batches that come one after the other, on a stream of their own."""

    def __init__(self, place: Callable[[Any], Any], device: torch.device, stream: torch.cuda.Stream) -> None:
        self._place, self._device, self._stream = place, device, stream
        self._begun = False
        self._blocks: Any = ()  # kept, so that no other block is taken for these
        self._marks: list[tuple[int, int]] = []
        self._moved: Any = ()

    def of(self, batch: Any) -> Any:
        """Return the copy of a batch, which is on its way."""
        if batch is _END or not _is_cut(batch):
            return batch if batch is _END else self._copy(batch)
        blocks = tuple(part._base for part in batch)
        marks = [(id(block), block._version) for block in blocks]
        if marks != self._marks:
            self._blocks, self._marks, self._moved = blocks, marks, self._copy(blocks)
        cuts = zip(self._moved, batch)
        return tuple(moved.as_strided(part.shape, part.stride(), part.storage_offset()) for moved, part in cuts)

    def awaited(self) -> None:
        """Let what is computed from now on wait for the copies."""
        if self._begun:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._begun = False

    def _copy(self, batch: Any) -> Any:
        # The copy may get the memory of a batch that was let go of, but is in use until what computes now is done.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._begun = True
        with torch.cuda.stream(self._stream):
            return self._place(batch)


_LARGEST_BLOCK = 4 << 20
"""Bytes of a block that is copied as a whole for one of its parts."""


def _is_cut(batch: Any) -> bool:
    """Tell whether a batch is a plain one whose tensors are parts of small page-locked blocks."""
    if type(batch) is not tuple or not all(type(part) is Tensor and part._base is not None for part in batch):
        return False
    blocks = [part._base for part in batch]
    return all(block.nbytes <= _LARGEST_BLOCK and block.is_contiguous() and block.is_pinned() for block in blocks)


_AMPERE = (8, 0)


def check_support(name: str, device: torch.device) -> list[str]:
    """Return reasons why a precision does not do on this device what it is there for; empty where it does.

    Raises:
        UserError: The device cannot compute in it at all.
    """
    if name == "fp64" and device.type == "mps":
        raise UserError(
            "Apple's GPUs have no float64", argument="precision", received=name, fix="device.precision=fp32"
        )
    if name.startswith("bf16") and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise UserError("this GPU has no bfloat16", argument="precision", received=name, fix="device.precision=fp32")
    if device.type == "cuda":
        reasons = [*_on_cuda(name, device)]
    elif device.type == "cpu":
        reasons = [*_on_cpu(name)]
    elif name == "tf32":
        reasons = [f"TF32 is a format of NVIDIA's GPUs, not of {device.type}: computed in fp32"]
    else:
        reasons = []
    return [f"device.precision={name}: {reason}" for reason in reasons]


def _on_cuda(name: str, device: torch.device) -> Iterator[str]:
    capability = torch.cuda.get_device_capability(device)
    known = "this GPU has compute capability {}.{}".format(*capability)
    if name == "tf32" and capability < _AMPERE:
        yield f"{known}, and TF32 comes with 8.0 (Ampere): computed in fp32"
    if name.startswith("bf16") and capability < _AMPERE:
        yield f"{known}, and bfloat16 comes with 8.0 (Ampere): emulated, slower than fp16 or even fp32"
    if name == "fp16" and capability < (7, 0):
        yield f"{known}, and fast fp16 comes with 7.0 (Volta): little or nothing is gained over fp32"
    if name == "fp32" and capability >= _AMPERE:
        yield "exact; tf32 and bf16 are several times faster on this GPU"


def _on_cpu(name: str) -> Iterator[str]:
    if name == "tf32":
        yield "TF32 is a format of NVIDIA's GPUs: computed in fp32"
    if name == "fp16":
        yield "CPUs compute fp16 slowly; bf16 is the half precision that some of them are fast in"
    # This PyTorch, or another kind of processor, may not say whether there are fast instructions.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    asked = [ask for known in names if (ask := getattr(torch.cpu, known, None)) is not None]
    is_intel = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    if name.startswith("bf16") and is_intel and asked and not any(ask() for ask in asked):
        yield "this CPU has no instructions for bfloat16: slower than fp32"
