"""What a run says of itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.config import compose
from lightkit.loggers import Logger
from lightkit.runner import messages
from lightkit.trainer import State


def test_inputs_that_cannot_be_shown_are_told() -> None:
    class Part(nn.Linear):
        """A model of which other processes hold the rest."""

        def parameters(self, recurse: bool = True) -> Any:
            return iter([SimpleNamespace(full_tensor=None)])

    class Told(Logger):
        def __init__(self) -> None:
            self.lines: list[str] = []

        def message(self, text: str) -> None:
            self.lines.append(text)

        def graph(self, model: Any, example: Any) -> None:
            raise AssertionError

    for batch, why in (({"a": torch.ones(2)}, "no tensors"), ((torch.ones(2, 2), torch.ones(2)), "holds a part")):
        train = SimpleNamespace(epoch=lambda number, batch=batch: iter([batch]))
        parts: Any = SimpleNamespace(data=SimpleNamespace(train=train), model=Part(2, 2))
        logger = Told()
        messages._show_inputs(parts, logger, images=4, graph=True)
        assert len(logger.lines) == 1
        assert why in logger.lines[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "best_step", "expected"),
    [
        ([], 3, "the best"),
        (["trainer.test=last"], 3, "the last"),
        (["checkpoint=none"], 3, "the last"),
        (["checkpoint.keep_best=0"], 3, "the last"),
        ([], None, "the last"),
    ],
)
def test_the_closing_table_says_which_weights_were_tested(
    overrides: list[str], best_step: int | None, expected: str
) -> None:
    cfg = compose(["data=wine", *overrides]).cfg
    title = messages._title(cfg, State(step=5, best_step=best_step), tested=True)
    assert title == f"result after 5 steps; tested with {expected} weights"
