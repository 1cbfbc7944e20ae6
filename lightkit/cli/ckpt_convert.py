"""`lightkit ckpt convert`, `merge` and `average`: the weights of runs in other forms, and of several as one model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lightkit.cli.arguments import Parser
from lightkit.cli.ckpt import find_source
from lightkit.cli.terminal import number, say, table
from lightkit.common import run_files
from lightkit.common.errors import UNREADABLE, UserError
from lightkit.common.reading import UnreadableError, parse_mapping, refuse_blank
from lightkit.common.text import counted
from lightkit.config import load_run
from lightkit.config.project import located
from lightkit.config.provenance import is_ours
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run

if TYPE_CHECKING:
    from lightkit.checkpoint.delta import Delta
    from lightkit.checkpoint.export import Member
    from lightkit.checkpoint.weights import Weights

# Everything of `lightkit.checkpoint` is imported inside the functions: it brings torch.

_KINDS = ("weights", "safetensors", "model")
"""What a model can be written as."""
_WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt")
"""Endings of files that hold tensors as PyTorch writes them."""
_LORA_NAMES = (".lora_A", ".lora_B", ".base_layer.")
"""What the names of LoRA's tensors have in them, ours and peft's."""


def convert(args: list[str]) -> int:
    """Write the weights, or the whole state, in another form."""
    options = Parser("ckpt convert", "file", "out").read(args)
    path, (out, kind) = find_source(options.file), _output(options)
    protocol = read_protocol(options.pickle_protocol, kind)
    if kind in ("torchensemble", "lightkit"):
        return _exchange(path, out, kind, options)
    from lightkit.checkpoint import export
    from lightkit.checkpoint.formats import open_file
    from lightkit.checkpoint.weights import read_weights

    run = path.parent if path.name == run_files.ENSEMBLE_WEIGHTS else path
    if (run / run_files.ENSEMBLE_WEIGHTS).is_file():
        return _convert_ensemble(run, out, kind, trust=options.trust, protocol=protocol)
    weights = read_weights(path, trust=options.trust, key=options.key)
    if kind == "state":
        export.write_checkpoint(open_file(weights.path, trust=options.trust), out)
    elif kind == "model":
        from lightkit.runner.models import tuned_model

        model = tuned_model(_cfg_of_run(weights, trust=options.trust), weights)
        export.write_model(model, out, protocol=protocol)
    else:
        _write(kind, weights.state, out, protocol=protocol)
    what = "whole checkpoint" if kind == "state" else counted(len(weights.state), "tensor")
    say(f"{what} of {weights.source} written to {out}")
    if kind == "weights" and protocol > export.PROTOCOL:
        say(f"note: in protocol {protocol} torch.load may open it with weights_only=False only")
    if kind != "state" and _has_lora(weights):
        say("note: its LoRA matrices are written as they are; `lightkit ckpt merge` writes the plain model")
    return 0


def _exchange(path: Path, out: Path, kind: str, options: Namespace) -> int:
    """Write the ensemble of a run as a file of torchensemble, or such a file as a run."""
    from lightkit.runner.ensemble.torchensemble_engine import export_torchensemble, import_torchensemble

    if kind == "torchensemble":
        file, call = export_torchensemble(path, read_cfg(path, trust=options.trust), out)
        say(f"{file}, which torchensemble reads with:\n\n{call}\n")
        return 0
    if options.like is None:
        raise UserError("which network does the file hold?", key="--like", expected="RUN, a run with such a network")
    like = find_run(options.like, project())
    import_torchensemble(path, like, read_cfg(like, trust=options.trust), out, trust=options.trust)
    say(f"{path} written to {out}, the folder of a run: lightkit eval {out}")
    return 0


def _convert_ensemble(run: Path, out: Path, kind: str, *, trust: bool, protocol: int) -> int:
    """Write a whole ensemble: as a module, or the tensors of one."""
    if kind == "state":
        what = "an ensemble has no state to go on from: each of its members has its own"
        fix = f"lightkit ckpt convert {run / run_files.MEMBERS}/NAME {out} --to state"
        raise UserError(what, key="--to", received=kind, choices=_KINDS, fix=fix, family="ensemble")
    from lightkit.runner.models import ensemble_model

    model = ensemble_model(read_cfg(run, trust=trust), run)
    state = model.state_dict()
    _write(kind, state, out, model, protocol=protocol)
    say(f"{counted(len(model), 'network')} with {counted(len(state) - 1, 'tensor')} of {run} written to {out}")
    if kind != "model":
        say("note: tensors of a member are under estimators.N, their shares under weights; --to model writes a module")
    return 0


def merge(args: list[str]) -> int:
    """Write the full model of a run or an adapter file in its plain architecture."""
    options = Parser("ckpt merge", "file", "out").read(args)
    path, (out, kind) = find_source(options.file), _output(options)
    from lightkit.checkpoint.delta import read_delta
    from lightkit.checkpoint.weights import AdapterFileError, read_weights
    from lightkit.runner.models import plain_model

    try:
        weights = read_weights(path, trust=options.trust, key=options.key)
    except AdapterFileError:
        found = read_delta(path)
        model = plain_model(read_adapter_cfg(path, found, options.base, trust=options.trust))
        source = f"{path} on top of {options.base or found.source or 'its base'}"
    else:
        if options.base:
            raise UserError("only an adapter file needs its base", key="--base", received=options.base)
        model, source = plain_model(_cfg_of_run(weights, trust=options.trust), weights), weights.source
    state = model.state_dict()
    _write(kind, state, out, model)
    say(f"{counted(len(state), 'tensor')} of {source}, merged, written to {out}")
    return 0


def average(args: list[str]) -> int:
    """Write the mean of the weights of several models, which were fine-tuned from the same weights.

    See https://arxiv.org/abs/2203.05482.
    """
    options = _average_options(args)
    out, kind = _output(options)
    from lightkit.checkpoint.export import average as mean
    from lightkit.checkpoint.fitting import fit
    from lightkit.checkpoint.weights import read_weights
    from lightkit.runner.models import plain_model

    sources = [_member(text, options) for text in options.files]
    members, runs = [member for member, _ in sources], [run for _, run in sources]
    soup = mean(members, options.shares)
    model = None
    if kind == "model":
        if runs[0] is None:
            raise UserError("a whole model needs a run as the first of the models", key="--to", received="model")
        model = plain_model(read_cfg(runs[0], trust=options.trust), read_weights(runs[0]))
        fit(model, soup.state, source="the average")
    _write(kind, soup.state, out, model)
    say(table(["model", "share"], [[label, number(share)] for label, share in soup.shares], right=[1]))
    say(f"\naverage of {counted(len(soup.shares), 'model')} written to {out}")
    if soup.statistics:
        what = f"{len(soup.statistics)} running means and variances of norm layers were averaged too, and may not"
        fix = "a few training batches in training mode would measure them anew"
        say(f"note: {what} suit the averaged weights; {fix}")
    run = next((run for run in runs if run), None)
    if run and kind != "model":
        say(f"measure it with: lightkit eval {run} --checkpoint {out}")
    return 0


def _average_options(args: list[str]) -> Namespace:
    """Parse the arguments of `average`; `shares` is how much each model counts, None for all the same."""
    options = Parser("ckpt average", "files+", "out").read(args)
    if len(options.files) < 2:
        expected = "two models or more, and the file to write"
        raise UserError("there is nothing to average", key="lightkit ckpt average", expected=expected)
    try:
        options.shares = None if options.weights is None else [float(part) for part in options.weights.split(",")]
    except ValueError as error:
        expected = "one a model, as 0.5,0.5"
        raise UserError("not numbers", key="--weights", received=options.weights, expected=expected) from error
    return options


def _member(text: str, options: Namespace) -> tuple[Member, Path | None]:
    """Read one of the models to average, and its run where it is one.

    LoRA is merged before: the mean of its matrices is not the mean of what they do.
    """
    from lightkit.checkpoint.delta import read_delta
    from lightkit.checkpoint.export import Member
    from lightkit.checkpoint.weights import AdapterFileError, read_weights
    from lightkit.runner.models import plain_model

    path = find_source(text)
    try:
        weights = read_weights(path, trust=options.trust, key=options.key)
    except AdapterFileError:
        model = plain_model(read_adapter_cfg(path, read_delta(path), trust=options.trust))
        return Member(text, model.state_dict()), None
    run = run_of(weights)
    if not _has_lora(weights):
        return Member(text, weights.state), run
    if run is None:
        what = "it holds the matrices of LoRA, and the mean of matrices is not the mean of what they do"
        fix = "`lightkit ckpt merge` its run, and average the merged weights"
        raise UserError(what, key=text, fix=fix, family="weights")
    return Member(text, plain_model(read_cfg(run, trust=options.trust), weights).state_dict()), run


def _output(options: Namespace) -> tuple[Path, str]:
    """Return the file to write, and what to write: as asked for, or as the name of the file says.

    Raises:
        UserError: There is such a file, which is not to be replaced, or its name says nothing and nothing was asked.
    """
    out = Path(options.out)
    if out.exists() and not options.overwrite:
        raise UserError("there is such a file already", key=str(out), fix="another name, or --overwrite", family="file")
    if options.to:
        return out, str(options.to)
    if out.suffix == ".safetensors":
        return out, "safetensors"
    if out.suffix in _WEIGHT_FILES:
        return out, "weights"
    received, choices = out.suffix or "no ending", [".safetensors", *_WEIGHT_FILES]
    what, fix = "the name does not say what to write", f"an ending of these, or --to {'|'.join(_KINDS)}"
    raise UserError(what, key=str(out), received=received, choices=choices, fix=fix, family="file")


def _write(kind: str, state: Any, out: Path, model: Any = None, *, protocol: int | None = None) -> None:
    """Write tensors by name, or with the kind `model` the model that holds them."""
    from lightkit.checkpoint import export

    protocol = export.PROTOCOL if protocol is None else protocol
    if kind == "model":
        export.write_model(model, out, protocol=protocol)
    elif kind == "safetensors":
        export.write_safetensors(state, out)
    else:
        export.write_state_dict(state, out, protocol=protocol)


def _has_lora(weights: Weights) -> bool:
    """Tell whether there are matrices of LoRA among them, beside the weights they change."""
    return any(part in name for name in weights.state for part in _LORA_NAMES)


def _cfg_of_run(weights: Weights, *, trust: bool) -> Any:
    """Return the configuration of the run a checkpoint belongs to, whose model is to be built."""
    run = run_of(weights)
    if run is None:
        what = "the model can be built for a checkpoint in the folder of its run only"
        raise UserError(what, key=str(weights.path), fix="`lightkit ckpt convert` with --to weights or safetensors")
    return read_cfg(run, trust=trust)


def run_of(weights: Weights) -> Path | None:
    """Return the folder of the run that wrote a checkpoint; None where it lies elsewhere, or is none."""
    run = weights.path.resolve().parent.parent
    return run if weights.kind == "lightkit checkpoint" and (run / run_files.CONFIG).is_file() else None


def read_cfg(run: Path, *, trust: bool = False) -> Any:
    """Read the configuration of a run, on the CPU.

    Args:
        run: Folder of the run.
        trust: The user answers for the run, which may be from elsewhere.
    """
    return read_run(run, ["device.name=cpu"], known=trust, fix="--trust if you know who made it").cfg


def read_adapter_cfg(path: Path, found: Delta, base: str | None = None, *, trust: bool = False) -> Any:
    """Read the configuration in an adapter file, with the adapter on top of its base.

    Args:
        path: The adapter file.
        found: What is in it.
        base: Its base weights; None looks where they were.
        trust: The user answers for the files: the base may be a pickle that runs code, and parts of the project may be
            built for an adapter file from elsewhere. What the file says of that counts for nothing.

    Raises:
        UserError: There is no usable configuration in it, or the base is not where it was.
    """
    import yaml

    known = trust or is_ours(path.resolve().parent, found.config)
    try:
        refuse_blank(found.config)
        tree = parse_mapping(found.config)
        weights = tree.setdefault("finetune", {}).setdefault("weights", {})
    except (UnreadableError, AttributeError) as error:
        what = "there is no configuration in the adapter file"
        raise UserError(what, key=str(path), exit_code=UNREADABLE) from error
    below = base or weights.get("path")
    if below is not None and not located(below).exists():
        what = "there is no such file" if base else "the base of the adapter is not where it was"
        raise UserError(what, key="--base", received=below, fix="--base FILE")
    below = below if below is None else str(located(below).resolve())
    weights |= {"adapter": str(path.resolve()), "path": below, "trust": trust}
    tree["device"] = {**(tree.get("device") or {}), "name": "cpu"}
    with TemporaryDirectory(prefix="lightkit-") as folder:
        (Path(folder) / run_files.CONFIG).write_text(yaml.safe_dump(tree), encoding="utf-8")
        return load_run(Path(folder), known=known, fix=f"--trust if you know who made {path}").cfg


def read_protocol(typed: str | None, kind: str) -> int:
    """Return the protocol of pickle to write; what is typed must be one, and for a file that holds a pickle.

    Raises:
        UserError: It is none, or the file has none of its own choice.
    """
    from lightkit.checkpoint.export import PROTOCOL

    if typed is None:
        return PROTOCOL
    if kind not in ("weights", "model"):
        what, fix = f"{kind} has no protocol of pickle to choose", "--to weights or --to model, or leave it out"
        raise UserError(what, key="--pickle-protocol", received=typed, fix=fix)
    if typed not in ("2", "3", "4", "5"):
        raise UserError("no such protocol", key="--pickle-protocol", received=typed, choices=("2", "3", "4", "5"))
    return int(typed)
