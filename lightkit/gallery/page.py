"""A page of samples and charts, as one HTML file that needs nothing else and as a picture."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lightkit.common.drawing import png
from lightkit.common.errors import UserError
from lightkit.common.page import render
from lightkit.gallery.samples import Sample
from lightkit.gallery.views import InputView, TableView, TextView

_TEMPLATE = Path(__file__).with_name("samples.html")
_COLUMNS = 60
"""Features of a table that are shown."""


@dataclass(frozen=True)
class PageSection:
    """A part of the page; what it holds is shown in the order of these fields."""

    title: str
    note: str = ""
    facts: Sequence[tuple[str, str]] = ()
    """Names and values."""
    samples: Sequence[Sample] = ()
    """Each with its row, target and prediction."""
    strips: Sequence[tuple[str, Sequence[Any]]] = ()
    """Names, and several forms of one input."""
    figure: Figure | None = None

    def picture(self) -> tuple[str, int]:
        """Return the figure as text in base 64, and its width in pixels."""
        assert self.figure is not None
        return base64.b64encode(png(self.figure)).decode(), round(self.figure.get_figwidth() * 96)


@dataclass
class Page:
    """What a command shows."""

    title: str
    subtitle: str
    view: InputView
    """How inputs are shown."""
    picture: Figure
    """The samples as one figure."""
    samples: list[Sample]
    sections: list[PageSection] = field(default_factory=list)

    def html(self) -> str:
        """Return the whole page."""
        facts = {"title": self.title, "subtitle": self.subtitle, "sections": self.sections, "view": self.view}
        return render(_TEMPLATE, **facts, is_text=isinstance(self.view, TextView), table=self._table, repr=repr)

    def _table(self, samples: Sequence[Sample]) -> tuple[list[str], list[tuple[Sample, list[str]]]] | None:
        """Return heads and lines of samples that are rows of a table; None where they are none."""
        if not isinstance(self.view, TableView):
            return None
        names = self.view.names[:_COLUMNS]
        more = [f"… {len(self.view.names) - _COLUMNS} more"] if len(self.view.names) > _COLUMNS else []
        judged, lossy = any(each.answer for each in samples), any(each.loss is not None for each in samples)
        heads = ["row", *(["loss"] if lossy else []), "target", *(["prediction"] if judged else []), *names, *more]
        raw = [self.view.raw(each.x)[:_COLUMNS].tolist() for each in samples]
        return heads, [(each, [f"{value:.5g}" for value in values]) for each, values in zip(samples, raw)]

    def write(self, folder: Path, name: str) -> list[Path]:
        """Write the page and the picture; return both files.

        Args:
            folder: Made where it is missing.
            name: Name of the files without their ends.

        Raises:
            UserError: They cannot be written.
        """
        page, picture = folder / f"{name}.html", folder / f"{name}.png"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            page.write_text(self.html(), encoding="utf-8")
            picture.write_bytes(png(self.picture))
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", key=str(folder), family="cannot-write") from error
        return [page, picture]
