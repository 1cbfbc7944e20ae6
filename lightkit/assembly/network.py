"""The network of a run: built, given pretrained weights, and made ready for fine-tuning."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from lightkit.assembly.forwards import Depths, find_depths, forwards
from lightkit.assembly.origin import check_vocabulary, embeds_tokens, head_of_run, other_classes
from lightkit.assembly.parts import TRAINED_LOSS, role_of
from lightkit.checkpoint.delta import apply_delta, fingerprint, read_delta
from lightkit.checkpoint.names import renamed
from lightkit.checkpoint.weights import Weights, load_weights, read_weights
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.common.failures import in_short
from lightkit.common.modules import has_statistics, trains
from lightkit.config import defaults_of, instantiate, load_run, saved_group, to_plain
from lightkit.config.project import located
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.config.signatures import read_known
from lightkit.data import Data, DataInfo
from lightkit.device import Engine
from lightkit.ensemble.module import Joint
from lightkit.finetune.head import find_head
from lightkit.finetune.peft.merging import merged_state, plain_names
from lightkit.finetune.prepare import prepare
from lightkit.finetune.tracing import Forward
from lightkit.optim.layers import layer_depths
from lightkit.trainer.audit.observations import fingerprint as sums
from lightkit.trainer.learner import Network
from lightkit.trainer.state import Timetable

Make = Callable[[], nn.Module]
"""Builds a network, with the random numbers as they stand."""
_ASKED = "finetune.weights."
_INJECTED = ("lora", "adapter", "prefix")
_ASKING = ("freeze", "train", "schedule", "slices")
_GRADUAL = ("every_epochs", "every_steps", "share")
_SIZES = ("num_classes", "num_labels", "vocab_size", "out_features")


def build_network(
    cfg: DictConfig,
    info: DataInfo,
    engine: Engine,
    timetable: Timetable | None = None,
    *,
    pretrained: bool = True,
    run: Path | None = None,
    data: Data | None = None,
) -> Network:
    """Build the network as it is before the first step, on the CPU.

    Args:
        cfg: The configuration.
        info: Facts about the data.
        engine: Gives the building its random numbers.
        timetable: Lengths of the run, for what happens in mid-run; None where nothing will be trained.
        pretrained: Load pretrained weights; False where a checkpoint will be loaded anyway.
        run: Folder of a run that has begun, which keeps its output layer; None for others.
        data: Samples to run the network on, where made-up ones won't do.

    Raises:
        UserError: A part of it cannot be built or loaded, or does not fit.
    """
    check_joint(cfg)
    made = build_base(cfg, info, engine, pretrained=pretrained, run=run, data=data)
    options: Any = made.tuning
    by_depth = _asks_for_depths(cfg.optim.get("layer_decay"), options) and (timetable is not None or run is not None)
    depths: Depths = layer_depths
    notes: tuple[str, ...] = ()
    if by_depth:
        depths, notes = find_depths(made.model, forwards(cfg.trainer.task, cfg.loss, info, engine, data), run=run)
    if options is None:
        return replace(made, depths=depths(made.model) if by_depth else None, order_notes=notes)
    adapter = options["weights"]["adapter"] if pretrained else None
    base = fingerprint(base_state(made)) if adapter else ""
    outputs = info.vocab_size or info.num_classes or None
    if options["head"]["replace"] == "auto" and any(name in cfg.model for name in _SIZES):
        outputs = None  # the model was told its own number and is to keep it
    prepared = prepare(
        made.model,
        options,
        outputs=outputs,
        depths=depths,
        steps_per_epoch=timetable.steps_per_epoch if timetable else 1,
        total_steps=timetable.total_steps if timetable else sys.maxsize,
        fresh=[name for name in made.fresh if name in dict(made.model.named_parameters())],
        head=made.head,
    )
    if adapter:
        source = made.report.source if made.report else ""
        apply_delta(made.model, read_delta(located(adapter)), base_fingerprint=base, base_source=source)
    return replace(made, prepared=prepared, depths=prepared.depths if by_depth else None, order_notes=notes)


def build_base(
    cfg: DictConfig,
    info: DataInfo,
    engine: Engine,
    *,
    pretrained: bool = True,
    run: Path | None = None,
    data: Data | None = None,
) -> Network:
    """Build the network with its pretrained weights, before fine-tuning changes anything; see `build_network`."""
    model = build_model(cfg, info, engine, data)
    options = finetune_options(cfg)
    weights = options["weights"] if options else {}
    wanted = options["head"] if options else {}
    known = head_of_run(run, model) if run and not wanted.get("name") else None
    samples = forwards(cfg.trainer.task, cfg.loss, info, engine, data) if options and not known else ()
    with keys_under("finetune.head"):
        head = known or (find_head(model, wanted["name"], samples) if options else None)
    if not pretrained or not weights.get("path"):
        return Network(model, head=head, tuning=options)
    found = _read(weights, info, engine, to_plain(cfg.trust))
    if embeds_tokens(model, info, found.state):
        check_vocabulary(located(weights["path"]), info, key=f"{_ASKED}path")
    do = weights["head"]
    if do == "keep" and wanted.get("replace") != "never" and other_classes(located(weights["path"]), info):
        do = "reset"
    chosen: dict[str, Any] = {"strict": weights["strict"], "head": do, "asked": _ASKED}
    report = load_weights(model, found, **chosen, head_name=head.parts if head else None)
    loaded = {n: f"{hash((*sums(t).tolist(),)):x}" for n, t in model.state_dict().items() if n in report.loaded}
    return Network(model, report, head, tuning=options, loaded=loaded)


def _read(weights: Mapping[str, Any], info: DataInfo, engine: Engine, trust: Sequence[str]) -> Weights:
    """Read weights from a file; LoRA's matrices, where a run has trained some, are merged into them."""
    path, mapping = located(weights["path"]), weights["mapping"] or None
    injected = (path / run_files.CONFIG).is_file()
    if injected:  # plain weights need nothing of the run built
        with suppress(AttributeError, TypeError):  # not written by lightkit: reading the whole file tells what is wrong
            injected = injects(_merged(defaults_of(FinetuneConfig), saved_group(path, "finetune")))
    if not injected:
        with keys_under("finetune.weights"):
            return read_weights(path, trust=weights["trust"], key=weights["key"], mapping=mapping, asked=_ASKED)
    state = merged_state(trained_network(path, info, engine, trust=trust))
    if mapping:
        with keys_under("finetune.weights"):
            state = {new: state[old] for old, new in renamed(list(state), mapping).items()}
    return Weights(state, path, "run of lightkit", "merged")


