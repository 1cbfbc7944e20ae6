"""Data sets, tokenizers and models of Hugging Face, made here and small."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WORDS = ["the", "a", "cat", "dog", "runs", "sleeps", "fast", "slow", "good", "bad", "fine", "poor"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TINY = "model.config={dim: 16, n_layers: 2, n_heads: 2, hidden_dim: 32}"
SHORT = (
    "trainer.epochs=2",
    "logger.tensorboard.enabled=false",
    "metrics.figures=[]",
    "data.batch_size=8",
    "device=cpu",
)


def sentences(rows: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts of 3 to 12 words, and whether what is said in them is good."""
    draw, made = random.Random(seed), list[tuple[str, int]]()
    for _ in range(rows):
        words, good = [draw.choice(WORDS[:8]) for _ in range(draw.randint(3, 12))], draw.randrange(2)
        words[draw.randrange(len(words))] = draw.choice(["good", "fine"] if good else ["bad", "poor"])
        made.append((" ".join(words), good))
    return made


def save_tokenizer(folder: Path, *, plain: bool = False, words: Sequence[str] = WORDS) -> None:
    """Write a tokenizer of whole words; a plain one has none of the tokens of BERT, but one that ends texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[UNK]", "<end>"] if plain else SPECIAL
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*special, *words])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"eos_token": "<end>"}
    if not plain:
        pair = "[CLS] $A [SEP] $B:1 [SEP]:1"
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair=pair, special_tokens=ends)
        names = {f"{name[1:-1].lower()}_token": name for name in SPECIAL if name != "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", **names).save_pretrained(folder)


def save_reviews(folder: Path, **more: list[Any]) -> None:
    """Write a data set with the published splits: 64 rows to train, 16 to validate, 16 to test."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows, parts = sentences(96), {}
    for split, part in (("train", rows[:64]), ("validation", rows[64:80]), ("test", rows[80:])):
        columns = {"text": [text for text, _ in part], "label": [good for _, good in part]}
        parts[split] = Dataset.from_dict(columns | (more if split == "test" else {}), features=kinds)
    DatasetDict(parts).save_to_disk(folder)


def overrides(*more: str, kind: str = "distilbert", config: str = TINY, data: str = "reviews") -> list[str]:
    """Those of a run on texts with a model from its configuration."""
    columns = [f"data.dataset.path={data}", "data.dataset.text=text", "data.dataset.tokenizer=words"]
    return ["data=hf", *columns, "model=hf", f"model.name={kind}", "model.pretrained=false", config, *SHORT, *more]


LABEL = "data.dataset.target=label"
