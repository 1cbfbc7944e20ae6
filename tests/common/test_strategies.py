from __future__ import annotations

import subprocess
import sys

import torch

from lightkit.common.strategies import PLAIN, STRATEGIES, WITH_PROCESSES, strategy_of
from lightkit.config.annotations import choices_of
from lightkit.config.fields import field_types
from lightkit.config.schema.device import DeviceConfig
from lightkit.device.parallel import make_parallel


def test_every_choice_of_the_schema_is_a_strategy_with_a_class_of_its_own():
    assert choices_of(field_types(DeviceConfig)["parallel"]) == list(STRATEGIES)
    made = {name: make_parallel(name, torch.device("cpu")) for name in STRATEGIES}
    assert all(parallel.strategy is STRATEGIES[name] for name, parallel in made.items())
    assert len({type(parallel) for parallel in made.values()}) == len(STRATEGIES)


def test_processes_are_for_those_that_share_every_batch():
    assert WITH_PROCESSES == ("ddp", "fsdp")
    assert [name for name, strategy in STRATEGIES.items() if strategy.shards_parameters] == ["fsdp"]
    assert all(strategy.splits_batches or not strategy.supports("batch_size") for strategy in STRATEGIES.values())
    assert [name for name, strategy in STRATEGIES.items() if strategy.several_gpus] == ["dp"]


def test_a_feature_is_supported_or_refused_with_a_reason_and_a_fix():
    assert PLAIN.supports("compile")
    assert PLAIN.refusal("compile") is None
    assert not STRATEGIES["fsdp"].supports("peft")
    for strategy in STRATEGIES.values():
        assert all(refusal.what and refusal.fix for refusal in strategy.refuses.values())


def test_the_settings_of_a_strategy_are_the_arguments_of_its_class():
    device = {
        "dp_dim": 1,
        "dp_output": None,
        "ddp": {"bucket_mib": 3.0, "timeout_seconds": 9.0},
        "fsdp": {"reshard": False},
    }
    found = {name: strategy.arguments(device) for name, strategy in STRATEGIES.items()}
    assert found == {
        "none": {},
        "dp": {"dim": 1, "output": None},
        "ddp": {"bucket_mib": 3.0},
        "fsdp": {"reshard": False},
    }


def test_nothing_is_refused_of_a_class_that_is_not_imported_yet():
    assert strategy_of("ddp") is STRATEGIES["ddp"]
    own = strategy_of("of_a_project")
    assert own is strategy_of({"_target_": "mine.Own"})
    assert own.processes
    assert (own.splits_batches, dict(own.refuses)) == (False, {})


def test_a_lighter_strategy_is_one_of_them():
    assert all(strategy.lighter in (None, *STRATEGIES) for strategy in STRATEGIES.values())


def test_asking_does_not_import_torch():
    code = "import sys, lightkit.common.strategies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
