"""The network of a run: built, given pretrained weights, and made ready for fine-tuning."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from lightkit.assembly.dry_run import unnoticed
from lightkit.assembly.origin import check_vocabulary, embeds_tokens, head_of_run, other_classes
from lightkit.assembly.parts import build_loss, role_of
from lightkit.checkpoint.delta import apply_delta, fingerprint, read_delta
from lightkit.checkpoint.names import renamed
from lightkit.checkpoint.weights import Weights, load_weights, read_weights
from lightkit.common import run_files
from lightkit.common.errors import UserError, keys_under
from lightkit.config import instantiate, load_run, saved_group, to_plain
from lightkit.config.project import located
from lightkit.config.schema import FinetuneConfig
from lightkit.data import Data, DataInfo
from lightkit.data.probe import small_batch
from lightkit.device import Engine
from lightkit.ensemble.module import Joint
from lightkit.finetune.head import find_head
from lightkit.finetune.peft.merging import merged_state, plain_names
from lightkit.finetune.prepare import prepare
from lightkit.finetune.tracing import Forward
from lightkit.optim.layers import layer_depths
from lightkit.trainer.learner import Network
from lightkit.trainer.tasks import Retrieval, Supervised, Task, logits
from lightkit.trainer.timetable import Timetable

_ASKED = "finetune.weights."
_INJECTED = ("lora", "adapter", "prefix")
_ASKING = ("freeze", "train", "schedule", "rules", "layer_decay", "slices")
_SIZES = ("num_classes", "num_labels", "vocab_size", "out_features")
_CPU = torch.device("cpu")
_SAMPLES = 2
_FEW = 16
"""Tokens that are tried first: a large language model takes long for a whole sample."""


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
    options = finetune_options(cfg)
    check_joint(cfg)
    made = build_base(cfg, info, engine, pretrained=pretrained, run=run, data=data)
    if options is None:
        return made
    adapter = options["weights"]["adapter"] if pretrained else None
    base = fingerprint(base_state(made)) if adapter else ""
    outputs = info.vocab_size or info.num_classes or None
    if options["head"]["replace"] == "auto" and any(name in cfg.model for name in _SIZES):
        outputs = None  # the model was told its own number and is to keep it
    prepared = prepare(
        made.model,
        options,
        outputs=outputs,
        depths=layer_depths,
        steps_per_epoch=timetable.steps_per_epoch if timetable else 1,
        total_steps=timetable.total_steps if timetable else sys.maxsize,
        fresh=[name for name in made.fresh if name in dict(made.model.named_parameters())],
        head=made.head,
    )
    report = made.report
    if adapter:
        source = "" if report is None else report.source
        apply_delta(made.model, read_delta(located(adapter)), base_fingerprint=base, base_source=source)
    return Network(made.model, report, made.head, prepared)


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
    model = build_model(cfg, info, engine)
    options = finetune_options(cfg)
    weights = options["weights"] if options else {}
    wanted = options["head"] if options else {}
    known = head_of_run(run, model) if run and not wanted.get("name") else None
    samples = forwards(cfg, info, engine, data) if options and not known else ()
    with keys_under("finetune.head"):
        head = known or (find_head(model, wanted["name"], samples) if options else None)
    if not pretrained or not weights.get("path"):
        return Network(model, head=head)
    found = _read(weights, info, engine, to_plain(cfg.trust))
    if embeds_tokens(model, info, found.state):
        check_vocabulary(located(weights["path"]), info, key=f"{_ASKED}path")
    do = weights["head"]
    if do == "keep" and wanted.get("replace") != "never" and other_classes(located(weights["path"]), info):
        do = "reset"
    chosen: dict[str, Any] = {"strict": weights["strict"], "head": do, "asked": _ASKED}
    report = load_weights(model, found, **chosen, head_name=head.parts if head else None)
    return Network(model, report, head)


def _read(weights: Mapping[str, Any], info: DataInfo, engine: Engine, trust: Sequence[str]) -> Weights:
    """Read weights from a file; LoRA's matrices, where a run has trained some, are merged into them."""
    path, mapping = located(weights["path"]), weights["mapping"] or None
    injected = (path / run_files.CONFIG).is_file()
    if injected:  # plain weights need nothing of the run built
        with suppress(AttributeError, TypeError):  # not written by lightkit: reading the whole file tells what is wrong
            injected = injects(_merged(asdict(FinetuneConfig()), saved_group(path, "finetune")))
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
    head = made.head or find_head(made.model, forwards=forwards(cfg, info, engine))
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
    if joint is None:
        return
    taught = OmegaConf.merge(cfg, {"finetune": {"distill": {"teacher": None}}})
    if finetune_options(cast(DictConfig, taught)) is None:
        return
    raise UserError(
        "the networks of this ensemble are trained as one and from the start: there is no one output layer to tune",
        key="finetune",
        received=f"ensemble={joint}",
        fix="ensemble=voting or bagging fine-tunes each member; without: finetune=none",
        family="ensemble",
    )


