"""What patterns and labels stand for, and what is said of those that stand for nothing."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.peft.blocks import find_blocks
from lightkit.finetune.peft.lora import SUPPORTED
from lightkit.models import TransformerLM


def network() -> nn.Module:
    """A network in which names end like others: those of `body` like those of `stem` and `head`."""
    return nn.Sequential(
        OrderedDict(
            stem=nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
            body=nn.Sequential(OrderedDict(stem=nn.Linear(4, 4), head=nn.LayerNorm(4))),
            attend=nn.MultiheadAttention(4, 2),
            head=nn.Linear(4, 2),
        )
    )


@pytest.fixture
def names() -> NetworkNames:
    return NetworkNames(network(), head="head", groups={"@blocks": ["body"], "@attention": ["attend"]})


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("stem.0.weight", "stem.0.weight"),
        ("stem.*", "stem.0.weight stem.0.bias stem.1.weight stem.1.bias"),
        ("stem", "stem.0.weight stem.0.bias stem.1.weight stem.1.bias"),
        ("re:^(stem|body).*weight$", "stem.0.weight stem.1.weight body.stem.weight body.head.weight"),
        ("@head", "head.weight head.bias"),
        ("@norm", "stem.1.weight stem.1.bias body.head.weight body.head.bias"),
        ("@conv", "stem.0.weight stem.0.bias"),
        ("@linear", "body.stem.weight body.stem.bias"),
        ("@blocks", "body.stem.weight body.stem.bias body.head.weight body.head.bias"),
        ("head.bias stem.0.bias", "stem.0.bias head.bias"),
        ("head", "head.weight head.bias"),
        ("*head", "body.head.weight body.head.bias head.weight head.bias"),
        ("body.*.bias", "body.stem.bias body.head.bias"),
        ("", ""),
    ],
)
def test_patterns_stand_for_parameters(names: NetworkNames, patterns: str, expected: str) -> None:
    assert names.find_parameters(patterns.split(), argument="k") == expected.split()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("@linear", "body.stem"),
        ("@linear head", "body.stem head"),
        ("*stem re:head$", "body.stem head"),
        ("@linear @conv", "stem.0 body.stem"),
        ("*", "stem.0 body.stem attend.out_proj head"),
        ("@attention @conv", "stem.0"),
    ],
)
def test_patterns_stand_for_modules_of_a_kind(names: NetworkNames, patterns: str, expected: str) -> None:
    assert names.find_modules(patterns.split(), argument="k", kinds=(nn.Linear, nn.Conv2d)) == expected.split()


def test_modules_by_path_count_beside_those_of_a_kind(names: NetworkNames) -> None:
    assert names.find_modules(["@attention"], argument="k", kinds=(), paths=["attend"]) == ["attend"]


def test_body_and_head_are_everything(names: NetworkNames) -> None:
    body, head = (names.find_parameters([label], argument="k") for label in ("@body", "@head"))
    assert sorted([*body, *head]) == sorted(names.aliases)


def test_biases_of_every_kind_are_found(names: NetworkNames) -> None:
    assert names.find_parameters(["@bias"], argument="k") == [name for name in names.aliases if name.endswith("bias")]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, bidirectional=True)
            self.attend = nn.MultiheadAttention(4, 2, add_bias_kv=True)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), "bias", dim=0)
            self.biased, self.bias_table = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
            self.biases, self.unbiased_mean = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))

    assert set(NetworkNames(Net(), head=None).find_parameters(["@bias"], argument="k")) == {
        *(f"rnn.{which}_l0{way}" for way in ("", "_reverse") for which in ("bias_ih", "bias_hh")),
        *(f"attend.{name}" for name in ("in_proj_bias", "bias_k", "bias_v", "out_proj.bias")),
        *(f"normed.parametrizations.bias.original{index}" for index in (0, 1)),
        "bias_table",
    }


def test_blocks_are_without_the_head() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(3)))
    names = NetworkNames(model, head="2.2", groups={"@blocks": find_blocks(model)})
    assert names.find_modules(["@blocks"], argument="k") == ["0", "1"]
    body = [name for name in names.aliases if not name.startswith("2.2.")]
    assert names.find_parameters(["@blocks"], argument="k") == body == names.find_parameters(["@body"], argument="k")
    alone = NetworkNames(nn.Sequential(nn.Linear(2, 2)), head="0", groups={"@blocks": ["0"]})
    with pytest.raises(UserError, match="matches no module"):
        alone.find_modules(["@blocks"], argument="k")
    with pytest.raises(UserError, match="matches no parameter"):
        alone.find_parameters(["@blocks"], argument="k")


def test_what_is_injected_later_has_a_label(names: NetworkNames) -> None:
    assert names.find_parameters(["@tuned"], argument="k") == []
    names.injected = ["body.stem.lora.a"]
    assert names.find_parameters(["@tuned", "head"], argument="k") == ["head.weight", "head.bias", "body.stem.lora.a"]


@pytest.mark.parametrize(
    ("patterns", "text"),
    [
        *((end, "matches no parameter") for end in ("0.*", "weight", "0.weight", "tem", "stem.0.weigh", "@embedding")),
        ("stem.* stem.0.wieght", r"(?s)^freeze: the pattern matches no parameter.*stem.0.wieght.*stem.0.weight"),
        ("@haed", "(?s)no such label.*@head"),
        ("re:(", "not a regular expression"),
    ],
)
def test_what_stands_for_no_parameter_is_refused_with_the_nearest(
    names: NetworkNames, patterns: str, text: str
) -> None:
    with pytest.raises(UserError, match=text):
        names.find_parameters(patterns.split(), argument="freeze")


def test_labels_may_stand_for_nothing_beside_others() -> None:
    names = NetworkNames(nn.Sequential(nn.Linear(2, 2)), head="0")
    assert names.find_parameters(["@norm", "@head"], argument="k")
    with pytest.raises(UserError, match="matches no parameter"):
        names.find_parameters(["@norm"], argument="k")
    with pytest.raises(UserError, match=r"(?s)no output layer.*finetune\.head\.name"):
        NetworkNames(nn.Sequential(nn.Conv2d(1, 1, 1)), head=None).find_parameters(["@head"], argument="k")


@pytest.mark.parametrize(
    ("pattern", "kinds", "text"),
    [
        *((pattern, None, "matches no module") for pattern in ("bodi.*", "0", "out_proj", "tem", "@embedding")),
        ("stem.1", (nn.Linear,), "(?s)can be used.*expected: Linear.*stem.1 is a BatchNorm2d"),
    ],
)
def test_what_stands_for_no_module_is_refused(names: NetworkNames, pattern: str, kinds: Any, text: str) -> None:
    with pytest.raises(UserError, match=text):
        names.find_modules([pattern], argument="lora.match", kinds=kinds)


def test_recurrent_layers_take_no_lora_and_the_way_out_is_given() -> None:
    model = nn.ModuleDict({"rnn": nn.GRU(3, 4), "head": nn.Linear(4, 2)})
    message = r"(?s)rnn is a GRU.*a recurrent layer runs as one operation.*finetune.train=\[rnn\] trains it"
    with pytest.raises(UserError, match=message):
        NetworkNames(model, head="head").find_modules(["rnn"], argument="lora.match", kinds=SUPPORTED)


def test_a_shared_tensor_has_all_its_names_and_cannot_be_frozen_and_trained() -> None:
    names = NetworkNames(TransformerLM(7, 5, dim=8, depth=1, heads=2), head="head")
    assert names.find_parameters(["head"], argument="k") == names.find_parameters(["embed.values.weight"], argument="k")
    keys = ("finetune.freeze", "finetune.train")
    with pytest.raises(UserError, match="(?s)one tensor.*embed.values.weight"):
        names.check_ties(["embed.*"], ["@head"], keys=keys)
    for frozen, trained in (("*", "@head"), ("embed.*", "embed.*"), ("blocks.*", "@head")):
        names.check_ties([frozen], [trained], keys=keys)


def test_an_attention_that_prefixes_do_not_know_is_named() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    names = NetworkNames(nn.ModuleDict({"attn": Attention()}), head=None, groups={"@attention": []})
    with pytest.raises(UserError, match="another way, such as finetune=lora: attn is a Attention, and prefixes know"):
        names.find_modules(["@attention"], argument="prefix.match", kinds=())
    with pytest.raises(UserError, match="@attention does not stand for a Attention, which can be named: attn"):
        names.find_modules(["@attention"], argument="adapter.match")
