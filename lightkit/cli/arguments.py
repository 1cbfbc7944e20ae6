"""The commands, and the parser of their arguments, with this project's kind of error message."""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lightkit.common.errors import UserError
from lightkit.common.suggest import as_override, in_place_of
from lightkit.runs.catalog import places_of, project, with_run_folders

COMMAND_GROUPS = {
    "Before a run": {
        "new": ("new.new", "make a project with data, a model, an experiment and tests"),
        "config": ("config.config", "print a composed configuration, or the choices of a group"),
        "plan": ("inspected.plan", "show what a run would train, and at which rate"),
        "doctor": ("doctor.doctor", "check a run for problems, before it starts or after it ended"),
        "find": ("find.find", "find a learning rate, a batch size, loader processes, or what more rows bring"),
        "summary": ("inspected.summary", "show layers, parameters, FLOPs and memory of a model"),
        "graph": ("inspected.graph", "draw a model: its layers and the tensors between them"),
    },
    "Training": {
        "train": ("train.train", "train a model, or sweep over several with -m"),
        "resume": ("train.resume", "continue a run that was stopped, in its own folder"),
        "sweep": ("sweep.sweep", "show the state of a sweep, continue it, or stop it"),
        "ensemble": ("ensemble.ensemble", "combine finished runs into one model"),
        "rerun": ("again.rerun", "repeat a run, and say whether it came out the same"),
        "verify-resume": ("train.verify_resume", "check that a killed and resumed run has the same bits"),
    },
    "While it runs": {
        "ps": ("runs.ps", "list running runs, their progress, and how recent runs ended"),
        "logs": ("logs.logs", "show the end of a run's log, and follow it"),
        "attach": ("logs.attach", "show a running run with its progress bar"),
        "stop": ("logs.stop", "stop runs: they save a checkpoint and end"),
        "wait": ("logs.wait", "wait until runs end, and return their exit status"),
        "board": ("board.board", "start TensorBoard, and print the ssh command for your laptop"),
        "gpus": ("gpus.gpus", "show the GPUs of this machine and their processes"),
    },
    "Afterwards": {
        "runs": ("runs.runs", "list the runs in outputs/"),
        "compare": ("compare.compare", "compare runs: means over seeds, tests, row by row"),
        "report": ("compare.write_report", "write a page that says whether to believe a result"),
        "why": ("again.why", "say why two runs differ, and where their curves part"),
        "eval": ("evaluate.evaluate", "compute the metrics of a finished run on a split"),
        "predict": ("evaluate.predict", "write the predictions of a finished run as a CSV file"),
        "calibrate": ("calibrate.calibrate", "make the probabilities of a run believable, and sets that cover"),
        "export": ("export.export", "write a trained model as a file that predicts without lightkit"),
        "show": ("evaluate.show", "show samples, predictions, the largest losses, or what a model goes by"),
        "params": ("inspected.params", "show weights and gradients of a run, with histograms"),
        "ckpt": ("ckpt.ckpt", "inspect, convert, merge, average, compare or delete checkpoints"),
    },
    "Help": {
        "explain": ("doctor.explain", "explain an error by its code, and how to fix it"),
        "env": ("env.env", "print versions, devices and machine, for a bug report"),
    },
}
"""Commands by what they are for: function below `lightkit.cli`, one line of help; `help/COMMAND.txt` has the help."""
COMMANDS = {name: place for group in COMMAND_GROUPS.values() for name, place in group.items()}
_DESTINATIONS = {"--from": "source", "--try": "numbers"}
"""Where the values of options go whose names are words of Python."""
_OTHERS = "--config-dir=-cd --config-name=-cn --cfg=-c --package=-p --info=-i --output=--out"
_ALIASES = dict(pair.split("=") for pair in _OTHERS.split())
"""Other names of options: the short ones that Hydra has, and what others have for `--output`."""
_OVERRIDE = re.compile(r"[+~]*[\w.@]+=")
_REQUIRED = "the following arguments are required: "


def help_of(command: str) -> str:
    """Return the help text of a command, which is also the table of its options."""
    return (Path(__file__).with_name("help") / f"{command}.txt").read_text(encoding="utf-8").rstrip("\n")


class CommandOption(NamedTuple):
    """An option of a command, as the table in its help has it: names, value, and how often it may be given."""

    names: tuple[str, ...]
    """How it is typed, the long name last."""
    value: str
    """What it takes, in the words of the help: `N`, `[SECONDS]`, `job|hydra|all`; empty for nothing."""
    repeated: bool
    """Whether it may be given several times."""

    @property
    def words(self) -> list[str]:
        """Return what can be typed as it stands: `best` and `last` of `best|last|FILE`."""
        alternatives = self.value.strip("[]").split("|")
        return [word for word in alternatives if re.fullmatch("[a-z][a-z_-]*", word)] if alternatives[1:] else []


