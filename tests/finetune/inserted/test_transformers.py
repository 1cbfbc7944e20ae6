"""Models of Hugging Face's transformers: their blocks, attentions and layers are known, their outputs taken."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightkit.build import build, build_network
from lightkit.build.parts import build_engine
from lightkit.checkpoint.weights import read_weights
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.data import DataInfo
from lightkit.finetune.inserted.attention import attentions
from lightkit.finetune.inserted.blocks import blocks
from lightkit.finetune.inserted.plain import merge, merged_state
from lightkit.runner import Runner
from lightkit.trainer.tasks import logits
from tests.conftest import Outcome
from tests.finetune.inserted.language import POSITIONS, TOKENS
from tests.finetune.whole import SHORT

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

Cli = Callable[..., Outcome]
_SENTENCES = ("data=custom", "data.dataset._target_=tests.finetune.inserted.language.sentences")
_TEXT = (
    "data=custom",
    "data.dataset._target_=tests.finetune.inserted.language.continuations",
    "loss=token_cross_entropy",
    "metrics=language_modeling",
)
_IMAGES = ("data=shapes", "data.dataset.size=16", "data.dataset.train=24", "data.dataset.val=8", "data.dataset.test=8")
_BERT = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
_LLAMA = {**_BERT, "num_key_value_heads": 1, "vocab_size": TOKENS, "pad_token_id": 0}
_GPT2 = {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 8, "vocab_size": TOKENS, "pad_token_id": 0}
_GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
MODELS: dict[str, tuple[tuple[str, ...], str, dict[str, int]]] = {
    "BertForSequenceClassification": (_SENTENCES, "BertConfig", {**_BERT, "vocab_size": TOKENS}),
    "GPT2ForSequenceClassification": (_SENTENCES, "GPT2Config", _GPT2),
    "LlamaForSequenceClassification": (_SENTENCES, "LlamaConfig", _LLAMA),
    "GPT2LMHeadModel": (_TEXT, "GPT2Config", _GPT2),
    "LlamaForCausalLM": (_TEXT, "LlamaConfig", _LLAMA),
    "ViTForImageClassification": (_IMAGES, "ViTConfig", {**_BERT, "image_size": 16, "patch_size": 8}),
}
HEADS = {name: "classifier" for name in MODELS} | dict.fromkeys(("GPT2LMHeadModel", "LlamaForCausalLM"), "lm_head")
HEADS |= dict.fromkeys(("GPT2ForSequenceClassification", "LlamaForSequenceClassification"), "score")
BLOCKS = {"Bert": "bert.encoder.layer", "GPT2": "transformer.h", "Llama": "model.layers", "ViT": "vit.layers"}
ATTENTIONS = {"Bert": "attention.self", "GPT2": "attn", "Llama": "self_attn", "ViT": "attention"}


def family(model: str) -> str:
    return next(name for name in BLOCKS if model.startswith(name))


def asked(model: str, *more: str) -> list[str]:
    """The overrides of a run of one of the models."""
    data, config, sizes = MODELS[model]
    network = [f"model._target_=transformers.{model}", f"+model.config._target_=transformers.{config}"]
    network += [f"+model.config.{name}={size}" for name, size in sizes.items()]
    return [*data, "model=custom", "trust=[tests,transformers]", *network, *SHORT, "data.normalize=none", *more]


def inputs(model: str) -> Tensor:
    if model.startswith("ViT"):
        return torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return torch.arange(2 * POSITIONS).view(2, POSITIONS) % TOKENS


def built(model: str, *more: str) -> nn.Module:
    """A network, fine-tuned or not, in eval mode."""
    cfg = compose(asked(model, *more)).cfg
    info = DataInfo("multiclass", (POSITIONS,), 3)
    if model in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        info = DataInfo("language_modeling", (POSITIONS,), 0, vocab_size=TOKENS, context_length=POSITIONS)
    elif model.startswith("ViT"):
        info = DataInfo("multiclass", (3, 16, 16), 3)
    return build_network(cfg, info, build_engine(cfg)).model.eval()


def learnt(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The gradients of what was brought in."""
    logits(model(x)).square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", MODELS)
