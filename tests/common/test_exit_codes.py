from __future__ import annotations

import ast
import re
import signal
from pathlib import Path

import lightkit
from lightkit.common import exit_codes
from lightkit.common.exit_codes import of_process, of_signal

PACKAGE = Path(lightkit.__file__).parent
CODES = {name: value for name, value in vars(exit_codes).items() if name.isupper()}


def test_the_table_of_the_manual_has_every_status() -> None:
    table = (PACKAGE.parent / "docs" / "reference" / "exit-status.md").read_text(encoding="utf-8")
    there = [int(number) for cells in re.findall(r"^\| ([\d, +n]+) \|", table, re.M) for number in _plain(cells)]
    by_signal = {of_signal(number) for number in signal.Signals} - {exit_codes.INTERRUPTED}
    assert sorted(there) == sorted(set(CODES.values()) - by_signal)


def _plain(cells: str) -> list[str]:
    return [cell for cell in cells.split(", ") if cell.isdecimal()]


def test_each_status_has_one_name() -> None:
    assert len({*CODES.values()}) == len(CODES)


def test_no_other_module_writes_a_status_as_a_number() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.value.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "exit_code" in (text := path.read_text(encoding="utf-8"))  # parsing takes long
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.keyword) and node.arg == "exit_code" and isinstance(node.value, ast.Constant)
    ]
    assert found == []


def test_signals_count_from_128_as_in_a_shell() -> None:
    assert of_signal(signal.SIGINT) == exit_codes.INTERRUPTED
    assert of_signal(signal.SIGPIPE) == exit_codes.BROKEN_PIPE
    assert [of_process(code) for code in (0, 3, -9, 130)] == [0, 3, 137, 130]
