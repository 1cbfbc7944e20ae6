"""The commands, each with its module, its function and its help."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

COMMAND_GROUPS = {
    "Before a run": {
        "new": ("lightkit.cli.new", "new", "make a project with data, a model, an experiment and tests"),
        "config": ("lightkit.cli.config", "config", "print a composed configuration, or the choices of a group"),
        "plan": ("lightkit.cli.plan", "plan", "show what a run would train, and at which rate"),
        "doctor": ("lightkit.cli.doctor", "doctor", "check a run for problems, before it starts or after it ended"),
        "find": ("lightkit.cli.find", "find", "find a learning rate, a batch size or a number of loader processes"),
        "summary": (
            "lightkit.cli.summary",
            "summary",
            "show layers, parameters, FLOPs and memory of a model",
        ),
        "graph": ("lightkit.cli.graph", "graph", "draw a model: its layers and the tensors between them"),
    },
    "Training": {
        "train": ("lightkit.cli.train", "train", "train a model, or sweep over several with -m"),
        "resume": ("lightkit.cli.resume", "resume", "continue a run that was stopped, in its own folder"),
        "sweep": ("lightkit.cli.sweeps", "sweep", "show the state of a sweep, continue it, or stop it"),
        "ensemble": ("lightkit.cli.ensemble", "ensemble", "combine finished runs into one model"),
        "verify-resume": (
            "lightkit.cli.verify",
            "verify_resume",
            "check that a killed and resumed run has the same bits",
        ),
    },
    "While it runs": {
        "ps": ("lightkit.cli.ps", "ps", "list running runs, their progress, and how recent runs ended"),
        "logs": ("lightkit.cli.logs", "logs", "show the end of a run's log, and follow it"),
        "attach": ("lightkit.cli.attach", "attach", "show a running run with its progress bar"),
        "stop": ("lightkit.cli.stop", "stop", "stop runs: they save a checkpoint and end"),
        "wait": ("lightkit.cli.stop", "wait", "wait until runs end, and return their exit status"),
        "board": (
            "lightkit.cli.board",
            "board",
            "start TensorBoard, and print the ssh command for your laptop",
        ),
        "gpus": ("lightkit.cli.gpus", "gpus", "show the GPUs of this machine and their processes"),
    },
    "Afterwards": {
        "runs": ("lightkit.cli.runs", "runs", "list the runs in outputs/"),
        "compare": ("lightkit.cli.compare", "compare", "compare runs: means over seeds, tests, row by row"),
        "eval": ("lightkit.cli.evaluate", "evaluate", "compute the metrics of a finished run on a split"),
        "predict": ("lightkit.cli.evaluate", "predict", "write the predictions of a finished run as a CSV file"),
        "show": ("lightkit.cli.show", "show", "show samples, predictions and the largest losses as a page"),
        "params": (
            "lightkit.cli.params",
            "params",
            "show weights and gradients of a run, with histograms",
        ),
        "ckpt": ("lightkit.cli.ckpt", "ckpt", "inspect, convert, merge, average, compare or delete checkpoints"),
    },
    "Help": {
        "explain": ("lightkit.cli.explain", "explain", "explain an error by its code, and how to fix it"),
        "env": ("lightkit.cli.env", "env", "print versions, devices and machine, for a bug report"),
    },
}
"""Commands by what they are for: module, function in it, one line of help; `help/COMMAND.txt` has the help."""
COMMANDS = {name: place for group in COMMAND_GROUPS.values() for name, place in group.items()}


def module_of(command: str) -> ModuleType:
    """Import the module of a command."""
    return importlib.import_module(COMMANDS[command][0])


def help_of(command: str) -> str:
    """Return the help text of a command, which is also the table of its options (`lightkit.cli.arguments`)."""
    return (Path(__file__).with_name("help") / f"{command}.txt").read_text(encoding="utf-8").rstrip("\n")
