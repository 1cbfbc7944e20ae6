"""The rows of the splits of a run: kept in its folder, and found again where the data have changed since."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly.compatibility import check_alike
from lightkit.assembly.origin import as_before, written
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.patterns import named
from lightkit.config import to_plain, with_values
from lightkit.data import Data, Loader
from lightkit.data.kept_rows import KeptRows, renumbered
from lightkit.data.orders import NEWEST, OLDEST
from lightkit.data.splits import rows_to_measure
from lightkit.runs.catalog import is_fold

_AGAIN = "resume.override=[data.split]"
_SHOWN = 3


class KnownRows(NamedTuple):
    """What a run knows of its rows."""

    source: Any
    """The data set: where it has changed, under its old numbers."""
    kept: KeptRows | None
    """Its splits; None where they are to be drawn."""
    notes: list[str]
    """Lines about what has changed."""
    before: KeptRows | None = None
    """The splits until now, where others are to be drawn."""

    order: str = NEWEST
    """How many rows are shuffled; a run keeps the order that it began with."""

    def seen(self, rows: Mapping[str, Tensor]) -> list[str]:
        """Return a line about test rows that the run trained on before its splits were drawn anew.

        Args:
            rows: The rows of each split that has been drawn.
        """
        test = rows.get("test")
        if self.before is None or test is None:
            return []
        now = self.before.find(self.source)
        if now is None:
            return ["the split is drawn anew: test rows may be rows that the run trained on"]
        both = int(torch.isin(test, now[self.before.rows()["train"]]).sum())
        told = f"the split is drawn anew: the run trained on {both:,} of its {len(test):,} test rows before"
        return [told] if both else []


def ensemble_of(folder: Path) -> Path | None:
    """Return the folder of the ensemble that a run is a member of; None for others, such as the model of a fold."""
    return folder.parent.parent if folder.parent.name == run_files.MEMBERS and not is_fold(folder) else None


def known_rows(data: DictConfig, source: Any, folder: Path | None, override: Sequence[str]) -> KnownRows:
    """Return the rows that a run keeps, and its data set under the numbers that they have.

    They are drawn anew where the data set or the split is set differently now, or `resume.override` names `data.split`
    and the data have changed.

    Args:
        data: The node of the data at hand.
        source: The data set.
        folder: That of the run; None for one that has not begun.
        override: Keys that may differ from those of the run: `resume.override`.

    Raises:
        UserError: The data have changed, and it cannot be said which rows are which; or the file is damaged.
    """
    if folder is not None and not (folder / run_files.ROWS).is_file():
        folder = ensemble_of(folder)  # whose members share them
    kept = read_rows(folder) if folder is not None else None
    if kept is None or folder is None:
        return KnownRows(source, None, [], order=NEWEST if folder is None else OLDEST)
    # Keys that the run did not have count for nothing.
    split_asked = not as_before(data, folder, [f"split.{name}" for name in written(folder, "data.split") or ()])
    if kept.fingerprint == source.info.fingerprint and len(kept) == len(source) and not split_asked:
        return KnownRows(source, kept, [], order=kept.order)
    if split_asked or not as_before(data, folder, ("dataset",)):
        return KnownRows(source, None, [], kept)
    if named("data.split", override):
        return KnownRows(source, None, [f"the data differ: the split is drawn anew ({_AGAIN})"], kept)
    now = kept.find(source)
    if now is None or not (now[kept.rows()["train"]] >= 0).any():
        raise _unknown(kept, source, folder, matched=now is not None)
    gone = (now < 0).nonzero().reshape(-1)
    found = replace(kept, gone=gone)
    return KnownRows(renumbered(source, now, kept.fingerprint), found, _notes(found, source, now), order=kept.order)


_EVALUATED: Mapping[str, Any] = {"more": None, "augment": [], "sampler": None, "drop_last": False, "mixup.alpha": None}
"""What only training does with data, and a further set does without."""


def with_further_sets(cfg: DictConfig, data: Data, build: Callable[..., Data]) -> Data:
    """Return the data of a run with the sets of `data.more`, which are prepared as the training rows were.

    Args:
        cfg: The configuration.
        data: The data of the run.
        build: Builds data from a configuration: see `lightkit.assembly.parts.build_splits`.

    Raises:
        UserError: One cannot be loaded, or a model of this data cannot be measured on it.
    """
    more, notes = dict[str, Loader](), [*data.notes]
    for name, entry in to_plain(cfg.data.get("more") or {}).items():
        whole: dict[str, Any] = {} if "split" in entry else {"split": {"by": "file", "groups": None}}
        laid = with_values(cfg, {"data": {**whole, **entry}, **{f"data.{key}": own for key, own in _EVALUATED.items()}})
        try:
            part = build(laid, like=data, rows=rows_to_measure if whole else None)
            check_alike(data.info, part.info)
            if part.test is None:
                raise UserError("there are no test rows", key="data.split.test", received=laid.data.split.test)
            if part.info.fingerprint == data.info.fingerprint and torch.isin(part.test.rows, data.rows["train"]).any():
                raise UserError("the run trains on rows of this set", key="data", fix="another data set, or split: {}")
        except UserError as error:
            error.move("data", f"data.more.{name}")
            raise
        notes += [f"{name}: {note}" for note in part.notes if note not in data.notes]
        more[str(name)] = part.test.with_rows(part.test.rows, split=str(name))
    return replace(data, more=more, notes=tuple(notes))


def read_rows(folder: Path) -> KeptRows | None:
    """Read the rows that a run keeps; None where it keeps none, as those of earlier versions.

    Raises:
        UserError: The file cannot be read.
    """
    path = folder / run_files.ROWS
    try:
        return KeptRows.from_bytes(path.read_bytes()) if path.is_file() else None
    except (OSError, ValueError) as error:
        raise UserError(
            f"the rows of the splits cannot be read: {error}",
            key=str(path),
            fix="put it back from a copy; without the file the split is drawn anew, over the data as they are now",
            family="file",
        ) from error


def check_all_there(data: Data) -> None:
    """Refuse to divide training rows of which some are gone: the parts would be others than before.

    Raises:
        UserError: Some are gone.
    """
    gone = data.kept.missing("train") if data.kept is not None else torch.zeros(0)
    if data.kept is not None and len(gone):
        raise UserError(
            "members of this ensemble learn from parts of the training rows, which would be others without the rows "
            f"that are gone{_such_as(data.kept, gone)}",
            key="data.dataset",
            received=f"{len(gone):,} of {len(gone) + len(data.rows['train']):,} training rows are gone",
            fix="put them back, or begin a new run: lightkit train --from RUN",
            family="split",
        )


def _notes(kept: KeptRows, source: Any, now: Tensor) -> list[str]:
    """Word what has become of the rows."""
    known = torch.zeros(len(source), dtype=torch.bool)
    known[now[now >= 0]] = True
    new, told = int((~known).sum()), list[str]()
    if new:
        told.append(f"{new:,} row{' is' if new == 1 else 's are'} new and left out")
    for name in ("train", "val", "test"):
        gone = kept.missing(name)
        if len(gone):
            told.append(f"{len(gone):,} {name} row{' is' if len(gone) == 1 else 's are'} gone{_such_as(kept, gone)}")
    changed = "; ".join(told) or "each row is there"
    return [f"the data have changed since the run began: {changed}. Each split keeps its rows"]


def _such_as(kept: KeptRows, rows: Tensor) -> str:
    """Show the first few names of rows, in brackets; nothing where they have none."""
    if kept.names is None:
        return ""
    shown = ", ".join(kept.names[row] for row in rows[:_SHOWN].tolist())
    return f" ({shown}{', …' if len(rows) > _SHOWN else ''})"


def _unknown(kept: KeptRows, source: Any, folder: Path, *, matched: bool) -> UserError:
    what = "none of the rows that this run trained on is in the data any more"
    if not matched:
        what = (
            "the data differ from those of this run, and its rows cannot be told apart: training rows could be tested"
        )
    own = "" if matched else "; a data set of your own may name its rows (attribute `row_names`)"
    return UserError(
        what,
        key="data.dataset",
        expected=f"{len(kept):,} rows, fingerprint {kept.fingerprint or 'none'}",
        received=f"{len(source):,} rows, fingerprint {source.info.fingerprint or 'none'}",
        fix=f"put the data back as they were, or begin a new run (lightkit train --from {folder}); "
        f"'{_AGAIN}' draws the split anew all the same{own}",
        family="split",
    )
