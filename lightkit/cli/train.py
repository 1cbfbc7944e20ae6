"""`lightkit train` and `lightkit resume`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.folders import (
    chosen_run_folder,
    discard_if_empty,
    find_run,
    has_checkpoints,
    hydra_folder,
    new_run_folder,
    project,
    unfinished_run,
)
from lightkit.cli.terminal import say

if TYPE_CHECKING:
    from lightkit.config import Composed

HELP = {
    "train": """\
usage: lightkit train [OVERRIDES] [OPTIONS]

Compose the configuration from conf/, experiments/ and OVERRIDES, check it, and train.
The run writes to outputs/runs/<date>/<time>-<name>/.

overrides (all of Hydra's syntax):
  group=option          pick a file of conf/<group>/          data=wine model=cnn
  key=value             set a value                           optim.lr=0.01 trainer.epochs=50
  key=a,b,c             with -m: one run per value            seed=0,1,2
  ~key                  remove                                ~metrics.val.f1
  hydra.run.dir=FOLDER  write somewhere else

options:
  -m, --multirun        one run per combination of the values separated by commas
  --from RUN            start from the configuration of an earlier run, in a new folder
  --cfg job|hydra|all   print the configuration and stop; with --resolve (interpolations filled in), --package KEY
  --config-dir FOLDER   one more folder of options, searched first
  --config-name NAME    another file than config.yaml to start from
  --info, --hydra-help  what Hydra knows about the composition
  -sc install=bash      completion: eval "$(lightkit train -sc install=bash)" (also zsh, fish)

examples:
  lightkit train
  lightkit train data=diabetes model.hidden=[64,64] trainer.epochs=100
  lightkit train experiment=digits_cnn seed=1
  lightkit train -m data=wine,breast_cancer seed=0,1,2

`lightkit config` prints the configuration, `lightkit config GROUP` the choices of a group.
Exit status: 0 done, 2 wrong configuration or data, 3 loss not finite, 4 out of memory, 5 unreadable checkpoint,
130 interrupted, 128+n ended by signal n (`lightkit resume` goes on).""",
    "resume": """\
usage: lightkit resume RUN [OVERRIDES]

Go on with a run from its newest checkpoint, in the same folder and with the configuration it was started with.
RUN is the folder of a run, its name, or `last` for the newest one. OVERRIDES change values, such as a longer
`trainer.epochs`.

examples:
  lightkit resume last
  lightkit resume outputs/runs/2026-01-31/12-00-00-run trainer.epochs=50""",
}


def train(args: list[str]) -> int:
    """Train, sweep, or print what would be trained."""
    options = _train_parser().read(args)
    if options.shell_completion or options.info or options.hydra_help or options.cfg in ("hydra", "all"):
        return _hydra(args, options)
    if options.multirun:
        from lightkit.cli.sweep import sweep

        return sweep(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    composed = _compose(options)
    if options.cfg:
        from lightkit.cli.config import as_yaml

        say(as_yaml(composed, resolve=options.resolve, package=options.package))
        return 0
    return _start(composed, options)


def resume(args: list[str]) -> int:
    """Go on with a stopped run."""
    parser = Parser("resume")
    parser.add_argument("run")
    parser.add_argument("overrides", nargs="*")
    options = parser.read(args)
    from lightkit.config import load_run

    folder = find_run(options.run, project())
    composed = load_run(folder, options.overrides)
    # Here, not above: importing torch takes seconds, and a wrong configuration is told before.
    from lightkit.runner import Runner

    Runner(composed.cfg, folder, overrides=options.overrides).run(resume=True)
    return 0


def _start(composed: Composed, options: argparse.Namespace) -> int:
    root, overrides = project(), options.overrides
    earlier = _earlier_run(root, composed, options) if composed.cfg.resume.mode == "auto" else None
    folder = earlier or _run_folder(root, composed, options)
    try:
        from lightkit.runner import Runner

        Runner(composed.cfg, folder, overrides=overrides).run(resume=earlier is not None)
    finally:
        discard_if_empty(folder, root)
    return 0


def _train_parser() -> Parser:
    parser = Parser("train")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("-m", "--multirun", action="store_true")
    parser.add_argument("--from", dest="source", metavar="RUN")
    # For the jobs of a sweep: a folder name may hold what Hydra's grammar would split.
    parser.add_argument("--folder", type=Path)
    parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"])
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default="config")
    parser.add_argument("-i", "--info", nargs="?", const="all")
    parser.add_argument("--hydra-help", action="store_true")
    parser.add_argument("-sc", "--shell-completion", "--shell_completion", action="store_true")
    return parser


def _compose(options: argparse.Namespace) -> Composed:
    if options.source is None:
        from lightkit.config import compose

        return compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    from lightkit.config import load_run

    own = [override for override in options.overrides if not override.startswith("hydra.")]
    return load_run(find_run(options.source, project()), own)


def _hydra(args: list[str], options: argparse.Namespace) -> int:
    """What Hydra does by itself: completion and its views of the composition."""
    from lightkit.config import hydra_command

    hydra_command(args)
    return 0


def _earlier_run(root: Path, composed: Composed, options: argparse.Namespace) -> Path | None:
    """The run that `resume=auto` goes on with; None starts a new one."""
    from lightkit.config import to_yaml

    named = _named_folder(composed, options)
    if named is not None:
        return named if has_checkpoints(named) else None
    return unfinished_run(root, to_yaml(composed.cfg))


def _run_folder(root: Path, composed: Composed, options: argparse.Namespace) -> Path:
    """`--folder` or `hydra.run.dir` where they are given, else a new folder in `outputs/runs/`."""
    folder = _named_folder(composed, options)
    if folder is None:
        return new_run_folder(root, str(composed.cfg.name))
    return folder if composed.cfg.resume.mode == "auto" else chosen_run_folder(folder)


def _named_folder(composed: Composed, options: argparse.Namespace) -> Path | None:
    # The configuration of an earlier run has no Hydra node to find it in.
    typed = [text.partition("=")[2] for text in options.overrides if text.startswith("hydra.run.dir=")]
    named = Path(typed[-1]).absolute() if options.source and typed else hydra_folder(composed, "run", "outputs/")
    folder: Path | None = options.folder or named
    return folder
