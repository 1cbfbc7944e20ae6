import pytest

import tests.drawing
from lightkit.metrics import Figures


@pytest.fixture(autouse=True)
def every_figure_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Figures, "draw", tests.drawing.draw)
