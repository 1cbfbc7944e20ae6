"""`lightkit gpus`: the GPUs of this machine, who uses them, and what a process would call them."""

from __future__ import annotations

import io
import platform
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from lightkit.cli.arguments import Parser
from lightkit.cli.gpus_page import Row, in_detail, page, plain, rows
from lightkit.cli.live import read_seconds, watch
from lightkit.cli.terminal import json_text, say, table, width
from lightkit.common.csv_lines import CsvWriter
from lightkit.common.errors import UserError
from lightkit.monitor.gpus import FIELDS


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
    from lightkit.monitor.nvml import open_source

    source = open_source()
    try:
        show = _form(options, source, fields, again=seconds is not None)
        if seconds is None or not source.gpus:
            say(show())
        else:
            for_programs = options.json or options.csv
            watch(show, seconds, live=not for_programs and sys.stdout.isatty(), stamped=not for_programs)
    finally:
        source.close()
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
    paragraphs = []
    for name in fields:
        field = FIELDS[name]
        unit = f" ({field.unit})" if field.unit else ""
        smi = f" nvidia-smi: {field.smi}." if field.smi else ""
        text = f"{name}{unit}: {field.meaning}{smi}"
        paragraphs.append(
            textwrap.fill(
                text, width() or 120, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
            )
        )
    return "\n".join(paragraphs)


def _form(options: Namespace, source: Any, fields: Sequence[str], *, again: bool) -> Callable[[], str]:
    """Return what makes the text that is asked for.

    Args:
        options: Those of the command line.
        source: Where the GPUs come from (`lightkit.monitor.gpus.Source`).
        fields: The fields to be shown.
        again: Whether it is shown again and again.
    """
    times = count()
    if not source.gpus and not (options.json or options.csv):
        return lambda: without(source.reason)

    def in_json(found: Sequence[Row]) -> str:
        chosen = [{name: row[name] for name in fields} for row in found]
        content = {"source": source.name or None, "reason": source.reason or None, "gpus": chosen}
        return json_text(content, one_line=again)

    def in_csv(found: Sequence[Row]) -> str:
        text = io.StringIO()
        heads = [fields] if next(times) == 0 and not options.no_header else []
        CsvWriter(text).rows(
            [*heads, *(["" if row[name] in (None, []) else plain(row[name]) for name in fields] for row in found)]
        )
        return text.getvalue().removesuffix("\n")

    def in_text(found: Sequence[Row]) -> str:
        if options.detail:
            return in_detail(found)
        if options.query is None:
            return page(found, source, width=width())
        return table([] if options.no_header else fields, [[plain(row[name]) for name in fields] for row in found])

    form = in_json if options.json else in_csv if options.csv else in_text
    return lambda: form(_selected(rows(source), options.id))


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
