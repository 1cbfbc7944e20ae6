"""`lightkit ckpt convert` and `merge`: the weights of a run in other forms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightkit.cli.ckpt_source import cfg_of, cfg_of_adapter, given, reading, run_of
from lightkit.cli.terminal import say
from lightkit.common.errors import UserError

if TYPE_CHECKING:
    from lightkit.checkpoint.weights import Weights

# Everything of `lightkit.checkpoint` is imported inside the functions: it brings torch.

KINDS = ("weights", "safetensors", "model")
"""What a model can be written as."""
_WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt")
"""Names of files that hold tensors as PyTorch writes them."""
_LOW_RANK = (".lora_A", ".lora_B", ".base_layer.")
"""What the names of LoRA's tensors have in them, ours and peft's."""


def convert(args: list[str]) -> int:
    """Write the weights, or the whole state, in another form."""
    parser = reading("convert", "file", "out")
    parser.add_argument("--to", choices=[*KINDS, "state"])
    parser.add_argument("--overwrite", action="store_true")
    options = parser.read(args)
    path, out = given(options.file), free(options)
    kind = kind_of(options, out)
    from lightkit.checkpoint import export
    from lightkit.checkpoint.formats import open_file
    from lightkit.checkpoint.weights import read_weights

    weights = read_weights(path, trust=options.trust, key=options.key)
    if kind == "state":
        export.write_checkpoint(open_file(weights.path, trust=options.trust), out)
    elif kind == "model":
        from lightkit.runner.models import tuned_model

        export.write_model(tuned_model(cfg_of(_run(weights), trust=options.trust), weights), out)
    else:
        write(kind, weights.state, out)
    what = "whole checkpoint" if kind == "state" else f"{len(weights.state)} tensors"
    say(f"{what} of {weights.source} written to {out}")
    if kind != "state" and has_low_rank(weights):
        say("note: its LoRA matrices are written as they are; `lightkit ckpt merge` writes the plain model")
    return 0


def merge(args: list[str]) -> int:
    """Write the full model of a run or an adapter file in its plain architecture."""
    parser = reading("merge", "file", "out")
    parser.add_argument("--to", choices=KINDS)
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--base")
    options = parser.read(args)
    path, out = given(options.file), free(options)
    kind = kind_of(options, out)
    from lightkit.checkpoint.delta import read_delta
    from lightkit.checkpoint.weights import AdapterFileError, read_weights
    from lightkit.runner.models import plain_model

    try:
        weights = read_weights(path, trust=options.trust, key=options.key)
    except AdapterFileError:
        found = read_delta(path)
        model = plain_model(cfg_of_adapter(path, found, options.base, trust=options.trust))
        source = f"{path} on top of {options.base or found.source or 'its base'}"
    else:
        if options.base:
            raise UserError("only an adapter file needs its base", key="--base", received=options.base)
        model, source = plain_model(cfg_of(_run(weights), trust=options.trust), weights), weights.source
    state = model.state_dict()
    write(kind, state, out, model)
    say(f"{len(state)} tensors of {source}, merged, written to {out}")
    return 0


def free(options: Any) -> Path:
    """The file to write.

    Raises:
        UserError: There is one already, which is not to be replaced.
    """
    out = Path(options.out)
    if out.exists() and not options.overwrite:
        raise UserError("there is such a file already", key=str(out), fix="another name, or --overwrite")
    return out


def kind_of(options: Any, out: Path) -> str:
    """What to write: as asked for, or as the name of the file says.

    Raises:
        UserError: The name says nothing, and nothing was asked for.
    """
    if options.to:
        return str(options.to)
    if out.suffix == ".safetensors":
        return "safetensors"
    if out.suffix in _WEIGHT_FILES:
        return "weights"
    raise UserError(
        "the name does not say what to write",
        key=str(out),
        received=out.suffix or "no ending",
        choices=[".safetensors", *_WEIGHT_FILES],
        fix=f"an ending of these, or --to {'|'.join(KINDS)}",
    )


def write(kind: str, state: Any, out: Path, model: Any = None) -> None:
    """Write tensors by name, or with the kind `model` the model that holds them."""
    from lightkit.checkpoint import export

    if kind == "model":
        export.write_model(model, out)
    else:
        (export.write_safetensors if kind == "safetensors" else export.write_state_dict)(state, out)


def has_low_rank(weights: Weights) -> bool:
    """Whether there are matrices of LoRA among them, beside the weights they change."""
    return any(part in name for name in weights.state for part in _LOW_RANK)


def _run(weights: Weights) -> Path:
    """The folder of the run a checkpoint belongs to, whose model is to be built."""
    run = run_of(weights)
    if run is None:
        what = "the model can be built for a checkpoint in the folder of its run only"
        raise UserError(what, key=str(weights.path), fix="`lightkit ckpt convert` with --to weights or safetensors")
    return run
