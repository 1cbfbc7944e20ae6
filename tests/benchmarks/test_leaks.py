"""What the look for leaks costs is measured of each run; how much that is here is not asked."""

from __future__ import annotations

import pytest

from benchmarks import leaks


@pytest.mark.thorough
@pytest.mark.slow
def test_each_run_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    leaks.main(["--epochs", "1", "--rows", "300", "--files", "40"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:26].strip() for line in lines[1:5]] == ["wine", "digits", "table of 300 rows", "40 JPEG files"]
