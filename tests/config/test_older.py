"""Run folders whose globs fitted the ends of names: opened with what they meant then."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import lightkit.common.patterns as patterns
import lightkit.config.saved as saved
from lightkit.config.older import MARK, as_meant
from tests.conftest import Outcome

NETS = """
from torch import nn

def linear(in_features, num_classes):
    sizes = [in_features, *[4] * 11, num_classes]
    return nn.Sequential(*(nn.Linear(*pair) for pair in zip(sizes, sizes[1:])))
"""
TRAIN = (
    "data=wine",
    "model=custom",
    "model._target_=older_nets.linear",
    "finetune=full",
    "finetune.freeze=['0.*']",
    "finetune.lora.match=['1']",
    "finetune.lora.rank=2",
    "finetune.rules=[{match: '2.*', lr_scale: 0.5}]",
    "optim.rules=[{match: 3.weight, lr_scale: 0.1}]",
    "scheduler=constant",
    "device=cpu",
    "logger.console.style=quiet",
    "logger.tensorboard.enabled=false",
    "metrics.figures=[]",
)


def test_globs_are_widened_and_nothing_else_is() -> None:
    tree = {
        "finetune": {
            "freeze": ["a", "*b", "re:^c", "@head"],
            "train": None,
            "schedule": [{"epoch": 1, "unfreeze": ["d.*"], "freeze": None}],
            "rules": [{"match": "e", "lr": 1.0}, {"match": ["re:f", "g"], "name": "own"}, {"match": ["@norm", "h"]}],
            "lora": {"match": ["i"], "ranks": {"i": 2, "*j": 3}},
            "adapter": {"match": []},
            "weights": {"mapping": {"k.*": "l.*"}},
        },
        "optim": {"rules": [{"match": "m", "name": None}, "broken", {}]},
        "device": {"activation_checkpointing": ["n.*", 3]},
        "resume": {"override": ["optim.lr"]},
    }
    assert as_meant("seed: 0\n", tree) == {
        "finetune": {
            "freeze": ["*a", "*b", "re:^c", "@head"],
            "train": None,
            "schedule": [{"epoch": 1, "unfreeze": ["*d.*"], "freeze": None}],
            "rules": [
                {"match": "*e", "lr": 1.0, "name": "e"},
                {"match": ["re:f", "*g"], "name": "own"},
                {"match": ["@norm", "*h"], "name": "norm+h"},
            ],
            "lora": {"match": ["*i"], "ranks": {"*i": 2, "*j": 3}},
            "adapter": {"match": []},
            "weights": {"mapping": {"k.*": "l.*"}},
        },
        "optim": {"rules": [{"match": "*m", "name": None}, "broken", {}]},
        "device": {"activation_checkpointing": ["*n.*", 3]},
        "resume": {"override": ["optim.lr"]},
    }


@pytest.mark.parametrize("tree", [{}, {"finetune": None}, {"finetune": {"lora": 3, "rules": "x"}, "optim": []}])
def test_what_is_not_there_stays_away(tree: dict[str, Any]) -> None:
    assert as_meant("", json.loads(json.dumps(tree))) == tree


def test_the_format_at_hand_means_what_it_says() -> None:
    tree = {"finetune": {"freeze": ["a"]}}
    assert as_meant(f"# The head.\n{MARK}seed: 0\n", tree) == {"finetune": {"freeze": ["a"]}}


@pytest.fixture
def older(project: Path, cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of a run of two epochs under the former meaning, and of its first half."""

    def ends(text: str) -> Callable[[str], object]:
        return re.compile(text[3:] if text.startswith("re:") else fnmatch.translate(text)).search

    (project / "older_nets.py").write_text(NETS)
    with monkeypatch.context() as then:
        then.setattr(patterns, "_compiled", ends)
        then.setattr(saved, "MARK", "")
        for folder, epochs in (("whole", 2), ("half", 1)):
            done = cli("train", *TRAIN, f"trainer.epochs={epochs}", f"hydra.run.dir={folder}")
            assert done.code == 0, done.err
    return project


@pytest.mark.thorough
def test_an_older_run_goes_on_and_is_evaluated_as_it_was_trained(older: Path, cli: Callable[..., Outcome]) -> None:
    assert yaml.safe_load((older / "half/config.yaml").read_text())["finetune"]["freeze"] == ["0.*"]
    assert cli("eval", "half").code == 0
    done = cli("resume", "half", "trainer.epochs=2")
    assert done.code == 0, done.err
    ended = [json.loads((older / name / "result.json").read_text())["metrics"] for name in ("whole", "half")]
    whole, half = ({key: value for key, value in values.items() if "speed/" not in key} for values in ended)
    assert half == whole
    noted = json.loads((older / "half/finetune.json").read_text())
    matched = {row["pattern"]: row.get("modules", row["names"]) for row in noted["patterns"]}
    assert matched == {
        "*3.weight": ["3.weight"],
        "*0.*": ["0.weight", "0.bias", "10.weight", "10.bias"],
        "*2.*": ["2.weight", "2.bias"],
        "*1": ["1", "11"],
    }
    kept = (older / "half/config.yaml").read_text()
    assert MARK in kept
    assert yaml.safe_load(kept)["finetune"]["freeze"] == ["*0.*"]
    assert cli("resume", "half", "trainer.epochs=3").code == 0  # once widened, that is what it says
