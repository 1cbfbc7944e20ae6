"""What a run says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightkit.loggers import Logger
from lightkit.runner.telling import _show_inputs


class Recorder(Logger):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.shown: list[torch.Size] = []

    def message(self, text: str) -> None:
        self.said.append(text)

    def images(self, name: str, images: Any, *, step: int) -> None:
        self.shown.append(images.shape)


def parts(batch: Any) -> Any:
    train = SimpleNamespace(epoch=lambda epoch: iter([batch]))
    return SimpleNamespace(data=SimpleNamespace(train=train), model=None, engine=None)


@pytest.mark.parametrize("batch", [{"left": torch.zeros(4, 1, 8, 8)}, ({"left": torch.zeros(4)}, torch.zeros(4))])
def test_batches_of_a_task_of_ones_own_may_have_nothing_to_show(batch: Any) -> None:
    logger = Recorder()
    _show_inputs(parts(batch), logger, images=2, graph=True)
    assert "no graph and no images" in logger.said[0]


def test_images_of_the_first_batch_are_shown() -> None:
    logger = Recorder()
    _show_inputs(parts((torch.zeros(4, 1, 8, 8), torch.zeros(4))), logger, images=2, graph=False)
    assert logger.shown == [torch.Size([2, 1, 8, 8])]
