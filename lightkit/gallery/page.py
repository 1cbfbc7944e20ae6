"""A page of samples and charts, as one HTML file that needs nothing else and as a picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lightkit.common.errors import UserError
from lightkit.gallery.samples import Sample
from lightkit.gallery.views import InputView, TableView, TextView
from lightkit.gallery.words import Prediction

_TEMPLATE = Path(__file__).with_name("page.html")
_COLUMNS = 60
"""Features of a table that are shown."""


@dataclass(frozen=True)
class PageSection:
    """A part of the page."""

    title: str
    body: str
    """HTML."""
    note: str = ""


@dataclass
class Page:
    """What a command shows."""

    title: str
    subtitle: str
    picture: Figure
    """The samples as one figure."""
    samples: list[Sample]
    sections: list[PageSection] = field(default_factory=list)

    def html(self) -> str:
        """Return the whole page."""
        parts = list[str]()
        for section in self.sections:
            note = f'<p class="note">{html.escape(section.note)}</p>' if section.note else ""
            parts.append(f"<h2>{html.escape(section.title)}</h2>\n{note}{section.body}")
        page = _TEMPLATE.read_text(encoding="utf-8").replace("{{title}}", html.escape(self.title))
        return page.replace("{{subtitle}}", html.escape(self.subtitle)).replace("{{content}}", "\n".join(parts))

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
            self.picture.savefig(picture, format="png")
        except OSError as error:
            raise UserError(f"cannot write: {error.strerror}", key=str(folder), family="cannot-write") from error
        return [page, picture]


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table of names and values as HTML."""
    lines = [f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows]
    return f"<table>{''.join(lines)}</table>"


def chart(figure: Figure) -> str:
    """Return a figure as HTML with its content inside."""
    file = io.BytesIO()
    figure.savefig(file, format="png", facecolor="white")
    coded = base64.b64encode(file.getvalue()).decode()
    width = round(figure.get_figwidth() * 96)
    return f'<span class="chart"><img alt="" width="{width}" src="data:image/png;base64,{coded}"></span>'


def cards(samples: Sequence[Sample], view: InputView) -> str:
    """Return samples as HTML, each with its row, target and prediction."""
    if isinstance(view, TableView):
        return _rows(samples, view)
    shown = "\n".join(_card(sample, view) for sample in samples)
    return f'<div class="samples{" wide" if view.wide else ""}">\n{shown}\n</div>'


def _rows(samples: Sequence[Sample], view: TableView) -> str:
    """Return rows of a table as one, target and prediction before the features."""
    names = view.names[:_COLUMNS]
    more = [f"… {len(view.names) - _COLUMNS} more"] if len(view.names) > _COLUMNS else []
    judged, lossy = any(each.answer for each in samples), any(each.loss is not None for each in samples)
    heads = ["row", *(["loss"] if lossy else []), "target", *(["prediction"] if judged else []), *names, *more]
    lines = [f"<tr>{''.join(f'<th>{html.escape(head)}</th>' for head in heads)}</tr>"]
    for each in samples:
        cells = [str(each.row), *([f"{each.loss:.4g}"] if each.loss is not None else []), html.escape(each.target)]
        cells += [_said(each.answer)] if each.answer is not None else []
        cells += [f"{value:.5g}" for value in view.raw(each.x)[:_COLUMNS].tolist()]
        lines.append(f"<tr{_class_of(each)}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    return f'<div class="scroll"><table class="rows">{"".join(lines)}</table></div>'


def _said(answer: Prediction) -> str:
    share = "" if answer.confidence is None else f" {answer.confidence:.1%}"
    return f"<b>{html.escape(answer.text)}</b>{share}"


def _class_of(sample: Sample, also: str = "") -> str:
    """Return the class of an element that tells right from wrong."""
    right = None if sample.answer is None else sample.answer.is_right
    names = " ".join(filter(None, [also, "" if right is None else "good" if right else "bad"]))
    return f' class="{names}"' if names else ""


def strip(name: str, inputs: Sequence[Any], view: InputView) -> str:
    """Return several forms of one sample as a line of HTML."""
    return f'<div class="strip"><span>{html.escape(name)}</span>{"".join(view.html(x) for x in inputs)}</div>'


def _card(sample: Sample, view: InputView) -> str:
    loss = "" if sample.loss is None else f" · loss {sample.loss:.4g}"
    path = html.escape(sample.file).replace("/", "/<wbr>")  # a long one is broken there
    file = f'<div class="file">{path}</div>' if path else ""
    head = f'<div class="row">row {sample.row}{loss}{file}</div>'
    if isinstance(view, TextView):
        return f"<div{_class_of(sample, 'sample')}>{head}{_continued(sample, view)}</div>"
    said = html.escape(sample.target) + ("" if sample.answer is None else f" → {_said(sample.answer)}")
    return f'<div{_class_of(sample, "sample")}>{head}{view.html(sample.x)}<div class="said">{said}</div></div>'


def _continued(sample: Sample, view: TextView) -> str:
    """Return a text with what was to be predicted of it, wrong predictions marked."""
    if sample.answer is None or sample.y is None:
        return view.html(sample.x)
    marked = [html.escape(view.decode(sample.x[:1]))]
    for token, said in zip(sample.y, sample.answer.pieces):
        wanted = view.decode(token.reshape(1))
        text = html.escape(wanted)
        right = wanted == said
        marked.append(text if right else f'<mark title="predicted {html.escape(repr(said))}">{text}</mark>')
    return f"<pre>{''.join(marked)}</pre>"
