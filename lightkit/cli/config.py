"""`lightkit config`: what a run would be made of, and what could be put there instead."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from lightkit.cli.arguments import Parser
from lightkit.cli.terminal import say, table
from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from lightkit.config import Composed
    from lightkit.config.describe import Row

HELP = {
    "config": """\
usage: lightkit config [GROUP | OVERRIDES] [--resolve] [--package KEY] [--config-dir FOLDER]

Without GROUP: print the configuration that `lightkit train OVERRIDES` would run, checked.
With GROUP: its choices, one line each, and the meaning of its keys (`trainer.ema` shows a part of them). Groups are
data, model, loss, optim, scheduler, device, finetune, ensemble, metrics, trainer, checkpoint, logger, experiment and
those of your own conf/.

options:
  --resolve             fill in interpolations
  --package KEY         print only what is below KEY
  --config-dir FOLDER   one more folder of options, searched first
  --config-name NAME    another file than config.yaml to start from

examples:
  lightkit config
  lightkit config data=diabetes optim.lr=0.01
  lightkit config optim""",
}


def config(args: list[str]) -> int:
    """Print the composed configuration, or the choices and keys of a group."""
    parser = Parser("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package")
    parser.add_argument("-cd", "--config-dir")
    parser.add_argument("-cn", "--config-name", default="config")
    options = parser.read(args)
    if len(options.overrides) == 1 and "=" not in options.overrides[0] and options.overrides[0][0] not in "~+":
        say(group_text(options.overrides[0].strip("/"), options.config_dir))
        return 0
    from lightkit.config import compose

    composed = compose(options.overrides, config_dir=options.config_dir, config_name=options.config_name)
    say(as_yaml(composed, resolve=options.resolve, package=options.package))
    return 0


def as_yaml(composed: Composed, *, resolve: bool, package: str | None) -> str:
    """The configuration, or what is below one key of it.

    Raises:
        UserError: There is no such key.
    """
    from omegaconf import OmegaConf

    node = composed.cfg
    if package and package != "_global_":
        node = OmegaConf.select(node, package)
        if node is None:
            raise UserError("no such key", key="--package", received=package, choices=map(str, composed.cfg))
    if not OmegaConf.is_config(node):
        return str(node)
    return OmegaConf.to_yaml(node, resolve=resolve).rstrip()


def group_text(group: str, config_dir: str | None = None) -> str:
    """Choices of a group, one line each, and its keys.

    Args:
        group: Name of the group, such as `optim`.
        config_dir: Extra folder of options.

    Raises:
        UserError: There is no such group.
    """
    from lightkit.config.describe import describe_group, list_options

    keys = describe_group(group)
    options = [] if keys and "." in group else list_options(group, config_dir=config_dir)
    parts = []
    if options:
        rows = [(f"  {group}={option.name}", option.comment) for option in options]
        parts += [f"choices of {group}:", table([], rows)]
    if keys:
        parts += [*([""] if parts else []), f"keys of {group}:", *(_key_text(key) for key in keys)]
    return "\n".join(parts)


def _key_text(key: Row) -> str:
    head = f"  {key.key} ({key.type})" + (f" = {key.default}" if key.default else "")
    return "\n".join([head, textwrap.fill(key.meaning, 112, initial_indent=" " * 6, subsequent_indent=" " * 6)])
