"""Where and how the numbers of a run are computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import number


@dataclass
class DdpConfig:
    """Several processes with a copy of the model each (`device.parallel=ddp`)."""

    sync_batchnorm: bool = False
    """Batch norms over the whole batch instead of each process's part of it; GPUs only."""
    bucket_mib: float = number(25.0, above=0)
    """Size in MiB of the pieces in which gradients are exchanged. That happens while others are still being
    computed."""
    find_unused: bool = False
    """Look for parameters that take no part in a step, which else is an error; costs time."""
    static_graph: bool = False
    """Every step uses the same parameters in the same way. Lets some activation checkpointing work, and saves time; not
    with `trainer.accumulate`."""
    timeout_seconds: float = number(600.0, above=0, high=1e9)
    """A process that keeps the others waiting for so long counts as lost, and the run ends."""


@dataclass
class FsdpConfig:
    """Several processes with a part of the model each (`device.parallel=fsdp`)."""

    min_parameters: int = number(100_000, low=1)
    """Smaller layers of a sequence are gathered with what is around them, not by themselves."""
    reshard: bool = True
    """Give gathered weights back after the forward pass, for less memory. They are gathered again for the backward
    pass."""


@dataclass
class DeviceConfig:
    """Where and how the numbers are computed."""

    name: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1` (the second one that is visible), `mps`."""
    gpus: Optional[Union[str, list[Union[int, str]]]] = None
    """GPUs that the run may see: `[0, 2]` as nvidia-smi counts, `[MIG-…]`, `auto:2`; null sees all. The first of them
    is `cuda:0`, the main one; `auto:2` takes the two with the most free memory. A GPU that is split by MIG is used by
    one of its instances, named by its UUID (see `lightkit gpus`); `auto` takes the freest of whole GPUs and instances.
    The CPU and Apple's GPU ignore this."""
    wait: bool = False
    """Wait until so many GPUs of `gpus` are free: at most a tenth of the memory of each is in use, and no other run of
    this user that waits in this way has it. It keeps them to its end."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "bf16-true", "fp64"] = "fp32"
    """Arithmetic: `bf16` and `fp16` by autocast (`fp16` with a loss scale), `bf16-true` in the weights too. `tf32`
    rounds matrix products and convolutions on NVIDIA's GPUs from Ampere on; `bf16` and `fp16` keep weights and losses
    in fp32; `bf16-true` has weights and the optimizer's state in bfloat16 too, for half the memory and less exact
    steps; `fp64` computes everything in double precision. Losses and metrics are never below fp32."""
    parallel: Literal["none", "dp", "ddp", "fsdp"] = "none"
    """Several devices: `dp` splits batches over the visible GPUs, `ddp` and `fsdp` run one process a GPU. `dp` is
    `torch.nn.DataParallel`, `ddp` `DistributedDataParallel`; `fsdp` (FSDP2) shares out the model and the state of its
    optimizer too."""
    nproc: int = number(1, low=1)
    """Processes to start for `ddp` and `fsdp`; 1 under `torchrun`, which starts them itself."""
    ddp: DdpConfig = field(default_factory=DdpConfig)
    """Settings of `parallel: ddp`; `timeout_seconds` is for `fsdp` too."""
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    """Settings of `parallel: fsdp`."""
    dp_dim: int = number(0, low=0)
    """Dimension that `dp` splits inputs in, and joins outputs in."""
    dp_output: Optional[int] = number(None, low=0)
    """GPU, among the visible ones, on which `dp` joins the outputs and the loss is computed; null is the main one."""
    channels_last: bool = False
    """Channels next to each other in memory, for images and convolutions. Faster on GPUs in half precision."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """Mode of `torch.compile` for the model. Where compiling fails, the model runs as it is and says why."""
    cuda_graphs: bool = False
    """Record the kernels of a pass once for each shape and replay them; GPUs only. For small models, whose kernels wait
    for Python. By `torch.compile`, which with `compile=none` leaves the kernels as they are."""
    matmul: Literal["auto", "highest", "high", "medium"] = "auto"
    """Exactness of fp32 matrix products; `auto` goes by `precision`. As in `torch.set_float32_matmul_precision`."""
    cudnn: bool = True
    """Compute with cuDNN on NVIDIA's GPUs; without it PyTorch's own kernels do, which are slower."""
    cudnn_benchmark: bool = False
    """Let cuDNN try its algorithms for each new shape; not with `deterministic`. It then takes the fastest."""
    optimizer: Literal["auto", "fused", "foreach", "loop"] = "auto"
    """How PyTorch's optimizers step. `fused` has one kernel for all parameters, `foreach` one for each operation, and
    `loop` goes over the parameters. `auto` takes `fused` on NVIDIA's GPUs and CPUs where the optimizer has it. What
    `optim` sets itself goes first."""
    activation_checkpointing: list[str] = field(default_factory=list, metadata={"patterns": ()})
    """Patterns of modules whose activations are computed again, not kept: `["blocks.*"]`. Less memory for about a third
    more time; the gradients are the same to the bit."""
    batch_size: Optional[Literal["auto", "max"]] = None
    """Largest batch that fits: `auto` splits data.batch_size, `max` sets it. Null takes `data.batch_size` as it is.
    Found by steps in a process of its own before the run begins. `auto` keeps the samples of an optimizer step,
    `data.batch_size` times `trainer.accumulate`, and splits them into the fewest equal parts that fit; `max` sets
    `data.batch_size` to the largest that fits, and so changes what the learning rate means. The run's `config.yaml` has
    what was found in its place; nothing is looked for again."""
    memory_fraction: Optional[float] = number(None, above=0, high=1)
    """Largest share of a GPU's memory that PyTorch may take in this process; null sets no limit. Beyond it the run ends
    as out of memory, and another process on the GPU keeps the rest."""
    deterministic: bool = False
    """Only deterministic algorithms, at some cost in speed. On the same GPU model, versions and number of GPUs, a
    resumed run then has the same bits. What code outside of PyTorch does on a GPU is beyond its reach."""
    threads: Optional[int] = number(None, low=1, high=4096)
    """CPU threads of one operation; null leaves PyTorch's choice."""
