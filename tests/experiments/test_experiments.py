"""The parts that shipped experiments bring along, and models of others; every experiment trains in test_smoke."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments.custom_task.pairs import DigitPairs
from experiments.custom_task.task import distribution_of_sum
from experiments.transfer_text.corpus import language_reference, without_repetitions
from lightkit.config.sources import experiment_names
from tests.conftest import ROOT, Cli, Outcome

EXPERIMENTS = experiment_names(ROOT / "experiments")
ONE_EPOCH = ("trainer.steps=null", "trainer.epochs=1", "scheduler.warmup_epochs=0", "scheduler.warmup_steps=0")
WATCHED = ("trainer.watch.every=4", "trainer.watch.action=stop")  # nothing that must hold while training is ever broken
SHORTER = {
    "char_lm": ("data.dataset.max_chars=60000", "model.hidden=32"),
    "char_lm/transformer": ("data.dataset.max_chars=60000", "model.dim=32"),
    "finetune_timm": ("data.split.limit=32", "model.options.depth=3"),
    "finetune_timm/torchvision": ("data.split.limit=32",),
    "transfer_text": ("data.split.limit=32", "model.hidden=32"),
    "transfer_text/transformer": ("data.split.limit=32", "model.dim=32"),
}


def shortened(cli: Cli, name: str, *overrides: str) -> Outcome:
    fast = (
        *ONE_EPOCH,
        *SHORTER.get(name, ()),
        "logger.tensorboard.enabled=false",
        "device=cpu",
        "device.threads=1",
        *WATCHED,
    )
    outcome = cli("train", f"experiment={name}", *fast, *overrides)
    assert outcome.code == 0, outcome.out + outcome.err
    return outcome


def test_experiments_have_a_readme_with_their_command() -> None:
    for name, path in EXPERIMENTS.items():
        text = (path.parent / "README.md").read_text(encoding="utf-8")
        assert f"lightkit train experiment={name}" in text
        assert "Protocol" in text


def test_an_image_of_a_test_pair_is_in_no_other_pair() -> None:
    data = DigitPairs(train=400, val=100, test=100, seed=1)
    used = {name: set(data.pairs[rows].flatten().tolist()) for name, rows in data.splits.items()}

    assert not used["test"] & (used["train"] | used["val"])
    assert not used["val"] & used["train"]


def test_pairs_come_with_their_sum_and_depend_on_the_seed() -> None:
    data, again, other = (DigitPairs(train=50, val=10, test=10, seed=seed) for seed in (0, 0, 1))
    batch = data.take(torch.tensor([0, 60]))

    assert batch["left"].shape == batch["right"].shape == (2, 1, 8, 8)
    assert torch.equal(batch["sum"], data.images.y[data.pairs[[0, 60]]].sum(1))
    assert torch.equal(data.pairs, again.pairs)
    assert not torch.equal(data.pairs, other.pairs)
    assert data.info.fingerprint == again.info.fingerprint != other.info.fingerprint


def test_distribution_of_sum_counts_the_ways_to_reach_each_sum() -> None:
    even = torch.full((1, 10), 0.1)

    ways = torch.tensor([*range(1, 11), *range(9, 0, -1)]) / 100
    torch.testing.assert_close(distribution_of_sum(even, even), ways[None])


def test_distribution_of_sum_is_certain_where_both_digits_are() -> None:
    left, right = torch.eye(10)[[3, 9]], torch.eye(10)[[4, 9]]

    assert distribution_of_sum(left, right).argmax(1).tolist() == [7, 18]


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(
    ("name", "base", "method", "tensors"),
    [("transfer_text", "char_lm", "full", 7), ("transfer_text/transformer", "char_lm/transformer", "lora", 15)],
)
def test_a_model_of_python_is_measured_on_and_adapted_to_prose(
    name: str, base: str, method: str, tensors: int, cli: Cli, project: Path
) -> None:
    shortened(cli, base, "hydra.run.dir=outputs/base", "trainer.steps=2")
    other = "data.dataset.texts._target_=experiments.transfer_text.corpus.language_reference"

    assert cli("eval", "outputs/base", other, "data.dataset.val=0.1", "data.dataset.test=0.2").code == 0
    weights = "finetune.weights.path=outputs/base"
    outcome = shortened(cli, name, f"finetune={method}", weights, "trainer.epochs=null", "trainer.steps=2")
    assert f"{tensors} loaded" in outcome.out + outcome.err


def test_a_paragraph_is_kept_where_it_stands_first() -> None:
    texts = {"b": "new\n\nsame\n  words\n\nsame words", "a": "same words\n\n\n\nold", "c": "old"}

    assert without_repetitions(texts) == {"a": "same words\n\nold\n\n", "b": "new\n\n"}
    assert sum(map(len, language_reference().values())) > 200_000


@pytest.mark.thorough(first=0)
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("finetune_timm", ["finetune=head"]),
        ("finetune_timm", ["finetune=gradual"]),
        ("finetune_timm", ["finetune=full", "optim.layer_decay=0.75"]),
        ("finetune_timm", ["finetune=lora"]),
        ("finetune_timm/torchvision", ["finetune=gradual"]),
        ("finetune_timm/torchvision", ["finetune=[discriminative,lora]"]),
    ],
    ids=str,
)
def test_models_of_others_are_fine_tuned(name: str, overrides: list[str], cli: Cli) -> None:
    shortened(cli, name, *overrides, "data.batch_size=2")
