"""From the arguments to a command, and from whatever went wrong to an exit status."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from lightkit import __version__
from lightkit.cli.arguments import COMMAND_GROUPS, COMMANDS, help_of
from lightkit.cli.terminal import complain, say
from lightkit.common.collecting import importing
from lightkit.common.doors import import_path
from lightkit.common.errors import BROKEN_PIPE, FAILED, INTERRUPTED, LOST_RANK, OUT_OF_MEMORY, UserError, pointer
from lightkit.common.failures import is_out_of_memory
from lightkit.common.signals import exiting
from lightkit.common.text import forget


def launched() -> bool:
    """Tell whether this process was started by a launcher as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def leave(status: int, *, orderly: bool = False) -> NoReturn:
    """End this process without taking Python apart.

    In one of several processes PyTorch's threads that talk to those which are gone may hang or crash then, and one that
    was forked would copy all that it shares.

    Args:
        status: Its exit status.
        orderly: Do first what else Python does at its end: wait for threads, and call what is registered for it.
    """
    with contextlib.suppress(KeyboardInterrupt):
        if orderly:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
            atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if os.name == "posix" and (library := sys.modules.get("ctypes")):  # PyTorch loads it; what compiled code printed
        library.CDLL(None).fflush(None)
    os._exit(status)


def run(args: list[str]) -> int:
    """Run the command in `args`; every error becomes an exit status and a message on standard error."""
    return guarded(partial(dispatch, args), is_rank="--rank" in args)


def guarded(work: Callable[[], int], *, is_rank: bool = False) -> int:
    """Do work whose every error becomes an exit status and a message on standard error.

    Args:
        work: Returns an exit status.
        is_rank: Whether this process is one of several, for which a launcher speaks.
    """
    forget()
    try:
        with exiting():
            status = work()
        sys.stdout.flush()
        return status
    except UserError as error:
        _explain(error, by_launcher=error.exit_code == LOST_RANK and is_rank)
        return error.exit_code
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
        _print_traceback(error)
        if not is_out_of_memory(error):
            return FAILED
        fix = "a smaller data.batch_size, with trainer.accumulate to make up for it"
        shown = UserError("error: out of memory", fix=fix, exit_code=OUT_OF_MEMORY)
        complain(str(shown))
        complain(pointer(shown.families))
        return OUT_OF_MEMORY


def _explain(error: UserError, *, by_launcher: bool) -> None:
    """Print what is wrong, and how to learn more unless the launcher of this process ends with that line."""
    if os.environ.get("LIGHTKIT_DEBUG", "0") not in ("", "0"):
        _print_traceback(error)
    else:
        complain(f"error: {error}")
    if not by_launcher:
        complain(pointer(error.families))


def _print_traceback(error: Exception) -> None:
    import traceback

    complain("".join(traceback.format_exception(error)).rstrip())


def dispatch(args: list[str]) -> int:
    """Find the command and call it.

    Raises:
        UserError: There is no such command.
    """
    # Shells ask `lightkit train -sc` at each key: what trains need not be imported for it.
    name, *rest = args[1:] if args[:2] == ["train", "-sc"] and not {"-h", "--help"} & {*args} else args or ["--help"]
    if name in ("-h", "--help", "help"):
        if rest and rest[0] in COMMANDS:
            say(help_of(rest[0]))
            return 0
        width = max(map(len, COMMANDS))
        parts = [
            "\n".join([f"{title.lower()}:", *(f"  {name:<{width}}  {about}" for name, (_, about) in group.items())])
            for title, group in COMMAND_GROUPS.items()
        ]
        text = Path(__file__).with_name("pages").joinpath("lightkit.txt").read_text(encoding="utf-8").rstrip()
        say(text.format(version=__version__, commands="\n\n".join(parts)))
        return 0
    if name == "--version":
        say(f"lightkit {__version__}")
        return 0
    if name in ("-sc", "--shell-completion", "--shell_completion"):
        with importing():  # also what is imported when it is needed
            return int(import_path("lightkit.cli.completion.completion")(rest))
    if name not in COMMANDS:
        fix = _with_command(args)
        raise UserError("no such command", received=name, choices=COMMANDS, fix=fix, family="wrong-command")
    if "-h" in rest or "--help" in rest:
        say(help_of(name))
        return 0
    with importing():
        command = import_path(f"lightkit.cli.{COMMANDS[name][0]}")
    return int(command(rest))


def _with_command(args: list[str]) -> str:
    """Say how arguments are typed that do not begin with a command."""
    command = next((text for text in args if text in COMMANDS), None)
    if args[0].startswith("-") and command is not None:
        rest = list(args)
        rest.remove(command)
        return shlex.join(["lightkit", command, *rest])
    of_train = "=" in args[0] or args[0] in ("-m", "--multirun")
    return shlex.join(["lightkit", "train", *args]) if of_train else "lightkit --help"