def check_base(cfg: DictConfig) -> None:
    """Refuse a run that goes on without the pretrained weights although its adapter file will be compared with them.

    Raises:
        UserError: They are gone.
    """
    options = finetune_options(cfg) if cfg.checkpoint.export == "adapter" else None
    path = options["weights"]["path"] if options else None
    if path and not located(path).exists():
        what = "the weights it began with are gone; the adapter file is what differs from them"
        raise UserError(what, key="finetune.weights.path", received=path, fix="put them back there", family="weights")


def base_state(made: Network) -> dict[str, torch.Tensor]:
    """Copy the tensors of a base: those that came from a file, or all where none was read."""
    state = made.model.state_dict()
    names = state if made.report is None else made.report.loaded
    return {name: state[name].detach().clone() for name in names if isinstance(state[name], torch.Tensor)}


def build_model(cfg: DictConfig, info: DataInfo, engine: Engine) -> nn.Module:
    """Build the network from its class, with the sizes of the data."""
    role = role_of(cfg)
    models = list[nn.Module]()
    for number in range(role.networks):
        engine.seed_init(number)
        models.append(instantiate(cfg.model, key="model", expected=nn.Module, **info.sizes()))
    model = models[0]
    if role.joint is not None:
        boosts = role.joint == "soft_gradient_boosting"
        model = Joint(models, stacked=boosts, scale=role.shrinkage if boosts else 1 / len(models))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(
            "the model has no trainable parameter", key="model", received=cfg.model["_target_"], family="finetuning"
        )
    return model


def finetune_options(cfg: DictConfig) -> dict[str, Any] | None:
    """Return all settings of the group `finetune` as plain values; None where it asks for nothing."""
    options = _merged(asdict(FinetuneConfig()), to_plain(cfg.finetune))
    weights, head, gradual = options["weights"], options["head"], options["gradual"]
    asked = [*(options[name] for name in _ASKING), weights["path"], weights["adapter"], options["distill"]["teacher"]]
    asked += [gradual[name] for name in ("every_epochs", "every_steps", "share")]
    changed = any(head[name] is not None for name in ("name", "lr", "lr_scale", "weight_decay"))
    if not any(asked) and not changed and head["replace"] != "always" and not injects(options):
        return None
    if options["peft"] is not None:
        options["peft"] = instantiate(cfg.finetune.peft, key="finetune.peft")
    return options


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


def forwards(cfg: DictConfig, info: DataInfo, engine: Engine, data: Data | None = None) -> list[Forward]:
    """List ways to run a network, in the order in which to try them.

    With the usual tasks that is on made-up inputs of the shape that the data tell, as numbers or as tokens; the others
    know by themselves what their model takes and which of its outputs count, and need a batch.

    Args:
        cfg: The configuration.
        info: Facts about the data.
        engine: Device and seeds.
        data: The data, for a batch of two of their samples; None goes without.
    """
    made_up = [_unnoticed(_on(make)) for make in _inputs(info)]
    batch = list[Forward]()
    if data is not None:
        train = data.train

        def by_task(model: nn.Module) -> Tensor:
            """Return the outputs that the task hands to the metrics, or else its loss."""
            task: Task = instantiate(cfg.trainer.task, key="trainer.task", expected=Task)
            criterion = build_loss(cfg, info, engine)
            if isinstance(criterion, nn.Module):
                criterion.to(_CPU)
            step = task.step(model, small_batch(train), criterion)
            return step.loss if step.preds is None else step.preds

        batch.append(_unnoticed(by_task))
    usual = {f"{kind.__module__}.{kind.__qualname__}" for kind in (Supervised, Retrieval)}
    return [*made_up, *batch] if cfg.trainer.task["_target_"] in usual else [*batch, *made_up]


def _inputs(info: DataInfo) -> list[Callable[[], Tensor]]:
    """Make functions that make up samples of the shape that the data has."""
    if info.vocab_size is not None:
        whole = info.context_length or (info.input_shape or (1,))[0]
        sizes = [(_SAMPLES, length) for length in sorted({min(whole, _FEW), whole})]
        return [partial(torch.clone, torch.arange(a * b).view(a, b) % info.vocab_size) for a, b in sizes]
    if not info.input_shape:
        return []
    shape = (_SAMPLES, *info.input_shape)
    numbers = torch.Generator().manual_seed(0)
    return [
        lambda: torch.rand(shape, generator=numbers).requires_grad_().clone(),
        lambda: torch.zeros(shape, dtype=torch.long),
    ]


def _on(make: Callable[[], Tensor]) -> Forward:
    return lambda model: _first(model(make()))


def _first(output: Any) -> Tensor:
    """Return the tensor that a loss would take, or the first of several."""
    output = logits(output)
    while isinstance(output, (Mapping, tuple, list)):
        output = next(iter(output.values() if isinstance(output, Mapping) else output))
    return output


def _unnoticed(forward: Forward) -> Forward:
    def quiet(model: nn.Module) -> Tensor:
        with unnoticed(_CPU):
            return forward(model)

    return quiet
