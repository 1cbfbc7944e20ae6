"""What is shown again and again."""

from __future__ import annotations

import os

import pytest

from lightkit.cli import logs
from lightkit.common.errors import UserError


class Interrupted:
    """Stands in for `time`: the user presses Ctrl-C while the second picture is shown."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 2:
            raise KeyboardInterrupt


def test_watching_on_a_terminal_gives_it_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "time", Interrupted())
    monkeypatch.setattr(logs.shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((80, 5)))
    logs.watch(lambda: "\n".join(f"line {number}" for number in range(50)), 1.0, live=True)
    out = capsys.readouterr().out
    assert out.startswith("\x1b[?1049h\x1b[?25l\x1b[H")
    assert out.endswith("\x1b[J\x1b[?25h\x1b[?1049l")
    assert "line 1\x1b[K\n\x1b[J" in out
    assert "line 2" not in out


def test_elsewhere_each_has_its_time_unless_a_program_reads_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stamped in (True, False):
        monkeypatch.setattr(logs, "time", Interrupted())
        logs.watch(lambda: "text", 1.0, live=False, stamped=stamped)
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith("  text")
    assert first[2] == ":"
    assert last == "text"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf", "0.01"])
def test_no_time(text: str) -> None:
    assert logs.read_seconds("0.5") == 0.5
    with pytest.raises(UserError, match="not a time"):
        logs.read_seconds(text)
