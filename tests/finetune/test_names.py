"""What patterns and labels stand for, and what is said of those that stand for nothing."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.peft.blocks import find_blocks
from lightkit.finetune.peft.lora import SUPPORTED
from lightkit.models import TransformerLM

KEY = "freeze"


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
        (["stem.0.weight"], ["stem.0.weight"]),
        (["stem.*"], ["stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias"]),
        (["stem"], ["stem.0.weight", "stem.0.bias", "stem.1.weight", "stem.1.bias"]),
        (["body.head"], ["body.head.weight", "body.head.bias"]),
        (["re:^(stem|body).*weight$"], ["stem.0.weight", "stem.1.weight", "body.stem.weight", "body.head.weight"]),
        (["@head"], ["head.weight", "head.bias"]),
        (["@norm"], ["stem.1.weight", "stem.1.bias", "body.head.weight", "body.head.bias"]),
        (["@conv"], ["stem.0.weight", "stem.0.bias"]),
        (["@linear"], ["body.stem.weight", "body.stem.bias"]),
        (["@blocks"], ["body.stem.weight", "body.stem.bias", "body.head.weight", "body.head.bias"]),
        (["head.bias", "stem.0.bias"], ["stem.0.bias", "head.bias"]),
        (["head"], ["head.weight", "head.bias"]),
        (["head.*"], ["head.weight", "head.bias"]),
        (["*head"], ["body.head.weight", "body.head.bias", "head.weight", "head.bias"]),
        (["body.*.bias"], ["body.stem.bias", "body.head.bias"]),
        ([], []),
    ],
)
def test_patterns_stand_for_parameters(names: NetworkNames, patterns: list[str], expected: list[str]) -> None:
    assert names.find_parameters(patterns, argument=KEY) == expected


def test_body_and_head_are_everything(names: NetworkNames) -> None:
    body, head = names.find_parameters(["@body"], argument=KEY), names.find_parameters(["@head"], argument=KEY)
    assert set(body) | set(head) == set(names.aliases)
    assert not set(body) & set(head)


def test_biases_of_every_kind_are_found(names: NetworkNames) -> None:
    assert names.find_parameters(["@bias"], argument=KEY) == [name for name in names.aliases if name.endswith("bias")]
    assert "attend.in_proj_bias" in names.find_parameters(["@bias"], argument=KEY)


def test_biases_of_recurrent_layers_and_attentions_are_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, bidirectional=True)
            self.attend = nn.MultiheadAttention(4, 2, add_bias_kv=True)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4), "bias", dim=0)
            self.biased, self.bias_table = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
            self.biases, self.unbiased_mean = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))

    found = NetworkNames(Net(), head=None).find_parameters(["@bias"], argument=KEY)
    ends = [f"{which}_l0{way}" for way in ("", "_reverse") for which in ("bias_ih", "bias_hh")]
    assert [name.removeprefix("rnn.") for name in found if name.startswith("rnn.")] == ends
    assert {name for name in found if name.startswith("attend.")} == {
        f"attend.{name}" for name in ("in_proj_bias", "bias_k", "bias_v", "out_proj.bias")
    }
    assert {name for name in found if name.startswith("normed.")} == {
        f"normed.parametrizations.bias.original{index}" for index in (0, 1)
    }
    assert [name for name in found if "." not in name] == ["bias_table"]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_take_no_lora_and_the_way_out_is_told(kind: type[nn.RNNBase]) -> None:
    model = nn.ModuleDict({"rnn": kind(3, 4), "head": nn.Linear(4, 2)})
    with pytest.raises(UserError, match=f"rnn is a {kind.__name__}") as caught:
        NetworkNames(model, head="head").find_modules(["rnn"], argument="lora.match", kinds=SUPPORTED)
    assert "a recurrent layer runs as one operation" in str(caught.value)
    assert "finetune.train=[rnn] trains it" in str(caught.value)


def ending_in_the_head() -> nn.Module:
    """Equal blocks, of which the last holds the output layer."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(3)))


def test_blocks_are_without_the_head() -> None:
    model = ending_in_the_head()
    names = NetworkNames(model, head="2.2", groups={"@blocks": find_blocks(model)})
    assert names.find_modules(["@blocks"], argument="k") == ["0", "1"]
    body = [name for name in names.aliases if not name.startswith("2.2.")]
    assert names.find_parameters(["@blocks"], argument=KEY) == body == names.find_parameters(["@body"], argument=KEY)


def test_a_block_that_is_the_head_alone_is_none() -> None:
    names = NetworkNames(nn.Sequential(nn.Linear(2, 2)), head="0", groups={"@blocks": ["0"]})
    with pytest.raises(UserError, match="matches no module"):
        names.find_modules(["@blocks"], argument="k")
    with pytest.raises(UserError, match="matches no parameter"):
        names.find_parameters(["@blocks"], argument=KEY)


