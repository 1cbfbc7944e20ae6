"""Names the options of a group that take an argument which was typed for an option that does not."""

from __future__ import annotations

from collections.abc import Iterable

from lightkit.common.errors import UserError
from lightkit.config.arguments import REMOVE
from lightkit.config.loader import ConfigLoader
from lightkit.config.options import option_arguments

_USUAL = {"ensemble": "voting", "model": "mlp", "optim": "sgd"}
"""The option of a group that is named first."""


def name_options(errors: Iterable[UserError], loader: ConfigLoader) -> None:
    """Change the fix of each error about an argument on the command line that other options of its group take.

    Args:
        errors: Mistakes of a configuration.
        loader: Knows the groups and options.
    """
    for error in errors:
        key, origin = error.key or "", error.origin or ""
        group = key.partition(".")[0]
        is_typed = origin.startswith("command line") and (error.fix or "").startswith(REMOVE)
        options = _taking(loader, group, key) if is_typed and loader.is_group(group) else []
        if options:
            first = next((option for option in options if option == _USUAL.get(group)), options[0])
            others = ", ".join(option for option in options if option != first)
            value = origin.partition("=")[2]
            error.change_fix(f"{group}={first} {key}={value}" + (f"; also of {others}" if others else ""))


def _taking(loader: ConfigLoader, group: str, key: str) -> list[str]:
    """List the options of a group whose targets take an argument."""
    return [
        name for name in loader.options(group) if any(one.key == key for one in option_arguments(loader, group, name))
    ]
