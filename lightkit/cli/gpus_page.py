"""What `lightkit gpus` knows of GPUs, and how it shows them: the page with what people look at, and each in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from lightkit.cli.terminal import table
from lightkit.monitor.gpus import FIELDS
from lightkit.runs.catalog import path_from, project

TITLES = ("GPU", "torch", "name", "temp", "power", "memory", "busy", "clock", "limited by")
PROCESS_TITLES = ("GPU", "process", "user", "memory", "run or command")
SHORT = {
    "applications_clocks_setting": "set clocks",
    "sw_power_cap": "power cap",
    "hw_slowdown": "hardware",
    "sync_boost": "sync boost",
    "sw_thermal_slowdown": "heat",
    "hw_thermal_slowdown": "heat",
    "hw_power_brake_slowdown": "power brake",
    "display_clock_setting": "display",
}
"""NVIDIA's names in few words; an idle GPU is limited by nothing."""
_HINDERING = {
    "exclusive_process": "in exclusive mode: a second process on it fails",
    "exclusive_thread": "in exclusive mode: a second process on it fails",
    "prohibited": "closed to programs that compute",
}
"""Compute modes in which a run may fail."""

Row = dict[str, Any]


def rows(source: Any) -> list[Row]:
    """Return everything that is known of every GPU and MIG instance, as plain values.

    Args:
        source: Where it comes from (`lightkit.monitor.gpus.Source`).
    """
    from lightkit.monitor.gpus import describe, visible_gpus

    names = {gpu.uuid: f"cuda:{at}" for at, gpu in enumerate(visible_gpus(source.gpus))}
    running, now = source.processes(), f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    found = []
    for sample, details in zip(source.samples(source.gpus), source.details(source.gpus)):
        facts = {**asdict(sample), **asdict(sample.gpu), **details, "timestamp": now}
        facts["torch"] = names.get(sample.gpu.uuid)
        facts["processes"] = [asdict(describe(*process)) for process in running.get(sample.gpu.uuid, ())]
        found.append({name: facts.get(name) for name in FIELDS})
    return found


def in_detail(found: Sequence[Row]) -> str:
    """Write every field of every GPU on a line of its own, without those that it does not tell."""
    return "\n\n".join(map(_one_in_detail, found))


def _one_in_detail(row: Row) -> str:
    title = f"GPU {row['index']}: {row['name']}" + (f" MIG {row['mig']}" if row["mig"] else "")
    lines, section = [title], ""
    size = max(map(len, FIELDS))
    for name, field in FIELDS.items():
        value = plain(row[name])
        if value == "-" or name == "index":
            continue
        if field.section != section:
            section = field.section
            lines.append(f"  {section}")
        lines.append(f"    {name:<{size}}  {value} {field.unit}".rstrip())
    return "\n".join(lines)


def plain(value: object) -> str:
    """Write a value for a table: a dash for what is not known, of processes their numbers."""
    if isinstance(value, (list, tuple)):
        return " ".join(str(item["pid"]) if isinstance(item, dict) else str(item) for item in value) or "-"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def page(found: Sequence[Row], source: Any, *, width: int | None) -> str:
    """Draw the whole picture: a line about the driver, the GPUs, and the processes on them.

    Args:
        found: From `rows`.
        source: Where it comes from.
        width: Characters in a line; None for as many as it takes.
    """
    from lightkit.monitor.gpus import is_order_known

    whole = [row for row in found if row["mig"] is None]
    count = f"{len(whole)} GPU{'s' if len(whole) > 1 else ''}"
    head = f"{count}, driver {whole[0]['driver'] or 'unknown'}, by {source.name}"
    cells = [_cells(row) for row in found]
    shown = [at for at, _ in enumerate(TITLES) if at < 3 or any(line[at] for line in cells)]
    titles, cells = [TITLES[at] for at in shown], [[line[at] for at in shown] for line in cells]
    body = table(
        titles,
        cells,
        right=[at for at, title in enumerate(titles) if title in TITLES[3:-1]],
        cut=[2],
        columns=width,
    )
    slices = [
        [f"GPU {row['index']}", f"MIG {row['mig']}", f"device.gpus=[{row['uuid']}]"] for row in found if row["mig"]
    ]
    parts = [head, body]
    if slices:
        parts.append(f"a process computes on one MIG instance, chosen by its UUID:\n{table([], slices)}")
    parts.append(_processes(found, width))
    parts.append("\n".join(_warnings(whole)))
    if not is_order_known(source.gpus):
        parts.append("torch counts the fastest GPU first: CUDA_DEVICE_ORDER=PCI_BUS_ID makes it count as shown here")
    return "\n\n".join(part for part in parts if part)


def _cells(row: Row) -> list[str]:
    name = row["name"].removeprefix("NVIDIA ") if row["mig"] is None else f"  MIG {row['mig']}"
    limits = [SHORT.get(reason, reason) for reason in row["throttle"] or () if reason != "gpu_idle"]
    return [
        str(row["index"]),
        row["torch"] or "-",
        name,
        _unit(row["temperature_c"], "°C"),
        _of(row["power_w"], row["power_limit_w"], "W", digits=0),
        _of(_gib(row["memory_used_mib"]), _gib(row["memory_total_mib"]), "GiB", digits=1),
        _unit(row["utilisation"], "%"),
        _unit(row["clock_mhz"], "MHz"),
        ", ".join(dict.fromkeys(limits)),
    ]


def _processes(found: Sequence[Row], width: int | None) -> str:
    root = project().resolve()
    lines = []
    for row in found:
        place = str(row["index"]) if row["mig"] is None else f"{row['index']} MIG {row['mig']}"
        for one in row["processes"]:
            mib, memory = one["memory_mib"], ""
            if mib is not None:
                memory = f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib:.0f} MiB"
            lines.append([place, str(one["pid"]), one["user"] or "?", memory, _work(one, root)])
    if not lines:
        return "no process uses them"
    return table(PROCESS_TITLES, lines, right=[1, 3], cut=[4], columns=width)


def _work(process: Row, root: Path) -> str:
    """Name the folder of a run of lightkit, else the command."""
    folder = process["run"]
    return process["command"] or "?" if folder is None else path_from(root, folder)


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _of(value: float | None, limit: float | None, unit: str, *, digits: int) -> str:
    shown = ["?" if number is None else f"{number:.{digits}f}" for number in (value, limit)]
    return "" if value is limit is None else f"{shown[0]} / {shown[1]} {unit}" if limit else f"{shown[0]} {unit}"


def _warnings(whole: Sequence[Row]) -> list[str]:
    """Say what of a GPU may make a run fail."""
    lines = [
        f"GPU {row['index']} is {_HINDERING[row['compute_mode']]}" for row in whole if row["compute_mode"] in _HINDERING
    ]
    for row in whole:
        if count := row["ecc_uncorrected"]:
            errors = f"{count} error{'s' * (count > 1)} of its memory that could not be corrected"
            lines.append(f"GPU {row['index']} has had {errors}: it needs a reset, or is broken")
    return lines
