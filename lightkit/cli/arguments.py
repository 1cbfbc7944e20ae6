"""Argument parsing with this project's kind of error message."""

from __future__ import annotations

import argparse
from typing import NoReturn

from lightkit.common.errors import UserError
from lightkit.runs.catalog import project, with_run_folders

_REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """argparse without its own help and abbreviations; mistakes are `UserError`s.

    Args:
        command: The command whose arguments these are, for error messages.
    """

    def __init__(self, command: str) -> None:
        super().__init__(prog=f"lightkit {command}", add_help=False, allow_abbrev=False)
        self.command = command

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say.

        Raises:
            UserError: Always.
        """
        _, found, names = message.partition(_REQUIRED)
        if found:
            from lightkit.cli.commands import help_of

            lines = [line.partition("lightkit ")[2] for line in help_of(self.command.split()[0]).splitlines()]
            usage = next((f"lightkit {line}" for line in lines if line.startswith(self.command)), None)
            missing = " and ".join(name.upper() for name in names.split(", ") if name != "overrides")
            raise UserError(f"{missing} is missing", key=self.prog, expected=usage, fix=f"{self.prog} --help")
        raise UserError(message, key=self.prog, fix=f"{self.prog} --help")

    def read(self, args: list[str]) -> argparse.Namespace:
        """Parse `args`, in which options and positional arguments may be mixed.

        Raises:
            UserError: An unknown option, or an argument too many or too few.
        """
        found, unknown = self.parse_known_intermixed_args(args)
        if unknown:
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            names = [name for action in shown for name in action.option_strings]
            # Hydra's short forms and underscores are accepted, not advertised.
            options = [name for name in names if name.startswith("--") and "_" not in name]
            plain, takes_overrides = unknown[0].lstrip("-"), any(action.dest == "overrides" for action in self._actions)
            fix = None
            if takes_overrides and "=" in plain:
                fix = f"{plain}, without dashes"
            elif takes_overrides and (meant := _key_meant(plain)):
                value = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("-") else "VALUE"
                fix = f"keys have no dashes: {meant}={value}"
            if not unknown[0].startswith("-"):
                raise UserError("one word too many", key=self.prog, received=unknown[0], fix=f"{self.prog} --help")
            raise UserError("no such option", key=self.prog, received=unknown[0], choices=options, fix=fix)
        if getattr(found, "overrides", None):
            found.overrides = with_run_folders(found.overrides, project())
        return found


def _key_meant(name: str) -> str | None:
    """Return the key that an option of another tool stands for: `optim.lr` for `--lr`; None where there is none."""
    from lightkit.config.fields import keys_named

    return next(iter(keys_named(name.replace("-", "_"))), None)
