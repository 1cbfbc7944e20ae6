"""What is known of the model of a run before it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from lightkit.assembly import Learner, build
from lightkit.assembly.inspection import call_of, loss_of_batch, summary_of
from lightkit.config import compose
from lightkit.diagnostics.summary import ModelSummary


@contextmanager
def built(*overrides: str) -> Iterator[tuple[DictConfig, Learner]]:
    cfg = compose([*overrides, "device.name=cpu"]).cfg
    parts = build(cfg, Path("nowhere"))
    with closing(parts.data):
        yield cfg, parts


def summary(*overrides: str) -> ModelSummary:
    with built(*overrides) as (cfg, parts):
        return summary_of(cfg, parts)


MACS = {
    "data=wine model=soft_tree": 13 * 31 + 32 * 3,
    "data=wine model=tabm model.k=4 model.hidden=[16]": 4 * (13 * 16 + 16 * 3),
    "data=digits model=mlp model.hidden=[16]": 64 * 16 + 16 * 10,
}


def test_models_that_train_by_their_own_rules() -> None:
    for typed, macs in MACS.items():
        found = summary(*typed.split())
        assert found.flops.macs == macs
        assert found.memory is not None
        assert found.memory.parts["activations"]
        assert found.training is not None
        # A gradient of the input may not be needed; nothing else is saved.
        assert 2 < found.training.total / found.memory.samples / (2 * macs) <= 3
        assert found.notes == ()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["lora", "prefix", "head"])
def test_tuned_models(method: str) -> None:
    base = ["data=digits", "model=transformer", "model.depth=2", "model.dim=16"]
    plain, tuned = summary(*base), summary(*base, f"finetune={method}")
    assert plain.training is not None
    assert tuned.training is not None
    assert tuned.memory is not None
    assert plain.memory is not None
    # No gradient of frozen weights is computed or kept.
    assert tuned.layers.trainable < plain.layers.trainable
    assert tuned.training.total < plain.training.total
    assert tuned.memory.parts["gradients"] == 4 * tuned.layers.trainable
    assert tuned.flops.total >= plain.flops.total


def test_lora_by_hand() -> None:
    options = ["data=digits", "model=mlp", "model.hidden=[16]", "finetune=lora", "finetune.lora.rank=2"]
    with built(*options, "finetune.lora.match=['layers.linear0']") as (cfg, parts):
        found = summary_of(cfg, parts)
    assert found.flops.macs == 64 * 16 + 16 * 10 + 64 * 2 * 16  # its two matrices are multiplied once a pass
    assert found.layers.trainable == 2 * (64 + 16) + 17 * 10


def test_other_shapes_of_samples() -> None:
    with built("data=digits", "model=cnn") as (cfg, parts):
        large = summary_of(cfg, parts, shape=(1, 32, 32))
        assert call_of(parts, shape=(1, 32, 32)).args[0].shape == (1, 1, 32, 32)
        assert call_of(parts).args[0].shape == (1, 1, 8, 8)
    assert large.inputs == ((1, 1, 32, 32),)
    assert large.training is not None


def test_what_a_run_does_besides() -> None:
    assert summary("data=wine", "ensemble=voting").notes[0].startswith("one model of an ensemble (Voting)")
    assert "lightkit plan" in summary("data=digits", "model=cnn", "finetune=gradual").notes[0]


def test_processes_share_a_batch() -> None:
    found = summary("data=wine", "data.batch_size=64", "device=ddp", "device.nproc=4")
    assert found.memory is not None
    assert found.memory.samples == 16
    assert found.notes == ("the memory is that of one of 4 processes",)
    assert "a part of weights" in summary("data=wine", "device=fsdp", "device.nproc=2").notes[0]


@pytest.mark.thorough
@pytest.mark.parametrize("experiment", ["custom_task", "retrieval", "char_lm/transformer"])
def test_tasks_of_all_kinds(experiment: str) -> None:
    found = summary(f"experiment={experiment}")
    assert found.flops.total > 0
    assert found.training is not None
    assert found.notes == ()


def test_nothing_is_left_behind() -> None:
    with built("data=digits", "model=cnn") as (cfg, parts):
        before = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
        state = torch.get_rng_state()
        summary_of(cfg, parts)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(before[name], tensor) for name, tensor in parts.model.state_dict().items())
        assert not parts.optimizer.state


def test_the_loss_of_the_first_batch() -> None:
    with built("data=wine", "model.dropout=0.5", "data.batch_size=16") as (_, parts):
        loss = loss_of_batch(parts)
        first = loss()
        assert first.requires_grad
        assert torch.equal(first, loss())
        assert parts.model.training
