"""Argument parsing with this project's kind of error message."""

from __future__ import annotations

import argparse
from typing import NoReturn

from lightkit.common.errors import UserError


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
        raise UserError(message, key=self.prog, fix=f"{self.prog} --help")

    def read(self, args: list[str]) -> argparse.Namespace:
        """Parse `args`, in which options and positional arguments may be mixed.

        Raises:
            UserError: An unknown option, or an argument too many or too few.
        """
        found, unknown = self.parse_known_intermixed_args(args)
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            raise UserError("no such option", key=self.prog, received=unknown[0], choices=options)
        return found
