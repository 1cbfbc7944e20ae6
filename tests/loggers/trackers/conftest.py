"""A project whose runs are killed, and what trackers ask of their surroundings."""

from __future__ import annotations

from pathlib import Path

import pytest

CODE = '''
import json
import os
import signal
import time
from urllib.request import urlopen

import torch
from lightkit.trainer import Callback


class Shows(Callback):
    """Shows something of each kind once an epoch."""

    def on_epoch(self, trainer, values):
        step, weights = trainer.state.step, next(trainer.model.parameters())
        trainer.logger.histogram("extra/weights", weights, step=step)
        trainer.logger.text("extra/note", f"**after** {step}", step=step)
        trainer.logger.images("extra/pictures", torch.linspace(0, 1, 40).view(2, 1, 4, 5), step=step)


class At(Callback):
    """Does something once, when a server has some rows."""

    def __init__(self, server="", rows=7, step=11):
        self.server, self.rows, self.step = server, rows, step

    def on_step(self, trainer):
        if trainer.state.step == self.step and not os.path.exists("done"):
            open("done", "w").close()
            while self.server and json.load(urlopen(self.server + "/rows"))["rows"] < self.rows:
                time.sleep(0.02)
            self.act()


class Kill(At):
    def act(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Leave(At):
    def act(self):
        urlopen(self.server + "/leave")
'''
HASTY = """
import lightkit.loggers.trackers.wandb as client
from lightkit.trainer import Callback

client._START_SECONDS, client._FINISH_SECONDS = 3.0, 1.0


class Hasty(Callback):
    pass
"""


@pytest.fixture
def own(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, without keys and servers of whoever runs the tests."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(project / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(project / "wandb-config"))
    (project / "mine.py").write_text(CODE)
    (project / "hasty.py").write_text(HASTY)
    return project
