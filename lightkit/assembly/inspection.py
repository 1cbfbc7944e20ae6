"""A model as a run would train it, for a look at it before: how it is called, and what a step of training takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightkit.assembly.dry_run import unnoticed
from lightkit.assembly.parts import strategy_class
from lightkit.common.errors import UserError
from lightkit.config import to_plain
from lightkit.config.instantiate import instantiate
from lightkit.data.loaders import small_batch, small_size, whole_batch
from lightkit.diagnostics.flops import ModuleRule, count_flops, rule_name
from lightkit.diagnostics.footprint import enlarged, on_meta
from lightkit.diagnostics.layers import Call, first_call
from lightkit.diagnostics.summary import ModelSummary, TrainingSetup, summarize_training
from lightkit.trainer.learner import Learner

_CPU = torch.device("cpu")


def summary_of(cfg: DictConfig, parts: Learner, *, shape: Sequence[int] | None = None) -> ModelSummary:
    """Summarize the model of a run.

    Args:
        cfg: The configuration.
        parts: The parts of the run, on the CPU.
        shape: Shape of a sample's input, in the place of that of the data.

    Raises:
        UserError: The model cannot be run on such samples.
    """
    splits = strategy_class(cfg)[0].strategy.splits_batches
    processes, train = cfg.device.nproc if splits else 1, parts.data.train
    with unnoticed(_CPU):
        batch = _batch(parts, shape)
        training = TrainingSetup(
            optimizer=parts.optimizer,
            step=lambda model, given: parts.task.step(model, given, parts.criterion).loss,
            batch=batch,
            small=small_size(train),
            samples=min(train.num_samples, -(-train.batch_size // processes)),
            context=parts.engine.autocast,
            recomputed=to_plain(cfg.device.activation_checkpointing),
            average=parts.average.state_dict(),
            rules=build_flop_rules(cfg),
        )
        found = summarize_training(parts.model, training)
    return replace(found, notes=(*_notes(cfg, parts), *_unused(training.rules, parts.model), *found.notes))


def training_flops(cfg: DictConfig, parts: Learner) -> float | None:
    """Count the operations of a forward and backward pass for a sample, as `lightkit summary` does.

    Nothing is computed: of a model that looks at values, and of one of which this process holds a part, nothing is
    known.

    Args:
        cfg: The configuration.
        parts: The parts of the run, on any device.
    """
    criterion = parts.criterion
    try:
        with unnoticed(parts.engine.device):
            batch = small_batch(parts.data.train)
            loss = on_meta(criterion) if isinstance(criterion, nn.Module) else criterion
            rules = build_flop_rules(cfg)
            found = count_flops(
                parts.model,
                lambda model, given: parts.task.step(model, given, loss).loss,
                batch,
                backward=True,
                rules=rules,
                values=False,
            )
    except Exception:
        return None
    return found.total / small_size(parts.data.train)


def build_flop_rules(cfg: DictConfig) -> dict[str, ModuleRule]:
    """Build what counts the operations of modules of other packages, by the names of their classes.

    Raises:
        UserError: One cannot be built, or is no function.
    """
    rules: dict[str, ModuleRule] = {}
    for name, node in cfg.logger.flops.items():
        key = f"logger.flops.{name}"
        rules[str(name)] = instantiate(node, key=key)
        if not callable(rules[str(name)]):
            fix = f"'{key}={{_target_: MODULE.FUNCTION, _partial_: true}}'"
            what, expected = "counts nothing", "a function of a module, its inputs and its output"
            raise UserError(what, key=key, expected=expected, received=node["_target_"], fix=fix)
    return rules


def _unused(rules: Mapping[str, ModuleRule], model: nn.Module) -> Iterator[str]:
    """Say which rules are for classes that the model has none of."""
    used = {rule_name(module, rules) for module in model.modules()}
    for name in (name for name in rules if name not in used):
        yield f"logger.flops.{name}: the model has no module of this class"


def _notes(cfg: DictConfig, parts: Learner) -> Iterator[str]:
    """Say where the run trains more than this model in this state."""
    method = str(cfg.ensemble["_target_"]).rpartition(".")[2]
    if method != "NoEnsemble":
        yield f"one model of an ensemble ({method}), which trains several"
    if cfg.device.nproc > 1 and strategy_class(cfg)[0].strategy.shards_parameters:
        yield f"each of {cfg.device.nproc} processes keeps a part of weights, gradients and the optimizer's state only"
    elif cfg.device.nproc > 1:
        yield f"the memory is that of one of {cfg.device.nproc} processes"
    if parts.made.prepared is not None and len(parts.made.prepared.phases) > 1:
        yield "what trains changes in the run: `lightkit plan` shows its phases, this is the first"


def call_of(parts: Learner, *, shape: Sequence[int] | None = None) -> Call:
    """Return how a run calls its model on one sample; see `summary_of`."""

    def step(model: nn.Module) -> Any:
        return parts.task.step(model, batch, parts.criterion)

    with unnoticed(_CPU):
        batch = _batch(parts, shape)
        call = first_call(parts.model, step)
    return Call(*enlarged((call.args, dict(call.kwargs)), 2, 1))


def _batch(parts: Learner, shape: Sequence[int] | None) -> Any:
    """Read a batch of two samples, and give its first tensor another shape where one is asked for.

    Raises:
        UserError: The batch holds no tensor.
    """
    batch = small_batch(parts.data.train)
    if shape is None:
        return batch
    leaves, structure = tree_flatten(batch)
    at = next((number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)), None)
    if at is None:
        raise UserError("the batches hold no tensor", key="--input")
    leaves[at] = torch.zeros((len(leaves[at]), *shape), dtype=leaves[at].dtype)
    return tree_unflatten(leaves, structure)


def loss_of_batch(parts: Learner) -> Callable[[], Tensor]:
    """Return a function that computes the loss of the first batch of training, as the first step does."""

    def loss() -> Tensor:
        parts.network.train()
        parts.engine.seed(0, 0)
        batch = parts.engine.move(whole_batch(parts.data.train))
        with parts.engine.autocast():
            return parts.task.step(parts.network, batch, parts.criterion).loss

    return loss
