"""Models of runs and adapter files built anew, to be written, measured or asked for predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from lightkit.assembly import Learner, Network, build_engine, build_network, build_splits
from lightkit.assembly.ensemble import build_ensemble, is_ensemble
from lightkit.assembly.network import base_state, build_base, build_model
from lightkit.assembly.origin import check_vocabulary, run_of
from lightkit.checkpoint.delta import delta, fingerprint, write_delta
from lightkit.checkpoint.export import FILES, export
from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.weights import Weights, load_weights, read_weights
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.modules import is_shard
from lightkit.config import to_plain, to_yaml
from lightkit.config.project import located
from lightkit.data import DataInfo
from lightkit.device import Engine
from lightkit.ensemble.module import Ensemble
from lightkit.finetune.new_head import replace_head
from lightkit.finetune.peft.merging import merged_state, plain_names, unmergeable
from lightkit.runner.evaluation import load_weights as load_checkpoint
from lightkit.runs.catalog import folds_of, has_checkpoints, has_members


def tuned_model(cfg: DictConfig, weights: Weights) -> nn.Module:
    """Build the model of a run as it was trained, with everything injected, and load its weights.

    Args:
        cfg: Configuration of the run.
        weights: Those of one of its checkpoints.

    Raises:
        UserError: A part cannot be built, or the weights do not fit.
    """
    engine, info = _surroundings(cfg)
    model = build_network(cfg, info, engine, pretrained=False, run=run_of(weights.path)).model
    load_weights(model, weights)
    return model


def ensemble_model(cfg: DictConfig, folder: Path) -> Ensemble:
    """Build a trained ensemble on the CPU.

    Args:
        cfg: Configuration of its run.
        folder: Its folder.

    Raises:
        UserError: Its file is damaged, or a network cannot be built.
    """
    engine, info = _surroundings(cfg)
    return build_ensemble(folder, info, engine, trust=to_plain(cfg.trust)).eval()


def plain_model(cfg: DictConfig, weights: Weights | None = None) -> nn.Module:
    """Build the model of a run in its plain architecture, with what was injected merged into its weights.

    Args:
        cfg: Configuration of the run.
        weights: Those of one of its checkpoints; None takes what the configuration names under `finetune.weights`.

    Raises:
        UserError: A part cannot be built, the weights do not fit, or something injected cannot be merged.
    """
    engine, info = _surroundings(cfg)
    adapter = cfg.finetune.get("weights", {}).get("adapter")
    path = weights.path if weights is not None else located(adapter) if adapter else None
    made = build_network(cfg, info, engine, pretrained=weights is None, run=run_of(path) if path else None)
    if weights is not None:
        load_weights(made.model, weights)
    return plain_version(cfg, info, engine, made)


def plain_version(cfg: DictConfig, info: DataInfo, engine: Engine, made: Network) -> nn.Module:
    """Build the network with nothing injected and with weights that compute the same, on the CPU.

    Args:
        cfg: The configuration.
        info: Facts about the data.
        engine: Gives the building its random numbers.
        made: The network as it is; not changed. Where nothing was injected, it is given back itself.

    Raises:
        UserError: Something in it cannot be merged.
    """
    if made.prepared is None or not made.prepared.injected:
        return made.model
    state, head = merged_state(made.model), made.prepared.head
    plain = build_model(cfg, info, engine)
    if head and made.prepared.replaced:
        replace_head(plain, head, info.vocab_size or info.num_classes)
    fit(plain, state, source="the merged weights")
    return plain


def with_checkpoint(parts: Learner, checkpoint: str, folder: Path, cfg: DictConfig) -> Learner:
    """Load the weights of a checkpoint, or any weights of its network, into the parts of a run.

    Args:
        parts: The parts; their network is changed.
        checkpoint: `best`, `last`, the path of a checkpoint file, or a file of weights of the network as it was trained
            or of its plain architecture.
        folder: The run's folder.
        cfg: Its configuration.

    Raises:
        UserError: There is no such checkpoint, its weights do not fit the network, or the data are a text with another
            vocabulary than the run was trained with.
    """
    check_vocabulary(folder, parts.data.info, key="data.dataset")
    if checkpoint in ("best", "last"):
        load_checkpoint(parts, checkpoint, folder)
        return parts
    weights = read_weights(Path(checkpoint))
    if weights.kind == "lightkit checkpoint":
        load_checkpoint(parts, checkpoint, folder)
        return parts
    return with_state(parts, weights.state, cfg, source=weights.source)


def holds_ensemble(folder: Path, checkpoint: str, members: Sequence[str]) -> bool:
    """Tell whether a folder holds a trained ensemble.

    Args:
        folder: That of a run.
        checkpoint: Which of its checkpoints is asked for.
        members: Which of its members are asked for; empty for all.

    Raises:
        UserError: An ensemble has no such checkpoint, or is not complete; or a single model is asked for members.
    """
    refuse_folds(folder)
    one = f"{folder / run_files.MEMBERS}/NAME is the run of one member, with checkpoints of its own"
    if not is_ensemble(folder):
        if has_members(folder) and not has_checkpoints(folder):
            fix = f"`lightkit resume` trains the rest; {one}"
            raise UserError("the ensemble is not complete", key=str(folder), fix=fix, family="ensemble")
        if members:
            what = "only an ensemble has members, this is one model"
            raise UserError(what, key="--members", received=",".join(members), family="ensemble")
        return False
    if checkpoint != "best":
        what = "an ensemble has no checkpoints to choose from: its file holds the weights of each member that count"
        raise UserError(what, key="--checkpoint", received=checkpoint, fix=one, family="ensemble")
    return True


def refuse_folds(folder: Path) -> None:
    """Refuse to take a cross-validation for one model.

    Raises:
        UserError: It is a cross-validation.
    """
    folds = folds_of(folder)
    if folds:
        refit = folder / run_files.MEMBERS / run_files.REFIT
        own = refit if refit.is_dir() else folds[0]
        fix = f"{own}; `lightkit predict {folder} --input FILE` predicts by all of them"
        what = "this run is a cross-validation: each of its folds has a model"
        raise UserError(what, key=str(folder), fix=fix, family="ensemble")


def with_ensemble(parts: Learner, folder: Path, cfg: DictConfig, members: Sequence[str] = ()) -> Learner:
    """Put a trained ensemble in the place of the model.

    Args:
        parts: The parts of its run.
        folder: Its folder.
        cfg: Its configuration.
        members: Names of the members to take; none takes all.

    Raises:
        UserError: Its file is damaged, or has no such member.
    """
    ensemble = build_ensemble(folder, parts.data.info, parts.engine, trust=to_plain(cfg.trust), members=members)
    model = parts.engine.place_model(ensemble)
    return replace(parts, model=model, network=parts.engine.wrap(model))


def with_state(parts: Learner, state: Mapping[str, Tensor], cfg: DictConfig, *, source: str) -> Learner:
    """Load other weights into the parts, of the network as it was trained or of its plain architecture.

    Raises:
        UserError: They fit neither, or hold NaN or infinities.
    """
    chosen = parts
    if not parts.model.state_dict().keys() <= state.keys():
        model = parts.engine.place_model(plain_version(cfg, parts.data.info, parts.engine, parts.made))
        chosen = replace(parts, model=model, network=parts.engine.wrap(model))
    fit(chosen.model, state, source=source, finite=True)
    return chosen


def _surroundings(cfg: DictConfig) -> tuple[Engine, DataInfo]:
    """Build the engine, and read the sizes of the data, which a network is built with."""
    engine = build_engine(cfg)
    data = build_splits(OmegaConf.merge(cfg, {"data": {"normalize": "none"}}), engine)  # type: ignore[arg-type]
    data.close()
    return engine, data.info


def export_run(cfg: DictConfig, folder: Path, parts: Learner) -> None:
    """Write the weights that count into the run's folder, as `checkpoint.export` asks for.

    Low-rank updates are merged, so that the plain architecture opens the file. What cannot be merged (adapters,
    prefixes, LoRA after spectral norm) is written as it is in the network. An `adapter` holds only what differs from
    the pretrained weights.

    Raises:
        UserError: The file cannot be written.
    """
    kind = cfg.checkpoint.export
    if not parts.store or kind == "none":
        return
    if any(map(is_shard, parts.model.parameters())):  # this process holds a part of the model only
        made = build_network(cfg, parts.data.info, parts.engine, pretrained=False, run=folder)
        parts = replace(parts, made=made, model=made.model)
    load_checkpoint(parts, "last" if cfg.trainer.test == "last" else "best", folder)
    if kind == "adapter":
        base = build_base(cfg, parts.data.info, parts.engine, run=folder)
        source = "" if base.report is None else base.report.source
        built, names = base_state(base), plain_names(parts.model)
        parts.engine.place_model(base.model)  # into the format that the trained weights are compared in
        change = delta(parts.model.state_dict(), base_state(base), names, source=source, config=to_yaml(cfg))
        formats = {tensor.dtype for tensor in built.values() if tensor.is_floating_point()}
        tensors = dict(change.tensors)
        if len(formats) == 1:  # floats in the format that the network is built with, whatever it was trained in
            (wanted,) = formats
            tensors |= {name: tensor.to(wanted) for name, tensor in tensors.items() if tensor.is_floating_point()}
        write_delta(folder / FILES[kind], replace(change, tensors=tensors, fingerprint=fingerprint(built)))
        return
    mergeable = not unmergeable(parts.model)
    model = plain_version(cfg, parts.data.info, parts.engine, parts.made) if mergeable else parts.model
    export(kind, folder, model, protocol=cfg.checkpoint.pickle_protocol)
