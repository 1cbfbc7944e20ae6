"""`lightkit env`: everything about this machine that a bug report should say."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import report
from lightkit.monitor import host
from lightkit.processes.children import output_of, usable_cpus
from lightkit.runs.catalog import project

VARIABLES = (
    "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG", "LD_PRELOAD",
    "LIGHTKIT_DEBUG", "LIGHTKIT_PROJECT", "MKL_NUM_THREADS", "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME",
    "NVIDIA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ENABLE_MPS_FALLBACK", "SLURM_JOB_ID", "TORCH_LOGS",
)  # fmt: skip
"""Variables that are shown; all others may hold secrets."""
_SECONDS = 10.0
_MEMORY = {"all": "", "free": " free", "container": " allowed in this container"}


def env(args: list[str]) -> int:
    """Print the report."""
    options = Parser("env").read(args)
    found = facts()
    return report(options, found, lambda: text(found))


def facts() -> dict[str, Any]:
    """Collect the report as plain values."""
    from lightkit.cli.gpus import rows
    from lightkit.device.about import torch_facts
    from lightkit.monitor.nvml import open_source
    from lightkit.runs.record import environment, versions

    torch = torch_facts()
    with closing(open_source()) as source:
        known = [{name: row[name] for name in _OF_GPUS} for row in rows(source)]
    if not torch.get("devices"):  # the driver's word alone: what PyTorch would call them, if it saw them
        known = [{**row, "torch": None} for row in known]
    noted = environment(project=project())
    packages, git = versions(), noted["git"]
    if git is not None:
        git = {"commit": git["commit"], "branch": git["branch"], "changed_files": len(git["status"])}
    return {
        "lightkit": packages.pop("lightkit", None),
        "folder": str(Path(__file__).resolve().parents[1]),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "platform": noted["platform"],
        "cpu": {"model": cpu_model(), "usable": usable_cpus(), "all": os.cpu_count()},
        "memory_gib": memory_gib(),
        "torch": torch,
        "packages": {name: version for name, version in packages.items() if name != "torch"},
        "gpus": {"source": source.name or None, "reason": source.reason or None, "found": known},
        "topology": topology() if known else None,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "project": str(project()),
        "git": git,
    }


_OF_GPUS = ("index", "torch", "name", "mig", "uuid", "bus", "driver", "memory_total_mib", "power_limit_w")


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """Return what the processor calls itself.

    Args:
        path: Where Linux says it.
    """
    try:
        lines = [line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    named = (value.strip() for key, _, value in lines if key.strip().lower() in ("model name", "cpu model"))
    return next(named, platform.processor() or platform.machine())


def memory_gib() -> dict[str, float | None]:
    """Return memory of the machine, what is free, and the limit of the container, in GiB; None where there is none."""
    total, free = host.machine_memory()
    limit = host.container_memory()
    sizes = {"all": total, "free": free, "container": limit[1] if limit else None}
    return {name: None if size is None else round(size / 2**30, 1) for name, size in sizes.items()}


def topology() -> str | None:
    """Tell how the GPUs are connected (NVLink, PCIe), in `nvidia-smi`'s own table; None where it does not say."""
    table = output_of(["nvidia-smi", "topo", "-m"], timeout=_SECONDS) or ""
    # It underlines the heads even in a file.
    return table.replace("\x1b[4m", "").replace("\x1b[0m", "").rstrip() or None


def text(found: dict[str, Any]) -> str:
    """Write the report as lines, a name and what there is to say in each."""
    cpu, memory, git = found["cpu"], found["memory_gib"], found["git"]
    sizes = [f"{size} GiB{_MEMORY[name]}" for name, size in memory.items() if size is not None]
    state = "no repository" if git is None else f"{git['commit']} on {git['branch']}, {git['changed_files']} changed"
    packages = [f"{name} {version}" for name, version in found["packages"].items()]
    variables = [f"{name}={value}" for name, value in found["variables"].items()]
    rows = [
        ("lightkit", f"{found['lightkit'] or 'not installed'} in {found['folder']}"),
        ("python", f"{found['python']}, {found['executable']}"),
        ("platform", found["platform"]),
        ("cpu", f"{cpu['model']}, {cpu['usable']} of {cpu['all']} usable"),
        ("memory", ", ".join(sizes)),
        *_torch(found["torch"]),
        *_gpus(found["gpus"], found["torch"].get("no_cuda")),
        *_wrapped("packages", packages),
        *_wrapped("variables", variables or ["none"]),
        ("project", f"{found['project']} ({state})"),
    ]
    lines = [f"{name:<12}{value}".rstrip() for name, value in rows]
    if found["topology"]:
        lines += ["", "topology (nvidia-smi topo -m)", *(f"  {line}" for line in found["topology"].splitlines())]
    return "\n".join(lines)


def _torch(torch: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "error" in torch:
        yield "torch", f"cannot be imported: {torch['error']}"
        return
    parts = [("CUDA", torch["cuda"]), ("HIP", torch["hip"]), ("cuDNN", torch["cudnn"]), ("NCCL", torch["nccl"])]
    built = [f"{name} {version}" for name, version in parts if version] or ["without CUDA"]
    threads = f"{torch['threads']} thread{'s' if torch['threads'] > 1 else ''}"
    yield "torch", f"{torch['version']} ({', '.join(built)}), {threads}, {torch['cpu_capability']}"
    yield "device", f"auto takes {torch['default_device']}"
    for device in torch["devices"]:
        facts = f"{device['memory_gib']} GiB, capability {device['capability']}, {device['uuid']}"
        yield "", f"{device['device']}: {device['name']}, {facts}"


def _gpus(gpus: dict[str, Any], no_cuda: str | None) -> Iterator[tuple[str, str]]:
    if not gpus["found"]:
        yield "gpus", f"none ({gpus['reason']})"
        return
    yield "driver", f"{gpus['found'][0]['driver'] or 'unknown'} (by {gpus['source']})"
    for at, gpu in enumerate(gpus["found"]):
        size = f" MIG {gpu['mig']}" if gpu["mig"] else ""
        memory = "" if gpu["memory_total_mib"] is None else f", {gpu['memory_total_mib'] / 1024:.1f} GiB"
        name = f"GPU {gpu['index']}: {gpu['name']}{size}{memory}, {gpu['uuid'] or 'no UUID'}"
        yield "" if at else "gpus", f"{name} = {gpu['torch'] or 'not visible'}"
    if no_cuda:
        yield "", f"PyTorch sees none of them: {no_cuda}"


def _wrapped(name: str, items: list[str], *, width: int = 100) -> Iterator[tuple[str, str]]:
    line = ""
    for item in items:
        if line and len(line) + len(item) + 2 > width:
            yield name, line + ","
            name, line = "", ""
        line = f"{line}, {item}" if line else item
    yield name, line
