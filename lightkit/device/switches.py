"""What makes a run faster or smaller, compiling above all, without changing the names that are saved."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.common.failures import is_out_of_memory
from lightkit.common.modules import mapped, put_back
from lightkit.device.precision import MATMUL

COMPILE = ("none", "default", "reduce-overhead", "max-autotune")
OPTIMIZERS = ("auto", "fused", "foreach", "loop")


@dataclass(frozen=True)
class Switches:
    """The speed switches of a run; as they come, all are off or left to lightkit.

    Args:
        channels_last: Keep images and the weights of convolutions with the channels next to each other.
        compile: `none`, or the mode of `torch.compile`.
        cuda_graphs: Record the kernels of a pass once and replay them.
        cudnn: Compute with cuDNN where there is one.
        cudnn_benchmark: Let cuDNN try its algorithms for each new shape and take the fastest.
        matmul: Exactness of fp32 matrix products, `highest`, `high` or `medium`; `auto` goes by the precision.
        optimizer: `fused`, `foreach` or `loop`; `auto` takes the fastest that there is.
        memory_fraction: Largest share of a GPU's memory that this process may take; None sets no limit.
        activation_checkpointing: Name patterns of modules whose activations are computed again in the backward pass.

    Raises:
        UserError: A value is none of its choices.
    """

    channels_last: bool = False
    compile: str = "none"
    cuda_graphs: bool = False
    cudnn: bool = True
    cudnn_benchmark: bool = False
    matmul: str = "auto"
    optimizer: str = "auto"
    memory_fraction: float | None = None
    activation_checkpointing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, choices in (("compile", COMPILE), ("matmul", ("auto", *MATMUL)), ("optimizer", OPTIMIZERS)):
            value = getattr(self, name)
            if value not in choices:
                raise UserError("not one of the choices", argument=name, received=value, choices=choices)

    @property
    def compiles(self) -> bool:
        """Tell whether PyTorch's compiler is asked for anything."""
        return self.compile != "none" or self.cuda_graphs

    @property
    def matmul_level(self) -> str | None:
        """The exactness that is asked for; None leaves it to the precision."""
        return None if self.matmul == "auto" else self.matmul

    def graphs(self, device: torch.device) -> bool:
        """Tell whether kernels are recorded on this device."""
        return device.type == "cuda" and (self.cuda_graphs or self.compile in ("reduce-overhead", "max-autotune"))

    def idle(self, device: torch.device) -> list[str]:
        """Return lines about switches that do nothing on this device."""
        found = []
        if device.type != "cuda" and (self.cuda_graphs or self.compile == "reduce-overhead"):
            key = "device.cuda_graphs" if self.cuda_graphs else "device.compile=reduce-overhead"
            found.append(f"{key}: there are CUDA graphs on NVIDIA's GPUs only; nothing is recorded on {device.type}")
        if device.type != "cuda" and self.cudnn_benchmark:
            found.append(f"device.cudnn_benchmark: there is no cuDNN on {device.type}")
        if device.type != "cuda" and not self.cudnn:
            found.append(f"device.cudnn: there is no cuDNN on {device.type} anyway")
        if device.type == "cpu" and self.memory_fraction is not None:
            found.append("device.memory_fraction: this is about the memory of GPUs, and the run is on cpu")
        return found

    def describe(self, device: torch.device) -> str:
        """Return what is switched on here, to be added to the description of the device."""
        named = {
            "channels last": self.channels_last,
            f"compiled ({self.compile})": self.compile != "none",
            "CUDA graphs": self.graphs(device),
            "no cuDNN": not self.cudnn and device.type == "cuda",
            "cuDNN benchmark": self.cudnn_benchmark and device.type == "cuda",
            f"matmul {self.matmul}": self.matmul_level is not None,
            f"at most {self.memory_fraction or 1:.0%} of the memory": self.memory_fraction and device.type != "cpu",
            f"recomputes {', '.join(self.activation_checkpointing)}": bool(self.activation_checkpointing),
        }
        return "".join(f", {name}" for name, on in named.items() if on)


BACKEND = "inductor"
_SHAPES = 64
"""Versions of the code of a model that may be compiled, one for each shape, mode and set of trained parameters."""


class NoCompiler:
    """The plain case: models run as they are."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model as it is called."""
        return model

    def next_step(self) -> None:
        """Tell the compiler that an optimizer step is over."""


