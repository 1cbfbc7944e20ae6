"""What every key that takes patterns means by them, to the last name, on networks where names end like others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.assembly import build
from lightkit.checkpoint.store import CheckpointStore
from lightkit.config import compose
from lightkit.config.describe import describe_group
from lightkit.config.finetuning import pattern_places
from tests.conftest import Outcome

Cli = Callable[..., Outcome]
RESNET = (
    *("data=shapes", "data.dataset.size=16", "data.dataset.train=24", "data.dataset.val=8", "data.dataset.test=8"),
    *("model=resnet18", "model.width=4"),
)
LINEAR = "model._target_=deep_nets.linear"
DEEP = ("data=wine", "model=custom", LINEAR, "trainer.epochs=2")
QUIET = ("device=cpu", "logger.console.style=quiet", "logger.tensorboard.enabled=false", "metrics.figures=[]")
NETS = """
from torch import nn

def linear(in_features, num_classes):
    sizes = [in_features, *[4] * 11, num_classes]
    return nn.Sequential(*(nn.Linear(*pair) for pair in zip(sizes, sizes[1:])))

class Attending(nn.Module):
    def __init__(self, in_features, num_classes):
        super().__init__()
        self.enter = nn.Linear(in_features, 8)
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True) for _ in range(12)))
        self.head = nn.Linear(8, num_classes)

    def forward(self, x):
        return self.head(self.layers(self.enter(x).unsqueeze(1)).mean(1))
