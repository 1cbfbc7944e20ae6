"""What a finished run leaves for other programs to read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from lightkit.assembly import Learner, build_network
from lightkit.assembly.network import base_state, build_base
from lightkit.checkpoint.delta import delta, fingerprint, write_delta
from lightkit.checkpoint.export import FILES, export
from lightkit.common.shards import is_shard
from lightkit.config import to_yaml
from lightkit.finetune.peft.merging import plain_names, unmergeable
from lightkit.runner.evaluation import load_weights
from lightkit.runner.models import plain_version


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
    load_weights(parts, "last" if cfg.trainer.test == "last" else "best", folder)
    if kind == "adapter":
        base = build_base(cfg, parts.data.info, parts.engine, run=folder)
        source = "" if base.report is None else base.report.source
        built, names = base_state(base), plain_names(parts.model)
        parts.engine.place_model(base.model)  # into the format that the trained weights are compared in
        found = delta(parts.model.state_dict(), base_state(base), names, source=source, config=to_yaml(cfg))
        formats = {tensor.dtype for tensor in built.values() if tensor.is_floating_point()}
        tensors = dict(found.tensors)
        if len(formats) == 1:  # floats in the format that the network is built with, whatever it was trained in
            (wanted,) = formats
            tensors |= {name: tensor.to(wanted) for name, tensor in tensors.items() if tensor.is_floating_point()}
        write_delta(folder / FILES[kind], replace(found, tensors=tensors, fingerprint=fingerprint(built)))
        return
    mergeable = not unmergeable(parts.model)
    model = plain_version(cfg, parts.data.info, parts.engine, parts.made) if mergeable else parts.model
    export(kind, folder, model)
