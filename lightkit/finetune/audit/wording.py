"""How plans and audits are worded: numbers, names and cells of tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lightkit.finetune.audit.contents import contents

if TYPE_CHECKING:
    from lightkit.finetune.audit.plan import GroupRow, PhaseTable

COLUMNS = ["group", "tensors", "parameters", "trains", "learning rate", "weight decay", "norms", "set by", "holds"]
SHOWN = 5
_PARTS, _DIGITS = 4, 12


def some(names: Iterable[str], *, most: int = SHOWN) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def rate(value: float) -> str:
    """A learning rate: `1e-3`, `0.05`, `2.5e-5`."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    if value == 0.0 or -2 <= int(exponent) <= 2:
        return f"{value:.3g}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def rates(values: Sequence[float]) -> str:
    """Rates over time: first and last, and the highest between them where it is higher than both."""
    shown = (
        [values[0], max(values), values[-1]] if max(values) > max(values[0], values[-1]) else [values[0], values[-1]]
    )
    texts = [rate(value) for value in shown]
    return " -> ".join(text for index, text in enumerate(texts) if index == 0 or text != texts[index - 1])


def size(count: int) -> str:
    """Bytes for people: `8.2 KiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def percent(part: int, whole: int) -> str:
    """A share: `0.31 %`, `87 %`, `99.98 %`; `100 %` is all, and nothing less."""
    share = 100 * part / max(whole, 1)
    if share < 10:
        return f"{share:.2g} %"
    digits = 0
    while part < whole and digits < _DIGITS and round(share, digits) >= 100:
        digits += 1
    return f"{share:.{digits}f} %"


def cells(row: GroupRow, holds: Sequence[str]) -> list[str]:
    """A row of a plan, by `COLUMNS`; what rests has no rate and no decay that count."""
    idle = row.frozen or row.rate is None
    decay = "" if idle or row.weight_decay is None else f"{row.weight_decay:g}"
    return [
        row.group,
        f"{row.tensors:,}",
        f"{row.parameters:,}",
        "no" if row.frozen else "yes",
        "" if idle else _rate_cell(row),
        decay,
        row.norm or "",
        ", ".join(row.rules),
        some(holds, most=_PARTS),
    ]


def share(table: PhaseTable, optimizer: str) -> str:
    """What share of a network trains from a phase on, and what the optimizer keeps."""
    count = f"{table.trainable:,} of {table.parameters:,} parameters train"
    state = "unknown" if table.state_bytes is None else size(table.state_bytes)
    part = percent(table.trainable, table.parameters)
    return f"from {table.phase}: {count} ({part}), optimizer state {state} ({optimizer})"


def plain(table: PhaseTable) -> dict[str, Any]:
    """A phase as plain values."""
    return {
        "phase": table.phase,
        "steps": list(table.steps),
        "trainable": table.trainable,
        "parameters": table.parameters,
        "state_bytes": table.state_bytes,
        "groups": [_plain_row(row, holds) for row, holds in zip(table.rows, contents(table.rows))],
    }


def _rate_cell(row: GroupRow) -> str:
    if row.rates is None:
        return f"{rate(row.rate or 0.0)}, then as validation tells"
    return rates(row.rates)


def _plain_row(row: GroupRow, holds: list[str]) -> dict[str, Any]:
    return {
        "group": row.group,
        "tensors": row.tensors,
        "parameters": row.parameters,
        "frozen": row.frozen,
        "rate": row.rate,
        "rates": None if row.rates is None else list(row.rates),
        "weight_decay": row.weight_decay,
        "norm": row.norm,
        "rules": list(row.rules),
        "state_bytes": row.state_bytes,
        "holds": holds,
        "names": list(row.names),
    }
