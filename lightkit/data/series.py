"""Windows over series of numbers, to forecast what comes next from what was.

Shapes: B windows, C values of the context, H of the horizon, T = C + H, K known covariates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightkit.common.argument_checks import check_range
from lightkit.common.errors import Problems, UserError
from lightkit.data.reader import Faults, NewRows, Reader
from lightkit.data.table_columns import read_table
from lightkit.data.table_encodings import moments
from lightkit.data.table_sources import open_table
from lightkit.data.tensors import DataInfo, fingerprint

_SHOWN = 5


@dataclass
class SeriesReader(Reader):
    """Reads series from a table, and makes the window at the end of each, whose horizon is still to come.

    Args:
        time: Column with the time of each row, as dates or numbers.
        value: Column with the values.
        series: Column that names the series of each row; None where there is one only.
        covariates: Columns that are known ahead, such as holidays. New tables have them for the times to come, too, in
            rows without a value.
        context: Values that a forecast is made from, C.
        horizon: Values that are forecast at once, H.
        season: Values of a season, at most C: the seasonal naive forecast repeats the last one.
        scales: Error of that forecast, one step ahead in the training period, for each series.
    """

    time: str = "time"
    value: str = "value"
    series: str | None = None
    covariates: Sequence[str] = ()
    context: int = 48
    horizon: int = 12
    season: int = 1
    scales: dict[str, float] = field(default_factory=dict)
    kind = "series"

    def parts(self, given: Any, faults: Faults, *, ahead: bool = False) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield name, times `(L,)` and values with covariates `(L, 1 + K)` of each series.

        Args:
            given: A table, or where it is.
            faults: Takes rows out of order and without a number.
            ahead: Rows may lack the value.
        """
        source, numbers = open_table(given), [self.value, *self.covariates]
        names = [self.time, *([self.series] if self.series else [])]
        Problems(source.unknown([*names, *numbers], argument="")).raise_any()
        table, wrong = read_table(source, numbers=numbers, names=names), dict[int, str]()
        kinds = table.names(names[-1]).kinds.to_pylist() if self.series else [""]
        codes = table.names(names[-1]).codes if self.series else np.zeros(len(table))
        known = moments(table.names(self.time).kinds.to_pylist())
        times, values = known[table.names(self.time).codes], np.stack([table.numbers(n).values for n in numbers], 1)
        rows = [np.flatnonzero(codes == code) for code in range(len(kinds))]
        for own in rows:
            large = (np.abs(values[own]) > np.finfo(np.float32).max).any(1)
            gaps = np.isnan(values[own, int(ahead) :]).any(1)
            wrong |= dict.fromkeys(own[large].tolist(), "a number is too large")
            late = np.append(np.isnan(times[own[:1]]), ~(times[own[1:]] > times[own[:-1]]))
            wrong |= dict.fromkeys(own[gaps].tolist(), "a number is missing")
            wrong |= dict.fromkeys(own[late].tolist(), "the time is none, or not after that of the row before")
        told = zip(source.places(sorted(wrong)), sorted(wrong), strict=True) if wrong else ()
        faults.take([(place, wrong[row]) for place, row in told])
        yield from ((name, times[own], values[own]) for name, own in zip(kinds, rows, strict=True))

    def read(self, given: Any, most: int, faults: Faults) -> Iterator[NewRows]:
        """Yield the window at the end of each series; see `Reader.read`."""
        for number, (name, _, values) in enumerate(self.parts(given, faults, ahead=True)):
            known = len(values) - int(np.isnan(values[::-1, 0]).argmin())
            own = values[max(0, known - self.context) : known + self.horizon]
            scale = self.scales.get(name) or naive_error(values[:known, 0], self.season)
            size = self.context + self.horizon
            if known < self.context or np.isnan(own[: self.context]).any() or (self.covariates and len(own) < size):
                why = f"its last {self.context} values, or covariates ahead, are not all there"
                faults.take([(f"series {name!r}", why)])
                continue
            x = np.full((1, size, values.shape[1] + 1), scale, np.float32)
            x[0, : len(own), :-1] = own
            yield NewRows([number], self.with_naive(torch.from_numpy(x)), {self.series or "series": [name]})

    def with_naive(self, x: Tensor) -> Tensor:
        """Put the seasonal naive forecast in the place of the values to come, in windows `(B, T, 1 + K + 1)`."""
        x[:, self.context :, 0] = x[:, self.context - self.season + torch.arange(self.horizon) % self.season, 0]
        return x


def naive_error(values: np.ndarray, season: int) -> float:
    """Return the mean error of the seasonal naive forecast, one step ahead; 1 where it has none."""
    return float(np.abs(values[season:] - values[:-season]).mean() or 1.0) if len(values) > season else 1.0


