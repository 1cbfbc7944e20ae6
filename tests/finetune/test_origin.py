"""What a fine-tuning knows of the run its weights come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightkit.build.origin import check_vocabulary, run_of, scaling_note
from lightkit.common.errors import UserError
from lightkit.config import compose
from lightkit.data import DataInfo
from tests.finetune.whole import MODELS, SHORT, run

pytestmark = pytest.mark.usefixtures("hasty")

TEXT = ("data=text", "data.dataset.context_length=8", "data.split.val=0.2", "data.split.test=0")
SMALL = (
    "model=transformer_lm",
    "model.dim=8",
    "model.depth=1",
    "model.heads=1",
    "trainer.steps=2",
    "trainer.epochs=null",
)


def text_run(folder: Path, letters: str, *overrides: str) -> Path:
    file = folder.with_suffix(".txt")
    file.write_text(letters * 40, encoding="utf-8")
    return run(folder, *SHORT, *TEXT, *SMALL, f"data.dataset.path={file}", *overrides)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A run that has read a, b, c and d."""
    return text_run(tmp_path / "base", "abcd")


def info(*tokens: str) -> DataInfo:
    return DataInfo("language_modeling", (8,), len(tokens), vocab_size=len(tokens), vocabulary=tokens)


def test_other_characters_are_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(UserError, match="another vocabulary") as caught:
        text_run(tmp_path / "other", "abxy", "finetune=full", f"finetune.weights.path={base}")
    text = str(caught.value)
    assert "finetune.weights.path" in text
    assert "not in the weights: 'x' 'y'" in text
    assert "the same number of other tokens; not in this data: 'c' 'd'" in text
    assert 'the base\'s own in a YAML file of yours, data.dataset.vocabulary: "abcd"' in text
    with pytest.raises(UserError, match="4 tokens"):
        text_run(tmp_path / "fewer", "abz", "finetune=full", f"finetune.weights.path={run_file(base)}")
    with pytest.raises(UserError, match=r"finetune\.distill\.teacher: the weights belong to another vocabulary"):
        text_run(tmp_path / "student", "abxy", f"finetune.distill.teacher={base}")


def run_file(folder: Path) -> Path:
    return next((folder / "checkpoints").glob("*.pt"))


def test_the_vocabulary_of_the_base_can_be_given(tmp_path: Path, base: Path) -> None:
    assert json.loads((base / "environment.json").read_text())["vocabulary"] == ["\ufffd", *"abcd"]
    chosen = ["data.dataset.vocabulary=abcd", "finetune=full", f"finetune.weights.path={base}"]
    text_run(tmp_path / "other", "abxy", *chosen)


def test_weights_without_the_tokens_do_for_any_text(tmp_path: Path, base: Path) -> None:
    left_out = "finetune.weights.mapping={embed*: null, head*: null}"
    chosen = ["finetune=full", f"finetune.weights.path={base}", "finetune.weights.strict=matching", left_out]
    text_run(tmp_path / "other", "abxy", *chosen)


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("data: {}")
    check_vocabulary(tmp_path, info("a", "b"), key="finetune.weights.path")
    (tmp_path / "environment.json").write_text("[]")
    check_vocabulary(tmp_path, info("a", "b"), key="finetune.weights.path")
    (tmp_path / "environment.json").write_text('{"vocabulary": ["b", "a"]}')
    check_vocabulary(tmp_path / "no run" / "at" / "all.pt", info("a", "b"), key="finetune.weights.path")
    with pytest.raises(UserError, match="none, but in another order"):
        check_vocabulary(tmp_path / "weights.pt", info("a", "b"), key="finetune.weights.path")
    (tmp_path / "environment.json").write_text('{"vocabulary": ["the", "a"]}')
    with pytest.raises(UserError, match='environment.json under "vocabulary"'):
        check_vocabulary(tmp_path / "weights.pt", info("a", "b"), key="finetune.weights.path")


@pytest.mark.parametrize("place", [".", "checkpoints", "checkpoints/step=3.pt", "weights.safetensors"])
def test_the_run_that_a_file_lies_in(tmp_path: Path, place: str) -> None:
    assert run_of(tmp_path / place) is None
    (tmp_path / "config.yaml").touch()
    assert run_of(tmp_path / place) == tmp_path


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("none", "none", None),
        ("image", "image", "data.normalize=image is fitted on the 1,200 training rows of this run"),
        ("standard", "none", "the base saw its inputs with data.normalize=standard, this run has none"),
        ("none", "minmax", "the base saw its inputs with data.normalize=none, this run has minmax"),
    ],
)
def test_inputs_scaled_in_another_way_are_told(tmp_path: Path, before: str, now: str, expected: str | None) -> None:
    (tmp_path / "config.yaml").write_text(f"data: {{normalize: {before}}}")
    cfg = compose([*MODELS["cnn"], f"finetune.weights.path={tmp_path}", f"data.normalize={now}"]).cfg
    note = scaling_note(cfg, 1200)
    assert note == expected if expected is None else expected in (note or "")


def test_a_file_of_others_says_nothing_of_scaling(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "weights.pt")
    cfg = compose([*MODELS["cnn"], f"finetune.weights.path={tmp_path}/weights.pt", "data.normalize=image"]).cfg
    assert scaling_note(cfg, 10) is None
    (tmp_path / "config.yaml").write_text("data: [broken")
    assert scaling_note(cfg, 10) is None
    (tmp_path / "config.yaml").write_text("data: 3")
    assert scaling_note(cfg, 10) is None
    assert scaling_note(compose(list(MODELS["cnn"])).cfg, 10) is None