class Compiler(NoCompiler):
    """Compiles models.

    What is compiled is kept on disk by PyTorch (`TORCHINDUCTOR_CACHE_DIR`), so that a second run starts sooner.

    Args:
        mode: Mode of `torch.compile`; `none` leaves the kernels as they are and only records them.
        graphs: Record the kernels of a pass once, and replay them (CUDA graphs).
        fixed_shapes: Compile anew for each shape of a batch. Otherwise code for any size is made when a second size
            comes up, so that what computes a batch depends on which came before it.
        tell: Takes a line when a model cannot be compiled.
    """

    def __init__(self, mode: str, *, graphs: bool, fixed_shapes: bool, tell: Callable[[str], None]) -> None:
        self.graphs, self._tell = graphs, tell
        fixed_shapes = fixed_shapes or mode == "none"  # recorded kernels alone know nothing of a size that changes
        self._options: dict[str, Any] = {"dynamic": False if fixed_shapes else None, **_backend(mode, graphs)}

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap the model, to be compiled when it is first called."""
        os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
        import torch._dynamo.config as dynamo
        import torch._functorch.config as functorch

        if getattr(dynamo, "recompile_limit", _SHAPES) < _SHAPES:
            dynamo.recompile_limit = _SHAPES
        if hasattr(functorch, "force_non_lazy_backward_lowering"):
            # Compile the backward pass with the forward pass: what fails there fails where one can still go on without.
            functorch.force_non_lazy_backward_lowering = True
        wrapped = Compiled(model, torch.compile(model, **self._options), copies=self.graphs, tell=self._tell)
        # Where nothing ever said that a step begins, PyTorch takes each call for one, and overwrites the gradients of
        # the batches before it in the first window.
        self.next_step()
        return wrapped

    def next_step(self) -> None:
        """Release the memory of recorded kernels; until then the gradients of a window of batches stay there."""
        if self.graphs:
            torch.compiler.cudagraph_mark_step_begin()


class Compiled(nn.Module):
    """A model that is called by its compiled code.

    Where compiling fails, the model is called itself from then on; nothing is left of the attempt.

    Args:
        model: The model; `lightkit.device.parallel` takes the wrapper off again.
        code: What calls it compiled.
        copies: Hand out copies of the outputs, whose memory the next call overwrites.
        tell: Takes a line when it cannot be compiled.
    """

    def __init__(
        self, model: nn.Module, code: Callable[..., Any], *, copies: bool, tell: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._orig_mod = model
        self._code: list[Callable[..., Any]] = [code]  # in a list, or its parameters would count as ours once more
        self._copies, self._tell = copies, tell
        self._proven: set[bool] = set()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model gives for these arguments."""
        if not self._code:
            return self._orig_mod(*args, **kwargs)
        if self._copies and not torch.is_grad_enabled():
            torch.compiler.cudagraph_mark_step_begin()
        try:
            outputs = self._attempt(*args, **kwargs)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException

            is_proven = self.training in self._proven and not isinstance(error, TorchDynamoException)
            if is_out_of_memory(error) or is_proven:
                raise
            # The first time anything may come from the compiler; what comes from the model comes again below.
            self._code.clear()
            self._tell(f"the model is not compiled, and runs as it is: {compiler_reason(error)}")
            return self._orig_mod(*args, **kwargs)
        return mapped(Tensor.clone, outputs) if self._copies else outputs

    def _attempt(self, *args: Any, **kwargs: Any) -> Any:
        if self.training in self._proven:
            return self._code[0](*args, **kwargs)
        with _unchanged_by_failure(self._orig_mod), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's, which are about itself
            outputs = self._code[0](*args, **kwargs)
        self._proven.add(self.training)
        return outputs


def make_compiler(
    switches: Switches, device: torch.device, *, deterministic: bool, tell: Callable[[str], None]
) -> NoCompiler:
    """Make what compiles models on a device as the switches ask for it."""
    graphs = switches.graphs(device)
    if switches.compile == "none" and not graphs:
        return NoCompiler()
    return Compiler(switches.compile, graphs=graphs, fixed_shapes=deterministic, tell=tell)


def _backend(mode: str, graphs: bool) -> dict[str, Any]:
    if mode == "none":
        return {"backend": "cudagraphs"}
    if BACKEND != "inductor":
        return {"backend": BACKEND}
    return {"mode": "reduce-overhead" if graphs and mode == "default" else mode}


@contextmanager
def _unchanged_by_failure(model: nn.Module) -> Iterator[None]:
    """Put buffers and random generators back after an error: the pass is done again from where it began."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = [*range(torch.cuda.device_count())] if torch.cuda.is_initialized() else []
    state, drawn = random.getstate(), (torch.get_rng_state(), [torch.cuda.get_rng_state(index) for index in devices])
    try:
        yield
    except Exception:
        random.setstate(state)
        torch.set_rng_state(drawn[0])
        for index, values in zip(devices, drawn[1]):
            torch.cuda.set_rng_state(values, index)
        put_back(buffers)
        raise


def compiler_reason(error: BaseException) -> str:
    """Return the first lines that say something of an error of the compiler, which wraps the true one."""
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {lines[0] if lines else 'no reason given'}"
