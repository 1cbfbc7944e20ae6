"""`lightkit gpus`: the GPUs of this machine, who uses them, and what a process would call them."""

from __future__ import annotations

import io
import platform
import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import datetime
from itertools import count, groupby
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import read_seconds, say, table, watch, width
from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError
from lightkit.common.text import json_text
from lightkit.monitor.gpus import FIELDS, describe, is_order_known, visible_gpus
from lightkit.monitor.nvml import open_source
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


def gpus(args: list[str]) -> int:
    """Show the GPUs, once or until it is interrupted."""
    options = Parser("gpus").read(args)
    if options.explain is not None:
        say(_explained(_fields("--explain", options.explain) if options.explain else list(FIELDS)))
        return 0
    forms = [f"--{name}" for name in ("detail", "json", "csv") if getattr(options, name)]
    if options.detail and options.query is not None:
        forms.append("--query")
    if len(forms) > 1:
        raise UserError("one form at a time", key="lightkit gpus", received=" ".join(forms))
    seconds = None if options.watch is None else read_seconds(options.watch)
    fields = list(FIELDS) if options.query is None else _fields("--query", options.query)
    with closing(open_source()) as source:
        if seconds is None or not source.gpus:
            say(_text(options, source, fields))
        else:
            for_programs, times = options.json or options.csv, count()
            watch(
                lambda: _text(options, source, fields, first=next(times) == 0),
                seconds,
                live=not for_programs and sys.stdout.isatty(),
                stamped=not for_programs,
            )
    return 0


def _fields(key: str, text: str) -> list[str]:
    """Read names of fields.

    Raises:
        UserError: There is none, or one that is not known.
    """
    fields = [name.strip() for name in text.split(",") if name.strip()]
    unknown = next((name for name in fields if name not in FIELDS), None)
    if unknown is not None or not fields:
        ours = next((name for name, field in FIELDS.items() if field.smi and field.smi == unknown), None)
        fix = f"nvidia-smi's {unknown} is {ours} here" if ours else None
        raise UserError("no such field", key=key, received=unknown or text, choices=FIELDS, fix=fix)
    return fields


def _explained(fields: Sequence[str]) -> str:
    """Say what fields mean, wrapped for the terminal."""
    wrapper = textwrap.TextWrapper(
        width() or 120, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    paragraphs = []
    for name in fields:
        field = FIELDS[name]
        unit = f" ({field.unit})" if field.unit else ""
        smi = f" nvidia-smi: {field.smi}." if field.smi else ""
        paragraphs.append(wrapper.fill(f"{name}{unit}: {field.meaning}{smi}"))
    return "\n".join(paragraphs)


def _text(options: Namespace, source: Any, fields: Sequence[str], *, first: bool = True) -> str:
    """Return the text that is asked for.

    Args:
        options: Those of the command line.
        source: Where the GPUs come from (`lightkit.monitor.gpus.Source`).
        fields: The fields to be shown.
        first: Whether nothing was shown before; rows of CSV have their heads once.
    """
    if not source.gpus and not (options.json or options.csv):
        return without(source.reason)
    found = _selected(rows(source), options.id)
    if options.json:
        chosen = [{name: row[name] for name in fields} for row in found]
        content = {"source": source.name or None, "reason": source.reason or None, "gpus": chosen}
        return json_text(content, one_line=options.watch is not None)
    if options.detail:
        return in_detail(found)
    if options.query is None and not options.csv:
        return page(found, source, width=width())
    cells, heads = [[plain(row[name]) for name in fields] for row in found], [] if options.no_header else [fields]
    return _csv(heads if first else [], cells) if options.csv else table(heads[0] if heads else [], cells)


def _csv(heads: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> str:
    """Write rows as CSV, with nothing for what is not known."""
    text = io.StringIO()
    CsvWriter(text).rows([*heads, *(["" if cell == "-" else cell for cell in line] for line in cells)])
    return text.getvalue().removesuffix("\n")


def _selected(found: Sequence[Row], wanted: str | None) -> Sequence[Row]:
    """Choose the GPUs and instances that `--id` names.

    Raises:
        UserError: One of the names is that of no GPU.
    """
    if wanted is None or not found:
        return found
    chosen = list[Row]()
    for name in filter(None, map(str.strip, wanted.split(","))):
        those = [row for row in found if _is_called(row, name)]
        if not those:
            known = [str(row["index"]) for row in found if row["mig"] is None]
            known += [row[field] for row in found for field in ("torch", "uuid") if row[field]]
            raise UserError("no such GPU", key="--id", received=name, choices=known)
        chosen += [row for row in those if row not in chosen]
    return chosen


def _is_called(row: Row, name: str) -> bool:
    if name.isdecimal():
        return bool(row["index"] == int(name))
    if name.startswith(("GPU-", "MIG-")):
        return bool((row["uuid"] or "").startswith(name))
    bus = (row["bus"] or "").lower()
    return name == row["torch"] or (":" in name and bool(bus) and bus.endswith(name.lower()))


def without(reason: str) -> str:
    """Say what there is to say on a machine without a GPU.

    Args:
        reason: Why there is none.
    """
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    told = f"no NVIDIA GPU here ({reason})\n\nto train on the CPU:  lightkit train device=cpu"
    own = "\non Apple's GPU:       lightkit train device=mps" if apple else ""
    return f"{told}{own}\ndevice=auto, the default, takes what is there"


def rows(source: Any) -> list[Row]:
    """Return everything that is known of every GPU and MIG instance, as plain values.

    Args:
        source: Where it comes from (`lightkit.monitor.gpus.Source`).
    """
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
    size, texts = max(map(len, FIELDS)), []
    for row in found:
        lines = [f"GPU {row['index']}: {row['name']}" + (f" MIG {row['mig']}" if row["mig"] else "")]
        known = {name: value for name in FIELDS if name != "index" and (value := plain(row[name])) != "-"}
        for section, names in groupby(known, key=lambda name: FIELDS[name].section):
            lines.append(f"  {section}")
            lines += [f"    {name:<{size}}  {known[name]} {FIELDS[name].unit}".rstrip() for name in names]
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


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
    whole = [row for row in found if row["mig"] is None]
    count = f"{len(whole)} GPU{'s' if len(whole) > 1 else ''}"
    head = f"{count}, driver {whole[0]['driver'] or 'unknown'}, by {source.name}"
    cells = [_cells(row) for row in found]
    shown = [at for at, _ in enumerate(TITLES) if at < 3 or any(line[at] for line in cells)]
    titles, cells = [TITLES[at] for at in shown], [[line[at] for at in shown] for line in cells]
    right = [at for at, title in enumerate(titles) if title in TITLES[3:-1]]
    body = table(titles, cells, right=right, cut=[2], columns=width)
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
        _of(row["memory_used_mib"], row["memory_total_mib"], "GiB", digits=1, size=1024),
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


def _unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _of(value: float | None, limit: float | None, unit: str, *, digits: int, size: int = 1) -> str:
    shown = ["?" if number is None else f"{number / size:.{digits}f}" for number in (value, limit)]
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
