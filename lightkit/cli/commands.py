"""The commands, each with its module, its function and its help."""

from __future__ import annotations

import importlib
from types import ModuleType

COMMAND_GROUPS = {
    "Before a run": {
        "new": ("lightkit.cli.new", "new", "a project of your own that trains, is tested and predicts at once"),
        "config": ("lightkit.cli.config", "config", "print a composed configuration, or the choices of a group"),
        "plan": ("lightkit.cli.plan", "plan", "what a run would train, at which rate and when, without training"),
        "doctor": ("lightkit.cli.doctor", "doctor", "what is wrong with a run, before it starts or after it ended"),
        "find": ("lightkit.cli.find", "find", "a learning rate, batch size or number of loader processes, by trying"),
        "summary": (
            "lightkit.cli.summary",
            "summary",
            "layers, parameters, FLOPs and memory of a model before it trains",
        ),
        "graph": ("lightkit.cli.graph", "graph", "a picture of a model: its layers and what flows between them"),
    },
    "Training": {
        "train": ("lightkit.cli.train", "train", "train a model, or sweep over several with -m"),
        "resume": ("lightkit.cli.resume", "resume", "go on with a run that was stopped, in its own folder"),
        "sweep": ("lightkit.cli.sweeps", "sweep", "how far a sweep is, going on with it, ending it"),
        "ensemble": ("lightkit.cli.ensemble", "ensemble", "make one model of finished runs"),
        "verify-resume": (
            "lightkit.cli.verify",
            "verify_resume",
            "prove that a configuration survives kill and resume",
        ),
    },
    "While it runs": {
        "ps": ("lightkit.cli.ps", "ps", "what is running, how far it is, and how the rest ended"),
        "logs": ("lightkit.cli.logs", "logs", "the end of a run's log, and what comes"),
        "attach": ("lightkit.cli.attach", "attach", "a run that goes on elsewhere, with its live bar"),
        "stop": ("lightkit.cli.stop", "stop", "ask runs to save and to end, and wait until they have"),
        "wait": ("lightkit.cli.stop", "wait", "wait until runs have ended, and end with their status"),
        "board": (
            "lightkit.cli.board",
            "board",
            "TensorBoard over outputs/, with the line that forwards it to a laptop",
        ),
        "gpus": ("lightkit.cli.gpus", "gpus", "the GPUs of this machine, who uses them, and what they are called here"),
    },
    "Afterwards": {
        "runs": ("lightkit.cli.runs", "runs", "list the runs in outputs/"),
        "compare": ("lightkit.cli.compare", "compare", "runs side by side: what differs, over seeds and row by row"),
        "eval": ("lightkit.cli.evaluate", "evaluate", "metrics of a finished run on a split"),
        "predict": ("lightkit.cli.evaluate", "predict", "predictions of a finished run as a CSV file"),
        "show": ("lightkit.cli.show", "show", "samples, predictions and the largest losses, as a page and a picture"),
        "params": (
            "lightkit.cli.params",
            "params",
            "weights and gradients of a run by name: norms, spread, histograms",
        ),
        "ckpt": ("lightkit.cli.ckpt", "ckpt", "look into checkpoints and weights, convert, compare and prune them"),
    },
    "Help": {
        "explain": ("lightkit.cli.explain", "explain", "what an error means, by the code below it, and how to mend it"),
        "env": ("lightkit.cli.env", "env", "versions, devices and machine, for a bug report"),
    },
}
"""Commands by what they are for: module, function in it, one line of help. The module's `HELP` holds the command's own
help."""
COMMANDS = {name: place for group in COMMAND_GROUPS.values() for name, place in group.items()}


def module_of(command: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(COMMANDS[command][0])


def help_of(command: str) -> str:
    """Return the help text of a command."""
    return str(module_of(command).HELP[command])
