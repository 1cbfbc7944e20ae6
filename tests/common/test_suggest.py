from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from itertools import zip_longest

import pytest

from lightkit.common.errors import UserErrors
from lightkit.common.suggest import meaning, names_by, nearest
from lightkit.config import compose
from lightkit.config.describe import describe_arguments
from lightkit.config.fields import valid_keys
from lightkit.config.loader import make_loader
from tests.conftest import Cli

KEYS, WORDS, VALUES = names_by("keys"), names_by("advice"), names_by("values")
CALLBACKS = ("ModelCheckpoint", "EarlyStopping", "StochasticWeightAveraging", "LearningRateMonitor", "Timer")


def test_the_nearest_name_comes_first() -> None:
    assert nearest("learning_rat", ["learning_rate", "lr"])[0] == "learning_rate"
    assert nearest("LR", ["lr", "momentum"])[0] == "lr"
    assert nearest("optm.lr", ["optim.lr", "trainer.epochs"])[0] == "optim.lr"
    assert nearest("trainer.lr", ["optim.lr", "model.width"])[0] == "optim.lr"
    assert nearest("zebra", ["lr", "momentum"]) == []
    assert len(nearest("name", [f"name{i}" for i in range(9)], count=2)) == 2


def test_last_parts_count_unless_they_are_a_number_or_a_letter() -> None:
    assert nearest("blocks.*.atention", ["blocks.1.norm", "blocks.1.attn"]) == ["blocks.1.attn"]
    assert nearest("stages.7", ["stages.1"]) == ["stages.1"]
    assert nearest("trainer.precision", ["trainer.test", "trainer.validate"]) == []


def known_keys() -> set[str]:
    groups = {target.split("=")[0].split(".")[0] for targets in KEYS.values() for target in targets.split()}
    loader = make_loader()
    arguments = (each for group in groups if loader.is_group(group) for each in describe_arguments(group).values())
    return {*valid_keys(), *(item.key for found in arguments for item in found)}


def fixes(overrides: list[str]) -> dict[str, str]:
    """The fix by key, of everything that is wrong with all overrides at once."""
    with pytest.raises(UserErrors) as raised:
        compose(overrides)
    return {error.key or "": error.fix or "" for error in raised.value.errors}


def test_every_name_leads_to_a_key_that_exists() -> None:
    known, loader = known_keys(), make_loader()
    for name, targets in KEYS.items():
        for target in targets.split():
            key, _, value = target.partition("=")
            assert key in known, name
            assert not value or "." in key or loader.is_option(key, value), name
    values = {target for targets in KEYS.values() for target in targets.split() if "." in target and "=" in target}
    with pytest.raises(UserErrors) as raised:
        compose([*sorted(values), "seed=zebra"])
    wrong = {error.key for error in raised.value.errors if error.families[0].slug == "wrong-value"}
    assert wrong == {"seed"}


def test_every_value_leads_to_one_that_exists() -> None:
    loader = make_loader()
    for meant in {*VALUES.values()}:
        key, _, value = meant.split()[0].partition("=")
        assert loader.is_option(key, value) if loader.is_group(key) else key in valid_keys(), meant
    by_key: dict[str, list[str]] = {}
    for meant in sorted({meant for meant in VALUES.values() if "." in meant and not meant.split("=")[-1].isupper()}):
        by_key.setdefault(meant.partition("=")[0], []).append(meant)
    for together in zip_longest(*by_key.values(), fillvalue=""):  # one value of each key at once
        compose(" ".join(together).split())


def test_there_are_enough_of_them_and_each_means_one_thing() -> None:
    assert len(KEYS) > 600
    assert not KEYS.keys() & WORDS.keys()
    plain = Counter(name.replace("_", "") for name in (*KEYS, *WORDS))
    assert [name for name, times in plain.items() if times > 1] == []


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["", "trainer."])
@pytest.mark.parametrize("part", range(4))
def test_the_message_for_each_name_leads_there(place: str, part: int) -> None:
    valid = {*valid_keys()}
    names = [name for name in (*KEYS, *WORDS) if place + name not in valid][part::4]
    said = fixes([f"{place}{name}=1" for name in names])
    for name in names:
        assert (KEYS.get(name) or WORDS[name]) in said[place + name], place + name


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(4))
def test_so_does_the_message_below_the_group_where_it_would_be(part: int) -> None:
    known = known_keys()
    homes = {f"{targets.split()[-1].split('=')[0].split('.')[0]}.{name}": name for name, targets in KEYS.items()}
    typed = [key for key in homes if key not in known and not key.startswith(("seed.", "name.", "profile."))]
    typed = typed[part::4]
    said = fixes([f"{key}=1" for key in typed])
    for key in typed:
        target = KEYS[homes[key]].split()[-1]
        assert target.partition("=")[0] in said[key] or KEYS[homes[key]] in said[key], (key, said[key])