def test_blocks_attentions_and_the_output_layer_are_found(model: str, cli: Cli) -> None:
    network, place = built(model), BLOCKS[family(model)]
    assert blocks(network) == [f"{place}.{index}" for index in range(2)]
    assert attentions(network) == [f"{place}.{index}.{ATTENTIONS[family(model)]}" for index in range(2)]
    done = cli("plan", *asked(model, "finetune=lora", "finetune.lora.match=[@attention]"), "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["head"]["name"] == HEADS[model]
    assert found["head"]["found"] == "computed"
    (adapted,) = (match for match in found["patterns"] if match["pattern"] == "@attention")
    assert len(adapted["modules"]) == {"Bert": 6, "GPT2": 4, "Llama": 8, "ViT": 8}[family(model)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "way",
    [
        ("lora",),
        ("lora", "finetune.lora.impl=wrap"),
        ("adapter",),
        ("adapter", "finetune.adapter.kind=parallel"),
        ("prefix", "finetune.prefix.length=3"),
        ("lora,prefix", "finetune.lora.impl=wrap", "finetune.prefix.length=3"),
    ],
    ids=" ".join,
)
def test_what_is_put_in_starts_as_the_plain_network_and_learns(model: str, way: tuple[str, ...]) -> None:
    preset, *more = way
    never, x = "finetune.head.replace=never", inputs(model)
    plain = built(model, "finetune=full", never)
    tuned = built(model, f"finetune=[{preset}]", never, "finetune.train=[]", *more, "finetune.lora.rank=2")
    assert torch.allclose(logits(plain(x)), logits(tuned(x)), atol=1e-6)
    found = learnt(tuned, x)
    assert found
    kinds = {"lora": "lora_B", "adapter": "up_weight", "prefix": "values"}
    for part in preset.split(","):
        moved = [grad for name, grad in found.items() if kinds[part] in name]
        assert len(moved) >= 2
        assert any(grad.abs().max() > 0 for grad in moved)
    assert not set(found) & set(dict(plain.named_parameters()))


@pytest.mark.parametrize("model", MODELS)
def test_prompts_leave_the_positions_as_they_are(model: str) -> None:
    more = ("finetune.prefix.length=3", "finetune.head.replace=never", "finetune.train=[]")
    tuned, x = built(model, "finetune=prompt", *more), inputs(model)
    output = logits(tuned(x))
    assert output.shape == logits(built(model, "finetune=full", "finetune.head.replace=never")(x)).shape
    assert all(grad.abs().max() > 0 for grad in learnt(tuned, x).values())
    if model in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        other = x.clone()
        other[:, -1] = 1
        assert torch.allclose(logits(tuned(other))[:, :-1], output[:, :-1], atol=1e-6), "a position sees later ones"


@pytest.mark.parametrize("impl", ["parametrize", "wrap"])
def test_layers_with_transposed_weights_are_merged_as_they_compute(impl: str) -> None:
    tuned, x = built("GPT2LMHeadModel", "finetune=lora", f"finetune.lora.impl={impl}"), inputs("GPT2LMHeadModel")
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    expected, plain = logits(tuned(x)), built("GPT2LMHeadModel")
    assert not torch.allclose(expected, logits(plain(x)), atol=1e-3)
    state = merged_state(tuned)
    assert all(tensor.is_contiguous() for tensor in state.values())
    plain.load_state_dict(state)
    assert torch.allclose(logits(plain(x)), expected, atol=1e-5)
    with merge(copy.deepcopy(tuned)) as merged:
        assert merged
    adapted = [
        name for name, module in tuned.named_modules() if "lora_A" in dict(module.named_parameters(recurse=False))
    ]
    assert len(adapted) == 8


def test_a_run_is_trained_and_exported_and_its_head_is_new(tmp_path: Path, hasty: None) -> None:
    overrides = asked("GPT2ForSequenceClassification", "finetune=lora", "finetune.lora.rank=2", "trainer.epochs=1")
    overrides += ["checkpoint.export=safetensors", "finetune.head.lr=0.1"]
    cfg = compose(overrides).cfg
    Runner(cfg, tmp_path, overrides=overrides).run()
    state = read_weights(tmp_path / "weights.safetensors").state
    assert state["score.weight"].shape == (3, 16)
    assert state["transformer.h.0.attn.c_attn.weight"].shape == (16, 48)
    assert not any("lora" in name for name in state)
    parts = build(cfg, tmp_path, pretrained=False)
    parts.data.close()
    assert parts.model.config.num_labels == 3  # type: ignore[union-attr]


def test_a_transposed_output_layer_is_replaced_by_one() -> None:
    from transformers.pytorch_utils import Conv1D

    from lightkit.finetune.head import Head, find_head
    from lightkit.finetune.new_head import outputs_of, replace_head

    model: Any = nn.Sequential(nn.Linear(4, 6), Conv1D(5, 6))
    head = find_head(model, forwards=[lambda twin: twin(torch.rand(2, 4))])
    assert head is not None
    assert head.path == "1"
    replace_head(model, Head("1"), 3)
    assert type(model[1]) is Conv1D
    assert outputs_of(model, "1") == 3
    assert model(torch.rand(2, 4)).shape == (2, 3)
    assert 0 < model[1].weight.std() < 0.1


def test_one_softmax_for_both_is_refused_and_the_way_that_is_named_works() -> None:
    more = ("finetune=prefix", "finetune.prefix.length=2")
    with pytest.raises(UserError, match="has layers of its own for keys and for values") as caught:
        built("BertForSequenceClassification", *more, "finetune.prefix.softmax=joint")
    assert caught.value.fix == "finetune.prefix.softmax=own"
    built("BertForSequenceClassification", *more, "finetune.prefix.softmax=own")


def test_adapters_inside_of_bert_blocks_are_refused_and_the_way_that_is_named_works() -> None:
    more = ("finetune=adapter", "finetune.adapter.kind=houlsby")
    with pytest.raises(UserError, match="has no attention and feed-forward part that can be told") as caught:
        built("BertForSequenceClassification", *more)
    assert caught.value.fix is not None
    assert "finetune.adapter.kind=pfeiffer" in caught.value.fix
    built("BertForSequenceClassification", *more, "finetune.adapter.kind=pfeiffer")
    built("GPT2LMHeadModel", *more)
    built("LlamaForCausalLM", *more)


def test_an_attention_that_prefixes_do_not_know_is_named_and_lora_takes_its_layers() -> None:
    with pytest.raises(UserError) as caught:
        t5(["@attention"], "prefix")
    assert "SelfAttention is a T5Attention, which prefixes do not know, or take another way, such as finetune=lora" in (
        str(caught.value)
    )
    t5(["@linear"], "lora")


def t5(match: list[str], part: str) -> None:
    """Choose modules of an encoder whose attentions do not scale their scores."""
    from transformers import T5Config, T5EncoderModel

    from lightkit.finetune.names import Names

    model = T5EncoderModel(T5Config(vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2))
    names = Names(model, head=None, groups={"@attention": attentions(model)})
    if part == "prefix":
        names.modules(match, key="finetune.prefix.match", kinds=(), paths=names.group("@attention"))
    else:
        names.modules(match, key="finetune.lora.match", kinds=(nn.Linear,))
