"""Models of transformers by name: from their configuration, or from folders with weights."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import lightkit
from lightkit.common.errors import UserError
from lightkit.data import DataInfo
from lightkit.models import huggingface_model
from tests.conftest import Outcome
from tests.hub import LABEL, WORDS, overrides, save_reviews, save_tokenizer

transformers = pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.filterwarnings("ignore")

Cli = Callable[..., Outcome]
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


def test_pickled_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = huggingface_model("bert", pretrained=False, config=BERT, info=TEXTS)
    model.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    (tmp_path / "bert/model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "bert/pytorch_model.bin")
    with pytest.raises(UserError, match=r"(?s)name: cannot be loaded.*safetensors"):
        huggingface_model(str(tmp_path / "bert"), info=TEXTS)


CODE = """from pathlib import Path
from transformers import DistilBertConfig, DistilBertForSequenceClassification
Path("ran").touch()
class Config(DistilBertConfig):
    model_type = "own"
class Model(DistilBertForSequenceClassification):
    config_class = Config
"""
CLASSES = {"AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model"}
TRUSTED = ("model.trust_remote_code=true", "trust=[lightkit.models.huggingface_model]")


@pytest.fixture
def own(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a model that brings code, which leaves a file where it runs."""
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(project / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    save_reviews(project / "reviews")
    save_tokenizer(project / "words")
    (project / "own").mkdir()
    (project / "own/code.py").write_text(CODE)
    sizes = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    (project / "own/config.json").write_text(json.dumps({"model_type": "own", "auto_map": CLASSES, **sizes}))
    yield project
    forget()


def test_code_of_others_runs_only_where_it_is_trusted(own: Path, cli: Cli) -> None:
    words = [*overrides(LABEL, "trainer.epochs=1", "name=r", kind="own", config="model.config={}")]
    for more, told in (
        ((), r"(?s)model.name: own brings code.*received: *'code.py'.*model.trust_remote_code=true 'trust=\["),
        (TRUSTED[:1], r"(?s)model.trust_remote_code: .*would run code of others.*fix: *trust=\[lightkit.models"),
        (TRUSTED[1:], "model.name: own brings code"),
    ):
        done = cli("train", *words, *more)
        assert done.code == 2, done.err
        assert re.search(told, done.err), done.err
    assert not Path("ran").exists()
    done = cli("train", *words, *TRUSTED)
    assert done.code == 0, done.err
    assert Path("ran").exists()
    assert cli("resume", "r", "trainer.epochs=2").code == 0  # by whoever has trusted it
    [run] = (own / "outputs/runs").glob("*/*")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(f"{config}# as somebody else has written it\n")
    Path("ran").unlink()
    forget()
    for command in (("eval", "r"), ("resume", "r", "trainer.epochs=3")):
        done = cli(*command)
        assert done.code == 2, done.err
        assert "would run code of others" in done.err
    with pytest.raises(UserError, match="would run code of others"):
        lightkit.load("r")
    assert not Path("ran").exists()
    assert len(lightkit.load("r", trust=["lightkit.models.huggingface_model"]).predict(["the good cat"])) == 1
    assert Path("ran").exists()


def forget() -> None:
    """Let no module that has run stand in for one that would."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


def kept(home: Path, commit: str, words: list[str]) -> None:
    """Put a model with its tokenizer into a cache as the Hub lays it out; `main` is this commit."""
    place = home / f"models--someone--tiny/snapshots/{commit}"
    save_tokenizer(place, words=words)
    info = DataInfo("multiclass", (), 2, ("bad", "good"), more={"num_tokens": 5 + len(words), "pad_token_id": 0})
    huggingface_model("bert", pretrained=False, config=BERT, info=info).save_pretrained(place)  # type: ignore[operator]
    (home / "models--someone--tiny/refs").mkdir(exist_ok=True)
    (home / "models--someone--tiny/refs/main").write_text(commit)


def test_a_pinned_commit_is_taken_from_the_cache_though_there_is_a_newer_one(
    project: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HF_HUB_OFFLINE", True), ("HF_HUB_CACHE", str(project / "hub"))):
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    kept(project / "hub", "a" * 40, WORDS)
    kept(project / "hub", "b" * 40, [*WORDS[::-1], "new"])
    save_reviews(project / "reviews")
    words = overrides(LABEL, "name=r", kind="someone/tiny", config="model.config={}")
    words = [word for word in words if "tokenizer" not in word and "pretrained" not in word]
    done = cli("train", *words, f"model.revision={'a' * 40}", "trainer.epochs=1")
    assert done.code == 0, done.err
    assert cli("resume", "r", "trainer.epochs=2").code == 0
    model = lightkit.load("r")
    assert model.preprocessing.reader.loaded.get_vocab()["the"] == 5
    assert model.network.config.vocab_size == 5 + len(WORDS)  # type: ignore[union-attr]
    done = cli("train", *words, "trainer.epochs=1", "name=new")
    assert lightkit.load("new").network.config.vocab_size == 6 + len(WORDS)  # type: ignore[union-attr]
    kept(project / "hub", "c" * 40, [*WORDS, "newer", "newest"])  # what `main` was when a run began is kept with it
    assert cli("resume", "new", "trainer.epochs=2").code == 0
    assert (lightkit.load("new").folder / "config.yaml").read_text().count(f"revision: {'b' * 40}") == 2
    (project / "hub/models--someone--tiny/refs/main").write_text("b" * 40)
    own = {"auto_map": CLASSES, "model_type": "own"}
    (project / f"hub/models--someone--tiny/snapshots/{'b' * 40}/config.json").unlink()
    (project / f"hub/models--someone--tiny/snapshots/{'b' * 40}/config.json").write_text(json.dumps(own))
    with pytest.raises(UserError, match=r"(?s)someone/tiny brings code.*model.revision=COMMIT"):
        huggingface_model("someone/tiny", trust_remote_code=True, info=TEXTS)


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
