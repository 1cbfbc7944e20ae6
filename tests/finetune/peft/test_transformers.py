"""Models of Hugging Face's transformers: their blocks, attentions and layers are known, their outputs taken."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.assembly import build
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.config.fields import defaults_of
from lightkit.config.schema.finetune import FinetuneConfig
from lightkit.data.tensors import TensorData
from lightkit.finetune.head import Head, find_head
from lightkit.finetune.names import NetworkNames
from lightkit.finetune.new_head import outputs_of, replace_head
from lightkit.finetune.peft.blocks import attentions, find_blocks
from lightkit.finetune.peft.merging import merge, merged_state
from lightkit.finetune.prepare import prepare
from lightkit.optim.layers import layer_depths
from lightkit.runner import Runner
from lightkit.trainer.tasks import logits
from tests.conftest import Outcome
from tests.finetune.whole import SHORT

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

Cli = Callable[..., Outcome]
TOKENS, POSITIONS = 30, 6
Options = Mapping[str, Mapping[str, Any]]
_BERT = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
_DISTILBERT = {"n_layers": 2, "dim": 16, "n_heads": 2, "hidden_dim": 32, "vocab_size": TOKENS}
_LLAMA = {**_BERT, "num_key_value_heads": 1, "vocab_size": TOKENS, "pad_token_id": 0}
_GPT2 = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": TOKENS, "pad_token_id": 0}
_GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
MODELS: dict[str, tuple[str, dict[str, int]]] = {
    "BertForSequenceClassification": ("BertConfig", {**_BERT, "vocab_size": TOKENS}),
    "DistilBertForSequenceClassification": ("DistilBertConfig", _DISTILBERT),
    "GPT2ForSequenceClassification": ("GPT2Config", _GPT2),
    "LlamaForSequenceClassification": ("LlamaConfig", _LLAMA),
    "GPT2LMHeadModel": ("GPT2Config", _GPT2),
    "LlamaForCausalLM": ("LlamaConfig", _LLAMA),
    "ViTForImageClassification": ("ViTConfig", {**_BERT, "image_size": 16, "patch_size": 8}),
}
LANGUAGE = ("GPT2LMHeadModel", "LlamaForCausalLM")
HEADS = dict.fromkeys(MODELS, "classifier") | dict.fromkeys(LANGUAGE, "lm_head")
HEADS |= dict.fromkeys(("GPT2ForSequenceClassification", "LlamaForSequenceClassification"), "score")
BLOCKS = {
    "Bert": "BertLayer",
    "DistilBert": "TransformerBlock",
    "GPT2": "GPT2Block",
    "Llama": "LlamaDecoderLayer",
    "ViT": "ViTLayer",
}
ATTENTIONS = {
    "Bert": "SelfAttention",
    "DistilBert": "SelfAttention",
    "GPT2": "GPT2Attention",
    "Llama": "LlamaAttention",
    "ViT": "Attention",
}
LAYERS = {"Bert": 13, "DistilBert": 13, "GPT2": 8, "Llama": 14, "ViT": 12}
WAYS: dict[str, Options] = {
    "lora": {"lora": {"match": ["@linear", "@attention"], "rank": 2}},
    "adapter": {"adapter": {"match": ["@blocks"]}},
    "parallel": {"adapter": {"match": ["@blocks"], "kind": "parallel"}},
    "both": {"lora": {"match": ["@linear"], "rank": 2, "impl": "wrap"}, "prefix": {"match": ["@attention"]}},
}
ZERO = {"lora": "lora_B", "adapter": "up_weight", "prefix": "values"}


def sentences(rows: int = 48) -> TensorData:
    """Token numbers, and the class that the first of them belongs to."""
    x = torch.randint(1, TOKENS, (rows, POSITIONS), generator=torch.Generator().manual_seed(0))
    return TensorData(x, x[:, 0] % 3)


def family(model: str) -> str:
    return next(name for name in BLOCKS if model.startswith(name))


@cache
def plain(model: str) -> nn.Module:
    """One of the models, in eval mode; not to be changed."""
    config, sizes = MODELS[model]
    torch.manual_seed(0)
    return getattr(transformers, model)(getattr(transformers, config)(**sizes)).eval()


def tuned(model: str, options: Options) -> nn.Module:
    """The same, with something put into it, of which nothing else trains."""
    network, every = copy.deepcopy(plain(model)), defaults_of(FinetuneConfig)
    chosen = {name: {**every[name], **more} for name, more in options.items()}
    lengths: dict[str, Any] = {"outputs": None, "steps_per_epoch": 1, "total_steps": 1}
    prepare(network, every | {"freeze": ["*"]} | chosen, depths=layer_depths, **lengths)
    return network


def inputs(model: str) -> Tensor:
    if model.startswith("ViT"):
        return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return torch.arange(2 * POSITIONS).view(2, POSITIONS) % TOKENS


def learnt(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The gradients of what was brought in."""
    logits(model(x)).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def overrides(model: str, *more: str) -> list[str]:
    """Those of a run of one of the models."""
    config, sizes = MODELS[model]
    network = [f"model._target_=transformers.{model}", f"+model.config._target_=transformers.{config}"]
    network += [f"+model.config.{name}={size}" for name, size in sizes.items()]
    source = ["data=custom", "data.dataset._target_=tests.finetune.peft.test_transformers.sentences"]
    return [*source, "model=custom", "trust=[tests,transformers]", *network, *SHORT, *more]