def trained_network(
    run: Path,
    info: DataInfo,
    engine: Engine,
    *,
    trust: Sequence[str] = (),
    key: str = "finetune.weights.path",
    checkpoint: Path | None = None,
) -> nn.Module:
    """Build the network of a run with its weights, for inputs like these and with the outputs that it has learnt.

    Args:
        run: Folder of the run.
        info: Facts about the data.
        engine: Gives the building its random numbers.
        trust: What may be built for it beside the usual, where this project did not write it.
        key: The key that names it, for the messages.
        checkpoint: Where the weights are; None takes the best ones.

    Raises:
        UserError: It is not the folder of a run, has no weights, or is for inputs of another kind.
    """
    if not (run / run_files.CONFIG).is_file():
        raise UserError(
            "not the folder of a run", key=key, received=run, fix="`lightkit runs` lists them", family="no-such-run"
        )
    cfg, weights = load_run(run, trust=trust).cfg, read_weights(checkpoint or run)
    check_vocabulary(run, info, key=key)
    made = build_network(cfg, info, engine, pretrained=False, run=run)
    head = made.head or find_head(made.model, forwards=forwards(cfg.trainer.task, cfg.loss, info, engine))
    model = made.model
    outputs = known = info.vocab_size or info.num_classes
    if head:  # its outputs are what the weights have in the place of the data's number
        live = {plain: own for own, plain in plain_names(model).items()}
        name = live.get(f"{head.path}.weight", live.get(head.path, ""))
        own, weight = model.state_dict().get(name), weights.state.get(name)
        if own is not None and weight is not None and own.ndim == weight.ndim:
            outputs = next((new for old, new in zip(own.shape, weight.shape) if old == known != new), known)
    if outputs != known:
        learnt = replace(info, vocab_size=outputs)
        if info.vocab_size is None:
            learnt = replace(info, num_classes=outputs, class_names=())
        model = build_network(cfg, learnt, engine, pretrained=False, run=run).model
    load_weights(model, weights)
    return model


