from __future__ import annotations

from pathlib import Path

import pytest

from tests.sweep.kills import Sweep, compare, kill_at_random
from tests.warm import Warm


@pytest.mark.slow
@pytest.mark.thorough
def test_a_sweep_survives_kills(warm: Warm, project: Path) -> None:
    whole, killed = Sweep(warm, project, "whole", 4), Sweep(warm, project, "killed", 4)
    assert whole.start().wait() == 0
    kill_at_random(killed, kills=4, seed=0)
    compare(killed, whole)
    assert (killed.folder / "results.csv").read_text().count("done") == 4
