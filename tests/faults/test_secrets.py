"""What comes from the environment of a run is written nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.harness import TRAIN, Process, at

SECRET = "hunter2-0b5f3a"
OPTIONS = (
    *TRAIN,
    "extra.token=${oc.env:LK_SECRET}",
    "extra.address='https://user:${oc.env:LK_SECRET}@host'",
    "extra.second=${extra.token}",
    "logger.tensorboard.enabled=true",
    "+trainer.callbacks.never={_target_: faulty.At, step: 1000, what: '${extra.token}'}",
)


def found(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


def test_secrets_are_in_no_file_of_the_run(ran: Callable[..., Process], project: Path) -> None:
    first = ran(*OPTIONS, at(9, ":TERM"), LK_SECRET=SECRET)
    assert first.code not in (0, 1, 2), first.err
    (project / "fine").touch()
    second = ran("resume", "run", "trainer.epochs=4", "extra.third=${extra.address}", LK_SECRET=SECRET)
    assert second.code == 0, second.err
    assert found(project) == []
    assert SECRET not in first.out + first.err + second.out + second.err
    assert "${oc.env:LK_SECRET}" in (project / "run" / "config.yaml").read_text()


@pytest.mark.thorough
def test_another_secret_on_resume_is_no_difference(ran: Callable[..., Process], project: Path) -> None:
    ran(*OPTIONS, at(9, ":TERM"), LK_SECRET="another")
    (project / "fine").touch()
    process = ran("resume", "run", LK_SECRET=SECRET)
    assert process.code == 0
    assert "extra" not in process.out
    assert found(project) == []