def check_joint(cfg: DictConfig) -> None:
    """Refuse to fine-tune networks that are trained as one: they have several output layers, and a base fits none.

    Raises:
        UserError: The configuration asks for more than a teacher.
    """
    joint = role_of(cfg).joint
    if joint is None or finetune_options(cfg, teacher=False) is None:
        return
    what = "the networks of this ensemble are trained as one and from the start: there is no one output layer to tune"
    fix = "ensemble=voting or bagging fine-tunes each member; without: finetune=none"
    raise UserError(what, key="finetune", received=f"ensemble={joint}", fix=fix, family="ensemble")


def check_base(path: str | None) -> None:
    """Refuse a run that goes on without the pretrained weights although its adapter file will be compared with them.

    Raises:
        UserError: They are gone.
    """
    if path and not located(path).exists():
        what = "the weights it began with are gone; the adapter file is what differs from them"
        raise UserError(what, key="finetune.weights.path", received=path, fix="put them back there", family="weights")


def base_state(made: Network) -> dict[str, torch.Tensor]:
    """Copy the tensors of a base: those that came from a file, or all where none was read."""
    state = made.model.state_dict()
    names = state if made.report is None else made.report.loaded
    return {name: state[name].detach().clone() for name in names if isinstance(state[name], torch.Tensor)}


def build_model(cfg: DictConfig, info: DataInfo, engine: Engine, data: Data | None = None) -> nn.Module:
    """Build the network from its class, with the sizes of the data; a few samples tell lazy layers theirs.

    Args:
        cfg: The configuration.
        info: Facts about the data.
        engine: Gives the building its random numbers.
        data: The data, where samples have to be read for that; None goes by their shape.

    Raises:
        UserError: It cannot be built, or has nothing to train.
    """
    role, signature = role_of(cfg), read_known(cfg.model["_target_"])
    if info.cardinalities and signature and "cardinalities" not in {item.name for item in signature.parameters}:
        what = "this model would take the numbers of names in data.dataset.embedded for amounts"
        fix = "model=tabular, or these columns in data.dataset.categorical"
        raise UserError(what, key="model", received=cfg.model["_target_"], fix=fix, family="model-misfit")
    models = list[nn.Module]()
    for number in range(role.networks):

        def make(number: int = number) -> nn.Module:
            engine.seed_init(number)
            built: nn.Module = instantiate(cfg.model, key="model", expected=nn.Module, info=info, **info.sizes())
            return built

        models.append(build_sized(make, forwards(cfg.trainer.task, cfg.loss, info, engine, data, whole=True)))
    model = models[0]
    if role.joint is not None:
        scale = role.shrinkage if role.joint == "soft_gradient_boosting" else 1 / len(models)
        model = Joint(models, stacked=role.joint != "fusion", scale=scale)
    if not trains(model):
        what, target = "the model has no trainable parameter", cfg.model["_target_"]
        raise UserError(what, key="model", received=target, family="finetuning")
    with suppress(UserError):  # where a loss is needed that cannot be built, that is told
        loss = instantiate(cfg.loss, key="loss", **info.sizes())
        if trains(loss):
            model.add_module(TRAINED_LOSS, loss)
    return model


def model_maker(cfg: DictConfig, info: DataInfo) -> Make | None:
    """Return what builds the network over and over again, as its node is read once.

    Args:
        cfg: The configuration, whose network was built before, and with success.
        info: Facts about the data.

    Returns:
        Builds one, with the random numbers as they stand; None where nodes within it, references or lazy layers ask for
        more.
    """
    node = to_plain(cfg.model)
    if any("_target_" in str(value) for value in node.values()) or "${" in str(OmegaConf.to_container(cfg.model)):
        return None
    tree = OmegaConf.create({"trust": to_plain(cfg.trust), "model": {**node, "_partial_": True}})
    call = instantiate(tree.model, key="model", info=info, **info.sizes())

    def make() -> nn.Module:
        made: nn.Module = copy.deepcopy(call)()  # a network may change what it is given
        return made

    return None if _lazy_layers(make()) else make