def test_what_is_injected_later_has_a_label(names: NetworkNames) -> None:
    assert names.find_parameters(["@tuned"], argument=KEY) == []
    names.injected = ["body.stem.lora.a"]
    assert names.find_parameters(["@tuned", "head"], argument=KEY) == ["head.weight", "head.bias", "body.stem.lora.a"]


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_names(names: NetworkNames) -> None:
    for end in ("0.*", "weight", "0.weight", "tem", "stem.0.weigh"):
        with pytest.raises(UserError, match="matches no parameter"):
            names.find_parameters([end], argument=KEY)
    with pytest.raises(UserError, match="matches no parameter") as caught:
        names.find_parameters(["stem.*", "stem.0.wieght"], argument=KEY)
    text = str(caught.value)
    assert KEY in text
    assert "stem.0.wieght" in text
    assert "stem.0.weight" in text


def test_an_unknown_label_is_refused_with_the_nearest(names: NetworkNames) -> None:
    with pytest.raises(UserError, match="no such label") as caught:
        names.find_parameters(["@haed"], argument=KEY)
    assert "@head" in str(caught.value)


def test_labels_that_all_match_nothing_are_refused() -> None:
    names = NetworkNames(nn.Sequential(nn.Linear(2, 2)), head="0")
    assert names.find_parameters(["@norm", "@head"], argument=KEY)
    with pytest.raises(UserError, match="matches no parameter"):
        names.find_parameters(["@norm"], argument=KEY)


def test_a_network_without_a_head_says_so() -> None:
    names = NetworkNames(nn.Sequential(nn.Conv2d(1, 1, 1)), head=None)
    with pytest.raises(UserError, match=r"no output layer.*\n?.*finetune\.head\.name|finetune\.head\.name"):
        names.find_parameters(["@head"], argument=KEY)


def test_a_broken_expression_is_refused(names: NetworkNames) -> None:
    with pytest.raises(UserError, match="not a regular expression"):
        names.find_parameters(["re:("], argument=KEY)


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["@linear"], ["body.stem"]),
        (["@linear", "head"], ["body.stem", "head"]),
        (["*stem", "re:head$"], ["body.stem", "head"]),
        (["@linear", "@conv"], ["stem.0", "body.stem"]),
        (["*"], ["stem.0", "body.stem", "attend.out_proj", "head"]),
        (["body.*"], ["body.stem"]),
        (["@attention", "@conv"], ["stem.0"]),
    ],
)
def test_patterns_stand_for_modules_of_a_kind(names: NetworkNames, patterns: list[str], expected: list[str]) -> None:
    assert names.find_modules(patterns, argument="k", kinds=(nn.Linear, nn.Conv2d)) == expected


def test_modules_by_path_count_beside_those_of_a_kind(names: NetworkNames) -> None:
    assert names.find_modules(["@attention"], argument="k", kinds=(), paths=["attend"]) == ["attend"]


def test_modules_that_cannot_be_used_are_named(names: NetworkNames) -> None:
    with pytest.raises(UserError, match="can be used") as caught:
        names.find_modules(["stem.1"], argument="lora.match", kinds=(nn.Linear,))
    assert "BatchNorm2d" in str(caught.value)
    assert "Linear" in str(caught.value)


def test_a_pattern_of_modules_that_matches_nothing_is_refused(names: NetworkNames) -> None:
    for pattern in ("bodi.*", "0", "out_proj", "tem"):
        with pytest.raises(UserError, match="matches no module"):
            names.find_modules([pattern], argument="k")
    with pytest.raises(UserError, match="matches no module"):
        names.find_modules(["@embedding"], argument="k")


def test_a_shared_tensor_has_all_its_names() -> None:
    names = NetworkNames(TransformerLM(7, 5, dim=8, depth=1, heads=2), head="head")
    assert names.find_parameters(["head"], argument=KEY) == names.find_parameters(["embed.values.weight"], argument=KEY)


def test_a_shared_tensor_cannot_be_frozen_and_trained() -> None:
    names = NetworkNames(TransformerLM(7, 5, dim=8, depth=1, heads=2), head="head")
    keys = ("finetune.freeze", "finetune.train")
    with pytest.raises(UserError, match="one tensor") as caught:
        names.check_ties(["embed.*"], ["@head"], keys=keys)
    assert "embed.values.weight" in str(caught.value)
    names.check_ties(["*"], ["@head"], keys=keys)
    names.check_ties(["embed.*"], ["embed.*"], keys=keys)
    names.check_ties(["blocks.*"], ["@head"], keys=keys)
