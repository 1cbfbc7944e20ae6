"""How plans and audits write numbers and names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_MAX_NAMES, _MAX_DIGITS = 5, 12


def format_names(names: Iterable[str], *, most: int = _MAX_NAMES) -> str:
    """Write the first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def format_line(what: str, names: Collection[str], more: str = "") -> list[str]:
    """Write a line about some names: `what a, b more`; none where there are no names."""
    return [f"{what} {format_names(names)}{more}"] if names else []


def format_rate(value: float) -> str:
    """Write a learning rate: `1e-3`, `0.05`, `2.5e-5`."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    if value == 0.0 or -2 <= int(exponent) <= 2:
        return f"{value:.3g}"
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def format_rates(values: Sequence[float]) -> str:
    """Write rates over time: first and last, and the highest between them where it is higher than both."""
    first, highest, last = values[0], max(values), values[-1]
    shown = [first, highest, last] if highest > max(first, last) else [first, last]
    texts = [format_rate(value) for value in shown]
    return " -> ".join(text for index, text in enumerate(texts) if index == 0 or text != texts[index - 1])


def format_bytes(count: int) -> str:
    """Write a number of bytes for people: `8.2 KiB`."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"


def format_percent(part: int, whole: int) -> str:
    """Write a share: `0.31 %`, `87 %`, `99.98 %`; `100 %` is all, and nothing less."""
    share = 100 * part / max(whole, 1)
    if share < 10:
        return f"{share:.2g} %"
    digits = 0
    while part < whole and digits < _MAX_DIGITS and round(share, digits) >= 100:
        digits += 1
    return f"{share:.{digits}f} %"