def finetune_options(cfg: DictConfig, *, teacher: bool = True) -> dict[str, Any] | None:
    """Return all settings of the group `finetune`, with the rules of the optimizer, as plain values.

    Returns:
        The settings; None where nothing is asked for (a teacher, if that is something), rules without labels apart.
    """
    options = _merged(defaults_of(FinetuneConfig), to_plain(cfg.finetune))
    options["rules"] = to_plain(cfg.optim.get("rules") or [])
    weights, head, gradual = options["weights"], options["head"], options["gradual"]
    asked = [*(options[name] for name in _ASKING), weights["path"], weights["adapter"]]
    asked += [*(gradual[name] for name in _GRADUAL), teacher and options["distill"]["teacher"]]
    asked += [options["body"]["lr_scale"], any("@" in str(rule["match"]) for rule in options["rules"])]
    changed = any(head[name] is not None for name in ("name", "lr", "lr_scale", "weight_decay"))
    if not any(asked) and not changed and head["replace"] != "always" and not injects(options):
        return None
    if options["peft"] is not None:
        options["peft"] = instantiate(cfg.finetune.peft, key="finetune.peft")
    return options


def _asks_for_depths(decay: float | None, options: Mapping[str, Any] | None) -> bool:
    """Tell whether rates or phases go by the depth of layers."""
    gradual = options["gradual"] if options else {}
    return any((decay, options and options["slices"], *(gradual.get(name) for name in _GRADUAL)))


def injects(options: Mapping[str, Any] | None) -> bool:
    """Tell whether the group `finetune` puts LoRA, adapters, prefixes or layers of peft into the network."""
    if not options:
        return False
    return bool(options["peft"] or any(options[part]["match"] for part in _INJECTED))


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in the defaults of settings that are not given, as in the file of an older lightkit."""
    merged = dict(defaults)
    for name, value in given.items():
        nested = isinstance(value, Mapping) and isinstance(defaults.get(name), Mapping) and defaults[name]
        merged[name] = _merged(defaults[name], value) if nested else value
    return merged


def build_sized(make: Callable[[], nn.Module], forwards: Sequence[Forward]) -> nn.Module:
    """Build a model, and run it on a sample if it has lazy layers, which get their sizes and first values by that.

    The values are drawn with the random numbers that follow those of the building. The model is built anew for each
    try: in eval mode, and then, for layers that only run in training, in training mode without new statistics.

    Args:
        make: Builds the model with its own random numbers.
        forwards: Ways to run it on a sample of the size that it will be trained with.

    Raises:
        UserError: There are lazy layers, and no such way gives all of them their sizes.
    """
    model = make()
    left = _lazy_layers(model)
    if not left:
        return model
    why, ran, mode = "" if forwards else "no sample of the inputs is known", False, model.training
    for training, forward in product((False, True), forwards):
        model = make()
        for module in model.modules():
            module.training = training and not has_statistics(module)
        try:
            with torch.no_grad():
                forward(model)
        except Exception as error:  # whatever a network may raise on inputs that are not its own
            why = why or f"a forward pass fails: {in_short(error)}"
            continue
        ran, left = True, _lazy_layers(model)
        if not left:
            return model.train(mode)
    raise UserError(
        f"layers without sizes do not get them from a batch: {'no forward pass uses them' if ran else why}",
        key="model",
        received=", ".join(left[:5]),
        expected="a forward pass that uses every lazy layer",
        fix="give these layers their sizes, or take out those that are not used",
        family="model-misfit",
    )


def _lazy_layers(model: nn.Module) -> list[str]:
    """Return the paths of the layers that have no sizes yet."""
    return [
        path or type(module).__name__
        for path, module in model.named_modules()
        if any(map(nn.parameter.is_lazy, (*module.parameters(recurse=False), *module.buffers(recurse=False))))
    ]