def test_a_node_of_another_framework_counts_by_its_innermost_name() -> None:
    said = fixes(
        ["callbacks.early_stopping.patience=3", "optimizer.lr=1", "trainer.callbacks.early_stopping.patience=3"]
    )
    assert "did you mean trainer.early_stopping.patience?" in said["callbacks"]
    assert "did you mean optim.lr?" in said["optimizer"]
    assert "did you mean trainer.early_stopping.patience?" in said["trainer.callbacks.early_stopping"]


def test_what_nobody_knows_or_means_something_else_here() -> None:
    said = fixes(["trainer.time_limit=3", "trainer.foo_bar=3", "key=1", "zebra=2"])
    assert "a number of epochs or steps" in said["trainer.time_limit"], "not sweep.time_limit, of a job"
    assert not said["trainer.foo_bar"]
    assert "did you mean" not in said["key"] + said["zebra"]


def test_a_name_is_not_its_own_meaning() -> None:
    assert meaning("optim.lr") is None
    assert meaning("zebra") is None
    assert meaning("trainer.LR") == "did you mean optim.lr?"


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("scheduler=ReduceLROnPlateau", "scheduler=plateau"),
        ("optim=adamw_torch", "optim=adamw"),
        ("device.precision=bf16-mixed", "device.precision=bf16"),
        ("device.precision=16", "device.precision=fp16"),
        ("model=resnet152", "model=torchvision model.name=resnet152"),
        ("optimizer__lr=1", "did you mean optim.lr?"),
        ("trainer.maxEpochs=1", "did you mean trainer.epochs?"),
        ("trainer.callbacks.EarlyStopping.patience=3", "did you mean trainer.early_stopping.patience?"),
        ("callbacks.ModelCheckpoint.save_top_k=3", "did you mean checkpoint.keep_best?"),
        ("fit.epochs=3", "did you mean trainer.epochs?"),
        ("compile.loss=mse", "did you mean loss?"),
        ("scheduler.T_max=9", "a schedule ends where the run does: trainer.epochs=N or trainer.steps=N"),
        ("device=tpu", "CPUs, NVIDIA's GPUs and Apple's are there: device=cpu, cuda or mps"),
        ("optim=Adadelta", "optim=custom optim._target_=torch.optim.Adadelta"),
    ],
)
def test_values_nested_names_and_capital_letters_lead_there_too(typed: str, fix: str) -> None:
    assert [*fixes([typed]).values()] == [fix]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--lr", "0.1"], "keys have no dashes: optim.lr=0.1"),
        (["--batch-size=4", "seed=1"], "keys have no dashes: data.batch_size=4"),
        (["--fp16", "--epochs", "3"], "keys have no dashes: device.precision=fp16"),
        (["-b"], "keys have no dashes: data.batch_size=VALUE"),
        (["--epochs", "seed=3"], "keys have no dashes: trainer.epochs=VALUE"),
        (["--optim.lr=0.1"], "optim.lr=0.1, without dashes"),
        (["--seed", "3"], "seed=3, without dashes"),
        (["--num-classes", "3"], "the classes are counted in the data, so nothing says how many there are"),
        (["--aa", "rand-m9"], "keys have no dashes: data.augment=[VALUE]"),
        (["--zebra", "3"], None),
    ],
)
def test_options_of_other_programs_are_told_as_overrides(cli: Cli, words: list[str], fix: str | None) -> None:
    done = cli("train", *words)
    said = [line.partition("fix:")[2].strip() for line in done.err.splitlines() if "fix:" in line]
    assert (done.code, said) == (2, [fix] if fix else [])


def real_names() -> set[str]:
    """What the packages themselves call their arguments."""
    lightning, transformers = pytest.importorskip("lightning"), pytest.importorskip("transformers")
    made = [lightning.Trainer, *(getattr(lightning.pytorch.callbacks, name) for name in CALLBACKS)]
    names = {name for kind in made for name in inspect.signature(kind.__init__).parameters}
    return names - {"self"} | {field.name for field in dataclasses.fields(transformers.TrainingArguments)}


@pytest.mark.slow
@pytest.mark.thorough(first=2)
@pytest.mark.parametrize("place", ["", "trainer.", "optim.", "data.", "device.", "checkpoint.", "logger."])
def test_no_argument_of_the_packages_leads_astray(place: str) -> None:
    known, names = [*KEYS, *WORDS], sorted(real_names())
    own = {key.rpartition(".")[2] for key in valid_keys()}
    unknown = [name for name in names if name not in known and name not in own]
    said = fixes([f"{place}{name}=1" for name in unknown])
    assert [fix for fix in said.values() if "did you mean" in fix] == []
    assert len(unknown) < 0.4 * len(names)
