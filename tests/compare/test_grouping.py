from __future__ import annotations

from pathlib import Path

from lightkit.compare.grouping import columns, differing_keys, group, label, short_names, shown
from lightkit.runs.index import read_record
from lightkit.runs.record import RunRecord
from tests.compare.made import CONFIG, a_run


def records(tmp_path: Path, *configs: str) -> list[RunRecord]:
    return [read_record(a_run(tmp_path / str(i), config=text, seed=i)) for i, text in enumerate(configs)]


def test_only_what_differs_is_a_key_and_the_seed_with_what_follows_it_is_none(tmp_path: Path) -> None:
    follows = CONFIG + "data:\n  split:\n    seed: {seed}\n"
    found = records(tmp_path, follows, follows.replace("{lr}", "0.3").replace("demo", "other"))
    assert differing_keys(found) == ["optim.lr"]


def test_where_runs_paused_makes_no_difference(tmp_path: Path) -> None:
    paused = [CONFIG + f"trainer:\n  epochs: 9\n  stop_at: {place}\n" for place in ("null", "1", "600 steps")]
    assert differing_keys(records(tmp_path, *paused)) == []


def test_a_key_that_some_lack_differs(tmp_path: Path) -> None:
    found = records(tmp_path, CONFIG, CONFIG + "extra:\n  note: 1\n")
    assert differing_keys(found) == ["extra.note"]
    assert [one.values for one in group(found, ["extra.note"])] == [{}, {"extra.note": 1}]


def test_arguments_that_go_with_a_class_say_no_more(tmp_path: Path) -> None:
    other = CONFIG.replace("MLP", "CNN").replace("hidden", "channels")
    found = records(tmp_path, CONFIG, other)
    differing = differing_keys(found)
    assert sorted(differing) == ["model._target_", "model.channels", "model.hidden"]
    assert columns(found, differing) == ["model._target_"]
    wider = records(tmp_path / "wider", CONFIG, other, CONFIG.replace("- 8", "- 16"))
    assert columns(wider, differing_keys(wider)) == ["model._target_", "model.hidden"]


def test_groups_are_ordered_by_seed_and_told_in_short(tmp_path: Path) -> None:
    found = [read_record(a_run(tmp_path / f"{lr}-{seed}", lr=lr, seed=seed)) for seed in (2, 0) for lr in (0.1, 0.2)]
    groups = group(found, ["optim.lr"])
    assert [(label(one, ["optim.lr"]), [run.seed for run in one.runs]) for one in groups] == [
        ("lr=0.1", [0, 2]),
        ("lr=0.2", [0, 2]),
    ]


def test_names_are_as_short_as_they_can_be() -> None:
    keys = ["optim.lr", "finetune.head.lr", "model._target_", "model.hidden"]
    assert list(short_names(keys).values()) == ["optim.lr", "finetune.head.lr", "model", "hidden"]
    assert shown("model._target_", "lightkit.models.MLP") == "MLP"
    assert shown("model.hidden", [8, 8]) == "[8, 8]"
