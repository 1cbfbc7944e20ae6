"""What makes a run faster or smaller without changing what is computed or the names that are saved."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lightkit.common.errors import UserError
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
