"""Nothing is wrong with what is shipped, and the doctor says so; and what it tells people to type is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lightkit.common.doors import import_path
from lightkit.config import compose
from lightkit.doctor.checks import CHECKS, examine, examined
from tests.conftest import Outcome
from tests.hub import overrides as hidden
from tests.hub import save_reviews, save_tokenizer

EXPERIMENTS = (
    "wine", "breast_cancer", "char_lm", "char_lm/transformer", "custom_task", "diabetes", "digits_cnn", "digits_mlp",
    "digits_multilabel", "ensembles", "finetune_timm", "finetune_timm/torchvision", "retrieval",
    "shapes", "transfer_digits/pretrain", "transfer_shapes/pretrain", "segment_shapes", "detect_shapes", "gan_ring",
    "tasks/fruit", "tasks/sales", "tasks/sentences", "tasks/views",
)  # fmt: skip
"""All but those that need a run of another one first, and the reviews, some of which are there twice."""
OF_DATA = ("labels", "splits", "order", "answers", "pictures", "features", "leaks", "scale", "augmentation")


def alarms(overrides: Iterable[str], names: Sequence[str] = ()) -> list[str]:
    """What these checks accuse, or all.

    There is more time than a user waits, as other work on the machine is no reason to skip.
    """
    with examined(compose([*overrides]).cfg, 600) as run:
        some = (each for name in names for each in import_path(dict(CHECKS)[name])(run))
        found = [*some] if names else [*examine(run)]
    failed = [each for each in found if each.measured.startswith("the check itself failed")]
    return [f"{each.check}: {each.measured}" for each in found if each.is_bad or each in failed]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_alarm_on_a_shipped_experiment(project: Path, name: str) -> None:
    assert alarms([f"experiment={name}"]) == []


@pytest.mark.thorough
@pytest.mark.slow
def test_no_alarm_on_a_fine_tuning(cli: Callable[..., Outcome], project: Path) -> None:
    short = ("trainer.epochs=2", "scheduler.warmup_epochs=0", "logger.console.style=quiet")
    base = "outputs/runs/transfer_digits_base"
    done = cli("train", "experiment=transfer_digits/pretrain", *short, f"hydra.run.dir={base}")
    assert done.code == 0, done.err
    for method in ("head", "lora"):
        assert alarms(["experiment=transfer_digits", f"finetune={method}", "data.split.per_class=5"]) == []


def test_no_alarm_on_padded_batches_of_tags(project: Path) -> None:
    Path("tags.jsonl").write_text(
        "".join(f'{{"text": "{"a b " * (row % 5 + 1)}", "target": "{"X Y " * (row % 5 + 1)}"}}\n' for row in range(80))
    )
    words = "data=texts data.dataset.path=tags.jsonl data.dataset.tags=true metrics=tagging model.dim=8 model.depth=1"
    assert alarms([*words.split(), "data.batch_size=8"], ["evaluation"]) == []


def test_no_alarm_on_heads(project: Path) -> None:
    from tests.resume.test_tasks import HEADS

    assert alarms([*HEADS[:2], "model=heads", *HEADS[4:]], ["initial loss"]) == []


@pytest.mark.thorough
@pytest.mark.parametrize("names", [["causality"], []], ids=["causality", "all checks"])
def test_no_alarm_on_hidden_tokens(project: Path, names: list[str]) -> None:
    pytest.importorskip("datasets")
    save_reviews(project / "reviews")
    save_tokenizer(project / "words")
    kind = ("data.dataset.task=masked_lm", "data.dataset.max_length=8", "metrics=language_modeling")
    assert alarms(hidden(*kind, "loss=token_cross_entropy"), names) == []


@pytest.mark.thorough(first=0)
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        "data=diabetes loss=huber",
        "data=breast_cancer loss=focal",
        "data=digits model=cnn device.precision=bf16 data.mixup.alpha=0.2 trainer.accumulate=4",
        "data=digits device=ddp optim=sgd optim.lr=0.1 trainer.clip_norm=0.1",
        "data=wine model=soft_tree ensemble=voting",
        "data=digits model=tabm",
        "data=digits model=transformer",
    ],
)
def test_no_alarm_on_what_is_usual(project: Path, overrides: str) -> None:
    assert alarms(overrides.split()) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "overrides",
    [
        "experiment=digits_multilabel",
        "data=digits data.dataset.image=false",
        "data=breast_cancer data.dataset.binary=true loss=bce_with_logits metrics=binary",
        "data=digits data.dataset.classes=[3,8] data.split.by=fold data.split.fold=2",
        "data=digits data.split.per_class=20 data.split.val=0 metrics.monitor=train/loss",
        "data=shapes data.dataset.train=600 data.dataset.val=100 data.dataset.test=200",
    ],
)
def test_no_alarm_on_the_data(project: Path, overrides: str) -> None:
    assert alarms(overrides.split(), OF_DATA) == []


def test_every_experiment_is_looked_at(root: Path) -> None:
    files = {path.relative_to(root / "experiments") for path in (root / "experiments").glob("*/*.yaml")}
    shown = {path for path in files if not path.name.startswith("_")}
    named = {f"{path.parent}" if path.stem == path.parent.name else f"{path.parent}/{path.stem}" for path in shown}
    of_a_base = {"transfer_digits", "transfer_shapes", "transfer_text", "transfer_text/transformer"}
    with_repeats = {"tasks/reviews"}  # its templates make a few texts twice
    assert named - of_a_base - with_repeats == set(EXPERIMENTS)


GROUPS = "trainer|data|device|optim|checkpoint|metrics|scheduler|finetune|logger"
KEY = re.compile(rf"(?<![\w./])(?:{GROUPS})\.[a-z_]+(?:\.[a-z_]+)*(?![\w(.])")
MISSING = object()
ARGUMENTS = {"optim.maximize"}
"""Keys of arguments that a file of `conf/` leaves at their defaults."""


def test_keys_exist(project: Path, root: Path) -> None:
    (project / "own.csv").write_text("a,y\n1,0\n2,1\n")
    csv = "data=csv data.dataset.path=own.csv data.dataset.target=y"
    words = ("", "data=diabetes", csv, "data=image_folder data.dataset.root=.", "data=shapes", "finetune=head")
    composed = [compose(each.split()).cfg for each in words]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (root / "lightkit" / "doctor").rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    texts = [node.value for node in nodes if isinstance(node.value, str)]  # without what stands inside of `{}`
    keys = {key for each in texts for key in KEY.findall(each)} - ARGUMENTS

    assert len(keys) > 20
    unknown = {key for key in keys if all(OmegaConf.select(cfg, key, default=MISSING) is MISSING for cfg in composed)}
    assert unknown == set()
