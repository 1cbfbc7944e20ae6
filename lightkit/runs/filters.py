"""Choosing runs by what they are and what they came to: `status`, `optim.lr>0.01`, the order by a metric."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lightkit.common.errors import UserError
from lightkit.common.patterns import Pattern
from lightkit.runs.record import RunRecord

STATUSES = ("running", "finished", "paused", "pruned", "interrupted", "failed", "unfinished", "damaged")
COLUMNS = ("name", "folder", "status", "seed", "epochs", "best", "metric", "started", "tags", "note")
"""What a run can be asked for besides its keys and metrics."""
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "~": operator.contains,
}
_CONDITION = re.compile(r"\s*(?P<key>[\w.@/+-]+?)\s*(?P<sign><=|>=|!=|==?|<|>|~)\s*(?P<value>.*?)\s*", re.S)
_TARGET = "_target_"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Condition:
    """A comparison such as `optim.lr>0.01`.

    Attributes:
        key: A key of the configuration, the name of a metric or one of `COLUMNS`.
        sign: One of `OPERATORS`.
        value: What it is compared with, as typed.
    """

    key: str
    sign: str
    value: str

    @staticmethod
    def parse(text: str) -> Condition:
        """Read a condition.

        Raises:
            UserError: It is none, or asks whether a text is larger.
        """
        found = _CONDITION.fullmatch(text)
        if found is None:
            expected = f"KEY, one of {' '.join(OPERATORS)}, and a value, such as 'optim.lr>0.01'"
            raise UserError("not a condition", key="--where", received=text, expected=expected)
        sign = found["sign"].replace("==", "=")
        if sign in ("<", "<=", ">", ">=") and as_number(found["value"]) is None:
            raise UserError(
                f"`{sign}` compares numbers", key="--where", received=text, expected=f"a number after {sign}"
            )
        if sign == "~":
            Pattern(found["value"], key="--where")
        return Condition(found["key"], sign, found["value"])

    def holds(self, record: RunRecord) -> bool:
        """Tell whether it is so of a run; of one without this key it never is."""
        value = look_up(record, self.key)
        if not has(record, self.key) or (value is None and self.key in COLUMNS):
            return False
        texts = [_text(value)] if self.key != "tags" else record.tags.split(",")
        if _leaf(record, self.key).endswith(_TARGET):
            texts.append(texts[0].rpartition(".")[2])
        if self.sign == "~":
            return any(map(Pattern(self.value).fits, texts))
        number, wanted = as_number(value), as_number(self.value)
        if number is not None and wanted is not None:
            return OPERATORS[self.sign](number, wanted)
        if self.sign not in ("=", "!="):
            return False
        return (self.value.replace(" ", "") in [text.replace(" ", "") for text in texts]) == (self.sign == "=")


def matching(
    records: Iterable[RunRecord], *, statuses: Sequence[str] = (), conditions: Sequence[Condition] = ()
) -> list[RunRecord]:
    """Return the runs that fulfil every condition.

    Args:
        records: The runs.
        statuses: One of these is theirs; none takes all.
        conditions: All of them hold.

    Raises:
        UserError: No run knows a key.
    """
    found = list(records)
    for condition in conditions:
        check_known(condition.key, found, option="--where")
    found = [record for record in found if all(condition.holds(record) for condition in conditions)]
    return [record for record in found if not statuses or record.status in statuses]


def read_statuses(text: str) -> list[str]:
    """Read the value of `--status`.

    Raises:
        UserError: There is no such status.
    """
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in STATUSES:
            raise UserError("no such status", key="--status", received=name, choices=STATUSES)
    return names


def check_known(key: str, records: Sequence[RunRecord], *, option: str) -> None:
    """Refuse a key that no run has; where there are no runs, nobody knows.

    Raises:
        UserError: No run has it.
    """
    if records and not any(has(record, key) for record in records):
        known = [name for record in records for name in (*record.keys, *record.values)]
        fix = "keys of the configuration, metrics such as val/accuracy, or a column of the table"
        raise UserError(
            "no run has this key", key=option, received=key, choices=dict.fromkeys([*known, *COLUMNS]), fix=fix
        )


def has(record: RunRecord, key: str) -> bool:
    """Tell whether a run has such a key, metric or column."""
    return key in record.values or key in COLUMNS or _leaf(record, key) in record.keys


def look_up(record: RunRecord, key: str) -> Any:
    """Return the value of a key, a metric or a column; None where there is none.

    A group, such as `model`, stands for its class.
    """
    if key in record.values:
        return record.values[key]
    if key in COLUMNS:
        value = getattr(record, key)
        return value if isinstance(value, int | float | str | None) else str(value)
    return record.keys.get(_leaf(record, key))


def as_number(value: Any) -> float | None:
    """Return a value as a number, where it is one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number == number else None


def order(records: Sequence[RunRecord], key: str, direction: Callable[[str], str | None]) -> list[RunRecord]:
    """Order runs by a metric, the best first, or by a key, the smallest first; `-KEY` turns it round.

    Args:
        records: The runs; those without a value come last, in the order they have.
        key: Key, metric or column, with or without `-`.
        direction: Tells of a metric whether `min` or `max` is better; None where that is open.

    Raises:
        UserError: No run has the key.
    """
    name = key.removeprefix("-")
    check_known(name, records, option="--sort")
    backwards = (direction(name) == "max") != (name != key)
    return ordered(records, lambda record: look_up(record, name), backwards=backwards)


def ordered(items: Sequence[_T], value: Callable[[_T], Any], *, backwards: bool) -> list[_T]:
    """Order things by a value: by size where all are numbers, else as text; those without one come last."""
    there = [(value(item), item) for item in items if value(item) is not None]
    are_numbers = all(as_number(found) is not None for found, _ in there)
    there.sort(key=lambda pair: as_number(pair[0]) if are_numbers else _text(pair[0]), reverse=backwards)  # type: ignore[arg-type, return-value]
    return [*(item for _, item in there), *(item for item in items if value(item) is None)]


def direction_of(name: str, records: Iterable[RunRecord]) -> str | None:
    """Tell whether smaller (`min`) or larger (`max`) values of a metric are better; None where that is open.

    Args:
        name: Such as `test/accuracy`; `best` is the monitored value.
        records: Runs that may have measured it.
    """
    for record in records:
        metrics = record.part("metrics")
        node = metrics if isinstance(metrics, dict) else {}
        said = record.result.get("objective")
        monitored = said.get("mode") if isinstance(said, dict) else None
        _, split, measure = name.partition("/")
        is_own = name == "best" or (split and measure == record.metric.partition("/")[2])
        found = (monitored or node.get("mode")) if is_own else None
        if not found:
            from lightkit.config.direction import direction  # takes its time, and most runs say it

            found = direction(node if is_own else {**node, "monitor": name})
        if found in ("max", "min"):
            return str(found)
    return "min" if name.rpartition("/")[2].startswith("loss") else None


def _leaf(record: RunRecord, key: str) -> str:
    target = f"{key}.{_TARGET}"
    return target if key not in record.keys and target in record.keys else key


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
