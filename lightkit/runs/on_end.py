"""The user's command at the end of a run (`on_end`)."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightkit.common.errors import of_process, of_signal
from lightkit.common.failures import exit_status
from lightkit.common.signals import numbers
from lightkit.processes.children import Child
from lightkit.runs.catalog import run_name
from lightkit.runs.reading import read_result

_LOG = logging.getLogger(__name__)
STOPPED = frozenset(of_signal(number) for number in numbers())
"""Exit statuses of what was told to end."""


@contextmanager
def followed(command: Sequence[str], folder: Path) -> Iterator[None]:
    """Call the user's command after what is done inside, however that ends; what is wrong with it is a warning.

    Args:
        command: Its words; none calls nothing.
        folder: Folder of the run that is inside.
    """
    code = 0
    try:
        yield
    except BaseException as error:
        code = exit_status(error)
        raise
    finally:
        if command and (problem := call_on_end(command, folder, code)):
            _LOG.warning("on_end: %s: %s", shlex.join(command), problem)


def call_on_end(command: Sequence[str], folder: Path, code: int) -> str:
    """Run the user's command, without a shell, and wait for its end.

    Args:
        command: Its words.
        folder: Folder of the run or of the sweep that has ended.
        code: Exit status of the run, which stays what it is.

    Returns:
        What is wrong with the command; empty where it went well.
    """
    variables = {**os.environ, **facts_of(folder, code)}
    try:
        with Child(command, variables=variables, own_session=False) as process:
            try:
                ended = process.wait()
            except BaseException:  # Ctrl-C, or a signal: it is the command that is to end now
                process.kill()
                ended = process.wait()
    except (OSError, ValueError) as error:
        return f"cannot be run: {getattr(error, 'strerror', None) or error}"
    return f"ended with exit status {of_process(ended)}" if ended else ""


def facts_of(folder: Path, code: int) -> dict[str, str]:
    """Return what the command is told of a run, as variables of its environment.

    Args:
        folder: The run's folder.
        code: Its exit status.
    """
    result = read_result(folder)
    status = str(result.get("status") or "finished")
    if code:
        status = "interrupted" if code in STOPPED else "failed"
    objective: Any = result.get("objective")
    objective = objective if isinstance(objective, Mapping) else {}
    value = objective.get("value")
    return {
        "LIGHTKIT_RUN": str(folder.absolute()),
        "LIGHTKIT_NAME": run_name(folder),
        "LIGHTKIT_STATUS": status,
        "LIGHTKIT_EXIT": str(code),
        "LIGHTKIT_METRIC": str(objective.get("name") or ""),
        "LIGHTKIT_BEST": "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value),
        "LIGHTKIT_REASON": str(result.get("reason") or "") if code or status != "finished" else "",
    }
