"""Where and how the numbers of a run are computed."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, Optional, Union

from lightkit.config.schema.base import Target, former, number, section


@section
class DdpConfig:
    """Several processes with a copy of the model each (`device.parallel=ddp`)."""

    sync_batchnorm: bool = False
    """Compute batch norm over the whole batch instead of each process's part; only on GPUs."""
    bucket_mib: float = number(25.0, above=0)
    """Size in MiB of the buckets in which gradients are exchanged, while other gradients are still being computed."""
    find_unused: bool = False
    """Allow parameters that are not used in a step; without it they are an error. It costs time."""
    static_graph: bool = False
    """Every step uses the same parameters in the same way. Lets some activation checkpointing work, and saves time; not
    with `trainer.accumulate`."""
    timeout_seconds: float = number(600.0, above=0, high=1e9)
    """After this time, a process that does not answer counts as lost, and the run ends."""


@section
class FsdpConfig:
    """Several processes with a part of the model each (`device.parallel=fsdp`)."""

    min_parameters: int = number(100_000, low=1)
    """Layers with fewer parameters are gathered together with their neighbours."""
    reshard: bool = True
    """Free gathered weights after the forward pass to save memory. They are gathered again for the backward pass."""


@section
class DeviceConfig:
    """Where and how the numbers are computed."""

    name: str = "auto"
    """`auto` (a GPU when there is one), `cpu`, `cuda`, `cuda:1` (the second one that is visible), `mps`."""
    gpus: Optional[Union[str, list[Union[int, str]]]] = None
    """GPUs that the run can use: `[0, 2]` with the numbers of nvidia-smi, `[MIG-…]`, or `auto:2`; null allows all. The
    first one is `cuda:0`, the main GPU. `auto:2` takes the two with the most free memory. For a GPU with MIG, give the
    UUID of an instance (see `lightkit gpus`); `auto` takes the GPU or instance with the most free memory. The CPU and
    Apple's GPU ignore this key."""
    wait: bool = False
    """Wait until enough GPUs of `gpus` are free. A GPU is free if at most a tenth of its memory is in use, and if no
    other run of this user with `wait` uses it. The run keeps its GPUs to its end."""
    precision: Literal["fp32", "tf32", "bf16", "fp16", "bf16-true", "fp64"] = "fp32"
    """Arithmetic: `bf16` and `fp16` by autocast (`fp16` with a loss scale), `bf16-true` in the weights too. `tf32`
    rounds matrix products and convolutions on NVIDIA's GPUs from Ampere on; `bf16` and `fp16` keep weights and
    losses in fp32; `bf16-true` has weights and the optimizer's state in bfloat16 too, which halves the memory and
    makes steps less exact; `fp64` computes everything in double precision. Losses and metrics are always computed in
    at least fp32."""
    parallel: Union[str, Target] = field(default="none", metadata={"door": "device.parallel"})
    """Several devices: `dp` splits batches over the visible GPUs, `ddp` and `fsdp` run one process a GPU. `dp` is
    `torch.nn.DataParallel`, `ddp` `DistributedDataParallel`; `fsdp` (FSDP2) shares out the model and the state of its
    optimizer too. Any `_target_` that builds a `lightkit.device.Parallel` will do."""
    nproc: int = number(1, low=1)
    """Processes to start for `ddp` and `fsdp`; 1 under `torchrun`, which starts them itself."""
    ddp: DdpConfig = field(default_factory=DdpConfig)
    """Settings of `parallel: ddp`; `timeout_seconds` is for `fsdp` too."""
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    """Settings of `parallel: fsdp`."""
    dp_dim: int = number(0, low=0)
    """Dimension along which `dp` splits the inputs and joins the outputs."""
    dp_output: Optional[int] = number(None, low=0)
    """Number, among the visible GPUs, of the GPU on which `dp` joins the outputs and computes the loss; null is the
    main GPU."""
    channels_last: bool = False
    """Channels next to each other in memory, for images and convolutions. Faster on GPUs in half precision."""
    compile: Literal["none", "default", "reduce-overhead", "max-autotune"] = "none"
    """Mode of `torch.compile` for the model. If compiling fails, the model runs without it, and the run says why."""
    cuda_graphs: bool = False
    """Record the kernels of a pass once for each shape and replay them; GPUs only. For small models, whose kernels wait
    for Python. It uses `torch.compile`, which with `compile=none` does not change the kernels."""
    matmul: Literal["auto", "highest", "high", "medium"] = "auto"
    """Precision of fp32 matrix products; `auto` follows `precision`. As in `torch.set_float32_matmul_precision`."""
    cudnn: bool = True
    """Use cuDNN on NVIDIA GPUs; without it, PyTorch uses its own kernels, which are slower."""
    cudnn_benchmark: bool = False
    """Let cuDNN measure its algorithms for each new shape and take the fastest; not with `deterministic`."""
    optimizer: Literal["auto", "fused", "foreach", "loop"] = "auto"
    """How PyTorch's optimizers step. `fused` has one kernel for all parameters, `foreach` one for each operation, and
    `loop` goes over the parameters. `auto` takes `fused` on NVIDIA's GPUs and CPUs where the optimizer has it. Values
    in `optim` have priority."""
    activation_checkpointing: list[str] = field(default_factory=list, metadata={"patterns": ()})
    """Patterns of modules whose activations are computed again in the backward pass instead of stored: `["blocks.*"]`.
    It saves memory and takes about a third more time; the gradients have the same bits."""
    batch_size: Optional[Literal["auto", "max"]] = former("trainer.find_batch_size")
    """Largest batch that fits."""
    memory_fraction: Optional[float] = number(None, above=0, high=1)
    """Largest share of a GPU's memory that PyTorch may take in this process; null sets no limit. Beyond it the run ends
    as out of memory, and another process on the GPU keeps the rest."""
    deterministic: bool = False
    """Only deterministic algorithms, at some cost in speed. On the same GPU model, versions and number of GPUs, a
    resumed run then has the same bits. It does not control code outside of PyTorch."""
    threads: Optional[int] = number(None, low=1, high=4096)
    """Number of CPU threads of one operation; null uses PyTorch's default."""
