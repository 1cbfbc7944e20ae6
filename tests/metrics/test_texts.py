"""The metrics of `torchmetrics.text`, on what a language model gives and on texts of a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
import torchmetrics.text
from nltk.metrics.distance import edit_distance
from rouge_score.rouge_scorer import RougeScorer

from lightkit.common.errors import UserError
from lightkit.metrics import SplitMetrics
from lightkit.runs.reading import read_jsonl
from tests.conftest import Cli

WORDS = ("", "the", "cat", "dog", "sat", "ran", "on", "a", "mat", "road")
DRAW = torch.Generator().manual_seed(0)
TARGET = torch.randint(1, 10, (21, 8), generator=DRAW)
GUESS = torch.where(torch.rand(21, 8, generator=DRAW) < 0.6, TARGET, torch.randint(1, 10, (21, 8), generator=DRAW))
LOGITS = torch.nn.functional.one_hot(GUESS, 10).float()
LENGTHS = torch.arange(21) % 5 + 4
PADDED = torch.where(torch.arange(8) < LENGTHS[:, None], TARGET, -100)
ROUGE = {"rouge_keys": ("rouge1", "rougeL")}
NAMES = [
    *("BLEUScore", "SacreBLEUScore", "CHRFScore", "TranslationEditRate", "ExtendedEditDistance", "ROUGEScore"),
    *("CharErrorRate", "WordErrorRate", "MatchErrorRate", "WordInfoLost", "WordInfoPreserved", "EditDistance"),
]


def decode(tokens: list[int]) -> str:
    return " ".join(WORDS[token] for token in tokens)


SAID = [decode(row[:length].tolist()) for row, length in zip(GUESS, LENGTHS)]
RIGHT = [decode(row[:length].tolist()) for row, length in zip(TARGET, LENGTHS)]


def build(name: str) -> Any:
    return getattr(torchmetrics.text, name)(**(ROUGE if name == "ROUGEScore" else {}))


def found(metric: Any, preds: Any, target: Any, batch: int = 21, *, decoding: Any = decode) -> dict[str, float]:
    metrics = SplitMetrics("val", lambda: {"m": metric}, block=2, decode=decoding)
    for start in range(0, 21, batch):
        part = slice(start, start + batch)
        metrics.update(preds[part], target[part], torch.zeros(()), len(preds[part]))
    return metrics.compute()


def close(one: dict[str, float], other: dict[str, float]) -> bool:
    return one.keys() == other.keys() and all(one[name] == pytest.approx(other[name], abs=1e-5) for name in one)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_decoded_and_padding_is_left_out(name: str) -> None:
    nested = [[text] for text in RIGHT]
    reference = build(name)
    reference.update(SAID, nested if name in NAMES[:6] else RIGHT)
    result = reference.compute()
    expected = {"val/loss": 0.0} | (
        {f"val/m/{key}": float(one) for key, one in result.items()}
        if isinstance(result, dict)
        else {"val/m": float(result)}
    )
    assert expected["val/m/rouge1_fmeasure" if name == "ROUGEScore" else "val/m"] > 0.05
    for preds, target, batch in ((LOGITS, PADDED, 21), (LOGITS, PADDED, 4), (LOGITS.movedim(-1, 1), PADDED, 5)):
        assert close(found(build(name), preds, target, batch), expected)
    own = torch.where(PADDED < 0, -1, GUESS)[:, :9]
    assert close(found(build(name), own, PADDED), expected), "tokens that a model has generated"
    for texts in (RIGHT, nested):
        assert close(found(build(name), SAID, texts, 4, decoding=None), expected), "texts of a task"


def test_values_are_those_of_the_packages_they_are_known_by() -> None:
    bleu = found(build("SacreBLEUScore"), LOGITS, PADDED)["val/m"]
    assert bleu == pytest.approx(sacrebleu.corpus_bleu(SAID, [RIGHT], smooth_method="none").score / 100, abs=1e-5)
    chrf = sacrebleu.corpus_chrf(SAID, [RIGHT], word_order=2).score / 100
    assert found(build("CHRFScore"), LOGITS, PADDED)["val/m"] == pytest.approx(chrf, abs=1e-4)
    scorer = RougeScorer(["rougeL"])
    rouge = sum(scorer.score(right, said)["rougeL"].fmeasure for said, right in zip(SAID, RIGHT)) / 21
    assert found(build("ROUGEScore"), LOGITS, PADDED)["val/m/rougeL_fmeasure"] == pytest.approx(rouge, abs=1e-5)
    letters = sum(edit_distance(said, right) for said, right in zip(SAID, RIGHT)) / 21
    assert found(build("EditDistance"), LOGITS, PADDED)["val/m"] == pytest.approx(letters, abs=1e-5)


def test_answers_and_logits() -> None:
    exact = sum(said == right for said, right in zip(SAID, RIGHT)) / 21 * 100
    for batch in (21, 4):
        assert found(build("SQuAD"), LOGITS, PADDED, batch)["val/m/exact_match"] == pytest.approx(exact)
    said = [{"prediction_text": "1976", "id": "a"}] * 21
    right = [{"answers": {"answer_start": [97], "text": ["1976"]}, "id": "a"}] * 21
    assert found(build("SQuAD"), said, right)["val/m/exact_match"] == 100
    plain = torchmetrics.text.Perplexity(ignore_index=-100)
    assert found(build("Perplexity"), LOGITS, TARGET)["val/m"] == pytest.approx(float(plain(LOGITS, TARGET)), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "preds", "target", "decoding", "message"),
    [
        ("BLEUScore", LOGITS, TARGET, None, "no method decode"),
        ("BLEUScore", LOGITS[..., 0], TARGET, decode, "logits"),
        ("BLEUScore", LOGITS[:, 0], TARGET[:, 0], decode, "logits"),
        ("BLEUScore", LOGITS, LOGITS, decode, "tokens or texts"),
        ("BLEUScore", SAID, TARGET, decode, "tokens or texts"),
        ("WordErrorRate", SAID, [["a", "b"]] * 21, None, "one text for each sample"),
        ("WordErrorRate", LOGITS, TARGET, lambda tokens: WORDS[100], "IndexError|out of range"),
    ],
)
def test_what_makes_no_texts_is_refused(name: str, preds: Any, target: Any, decoding: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        found(build(name), preds, target, decoding=decoding)
    assert caught.value.key == "metrics.val.m"


SHORT = (
    "train", "data=text", "data.dataset.path=text.txt", "data.dataset.context_length=16", "model=lstm_lm",
    "model.dim=8", "trainer.steps=12", "trainer.validate_unit=step", "trainer.validate_every=6", "device=cpu",
    "logger.tensorboard.enabled=false", "hydra.run.dir=outputs/runs/one",
)  # fmt: skip
NODE = "{{_target_: torchmetrics.text.{}}}"


def test_a_language_model_is_ranked_by_its_texts(project: Path, cli: Cli) -> None:
    (project / "text.txt").write_text("the cat sat on the mat, and the dog ran on a road.\n" * 60)
    rouge = "metrics.test.rouge={_target_: torchmetrics.text.ROUGEScore, rouge_keys: [rouge1, rougeL]}"
    scored = [f"metrics.{split}.cer={NODE.format('CharErrorRate')}" for split in ("train", "val", "test")]
    done = cli(*SHORT, *scored, rouge, "metrics.monitor=val/cer", "metrics.figures=[]")
    assert done.code == 0, done.err
    row = read_jsonl(project / "outputs/runs/one/metrics.jsonl")[-1]
    # Of one character for each token the error rate is at most the share of wrong guesses.
    assert 0 < row["test/cer"] <= 1 - row["test/accuracy"] + 1e-6
    assert {"test/rouge/rouge1_fmeasure", "test/rouge/rougeL_recall"} <= row.keys()


OWN = '''
import torch
from torch import nn
from lightkit.data import DataInfo

WORDS = ["", "the", "cat", "dog", "sat", "ran"]


class Pairs:
    """Numbers of words, and the same backwards, of unequal length."""

    info = DataInfo("language_modeling", (6,), 6, (), 6, 6, "pairs")

    def __init__(self, decodes: bool = True):
        self.tokens = torch.randint(1, 6, (60, 6), generator=torch.Generator().manual_seed(0))
        if decodes:
            self.decode = lambda tokens: " ".join(WORDS[token] for token in tokens)

    def __len__(self):
        return 60

    def __getitem__(self, row):
        target = self.tokens[row].flip(0)
        target[3 + row % 3 :] = -100
        return self.tokens[row], target


class Words(nn.Sequential):
    def __init__(self, vocab_size: int):
        super().__init__(nn.Embedding(vocab_size, 8), nn.Linear(8, vocab_size))
'''
SEQUENCES = (
    "train", "data=custom", "data.dataset._target_=pairs.Pairs", "model=custom",
    "model._target_=pairs.Words", "loss=token_cross_entropy", "metrics=none", "trainer.epochs=1", "device=cpu",
    "metrics.monitor=val/x", "logger.tensorboard.enabled=false",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["WordErrorRate", "SQuAD"])
def test_sequences_of_a_data_set_with_a_vocabulary_of_its_own(project: Path, cli: Cli, name: str) -> None:
    (project / "pairs.py").write_text(OWN)
    scored = f"metrics.val.x={NODE.format(name)}"
    monitor = ["metrics.monitor=val/x/f1", "metrics.mode=max"] if name == "SQuAD" else []
    done = cli(*SEQUENCES, scored, *monitor)
    assert (done.code, "Traceback" in done.err) == (0, False), done.err
    refused = cli(*SEQUENCES, scored, *monitor, "data.dataset.decodes=false")
    assert (refused.code, "no method decode(tokens)" in refused.err) == (2, True), refused.err


class Absent(torchmetrics.text.WordErrorRate):
    """Asks for a file, as `ROUGEScore` does for sentences."""

    def update(self, preds: Any, target: Any) -> None:
        raise OSError("`nltk` resource `punkt` is not available")


def test_what_needs_a_file_that_is_not_here_says_so() -> None:
    with pytest.raises(UserError, match="punkt") as caught:
        found(Absent(), LOGITS, PADDED)
    assert "need no file from elsewhere" in str(caught.value)