"""


@pytest.fixture
def nets(project: Path) -> Path:
    (project / "deep_nets.py").write_text(NETS)
    return project


def planned(cli: Cli, *args: str) -> Any:
    done = cli("plan", *args, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def found(cli: Cli, *args: str) -> dict[tuple[str, str], list[str]]:
    """The names that each pattern of each key stands for: modules where it chooses modules."""
    rows = planned(cli, *args)["patterns"]
    return {(row["key"], row["pattern"]): row.get("modules", row["names"]) for row in rows}


def both(path: str) -> list[str]:
    return [f"{path}.weight", f"{path}.bias"]


BLOCK = ["conv1.weight", *both("bn1"), "conv2.weight", *both("bn2")]


def test_parameters_of_a_resnet(cli: Cli) -> None:
    assert found(
        cli,
        *RESNET,
        "finetune=full",
        r"finetune.freeze=[conv1,'layer1.0.bn?.*','re:^layer2\.0\.downsample',layer3.0.conv1.weight]",
        "finetune.train=[layer1.0.bn2.bias]",
        "finetune.schedule=[{epoch: 1, unfreeze: [conv1], freeze: [bn1]}]",
        "optim.rules=[{match: layer3.1, lr_scale: 0.5}, {match: [fc.bias, 'layer4.[1-9].bn1.*'], lr: 1e-4},"
        "{match: [layer1, '*.downsample.1.bias'], lr_scale: 0.5}]",
        "device.activation_checkpointing=[layer1.0,'layer[34].1','re:^layer2$']",
    ) == {
        # Of rules of the optimizer, what is frozen is left out.
        ("optim.rules[2].match", "layer1"): [
            *("layer1.0.conv1.weight", "layer1.0.conv2.weight", "layer1.0.bn2.bias"),
            *(f"layer1.1.{name}" for name in BLOCK),
        ],
        ("optim.rules[2].match", "*.downsample.1.bias"): [f"layer{layer}.0.downsample.1.bias" for layer in "34"],
        ("finetune.freeze", "conv1"): ["conv1.weight"],
        ("finetune.freeze", "layer1.0.bn?.*"): [*both("layer1.0.bn1"), *both("layer1.0.bn2")],
        ("finetune.freeze", r"re:^layer2\.0\.downsample"): [
            "layer2.0.downsample.0.weight",
            *both("layer2.0.downsample.1"),
        ],
        ("finetune.freeze", "layer3.0.conv1.weight"): ["layer3.0.conv1.weight"],
        ("finetune.train", "layer1.0.bn2.bias"): ["layer1.0.bn2.bias"],
        ("finetune.schedule[0].unfreeze", "conv1"): ["conv1.weight"],
        ("finetune.schedule[0].freeze", "bn1"): both("bn1"),
        ("optim.rules[0].match", "layer3.1"): [f"layer3.1.{name}" for name in BLOCK],
        ("optim.rules[1].match", "fc.bias"): ["fc.bias"],
        ("optim.rules[1].match", "layer4.[1-9].bn1.*"): both("layer4.1.bn1"),
        ("device.activation_checkpointing", "layer1.0"): ["layer1.0"],
        ("device.activation_checkpointing", "layer[34].1"): ["layer3.1", "layer4.1"],
        ("device.activation_checkpointing", "re:^layer2$"): ["layer2"],
    }


def test_what_is_put_into_a_resnet(cli: Cli) -> None:
    assert found(
        cli,
        *RESNET,
        "finetune=lora",
        "finetune.lora.match=[conv1,'layer1.*','re:^layer4.*conv2$']",
        "finetune.lora.ranks={layer1.0.conv1: 2, layer1.1.*: 3}",
        "finetune.lora.rank=1",
        "finetune.adapter.match=[layer1.0]",
        "finetune.adapter.width=2",
    ) == {
        ("finetune.freeze", "*"): [name for name, _ in torch_resnet()],
        ("finetune.train", "@head"): both("fc"),
        ("finetune.lora.match", "conv1"): ["conv1"],
        ("finetune.lora.match", "layer1.*"): [f"layer1.{block}.conv{conv}" for block in "01" for conv in "12"],
        ("finetune.lora.match", "re:^layer4.*conv2$"): ["layer4.0.conv2", "layer4.1.conv2"],
        ("finetune.lora.ranks", "layer1.0.conv1"): ["layer1.0.conv1"],
        ("finetune.lora.ranks", "layer1.1.*"): ["layer1.1.conv1", "layer1.1.conv2"],
        ("finetune.adapter.match", "layer1.0"): ["layer1.0"],
    }


def torch_resnet() -> list[tuple[str, torch.nn.Parameter]]:
    from lightkit.models import ResNet

    return list(ResNet((3, 16, 16), 8, depth=18, width=4).named_parameters())


def test_what_is_put_into_a_deep_sequential(cli: Cli, nets: Path) -> None:
    attending = (*DEEP, "model._target_=deep_nets.Attending", "finetune=full")
    assert found(
        cli,
        *attending,
        "finetune.lora.match=[layers.0.linear1,'layers.1.*']",
        "finetune.lora.ranks={layers.1.linear2: 2}",
        "finetune.adapter.match=[layers.2]",
        "finetune.adapter.width=2",
        "finetune.prefix.match=[layers.3.self_attn]",
    ) == {
        ("finetune.lora.match", "layers.0.linear1"): ["layers.0.linear1"],
        ("finetune.lora.match", "layers.1.*"): [
            f"layers.1.{name}" for name in ("self_attn", "self_attn.out_proj", "linear1", "linear2")
        ],
        ("finetune.lora.ranks", "layers.1.linear2"): ["layers.1.linear2"],
        ("finetune.adapter.match", "layers.2"): ["layers.2"],
        ("finetune.prefix.match", "layers.3.self_attn"): ["layers.3.self_attn"],
    }
    numbers = ("finetune.lora.match=['1*','0']", "finetune.lora.rank=2", "finetune.freeze=['1',2.weight]")
    assert found(cli, *attending, *numbers, "device.activation_checkpointing=['1[01]']", LINEAR) == {
        ("finetune.freeze", "1"): both("1"),
        ("finetune.freeze", "2.weight"): ["2.weight"],
        ("finetune.lora.match", "1*"): ["1", "10", "11"],
        ("finetune.lora.match", "0"): ["0"],
        ("device.activation_checkpointing", "1[01]"): ["10", "11"],
    }


NO_NAMES = {
    "finetune.freeze=[onv1]": "finetune.freeze: the pattern matches no parameter",
    "finetune.lora.match=[conv2]": "finetune.lora.match: the pattern matches no module",
    "finetune.lora.match=[layer1]": "name what is in it: layer1.*",
    "optim.rules=[{match: '0.*', lr_scale: 0.5}]": "optim.rules[0].match: the pattern matches no trainable",
    "device.activation_checkpointing=['0']": "device.activation_checkpointing: the pattern matches no module",
    "device.activation_checkpointing=[@blocks]": "device.activation_checkpointing[0]: names only here",
    "resume.override=['re:(']": "resume.override[0]: not a regular expression",
}


@pytest.mark.thorough
@pytest.mark.parametrize("override", NO_NAMES)
def test_the_end_of_a_name_is_no_name(cli: Cli, override: str) -> None:
    done = cli("plan", *RESNET, override)
    assert done.code == 2
    assert NO_NAMES[override] in done.err


def test_the_table_counts_modules_tensors_and_parameters(cli: Cli, nets: Path) -> None:
    done = cli(
        "plan", *DEEP, "finetune=full", "finetune.freeze=['0.*']", "finetune.lora.match=['1*']", "finetune.lora.rank=2"
    )
    assert done.code == 0, done.err
    (table,) = (part for part in done.out.split("\n\n") if part.startswith("key "))
    assert [line.split() for line in table.splitlines()] == [
        ["key", "pattern", "modules", "tensors", "parameters"],
        ["finetune.freeze", "0.*", "2", "56"],
        ["finetune.lora.match", "1*", "3", "6", "55"],
    ]


def test_a_run_trains_what_its_patterns_say(cli: Cli, nets: Path) -> None:
    args = (*DEEP, *QUIET, "finetune=full", "finetune.freeze=['0.*']", "optim.lr=0.1")
    done = cli("train", *args, "hydra.run.dir=run")
    assert done.code == 0, done.err
    parts = build(compose(args).cfg, nets / "unused")
    parts.data.close()
    saved = CheckpointStore(nets / "run/checkpoints").load_newest()
    assert saved is not None
    before, after = parts.model.state_dict(), saved[1]["model"]
    assert [name for name in before if torch.equal(before[name], after[name])] == both("0")
    noted = json.loads((nets / "run/finetune.json").read_text())
    assert noted["patterns"] == [{"key": "finetune.freeze", "pattern": "0.*", "names": both("0"), "parameters": 56}]


def test_tied_tensors_count_once_under_their_first_name(cli: Cli, project: Path) -> None:
    (project / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    small = ("data=text", "data.dataset.path=text.txt", "data.dataset.context_length=8", "model=transformer_lm")
    sizes = ("model.dim=16", "model.depth=1", "model.heads=2", "finetune.lora.rank=2")
    names = found(cli, *small, *sizes, "finetune=lora", "finetune.lora.match=[@linear,embed.values]")
    assert names["finetune.train", "@head"] == ["embed.values.weight"]
    assert names["finetune.lora.match", "embed.values"] == ["embed.values"]


def test_every_key_that_takes_patterns_is_here() -> None:
    """A field whose docstring speaks of patterns is one that the check knows, or is looked after elsewhere."""
    elsewhere = {
        "finetune.weights.mapping",  # new names: tests/checkpoint/test_names.py
        *("optim.rules", "optim.rules[].name"),
    }
    finetune = {"schedule": [{}], "lora": {"ranks": {"a": 1}}}
    places = pattern_places({"finetune": finetune, "optim": {"rules": [{}]}})
    known = {re.sub(r"\.(\d+)", "[]", ".".join(map(str, key))).removesuffix(".a") for key, _, _ in places}
    rows = [row for group in ("finetune", "optim", "device", "resume") for row in describe_group(group)]
    assert {row.key for row in rows if re.search("pattern|glob", row.meaning, re.IGNORECASE)} == known | elsewhere
