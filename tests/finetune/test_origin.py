"""What a fine-tuning knows of the run its weights come from."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightkit.assembly import build
from lightkit.assembly.origin import check_vocabulary, notes_on_base, run_of, scaling_note, scaling_of_base
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.data import DataInfo
from lightkit.data.normalize import Normalizer
from lightkit.runner import Runner
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


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has read a, b, c and d."""
    return text_run(tmp_path_factory.mktemp("text") / "base", "abcd")


def info(*tokens: str) -> DataInfo:
    return DataInfo("language_modeling", (8,), len(tokens), vocab_size=len(tokens), vocabulary=tokens)


@pytest.mark.thorough
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


def test_a_run_is_not_measured_on_other_characters(tmp_path: Path, base: Path) -> None:
    (tmp_path / "other.txt").write_text("abxy" * 40, encoding="utf-8")
    path = f"data.dataset.path={tmp_path}/other.txt"
    with pytest.raises(UserError, match=r"data\.dataset: the weights belong to another vocabulary"):
        Runner(load_run(base, [path]).cfg, base).evaluate("val")
    shared = load_run(base, [path, "data.dataset.vocabulary=abcd"]).cfg
    assert Runner(shared, base).evaluate("val")["val/bits_per_character"] > 0


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


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("none", "none", None),
        ("image", "image", "data.normalize=image is fitted on the 1,200 training rows of this run"),
        ("standard", "none", "the base saw its inputs with data.normalize=standard, this run has none"),
        ("none", "minmax", "the base saw its inputs with data.normalize=none, this run has minmax"),
        ("image", "base", "inputs are scaled as those of the base were (data.normalize=image)"),
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


# Scaling


@pytest.mark.thorough
def test_the_scaling_of_the_base_is_taken_over_and_kept(tmp_path: Path) -> None:
    base = run(tmp_path / "base", *SHORT, *MODELS["mlp"], "trainer.epochs=1", "data.normalize=standard")
    few = [*SHORT, *MODELS["mlp"], "finetune=full", f"finetune.weights.path={base}", "data.split.per_class=3"]
    own, same = (run(tmp_path / f"as-{kind}", *few, f"data.normalize={kind}") for kind in ("minmax", "base"))
    assert scaling(same) == scaling(base) != scaling(own)
    assert "inputs are scaled as those of the base were (data.normalize=standard)" in (same / "run.log").read_text()
    expected = inputs(base)
    assert torch.equal(inputs(same), expected)
    shutil.rmtree(base)  # a finished run needs its base no more
    assert torch.equal(inputs(same), expected)
    again = run(tmp_path / "again", *few[:-2], f"finetune.weights.path={same}", "data.normalize=base")
    assert scaling(again) == scaling(same)


def scaling(folder: Path) -> object:
    return json.loads((folder / "environment.json").read_text())["scaling"]


def inputs(folder: Path) -> Tensor:
    """The first batch of the test split, as a finished run sees it."""
    parts = build(load_run(folder).cfg, folder, pretrained=False)
    with closing(parts.data):
        assert parts.data.test is not None
        return next(iter(parts.data.test.epoch(0)))[0]


def test_a_base_that_does_not_know_its_scaling(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").touch()
    path = f"{tmp_path}/weights.pt"
    with pytest.raises(UserError, match="it is not known how the base scaled its inputs"):
        scaling_of_base(None, None)
    with pytest.raises(UserError, match="fix: +data.normalize=standard"):
        scaling_of_base(path, None)
    (tmp_path / "config.yaml").write_text("data: {normalize: minmax}")  # of an older lightkit
    with pytest.raises(UserError, match="it is not known"):
        scaling_of_base(path, None)
    (tmp_path / "environment.json").write_text('{"scaling": {"shift": [1.0], "scale": "two"}}')
    with pytest.raises(UserError, match="it is not known"):
        scaling_of_base(path, None)
    (tmp_path / "config.yaml").write_text("data: {normalize: none}")
    (tmp_path / "environment.json").unlink()
    assert scaling_of_base(path, None) is None


@pytest.mark.parametrize(
    ("shift", "shape", "fits"),
    [((3,), (3,), True), ((3, 1, 1), (3, 8, 8), True), ((), (3,), True), ((4,), (3,), False), ((3, 1, 1), (3,), False)],
)
def test_a_scaling_is_for_inputs_of_its_shape(shift: tuple[int, ...], shape: tuple[int, ...], fits: bool) -> None:
    normalizer = Normalizer(torch.zeros(shift), torch.ones(shift))
    if fits:
        assert normalizer.suited(shape) is normalizer
    else:
        with pytest.raises(UserError, match="this scaling is for inputs of another shape"):
            normalizer.suited(shape)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("classes", "keys", "kept", "said"),
    [
        ("[2,3]", (), False, "the classes of the base are 0, 1, not 2, 3: its output layer starts anew"),
        ("[2,3]", ("finetune.head.replace=never",), True, "its output layer stays, as finetune.head.replace=never"),
        ("[0,1]", (), True, ""),
    ],
)
def test_the_outputs_of_other_classes_start_anew(
    tmp_path: Path, classes: str, keys: tuple[str, ...], kept: bool, said: str
) -> None:
    digits = ("data=digits", "model=mlp", "model.hidden=[4]")
    base = run(tmp_path / "base", *SHORT, *digits, "data.dataset.classes=[0,1]")
    cfg = compose(
        [*digits, f"data.dataset.classes={classes}", "finetune=full", f"finetune.weights.path={base}", *keys]
    ).cfg
    parts = build(cfg, tmp_path / "new")
    with closing(parts.data):
        report = parts.made.report
        assert report is not None
        assert (len(report.left) == 0) == kept
        assert said in "\n".join(notes_on_base(cfg, parts.data))
