"""From the arguments to a command, and from whatever went wrong to an exit status."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

from lightkit import __version__
from lightkit.cli.terminal import complain, say
from lightkit.common.errors import UserError
from lightkit.common.exit_codes import BROKEN_PIPE, FAILED, INTERRUPTED, OUT_OF_MEMORY
from lightkit.common.failures import is_out_of_memory
from lightkit.common.signals import exiting

COMMANDS = {
    "train": ("lightkit.cli.train", "train", "train a model, or sweep over several with -m"),
    "resume": ("lightkit.cli.train", "resume", "go on with a run that was stopped, in its own folder"),
    "verify-resume": ("lightkit.cli.verify", "verify_resume", "prove that a configuration survives kill and resume"),
    "eval": ("lightkit.cli.evaluate", "evaluate", "metrics of a finished run on a split"),
    "predict": ("lightkit.cli.evaluate", "predict", "predictions of a finished run as a CSV file"),
    "plan": ("lightkit.cli.plan", "plan", "what a run would train, at which rate and when, without training"),
    "config": ("lightkit.cli.config", "config", "print a composed configuration, or the choices of a group"),
    "runs": ("lightkit.cli.runs", "runs", "list the runs in outputs/"),
    "ckpt": ("lightkit.cli.ckpt", "ckpt", "look into checkpoints and weights, convert, compare and prune them"),
    "gpus": ("lightkit.cli.gpus", "gpus", "the GPUs of this machine, who uses them, and what they are called here"),
    "env": ("lightkit.cli.env", "env", "versions, devices and machine, for a bug report"),
    "board": ("lightkit.cli.board", "board", "TensorBoard over outputs/, with the line that forwards it to a laptop"),
}
"""Command: module, function in it, one line of help. The module's `HELP` holds the command's own help."""


def run(args: list[str]) -> int:
    """Run the command in `args`; every error becomes an exit status and a message on standard error."""
    try:
        with exiting():
            status = dispatch(args)
        sys.stdout.flush()
        return status
    except UserError as error:
        return _user_error(error)
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BrokenPipeError:
        # What reads our output has gone (`| head`); the interpreter would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return BROKEN_PIPE
    except Exception as error:
        return _unexpected(error)


def dispatch(args: list[str]) -> int:
    """Find the command and call it.

    Raises:
        UserError: There is no such command.
    """
    name, rest = (args[0], args[1:]) if args else ("--help", [])
    if name in ("-h", "--help", "help"):
        return _help(rest)
    if name == "--version":
        say(f"lightkit {__version__}")
        return 0
    if name in ("-sc", "--shell-completion", "--shell_completion"):
        from lightkit.cli.completion import completion

        return completion(rest)
    if name not in COMMANDS:
        fix = f"lightkit train {' '.join(args)}" if "=" in name else "lightkit --help"
        raise UserError("no such command", received=name, choices=COMMANDS, fix=fix)
    module = _module(name)
    if "-h" in rest or "--help" in rest:
        say(help_of(name))
        return 0
    return int(getattr(module, COMMANDS[name][1])(rest))


def _help(rest: list[str]) -> int:
    """Print the help of a command, or of all."""
    if rest and rest[0] in COMMANDS:
        say(help_of(rest[0]))
        return 0
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, _, summary) in COMMANDS.items())
    say(_HELP.format(version=__version__, commands=rows))
    return 0


def help_of(command: str) -> str:
    """Return the help text of a command."""
    return str(_module(command).HELP[command])


def _module(command: str) -> ModuleType:
    return importlib.import_module(COMMANDS[command][0])


def _user_error(error: UserError) -> int:
    """Print what is wrong, and return the exit status."""
    if os.environ.get("LIGHTKIT_DEBUG", "0") not in ("", "0"):
        import traceback

        complain("".join(traceback.format_exception(error)).rstrip())
    else:
        complain(f"error: {error}")
    return error.exit_code


def _unexpected(error: Exception) -> int:
    """Print the traceback of an error in code, and return the exit status."""
    import traceback

    complain("".join(traceback.format_exception(error)).rstrip())
    if is_out_of_memory(error):
        fix = "a smaller data.batch_size, with trainer.accumulate to make up for it"
        complain(str(UserError("error: out of memory", fix=fix)))
        return OUT_OF_MEMORY
    return FAILED


_HELP = """\
lightkit {version}: PyTorch training from a checked configuration

usage: lightkit COMMAND [ARGUMENTS]

{commands}

examples:
  lightkit train                                     the default run: handwritten digits on a small network
  lightkit train data=wine trainer.epochs=30         another data set, a longer run
  lightkit train experiment=digits_cnn               a shipped experiment
  lightkit train -m optim.lr=0.001,0.01 seed=0,1,2   a sweep of six runs
  lightkit board                                     watch the curves

completion of commands, runs, options and values:  eval "$(lightkit -sc install=bash)"   (also zsh, fish)
LIGHTKIT_DEBUG=1 shows the traceback of an error; LIGHTKIT_PROJECT=FOLDER names the project to work in.

`lightkit COMMAND --help` says more."""
