"""From options to a changed network: what is put in, what trains when, and every mistake in one report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError, UserErrors
from lightkit.config.fields import defaults_of
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.finetune.head import Head
from lightkit.finetune.prepare import Prepared, prepare
from lightkit.models import TransformerClassifier, TransformerLM
from lightkit.models.zoo import torchvision_model
from lightkit.optim.layers import layer_depths
from tests.conftest import Outcome


def options(**given: Any) -> dict[str, Any]:
    usual = defaults_of(FinetuneConfig)
    return usual | {
        name: {**usual[name], **value} if isinstance(usual[name], dict) else value for name, value in given.items()
    }


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return TransformerClassifier((6, 4), 3, dim=16, depth=2, heads=2)


def prepared(
    model: nn.Module, *, outputs: int | None = 3, fresh: Any = (), at: Head | None = None, **given: Any
) -> Prepared:
    lengths: dict[str, Any] = {"steps_per_epoch": 10, "total_steps": 100}
    return prepare(model, options(**given), outputs=outputs, depths=layer_depths, fresh=fresh, head=at, **lengths)


def trainable(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_asking_for_nothing_changes_nothing() -> None:
    model = transformer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = prepared(model)
    assert len(found.phases) == 1
    assert trainable(model) == found.trained == {name for name, _ in model.named_parameters()}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert found.group_labels() == {}


def test_the_head_is_replaced_where_the_data_has_other_classes() -> None:
    model = transformer()
    found = prepared(model, outputs=7, freeze=["*"], train=["@head"])
    assert model(torch.randn(2, 6, 4)).shape == (2, 7)
    assert found.fresh == {"head.weight", "head.bias"} == trainable(model)


@pytest.mark.parametrize(("replace", "outputs", "new"), [("never", 7, False), ("always", 3, True), ("auto", 3, False)])
def test_when_the_head_is_replaced(replace: str, outputs: int, new: bool) -> None:
    model = transformer()
    before = model.head
    prepared(model, outputs=outputs, head={"replace": replace})
    assert (model.head is not before) is new


def test_a_new_head_that_never_trains_is_refused() -> None:
    with pytest.raises(UserError, match="never train") as caught:
        prepared(transformer(), outputs=7, freeze=["head"])
    assert "finetune.train=[@head]" in str(caught.value)
    with pytest.raises(UserError, match="never train"):
        prepared(transformer(), freeze=["blocks.0"], fresh=["blocks.0.fc1.weight"])


def test_phases_have_the_names_of_the_changed_network() -> None:
    model = transformer()
    found = prepared(
        model,
        freeze=["*"],
        train=["@head"],
        lora={"match": ["blocks.1.*"], "rank": 2},
        schedule=[{"epoch": 2, "unfreeze": ["blocks.1"]}, {"step": 50, "freeze": ["@tuned"]}],
    )
    names = {name for name, _ in model.named_parameters()}
    assert all(phase.trainable <= names for phase in found.phases)
    assert "blocks.1.fc1.parametrizations.weight.original" in found.phases[1].trainable
    assert not set(found.injected) & found.phases[2].trainable
    labels = found.group_labels()
    assert labels["blocks.1.norm1.weight"] == "from_epoch_2"
    assert labels[found.injected[0]] == "to_step_50"
    assert "head.weight" not in labels
    assert found.first_steps(10)["blocks.1.norm1.weight"] == 20


def test_gradual_unfreezing_ends_with_everything() -> None:
    model = torchvision_model("resnet18", 3)
    found = prepared(model, freeze=["*"], train=["@head"], gradual={"share": 0.5})
    assert trainable(model) == {"fc.weight", "fc.bias"}
    assert found.phases[-1].trainable == {name for name, _ in model.named_parameters()}
    assert all(before.trainable < after.trainable for before, after in zip(found.phases, found.phases[1:]))
    assert all(before.frozen_norms > after.frozen_norms for before, after in zip(found.phases, found.phases[1:]))


def test_dropout_of_frozen_parts_rests_where_asked_for() -> None:
    model = TransformerClassifier((6, 4), 3, dim=16, depth=2, heads=2, dropout=0.1)
    found = prepared(model, freeze=["blocks.0"], dropout="off", lora={"match": ["blocks.0.fc1"], "rank": 2})
    assert {"blocks.0.dropout", "blocks.0.attn"} <= found.phases[0].eval_modules
    assert not any("parametrizations" in path or path.startswith("blocks.1") for path in found.phases[0].eval_modules)
    assert prepared(transformer(), freeze=["blocks.0"]).phases[0].eval_modules == frozenset()


def test_a_tied_head_is_one_parameter() -> None:
    model = TransformerLM(11, 6, dim=16, depth=1, heads=2)
    found = prepared(model, outputs=11, freeze=["*"], train=["@head"])
    assert found.trained == {"embed.values.weight"}
    with pytest.raises(UserError, match="embed.values.weight and head.weight are one tensor"):
        prepared(TransformerLM(11, 6, dim=16, depth=1, heads=2), outputs=11, freeze=["embed"], train=["head"])


def test_a_rule_for_what_never_trains_is_refused() -> None:
    with pytest.raises(UserError, match="never train"):
        prepared(transformer(), freeze=["embed"], rules=[{"match": "embed", "lr": 0.1}])


def test_rules_that_set_different_things_of_one_parameter_go_together() -> None:
    found = prepared(
        transformer(),
        head={"lr": 0.5},
        rules=[{"match": "@head", "weight_decay": 0.0, "name": "h"}, {"match": "@bias", "warmup_steps": 3}],
    )
    assert [rule["key"] for rule in found.rules] == ["finetune.head", "optim.rules[0]", "optim.rules[1]"]


def test_layers_that_make_the_outputs_together_are_one_layer() -> None:
    model = nn.ModuleDict({"first": nn.Linear(6, 8), "one": nn.Linear(8, 3), "other": nn.Linear(8, 3)})
    head = Head("one", beside=("other",))
    done = prepared(model, at=head)
    assert {name.split(".")[0]: depth for name, depth in done.depths.items()} == {"first": 0, "one": 1, "other": 1}


def test_averaged_heads_have_the_rate_of_the_output_layer(cli: Callable[..., Outcome]) -> None:
    asked = ("data=wine", "model=custom", "trust=[tests]", "model._target_=tests.finetune.strange.Averaged")
    done = cli("plan", *asked, "finetune=full", "finetune.slices=[0.1,1.0]")
    assert done.code == 0, done.err
    rates = {line.split()[-1]: line for line in done.out.splitlines() if "1e-3" in line or "1e-4" in line}
    assert set(rates) == {"ends.*", "body.*"}
    assert "1e-4" in rates["body.*"]
    assert sum("ends." in line for line in done.out.splitlines() if "1e-4" in line) == 0


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
    model = transformer()
    prepared(model, lora={"match": ["blocks.*"], "rank": 2, "ranks": {"blocks.1.*": 4}})
    matrices = [p for name, p in model.named_parameters() if name.endswith("fc1.parametrizations.weight.0.lora_A")]
    assert [matrix.shape[0] for matrix in matrices] == [2, 4]
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
        "optim.rules[0].match",
        "finetune.freeze",
        "finetune.train",
        "finetune.schedule[0].unfreeze",
        "finetune.lora.match",
    ]