def options_of(command: str) -> dict[str, CommandOption]:
    """Read the options of a command, or of an action such as `ckpt diff`, from its help.

    They stand there one a line, after two spaces: names, what it takes, two spaces, the meaning. The usage may say
    more: what an action takes, alternatives, and by dots that an option may be repeated.
    """
    text = help_of(command.split()[0])
    usages = re.split("^(?:usage:| {6}) lightkit ", text.partition("\n\n")[0], flags=re.M)
    usage = " ".join(" ".join(line.split()) for line in usages if line.startswith(command))
    found = {}
    for head in re.findall(r"^  (-\S+(?: \S+)*)(?:  |$)", text, re.M):
        for short, name, value in re.findall(r"(?:(-\w), )?(--[a-z][a-z-]*)(?: (\[?\w\S*))?", head):
            if " " in command and not re.search(rf"{name}(?![\w-])", usage):
                continue
            given = "|".join(re.findall(rf"{name} (\w[^\s\]]*)", usage)) if value else ""
            value = "|".join(dict.fromkeys(given.split("|"))) if "|" in given else value.removesuffix(",")
            names = tuple(filter(None, (short, _ALIASES.get(name), name)))
            found[name] = CommandOption(names, value, f"[{name} {value}]..." in usage)
    return found


class Parser(argparse.ArgumentParser):
    """argparse with the options that the help of a command has, without abbreviations; mistakes are `UserError`s.

    Args:
        command: The command, or a command and its action, whose help has the options.
        *positional: Names of the other arguments, with `?`, `*` or `+` for how many they are.
        dashed: Options whose value may begin with a dash, which argparse takes for an option of its own otherwise.
        unchecked: Options whose alternatives the command itself checks.
        **defaults: Values of options that are not given, or the type of those that have none.
    """

    def __init__(
        self, command: str, *positional: str, dashed: Sequence[str] = (), unchecked: Sequence[str] = (), **defaults: Any
    ) -> None:
        super().__init__(prog=f"lightkit {command}", add_help=False, allow_abbrev=False)
        self.command, self.dashed = command, frozenset(dashed)
        for text in positional:
            name = text.rstrip("?*+")
            self.add_argument(name, nargs=text.removeprefix(name) or None)
        for name, option in options_of(command).items():
            dest = _DESTINATIONS.get(name, name[2:].replace("-", "_"))
            default = defaults.get(dest, "config" if name == "--config-name" else None)
            if not option.value:
                self.add_argument(*option.names, dest=dest, action="store_true")
            elif option.repeated:
                self.add_argument(*option.names, dest=dest, action="append", default=[])
            else:
                reader = default if isinstance(default, type) else type(default) if default is not None else str
                is_closed = name not in unchecked and len(option.words) == option.value.count("|") + 1
                more: dict[str, Any] = {"choices": option.words} if is_closed else {}
                if option.value.startswith("["):
                    more |= {"nargs": "?", "const": (option.words or [""])[0]}
                default = None if reader is default else default
                self.add_argument(*option.names, dest=dest, type=reader, default=default, **more)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say.

        Raises:
            UserError: Always.
        """
        _, found, names = message.partition(_REQUIRED)
        if found:
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
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            names = [name for action in shown for name in action.option_strings]
            # Short forms of Hydra's and underscores are accepted, not advertised.
            options = [name for name in names if name.startswith("--") and "_" not in name]
            takes_overrides = any(action.dest == "overrides" for action in self._actions)
            fix = in_place_of(f"{self.prog} {unknown[0]}") or (
                _without_dashes(unknown[0], joined) if takes_overrides else None
            )
            if not unknown[0].startswith("-"):
                raise UserError("one word too many", key=self.prog, received=unknown[0], fix=f"{self.prog} --help")
            raise UserError("no such option", key=self.prog, received=unknown[0], choices=options, fix=fix)
        if getattr(found, "overrides", None):
            found.overrides = with_run_folders(found.overrides, project())
        return found


def _without_dashes(option: str, args: Sequence[str]) -> str | None:
    """Say which override is meant by an option that a command does not have: `optim.lr=0.1` for `--lr 0.1`."""
    from lightkit.config.fields import dotted, field_types, keys_named, walk
    from lightkit.config.schema import Config

    name, _, value = option.lstrip("-").partition("=")
    following = next(iter(args[args.index(option) + 1 :]), "-")
    value = value or ("VALUE" if following.startswith("-") or "=" in following else following)
    if "." in name or name in field_types(Config):
        return f"{name}={value}, without dashes"
    own = keys_named(name.replace("-", "_"))
    said = as_override(name, value) or (f"keys have no dashes: {own[0]}={value}" if own else None)
    key = (said or "").partition("=")[0].rpartition(" ")[2]
    lists = {dotted(place) for place, _, kind in walk(Config) if typing.get_origin(kind) is list}
    is_one = key in lists and not value.startswith("[")  # `--aa rand-m9`: no value of `data.augment`
    return said and said.removesuffix(f"={value}") + "=[VALUE]" if is_one else said


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


def is_folder(text: str) -> bool:
    """Tell whether a text means a folder: from here, from the project, or from its `outputs/`."""
    return any(place.is_dir() for place in places_of(text, project()))


def names_and_overrides(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tell names of runs from overrides; a folder may look like one, as that of the job `seed=1` does."""
    overrides = [text for text in texts if _OVERRIDE.match(text) and not is_folder(text)]
    return [text for text in texts if text not in overrides], overrides


def check_checkpoint(which: str) -> None:
    """Check the value of `--checkpoint`.

    Raises:
        UserError: It is neither `best` nor `last`, nor a file.
    """
    if which not in ("best", "last") and not Path(which).is_file():
        what, expected = "no such checkpoint", "best, last or a file"
        raise UserError(what, key="--checkpoint", received=which, expected=expected, family="no-checkpoint")
