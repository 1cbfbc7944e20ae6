"""Models of transformers by name: from their configuration, or from folders with weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.data import DataInfo
from lightkit.models import huggingface_model

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
CAUSAL = {"n_embd": 16, "n_layer": 1, "n_head": 2}
LLAMA = {**BERT, "num_key_value_heads": 1}
VIT = {**BERT, "image_size": 16, "patch_size": 8}
TEXTS = DataInfo("multiclass", (), 3, ("a", "b", "c"), more={"num_tokens": 20, "pad_token_id": 0, "longest": 9})
TOKENS = DataInfo("language_modeling", (8,), 20, (), 20, 8, more={"objective": "causal_lm", "num_tokens": 20})
HIDDEN = DataInfo("language_modeling", (8,), 20, (), 20, 8, more={"objective": "masked_lm", "num_tokens": 20})
TAGS = DataInfo("custom", (), 3, ("a", "b", "c"), more={"objective": "token_classification", "num_tokens": 20})
IMAGES = DataInfo("multiclass", (3, 16, 16), 2, ("a", "b"))
IDS = torch.arange(1, 9)[None]


@pytest.mark.parametrize(
    ("kind", "config", "info", "name", "shape"),
    [
        ("bert", BERT, TEXTS, "BertForSequenceClassification", (1, 3)),
        ("gpt2", CAUSAL, TEXTS, "GPT2ForSequenceClassification", (1, 3)),
        ("gpt2", CAUSAL, TOKENS, "GPT2LMHeadModel", (1, 8, 20)),
        ("llama", LLAMA, TOKENS, "LlamaForCausalLM", (1, 8, 20)),
        ("bert", BERT, HIDDEN, "BertForMaskedLM", (1, 8, 20)),
        ("bert", BERT, TAGS, "BertForTokenClassification", (1, 3, 8)),
        ("vit", VIT, IMAGES, "ViTForImageClassification", (1, 2)),
    ],
)
def test_the_data_tell_what_a_model_is_for(
    kind: str, config: dict[str, Any], info: DataInfo, name: str, shape: tuple[int, ...]
) -> None:
    model: Any = huggingface_model(kind, pretrained=False, config=config, info=info)
    assert type(model).__name__ == name
    x = torch.rand(1, 3, 16, 16) if info.input_shape == (3, 16, 16) else IDS
    assert model(x).logits.shape == shape
    if info.class_names:
        assert model.config.id2label == dict(enumerate(info.class_names))
    if info is TEXTS:
        padded = torch.nn.functional.pad(IDS, (0, 3))
        model.eval()
        batch = {"input_ids": padded, "attention_mask": (padded != 0).long()}
        for one in (model(IDS), model(padded), model(batch)):
            assert torch.allclose(one.logits, model(input_ids=IDS).logits, atol=1e-6)


def test_weights_of_a_folder_and_an_output_layer_that_starts_new(tmp_path: Path) -> None:
    first = huggingface_model("bert", pretrained=False, config=BERT, info=TEXTS)
    first.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    two = DataInfo("multiclass", (), 2, ("x", "y"), more=TEXTS.more)
    model: Any = huggingface_model(str(tmp_path / "bert"), info=two)
    assert set(model.fresh_parameters) == {"classifier.weight", "classifier.bias"}
    assert torch.equal(model.bert.pooler.dense.weight, first.bert.pooler.dense.weight)  # type: ignore[union-attr]
    assert huggingface_model(str(tmp_path / "bert"), info=TEXTS).fresh_parameters == ()
    drop = huggingface_model(str(tmp_path / "bert"), info=two, config={"hidden_dropout_prob": 0.4})
    assert drop.config.hidden_dropout_prob == 0.4  # type: ignore[union-attr]


def test_pickled_weights_and_code_of_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = huggingface_model("bert", pretrained=False, config=BERT, info=TEXTS)
    model.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    (tmp_path / "bert/model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "bert/pytorch_model.bin")
    with pytest.raises(UserError, match=r"(?s)name: cannot be loaded.*safetensors"):
        huggingface_model(str(tmp_path / "bert"), info=TEXTS)
    own = {"auto_map": {"AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model"}}
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.json").write_text(json.dumps({"model_type": "own", **own}))
    (tmp_path / "own/code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UserError, match=r"(?s)name: cannot be loaded.*trust_remote_code"):
        huggingface_model(str(tmp_path / "own"), info=TEXTS)
    assert not (tmp_path / "ran").exists()


def test_what_does_not_suit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"(?s)config.hiden_size: .*no such key.*choices:.*hidden_size"):
        huggingface_model("bert", pretrained=False, config={"hiden_size": 3}, info=TEXTS)
    with pytest.raises(UserError, match=r"(?s)no such task.*choices:.*causal_lm"):
        huggingface_model("bert", pretrained=False, task="translation", info=TEXTS)
    with pytest.raises(UserError, match=r"(?s)data.dataset.max_length: .*max_position_embeddings.*at most 4.*: *9"):
        huggingface_model("bert", pretrained=False, config={**BERT, "max_position_embeddings": 4}, info=TEXTS)
    with pytest.raises(UserError, match=r"(?s)data.dataset.tokenizer: .*vocab_size of the model.*at most 7"):
        huggingface_model("bert", pretrained=False, config={**BERT, "vocab_size": 7}, info=TEXTS)
    model = huggingface_model("bert", pretrained=False, config=BERT, info=TEXTS)
    with pytest.raises(UserError, match=r"(?s)a token is beyond the vocabulary.*0 to 19.*received: *20"):
        model({"input_ids": torch.tensor([[3, 20]])})
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(UserError, match=r"(?s)transformers is not installed.*pip install 'lightkit\[hf\]'"):
        huggingface_model("bert", info=TEXTS)
