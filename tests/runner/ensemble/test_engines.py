"""Members side by side as processes: the same bits, and how they end together."""

from __future__ import annotations

import shutil
import signal
import threading
from pathlib import Path

import pytest

from lightkit.common.errors import UserError
from lightkit.runner import Runner
from lightkit.runner.proving.comparison import compare_runs
from tests.resume.ensembles import config, go_on
from tests.resume.harness import forked
from tests.waiting import until

SIDE_BY_SIDE = ("ensemble.engine=processes", "ensemble.size=2")


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    Runner(config("voting", "ensemble.size=2", "ensemble.engine=sequential"), tmp_path / "one").run()
    Runner(config("voting", *SIDE_BY_SIDE, "ensemble.slots=2"), tmp_path / "two").run()
    compared = compare_runs(tmp_path / "one", tmp_path / "two")
    different = [item.different for item in compared if item.different and item.name != "ensemble.safetensors"]
    assert different == []


@pytest.mark.thorough
def test_a_member_that_fails_ends_all(tmp_path: Path) -> None:
    bad = ("optim=sgd", "optim.lr=1e30", "data.normalize=none", "trainer.epochs=50")
    with pytest.raises(
        UserError, match=r"(?s)the process of member 0\d ended with status 3.*no longer finite"
    ) as caught:
        Runner(config("voting", *SIDE_BY_SIDE, *bad), tmp_path / "run").run()
    assert caught.value.exit_code == 3


@pytest.mark.thorough
def test_a_signal_ends_all_and_they_go_on(tmp_path: Path) -> None:
    cfg, place = config("voting", *SIDE_BY_SIDE, "ensemble.slots=2", "trainer.epochs=400"), tmp_path / "run"

    def job() -> None:
        main = threading.main_thread().ident
        assert main is not None

        def ask() -> None:
            names = [place / "members" / name / "checkpoints" / "manifest.json" for name in ("00", "01")]
            until(lambda: all(name.exists() for name in names), "both members to save")
            signal.pthread_kill(main, signal.SIGTERM)

        threading.Thread(target=ask, daemon=True).start()
        Runner(cfg, place).run()

    forked(job, tmp_path / "log", want=128 + signal.SIGTERM)
    assert not (place / "ensemble.safetensors").exists()
    shutil.copytree(place, tmp_path / "copy")
    forked(lambda: go_on(cfg, place, "trainer.epochs=2"), tmp_path / "log")
    assert (place / "ensemble.safetensors").exists()
