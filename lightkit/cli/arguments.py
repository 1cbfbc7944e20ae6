"""Argument parsing with this project's kind of error message."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lightkit.common.errors import UserError
from lightkit.common.foreign_names import in_place_of
from lightkit.runs.catalog import project, with_run_folders

_REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """argparse without its own help and abbreviations; mistakes are `UserError`s.

    Args:
        command: The command whose arguments these are, for error messages.
        dashed: Options whose value may begin with a dash, which argparse takes for an option of its own otherwise.
    """

    def __init__(self, command: str, *, dashed: Sequence[str] = ()) -> None:
        super().__init__(prog=f"lightkit {command}", add_help=False, allow_abbrev=False)
        self.command, self.dashed = command, frozenset(dashed)

    def add_config_files(self) -> None:
        """Add the options that name files of the configuration: `--config-dir` and `--config-name`."""
        self.add_argument("-cd", "--config-dir")
        self.add_argument("-cn", "--config-name", default="config")

    def add_configuration(self) -> None:
        """Add what `lightkit.cli.inspected.configuration` reads: overrides, or a run to start from."""
        self.add_argument("overrides", nargs="*")
        self.add_argument("--from", dest="source", metavar="RUN")
        self.add_config_files()

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
        joined = list[str]()
        for text in args:
            if text.startswith("-") and joined and joined[-1] in self.dashed:
                joined[-1] += f"={text}"
            else:
                joined.append(text)
        found, unknown = self.parse_known_intermixed_args(joined)
        if unknown:
            from lightkit.config.fields import keys_named

            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            names = [name for action in shown for name in action.option_strings]
            # Hydra's short forms and underscores are accepted, not advertised.
            options = [name for name in names if name.startswith("--") and "_" not in name]
            plain, takes_overrides = unknown[0].lstrip("-"), any(action.dest == "overrides" for action in self._actions)
            fix = in_place_of(f"{self.prog} {unknown[0]}")
            if takes_overrides and "=" in plain:
                fix = f"{plain}, without dashes"
            elif takes_overrides and (meant := keys_named(plain.replace("-", "_"))):  # `optim.lr` for `--lr`
                value = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("-") else "VALUE"
                fix = f"keys have no dashes: {meant[0]}={value}"
            if not unknown[0].startswith("-"):
                raise UserError("one word too many", key=self.prog, received=unknown[0], fix=f"{self.prog} --help")
            raise UserError("no such option", key=self.prog, received=unknown[0], choices=options, fix=fix)
        if getattr(found, "overrides", None):
            found.overrides = with_run_folders(found.overrides, project())
        return found


def whole_number(
    option: str,
    text: str,
    *,
    least: int = 0,
    most: int | None = None,
    what: str | None = None,
    expected: str | None = None,
) -> int:
    """Read the value of an option that is a whole number.

    Args:
        option: Name of the option, for error messages.
        text: What was typed.
        least: Smallest number that is allowed.
        most: Largest number that is allowed; None for any.
        what: What is wrong with anything else; None says whether it is a number.
        expected: What is allowed, in words; None says it by the range.

    Raises:
        UserError: It is none, or out of its range.
    """
    if text.isdecimal() and least <= int(text) and (most is None or int(text) <= most):
        return int(text)
    by_range = f"a whole number from {least}" + ("" if most is None else f" to {most}")
    is_number = text.removeprefix("-").isdecimal()
    what = what or ("out of range" if is_number else "not a whole number")
    raise UserError(what, key=option, received=text, expected=expected or by_range)


def check_checkpoint(which: str) -> None:
    """Check the value of `--checkpoint`.

    Raises:
        UserError: It is neither `best` nor `last`, nor a file.
    """
    if which not in ("best", "last") and not Path(which).is_file():
        what, expected = "no such checkpoint", "best, last or a file"
        raise UserError(what, key="--checkpoint", received=which, expected=expected, family="no-checkpoint")
