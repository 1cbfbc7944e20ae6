"""The commands, each with its module, its function and its help."""

from __future__ import annotations

import importlib
from types import ModuleType

COMMANDS = {
    "new": ("lightkit.cli.new", "new", "a project of your own that trains, is tested and predicts at once"),
    "train": ("lightkit.cli.train", "train", "train a model, or sweep over several with -m"),
    "sweep": ("lightkit.cli.sweeps", "sweep", "how far a sweep is, going on with it, ending it"),
    "resume": ("lightkit.cli.train", "resume", "go on with a run that was stopped, in its own folder"),
    "verify-resume": ("lightkit.cli.verify", "verify_resume", "prove that a configuration survives kill and resume"),
    "eval": ("lightkit.cli.evaluate", "evaluate", "metrics of a finished run on a split"),
    "predict": ("lightkit.cli.evaluate", "predict", "predictions of a finished run as a CSV file"),
    "ensemble": ("lightkit.cli.ensemble", "ensemble", "make one model of finished runs"),
    "plan": ("lightkit.cli.plan", "plan", "what a run would train, at which rate and when, without training"),
    "config": ("lightkit.cli.config", "config", "print a composed configuration, or the choices of a group"),
    "runs": ("lightkit.cli.runs", "runs", "list the runs in outputs/"),
    "compare": ("lightkit.cli.compare", "compare", "runs side by side: what differs, over seeds and row by row"),
    "ckpt": ("lightkit.cli.ckpt", "ckpt", "look into checkpoints and weights, convert, compare and prune them"),
    "gpus": ("lightkit.cli.gpus", "gpus", "the GPUs of this machine, who uses them, and what they are called here"),
    "explain": ("lightkit.cli.explain", "explain", "what an error means, by the code below it, and how to mend it"),
    "env": ("lightkit.cli.env", "env", "versions, devices and machine, for a bug report"),
    "board": ("lightkit.cli.board", "board", "TensorBoard over outputs/, with the line that forwards it to a laptop"),
}
"""Command: module, function in it, one line of help. The module's `HELP` holds the command's own help."""


def module_of(command: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(COMMANDS[command][0])


def help_of(command: str) -> str:
    """Return the help text of a command."""
    return str(module_of(command).HELP[command])
