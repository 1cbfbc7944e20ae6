"""`lightkit show`: pages for the eye, of data and of what a model makes of them."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.evaluate import trained_run
from lightkit.cli.inspected import configuration
from lightkit.cli.terminal import number, report, table, width
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.signals import held
from lightkit.common.text import slug
from lightkit.runs.catalog import project, run_name

if TYPE_CHECKING:
    from lightkit.gallery.page import Page
    from lightkit.gallery.samples import Sample

KINDS = ("data", "results", "worst")
_IN_TABLE = 10
_MOST = 1000


def show(args: list[str]) -> int:
    """Write a page and a picture, and print what is on them."""
    options = Parser("show", "what", "overrides*", count="32", epoch="0", checkpoint="best", output=Path).read(args)
    if options.what not in KINDS:
        raise UserError("nothing to show", key="lightkit show", received=options.what, choices=KINDS)
    options.count = whole_number("--count", options.count, least=1, most=_MOST)
    options.epoch = whole_number("--epoch", options.epoch)
    page, folder = _data(options) if options.what == "data" else _trained(options)
    files = page.write(options.output or folder, f"{options.what}-{options.split}")
    content = {"title": page.title, "files": files, "samples": [s.plain() for s in page.samples]}
    worst = [_table(page.samples[:_IN_TABLE])] if options.what == "worst" else []
    written = "\nwritten to " + "\n           ".join(map(str, files))
    return report(options, content, lambda: [f"{page.title}: {page.subtitle}", *worst, written])


def _data(options: Namespace) -> tuple[Page, Path]:
    """Make the page of a data set."""
    options.split = options.split or "train"
    if options.checkpoint != "best":
        raise UserError("data have no checkpoint", key="--checkpoint", received=options.checkpoint, fix="leave it out")
    cfg, folder = configuration(options, "device.name=cpu")
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    with held():
        from lightkit.assembly import build_shared
        from lightkit.gallery.show import data_page
    with closing(build_shared(cfg, folder, trains=False).data) as data:
        page = data_page(data, str(cfg.name), split=options.split, count=options.count, epoch=options.epoch)
    return page, project() / run_files.OUTPUTS / run_files.SHOW / slug(str(cfg.name))


def _trained(options: Namespace) -> tuple[Page, Path]:
    """Make a page of what a run's model says."""
    for name, value, usual in (("--from", options.source, None), ("--epoch", options.epoch, 0)):
        if value != usual:
            raise UserError("only `lightkit show data` takes it", key=name, received=value, fix="leave it out")
    if not options.overrides:
        key, fix = f"lightkit show {options.what}", "`last` is the newest"
        raise UserError("RUN is missing", key=key, expected=f"{key} RUN", fix=fix)
    options.split = options.split or "test"
    options.run, *options.overrides = options.overrides
    runner, folder = trained_run(options)
    with held():
        from lightkit.gallery.show import results_page, worst_page
    make = results_page if options.what == "results" else worst_page
    with runner.trained(options.checkpoint) as learner:
        page = make(learner, run_name(folder), split=options.split, count=options.count)
    return page, folder / run_files.SHOW


def _table(samples: list[Sample]) -> str:
    """Return the first samples as a table."""
    columns = {
        "row": [str(each.row) for each in samples],
        "loss": [number(each.loss) for each in samples],
        "target": [each.target for each in samples],
        # of a text, what was predicted is no text
        "prediction": [each.answer.text if each.answer and not each.answer.pieces else "" for each in samples],
        "file": [each.file for each in samples],
    }
    titles = [name for name, cells in columns.items() if any(cells)]
    rows = list(zip(*(columns[name] for name in titles)))
    cut = [place for place, name in enumerate(titles) if name not in ("row", "loss")]
    return table(titles, rows, right=(0, 1), cut=cut, columns=width() or 160)
