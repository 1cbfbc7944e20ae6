from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, Cli

GROUPS = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())


def test_prints_what_train_would_run(cli: Cli) -> None:
    assert cli("config", "seed=5").out == cli("train", "seed=5", "--cfg", "job").out
    assert cli("config", "data=wine", "-p", "name").out == "wine_mlp\n"


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_lists_its_choices_and_keys_with_their_meaning(cli: Cli, group: str) -> None:
    out, folder = cli("config", group).out, ROOT / "conf" / group
    lines = out.partition(f"keys of {group}:\n")[2].splitlines()
    heads = [line for line in lines if not line.startswith("   ")]
    assert all(line.strip() for line in lines)
    assert all(line.startswith(f"  {group}.") for line in heads)
    if group == "hydra":
        return
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml")}
    choices = out.partition("\n\n")[0].splitlines()
    rows = [line.split(maxsplit=1) for line in choices if line.startswith(f"  {group}=")]
    assert {name for name, *_ in rows} == {f"{group}={name}" for name in files if not name.startswith("_")}
    assert [name for name, *rest in rows if not rest] == [], "options without a first comment"


def test_a_users_options_are_listed(cli: Cli, project: Path) -> None:
    (project / "conf" / "optim").mkdir(parents=True)
    (project / "conf" / "optim" / "mine.yaml").write_text("# @package optim\n# Better than theirs.\nlr: 1\n")
    (project / "conf" / "weather").mkdir()
    (project / "conf" / "weather" / "rain.yaml").write_text("a: 1\n")
    assert re.search("^  optim=mine +Better than theirs.$", cli("config", "optim").out, re.M)
    assert cli("config", "weather").out == "choices of weather:\n  weather=rain\n"


def test_keys_are_shown_with_type_default_and_meaning(cli: Cli) -> None:
    out = cli("config", "trainer").out
    assert re.search(r"^  trainer\.accumulate \(.*\) = 1\n      Number of batches whose gradients", out, re.M)
    assert re.search(r"^  trainer\.early_stopping\.patience \(.*null.*\) = null$", out, re.M)
    assert cli("config", "trainer.ema").out.startswith("keys of trainer.ema:\n  trainer.ema.decay (")


def test_a_group_a_key_and_the_whole_as_json(cli: Cli) -> None:
    group = json.loads(cli("config", "optim", "--json").out)
    assert "adamw" in [option["name"] for option in group["choices"]]
    assert {"optim.lr"} <= {item["key"] for item in group["arguments"]["sgd"]}
    assert "optim.layer_decay" in [key["key"] for key in group["keys"]]
    key = json.loads(cli("config", "optim.lr", "--json").out)
    assert {item["key"] for items in key["arguments"].values() for item in items} == {"optim.lr"}
    (row,) = json.loads(cli("config", "trainer.epochs", "--json").out)["keys"]
    assert row["key"] == "trainer.epochs"
    assert json.loads(cli("config", "data=wine", "--json").out)["data"]["dataset"]["_target_"].endswith("wine")


def test_an_earlier_name_of_a_key_works_and_says_which_one_to_use(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    sys.modules["lightkit.config.compose"]._warn_once.cache_clear()
    done = cli("train", "--cfg", "job", "finetune.layer_decay=0.5")
    assert (done.code, "layer_decay: 0.5" in done.out) == (0, True)
    assert "finetune.layer_decay is an earlier name: optim.layer_decay does the same" in caplog.text
    caplog.clear()
    assert (cli("train", "--cfg", "job", "optim.layer_decay=0.5").code, caplog.text) == (0, "")
    assert "layer_decay" not in cli("config", "finetune").out
    asked = cli("config", "finetune.layer_decay")
    assert (asked.code, "fix:      optim.layer_decay" in asked.err) == (2, True)
    assert "expected: a number above 0, at most 1" in cli("train", "finetune.layer_decay=2").err
