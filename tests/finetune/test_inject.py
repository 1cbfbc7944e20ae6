"""LoRA, adapters and prefixes go where the options want them."""

from __future__ import annotations

import pytest

from lightkit.common.errors import UserError, UserErrors
from tests.finetune.preparing import prepared, trainable, transformer


def test_lora_brings_parameters_that_train_beside_the_head() -> None:
    model = transformer()
    found = prepared(model, freeze=["*"], train=["@head"], lora={"match": ["@linear"], "rank": 2, "lr_ratio": 4.0})
    assert trainable(model) == {*found.injected, "head.weight", "head.bias"}
    assert found.original_names["blocks.0.fc1.parametrizations.weight.original"] == "blocks.0.fc1.weight"
    rules = {rule["key"]: rule for rule in found.rules}
    assert set(rules) == {"finetune.lora", "finetune.lora.lr_ratio", "finetune.head"}
    assert all(name.endswith("lora_B") for name in rules["finetune.lora.lr_ratio"]["names"])


def test_lora_by_label_leaves_out_layers_smaller_than_its_rank() -> None:
    model = transformer()  # embed.values is 16 × 4
    found = prepared(model, lora={"match": ["@linear"], "rank": 5})
    assert not any(name.startswith("embed.values") for name in found.injected)
    assert any(name.startswith("blocks.0.fc1") for name in found.injected)
    with pytest.raises(UserError, match="the rank does not fit"):
        prepared(transformer(), lora={"match": ["embed.values"], "rank": 5})
    with pytest.raises(UserError, match="no layer is large enough"):
        prepared(transformer(), lora={"match": ["@linear"], "rank": 64})


def test_other_ranks_by_pattern() -> None:
    model = transformer()
    prepared(model, lora={"match": ["blocks.*"], "rank": 2, "ranks": {"blocks.1.*": 4}})
    ranks = {
        name: p.shape[0]
        for name, p in model.named_parameters()
        if name.endswith("fc1.parametrizations.weight.0.lora_A")
    }
    assert sorted(ranks.values()) == [2, 4]
    with pytest.raises(UserError, match="get no LoRA"):
        prepared(transformer(), lora={"match": ["blocks.0.*"], "ranks": {"blocks.1.*": 4}})


def test_parts_combine() -> None:
    model = transformer()
    found = prepared(
        model,
        freeze=["*"],
        train=["@head", "@norm"],
        lora={"match": ["@linear"], "rank": 2},
        adapter={"match": ["@blocks"], "reduction": 4},
        prefix={"match": ["@attention"], "length": 3},
    )
    assert {"finetune.lora", "finetune.adapter", "finetune.prefix"} <= {rule["key"] for rule in found.rules}
    assert {"norm.weight", "head.weight"} <= trainable(model)
    assert "blocks.0.fc1.parametrizations.weight.original" not in trainable(model)


def test_every_pattern_that_matches_nothing_is_in_one_report() -> None:
    with pytest.raises(UserErrors) as caught:
        prepared(
            transformer(),
            freeze=["blocks.0", "blokcs.1"],
            train=["haed"],
            schedule=[{"epoch": 1, "unfreeze": ["blocks.7"]}],
            rules=[{"match": "nrom", "lr": 0.1}],
            lora={"match": ["fc9"]},
        )
    keys = [error.key for error in caught.value.errors]
    assert keys == [
        "finetune.freeze",
        "finetune.train",
        "finetune.schedule[0].unfreeze",
        "finetune.rules[0].match",
        "finetune.lora.match",
    ]
