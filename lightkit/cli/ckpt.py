"""`lightkit ckpt`: look into checkpoints and files of weights, convert, compare and prune them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from lightkit.cli.arguments import Parser, whole_number
from lightkit.cli.terminal import number, report, say, table
from lightkit.common import run_files
from lightkit.common.doors import import_path
from lightkit.common.errors import UNREADABLE, UserError
from lightkit.common.ledger import MACHINE
from lightkit.common.reading import yaml_or_nothing
from lightkit.runs.catalog import find_run, project

# Everything of `lightkit.checkpoint` is imported inside the functions: it brings torch.

ACTIONS = {
    "inspect": "ckpt",
    "convert": "ckpt_convert",
    "merge": "ckpt_convert",
    "average": "ckpt_convert",
    "diff": "ckpt",
    "prune": "ckpt",
}
"""The actions, each a function of that name in a module of this room."""
_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".tar")
_LONGEST_CONFIG = 1 << 20
_TENSOR = ("tensor", "shape", "type")
_TELLING = ("name", "seed", "data.dataset._target_", "model._target_", "optim._target_", "optim.lr", "trainer.epochs")
"""The keys of a configuration that say most."""


def ckpt(args: list[str]) -> int:
    """Run one of the actions."""
    if not args or args[0] not in ACTIONS:
        received = args[0] if args else None
        raise UserError("which action?", key="lightkit ckpt", received=received, choices=ACTIONS)
    return int(import_path(f"lightkit.cli.{ACTIONS[args[0]]}.{args[0]}")(args[1:]))


def inspect(args: list[str]) -> int:
    """Say what is in a file, or in the folder of a run."""
    options = Parser("ckpt inspect", "file").read(args)
    path = find_source(options.file)
    if (path / run_files.ENSEMBLE_WEIGHTS).is_file():
        path = path / run_files.ENSEMBLE_WEIGHTS
    if path.name == run_files.ENSEMBLE_WEIGHTS and path.is_file():
        return _inspect_ensemble(path, options)
    folder = checkpoint_folder(path)
    if folder is not None:
        newest = _inspect_run(folder, options)
        if not options.tensors or options.json:
            return 0
        say(f"\n{newest.name}")
        path = newest
    return _inspect_file(path, options)


def _inspect_file(path: Path, options: Namespace) -> int:
    """Print what is in a file of weights or a checkpoint."""
    from lightkit.checkpoint.facts import describe, outside

    try:
        facts = describe(path, trust=options.trust, key=options.key)
    except UserError as error:
        if error.exit_code == UNREADABLE and path.is_file():
            say(table([], outside(path)) + "\n")
        raise

    def text() -> Iterator[str]:
        yield table([], [*facts.lines, *_excerpt(facts.config)])
        shown = facts.tensors if options.tensors or len(facts.tensors) <= 12 else facts.tensors[:10]
        yield "\n" + table(_TENSOR, shown)
        if len(shown) < len(facts.tensors):
            yield f"... and {len(facts.tensors) - len(shown)} more: --tensors names them all"

    tensors = [dict(zip(_TENSOR, row)) for row in facts.tensors]
    return report(options, {**dict(facts.lines), "tensors": tensors, "config": facts.config or None}, text)


def diff(args: list[str]) -> int:
    """Compare two states; 1 where they differ."""
    options = Parser("ckpt diff", "first", "second").read(args)
    from lightkit.checkpoint.compare import compare, leaves
    from lightkit.checkpoint.reading import read
    from lightkit.checkpoint.weights import read_weights

    sources = [find_source(text) for text in (options.first, options.second)]
    weights = [read_weights(source, trust=options.trust, key=options.key) for source in sources]
    first, second = (dict(leaves(read(one.path))) if options.all else dict(one.state) for one in weights)
    machine = {name for name in (*first, *second) if any(start in name for start in MACHINE)}
    first, second = ({name: state[name] for name in state if name not in machine} for state in (first, second))
    found = compare(first, second)
    largest = ["" if item.largest is None else f"{item.largest:.3g}" for item in found]
    rows = [[d.name, d.what, d.first, d.second, size, number(d.count)] for d, size in zip(found, largest)]
    heads = ["name", "differs in", "first", "second", "largest difference", "elements"]
    same = len(first.keys() & second.keys()) - sum(not d.what.startswith("only") for d in found)
    left = f"; {len(machine)} that tell of the machine's speed are left out" if machine else ""
    below = f"{len(found)} differ, {same} are the same to the last bit{left}"
    report(options, list(map(vars, found)), lambda: [*([table(heads, rows, right=[4, 5])] if rows else []), below])
    return int(bool(found))


def prune(args: list[str]) -> int:
    """Delete checkpoints beyond those to keep."""
    options = Parser("ckpt prune", "run", keep_last="1", keep_best="1").read(args)
    folder = checkpoint_folder(find_source(options.run))
    if folder is None:
        raise UserError("not the folder of a run with checkpoints", received=options.run, family="no-such-run")
    last = whole_number("--keep-last", options.keep_last)
    best = whole_number("--keep-best", options.keep_best)
    every = None if options.keep_every is None else whole_number("--keep-every", options.keep_every, least=1)
    from lightkit.checkpoint.facts import size_text
    from lightkit.checkpoint.listing import prune as delete

    lock: AbstractContextManager[None] = nullcontext()
    if not options.dry_run and (folder.parent / run_files.CONFIG).is_file():
        from lightkit.runs.folder import RunFolder

        lock = RunFolder(folder.parent).begun()  # no process goes on with the run meanwhile
    with lock:
        staying, leaving = delete(
            folder, keep_last=last, keep_best=best, keep_every=every, mode=options.mode, dry_run=options.dry_run
        )
    for entry in leaving:
        say(f"{'would delete' if options.dry_run else 'deleted'}  {entry.file}  {size_text(entry.bytes)}")
    freed, kept = size_text(sum(entry.bytes for entry in leaving)), [entry.file for entry in staying]
    verb = "would be freed" if options.dry_run else "freed"
    say(f"{freed} {verb}; {', '.join(kept)} {'stays' if len(kept) == 1 else 'stay'}")
    return 0


def _inspect_run(folder: Path, options: Namespace) -> Path:
    """Print the checkpoints of a run, and return the newest."""
    from lightkit.checkpoint.facts import checkpoints
    from lightkit.checkpoint.manifest import ManifestError

    problem, listed = "", True
    try:
        rows = checkpoints(folder)
    except (OSError, ManifestError) as error:
        problem, listed = f"{error}; the table is made from the files that are whole", False
        rows = checkpoints(folder, listed=False)
    shown = table(list(rows[0]) if rows else ["file"], [[number(cell) for cell in row.values()] for row in rows])
    report(options, {"folder": folder, "checkpoints": rows}, lambda: [f"{folder}\n", shown])
    damaged = [row["file"] for row in rows if row["state"] != "whole"]
    if damaged:
        problem = f"{', '.join(damaged)} cannot be read" if len(damaged) < len(rows) else "no checkpoint can be read"
    elif not rows and listed:
        problem = "there is no checkpoint"
    if problem:
        raise UserError(problem, key=str(folder), exit_code=UNREADABLE)
    return folder / str(rows[-1]["file"])


def _inspect_ensemble(path: Path, options: Namespace) -> int:
    """Print what is in the file of an ensemble: its members, and where that is asked for their tensors."""
    from lightkit.checkpoint.facts import amount, size_text
    from lightkit.ensemble.file import read_ensemble

    found = read_ensemble(path)
    own = {id(tensor): tensor for member in found.members for tensor in member.state.values()}
    facts = [
        ("file", str(path)),
        ("kind", f"ensemble of {len(found.members)} for {found.task}"),
        ("size", size_text(path.stat().st_size)),
        ("rule", found.rule),
        *([("classes", ", ".join(found.classes))] if found.classes else []),
        ("weights", amount(own)),
    ]

    def text() -> Iterator[str]:
        yield table([], facts) + "\n"
        rows = [[member.name, number(member.weight), amount(member.state)] for member in found.members]
        yield table(["member", "weight", "network"], rows, right=[1])
        if options.tensors:
            tensors = [
                [f"{member.name}/{name}", "×".join(map(str, tensor.shape)) or "single", str(tensor.dtype)[6:]]
                for member in found.members
                for name, tensor in member.state.items()
            ]
            yield "\n" + table(_TENSOR, tensors)
        yield f"\ncheckpoints of a member: lightkit ckpt inspect {path.parent / run_files.MEMBERS}/NAME"

    members = [{"name": each.name, "weight": each.weight, "tensors": sorted(each.state)} for each in found.members]
    return report(options, {**dict(facts), "members": members}, text)


def _excerpt(config: str) -> list[tuple[str, str]]:
    """Return the lines of a configuration that say most."""
    if not config:
        return []
    tree = yaml_or_nothing(config) if len(config) < _LONGEST_CONFIG else {}
    lines = [("config", "")]
    for key in _TELLING:
        value: Any = tree
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, (int, float, str)):
            lines.append((f"  {key}", str(value)))
    return lines


def find_source(text: str) -> Path:
    """Return the file or folder that is meant: a path, or a run by its name.

    Raises:
        UserError: There is no such file or run.
    """
    path = Path(text)
    if path.is_file() or (path.is_dir() and not (path / run_files.CONFIG).is_file()):
        return path
    if path.suffix in _SUFFIXES:
        raise UserError("no such file", key=text, family="file")
    return find_run(text, project())


def checkpoint_folder(path: Path) -> Path | None:
    """Return the folder of checkpoints of a run or at a path; None where it is something else."""
    for folder in (path / run_files.CHECKPOINTS, path):
        if (folder / run_files.MANIFEST).is_file():
            return folder
    return None