@dataclass
class Series(SeriesReader):
    """Windows over the series of a table: inputs `(T, 1 + K + 1)` and the values of the horizon `(H,)`.

    An input holds values, covariates and the scale of its series; the values of the horizon are those of the seasonal
    naive forecast. Splits follow time: targets of validation lie after those of training, and those of the test after
    both, for all series at the same moments. Contexts may reach back into what was known by then. Windows whose targets
    lie on both sides are left out.

    Args:
        path: The table or data frame, see `lightkit.data.table_sources.open_table`.
        stride: Rows between the starts of two windows.
        val: Share of the moments for validation.
        test: Share of the moments for test, the last ones.
        gap: Moments that are left out before those of validation.
        folds: Cut the moments into `folds + 1` parts: the part after the first `fold + 1` is for test, training and
            validation have the moments before it. None takes the shares.
        fold: Which fold, from 0.

    Raises:
        UserError: A file or column is not there, rows are not in the order of time, or a number is missing; lines are
            named.
    """

    path: Any = ""
    stride: int = 1
    val: float = 0.1
    test: float = 0.2
    gap: int = 0
    folds: int | None = None
    fold: int = 0
    exact = True
    scales_itself = True
    split_by = ("file",)

    def __post_init__(self) -> None:
        for name, most in {**dict.fromkeys(("context", "horizon", "stride", "folds")), "season": self.context}.items():
            check_range(name, getattr(self, name), low=1, high=most, what="out of range")
        check_range("fold", self.fold, low=0, high=self.folds and self.folds - 1, what="there is no such fold")
        check_range("gap", self.gap, low=0, what="out of range")
        if self.value in self.covariates:
            raise UserError("the values are not known ahead", argument="covariates", received=self.value)
        parts = [*self.parts(self.path, Faults(fix="mend them, or take them out of the table"))]
        moments = np.unique(np.concatenate([times for _, times, _ in parts]))
        size = self.context + self.horizon
        short = [name for name, times, _ in parts if len(times) < size]
        told = f"{len(short):,} of {len(parts):,} series are shorter than {size} values and have no window: "
        self.notes = [told + ", ".join(map(repr, short[:_SHOWN])) + ", …" * (len(short) > _SHOWN)] if short else []
        places = [round(len(moments) * (1 - share)) for share in (self.val + self.test, self.test, 0)]
        if self.folds is not None:
            before = len(moments) - (self.folds - self.fold) * (length := len(moments) // (self.folds + 1))
            places = [round(before * (1 - self.val)), before, before + length]
        end, first, last, later = (np.append(moments, np.inf)[max(0, at)] for at in (places[0] - self.gap, *places))
        starts, kinds, tables, done = list[Any](), list[Any](), list[Any](), 0
        for name, times, values in parts:
            self.scales[name] = naive_error(values[times < first, 0], self.season)
            tables.append(np.insert(values, values.shape[1], self.scales[name], axis=1))
            at = np.arange(0, max(0, len(values) - size + 1), self.stride)
            begins, ends = times[at + self.context], times[at + self.context + self.horizon - 1]
            within = [ends < end, (begins >= first) & (ends < last), (begins >= last) & (ends < later)]
            kinds.append(np.select(within, [1, 2, 3]))
            starts.append(at + done)
            done += len(values)
        self.table, self.starts = (torch.from_numpy(np.concatenate(each)) for each in (tables, starts))
        all_kinds = np.concatenate(kinds)
        numbers = {name: np.flatnonzero(all_kinds == i) for i, name in enumerate(("train", "val", "test"), 1)}
        self.splits = {name: rows for name, rows in numbers.items() if getattr(self, name, 1)}
        if empty := [name for name, rows in self.splits.items() if not len(rows)]:
            what = f"no window of {self.context} + {self.horizon} values lies in {', '.join(empty)}"
            received = f"{len(moments)} moments, val {self.val}, test {self.test}, gap {self.gap}"
            fix = "smaller context, horizon or gap, or other data.split.val and data.split.test (0: no such split)"
            raise UserError("; ".join([what, *self.notes]), argument="path", received=received, fix=fix)
        self.reader = SeriesReader(**{each.name: getattr(self, each.name) for each in fields(SeriesReader)})
        shape, mark = (size, self.table.shape[1]), fingerprint([self.table, self.starts, self.splits])
        learnt_by = "lightkit.trainer.Forecast"
        self.info = DataInfo("regression", shape, self.horizon, fingerprint=mark, learnt_by=learnt_by)

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return windows `(B, T, 1 + K + 1)` and the values of their horizons `(B, H)`; `(B,)` of one value."""
        x = self.table[self.starts[rows][:, None] + torch.arange(self.context + self.horizon)]
        y = x[:, self.context :, 0].clone()
        return self.with_naive(x), y.squeeze(1)