@pytest.mark.parametrize("model", MODELS)
def test_blocks_attentions_layers_and_the_output_layer_are_found(model: str) -> None:
    network, kind = plain(model), family(model)
    assert [type(network.get_submodule(path)).__name__ for path in find_blocks(network)] == [BLOCKS[kind]] * 2
    found = [type(network.get_submodule(path)).__name__ for path in attentions(network)]
    assert len(found) == 2
    assert all(name.endswith(ATTENTIONS[kind]) for name in found)
    head = find_head(network, forwards=[lambda twin: logits(twin(inputs(model)))])
    assert head is not None
    assert (head.path, head.found) == (HEADS[model], "computed")
    names = NetworkNames(network, head=head.path)
    assert len(names.find_modules(["@linear"], argument="lora.match")) == LAYERS[kind]


@pytest.mark.parametrize(
    ("model", "way"),
    [
        *((model, "both") for model in MODELS),
        ("GPT2LMHeadModel", "lora"),
        ("BertForSequenceClassification", "lora"),
        ("LlamaForCausalLM", "adapter"),
        ("ViTForImageClassification", "parallel"),
    ],
)
def test_what_is_put_in_starts_as_the_plain_network_and_learns(model: str, way: str) -> None:
    x, network = inputs(model), tuned(model, WAYS[way])
    assert torch.allclose(logits(plain(model)(x)), logits(network(x)), atol=1e-6)
    found = learnt(network, x)
    assert not set(found) & set(dict(plain(model).named_parameters()))
    for part in WAYS[way]:
        first = {name: grad for name, grad in found.items() if ZERO[part] in name}
        assert len(first) >= 2
        assert all(grad.abs().max() > 0 for grad in first.values()), part


@pytest.mark.parametrize("impl", ["parametrize", "wrap"])
def test_layers_with_transposed_weights_are_merged_as_they_compute(impl: str) -> None:
    model = "GPT2LMHeadModel"
    network, x = tuned(model, {"lora": {"match": ["@linear"], "rank": 2, "impl": impl}}), inputs(model)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    expected, other = logits(network(x)), copy.deepcopy(plain(model))
    assert not torch.allclose(expected, logits(other(x)), atol=1e-3)
    state = merged_state(network)
    assert all(tensor.is_contiguous() for tensor in state.values())
    other.load_state_dict(state)
    assert torch.allclose(logits(other(x)), expected, atol=1e-5)
    with merge(network):
        assert torch.allclose(logits(network(x)), expected, atol=1e-5)


def test_a_plan_of_a_model_and_its_nested_configuration(cli: Cli) -> None:
    lora = ("finetune=lora", "finetune.lora.match=[@attention]", "finetune.lora.rank=2")
    done = cli("plan", *overrides("BertForSequenceClassification", *lora), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["head"] == {"name": "classifier", "found": "computed", "why": "", "beside": [], "new": True}
    (adapted,) = (match for match in found["patterns"] if match["pattern"] == "@attention")
    assert len(adapted["modules"]) == 6


@pytest.mark.thorough
def test_a_run_is_trained_and_exported_and_its_head_is_new(tmp_path: Path, hasty: None) -> None:
    more = ("finetune=lora", "finetune.lora.rank=2", "trainer.epochs=1", "checkpoint.export=safetensors")
    cfg = compose(overrides("GPT2ForSequenceClassification", *more)).cfg
    Runner(cfg, tmp_path).run()
    state = read_weights(tmp_path / "weights.safetensors").state
    assert state["score.weight"].shape == (3, 16)
    assert state["transformer.h.0.attn.c_attn.weight"].shape == (16, 48)
    assert not any("lora" in name for name in state)
    parts = build(cfg, tmp_path, pretrained=False)
    parts.data.close()
    assert parts.model.config.num_labels == 3  # type: ignore[union-attr]


def test_a_transposed_output_layer_is_replaced_by_one() -> None:
    kind = transformers.pytorch_utils.Conv1D
    model: Any = nn.Sequential(nn.Linear(4, 6), kind(5, 6))
    head = find_head(model, forwards=[lambda twin: twin(torch.rand(2, 4))])
    assert head is not None
    assert head.path == "1"
    replace_head(model, Head("1"), 3)
    assert type(model[1]) is kind
    assert outputs_of(model, "1") == 3
    assert model(torch.rand(2, 4)).shape == (2, 3)
    assert 0 < model[1].weight.std() < 0.1


def test_adapters_inside_of_bert_blocks_are_refused_and_the_way_that_is_named_works() -> None:
    with pytest.raises(UserError, match="has no attention and feed-forward part that can be told") as caught:
        tuned("BertForSequenceClassification", {"adapter": {"match": ["@blocks"], "kind": "houlsby"}})
    assert caught.value.fix is not None
    assert "finetune.adapter.kind=pfeiffer" in caught.value.fix
    tuned("BertForSequenceClassification", {"adapter": {"match": ["@blocks"], "kind": "pfeiffer"}})
    for model in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        network = tuned(model, {"adapter": {"match": ["@blocks"], "kind": "houlsby"}})
        assert len([name for name, _ in network.named_parameters() if "up_weight" in name]) == 4
