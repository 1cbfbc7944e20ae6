"""`lightkit gpus`: the GPUs of this machine, who uses them, and what a process would call them."""

from __future__ import annotations

import json
import math
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import fitting, say, table, width
from lightkit.common.errors import UserError
from lightkit.common.text import visible
from lightkit.runs.catalog import project

HELP = {
    "gpus": """\
usage: lightkit gpus [--watch [SECONDS]] [--json] [--query FIELDS]

The NVIDIA GPUs of this machine with what people look at: temperature, power, memory, use, and the processes on them
with their users and, for runs of lightkit, their folders. `torch` is the name a process started from here would use,
which depends on CUDA_VISIBLE_DEVICES. Asks the driver; without a GPU it says so.

options:
  --watch [SECONDS]  draw it again and again, every 2 seconds if not told otherwise; Ctrl-C ends it
  --json             as JSON, all that is known; with --watch one line each time
  --query FIELDS     only these fields, separated by commas

fields:
  index, torch, uuid, name, mig, bus, driver, temperature_c, power_w, power_limit_w, memory_used_mib, memory_total_mib,
  utilisation, memory_utilisation, clock_mhz, memory_clock_mhz, pcie_tx_mb_s, pcie_rx_mb_s, throttle, processes

examples:
  lightkit gpus
  lightkit gpus --watch 1
  lightkit gpus --query index,torch,uuid""",
}

FIELDS = (
    "index", "torch", "uuid", "name", "mig", "bus", "driver", "temperature_c", "power_w", "power_limit_w",
    "memory_used_mib", "memory_total_mib", "utilisation", "memory_utilisation", "clock_mhz", "memory_clock_mhz",
    "pcie_tx_mb_s", "pcie_rx_mb_s", "throttle", "processes",
)  # fmt: skip
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
_USUAL_SECONDS = "2"
_SHORTEST_SECONDS = 0.1

Row = dict[str, Any]


def gpus(args: list[str]) -> int:
    """Show the GPUs, once or until it is interrupted."""
    parser = Parser("gpus")
    parser.add_argument("--watch", nargs="?", const=_USUAL_SECONDS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--query")
    options = parser.read(args)
    seconds = None
    if options.watch is not None:
        try:
            seconds = float(options.watch)
        except ValueError:
            seconds = math.nan
        if not _SHORTEST_SECONDS <= seconds < math.inf:
            expected = f"{_SHORTEST_SECONDS} seconds or more"
            raise UserError("not a time", key="--watch", received=options.watch, expected=expected)
    fields = None
    if options.query is not None:
        fields = [name.strip() for name in options.query.split(",") if name.strip()]
        unknown = [name for name in fields if name not in FIELDS]
        if unknown or not fields:
            received = unknown[0] if unknown else options.query
            raise UserError("no such field", key="--query", received=received, choices=FIELDS)
    from lightkit.monitor.nvml import open_source

    source = open_source()
    try:
        show = partial(_as_text, source, fields)
        if options.json:
            show = partial(_as_json, source, fields, indent=None if seconds else 2)
        if seconds is None or not source.gpus:
            say(show())
        else:
            watch(show, seconds, live=not options.json and sys.stdout.isatty())
    finally:
        source.close()
    return 0


def rows(source: Any) -> list[Row]:
    """Return everything that is known of every GPU and MIG instance, as plain values.

    Args:
        source: Where it comes from (`lightkit.monitor.gpus.Source`).
    """
    from lightkit.monitor.gpus import visible_gpus
    from lightkit.monitor.processes import describe

    names = {gpu.uuid: f"cuda:{at}" for at, gpu in enumerate(visible_gpus(source.gpus))}
    running = source.processes()
    found = []
    for sample in source.samples(source.gpus):
        facts = {**asdict(sample), **asdict(sample.gpu), "torch": names.get(sample.gpu.uuid)}
        facts["processes"] = [asdict(describe(*process)) for process in running.get(sample.gpu.uuid, ())]
        found.append({name: facts[name] for name in FIELDS})
    return found


def _as_json(source: Any, fields: Sequence[str] | None, *, indent: int | None) -> str:
    found = [{name: row[name] for name in fields or FIELDS} for row in rows(source)]
    content = {"source": source.name or None, "reason": source.reason or None, "gpus": found}
    return json.dumps(content, indent=indent, allow_nan=False, default=str)


def _as_text(source: Any, fields: Sequence[str] | None) -> str:
    if not source.gpus:
        return without(source.reason)
    found = rows(source)
    if fields:
        return table(fields, [[_plain(row[name]) for name in fields] for row in found])
    return page(found, source, width=width())


def without(reason: str) -> str:
    """Say what there is to say on a machine without a GPU.

    Args:
        reason: Why there is none.
    """
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    told = f"no NVIDIA GPU here ({reason})\n\nto train on the CPU:  lightkit train device=cpu"
    own = "\non Apple's GPU:       lightkit train device=mps" if apple else ""
    return f"{told}{own}\ndevice=auto, the default, takes what is there"


def _plain(value: object) -> str:
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
        fitting(titles, cells, columns=[2], width=width),
        right=[at for at, title in enumerate(titles) if title in TITLES[3:-1]],
    )
    slices = [
        [f"GPU {row['index']}", f"MIG {row['mig']}", f"device.gpus=[{row['uuid']}]"] for row in found if row["mig"]
    ]
    parts = [head, body]
    if slices:
        parts.append(f"a process computes on one MIG instance, chosen by its UUID:\n{table([], slices)}")
    parts.append(_processes(found, width))
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
    return table(PROCESS_TITLES, fitting(PROCESS_TITLES, lines, columns=[4], width=width), right=[1, 3])


def _work(process: Row, root: Path) -> str:
    """Name the folder of a run of lightkit, else the command."""
    folder = process["run"]
    if folder is None:
        return process["command"] or "?"
    return str(folder.relative_to(root) if folder.is_relative_to(root) else folder)


def _gib(mib: float | None) -> float | None:
    return None if mib is None else mib / 1024


def _unit(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.0f} {unit}"


def _of(value: float | None, limit: float | None, unit: str, *, digits: int) -> str:
    shown = ["?" if number is None else f"{number:.{digits}f}" for number in (value, limit)]
    return "" if value is limit is None else f"{shown[0]} / {shown[1]} {unit}" if limit else f"{shown[0]} {unit}"


def watch(show: Callable[[], str], seconds: float, *, live: bool) -> None:
    """Show it until it is interrupted: on a terminal in place, elsewhere one after the other."""

    def put_plainly(text: str) -> None:
        say(text if text.startswith("{") else f"{datetime.now():%H:%M:%S}  {text}\n")
        sys.stdout.flush()

    with _whole_screen() if live else nullcontext(put_plainly) as put:
        try:
            while True:
                put(show())
                time.sleep(seconds)
        except KeyboardInterrupt:
            return


@contextmanager
def _whole_screen() -> Iterator[Callable[[str], None]]:
    """Open a screen of its own, without a cursor; what was on the terminal before is there again afterwards."""

    def put(text: str) -> None:
        head = f"{datetime.now():%H:%M:%S}, Ctrl-C ends it"
        lines = [head, "", *visible(text).splitlines()][: max(1, shutil.get_terminal_size().lines - 1)]
        # Home, each line and the rest of the screen cleared as they are written: nothing flickers.
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield put
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
