from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lightkit.common.strategies import PLAIN, STRATEGIES, WITH_PROCESSES, own_part, read_gpus, strategy_of
from lightkit.config.annotations import choices_of
from lightkit.config.fields import field_types
from lightkit.config.schema.device import DeviceConfig
from lightkit.device.parallel import make_parallel


def test_every_choice_of_the_schema_is_a_strategy_with_a_class_of_its_own():
    assert choices_of(field_types(DeviceConfig)["parallel"]) == list(STRATEGIES)
    made = {name: make_parallel(name, torch.device("cpu")) for name in STRATEGIES}
    assert all(parallel.strategy is STRATEGIES[name] for name, parallel in made.items())
    assert len({type(parallel) for parallel in made.values()}) == len(STRATEGIES)
    assert all(strategy.lighter in (None, *STRATEGIES) for strategy in STRATEGIES.values())


def test_processes_are_for_those_that_share_every_batch():
    assert WITH_PROCESSES == ("ddp", "fsdp")
    assert [name for name, strategy in STRATEGIES.items() if strategy.shards_parameters] == ["fsdp"]
    assert all(strategy.splits_batches or "batch_size" in strategy.refuses for strategy in STRATEGIES.values())
    assert [name for name, strategy in STRATEGIES.items() if strategy.several_gpus] == ["dp"]


def test_a_feature_is_supported_or_refused_with_a_reason_and_a_fix():
    assert not PLAIN.refuses
    assert "peft" in STRATEGIES["fsdp"].refuses
    for strategy in STRATEGIES.values():
        assert all(refusal.what and refusal.fix for refusal in strategy.refuses.values())


def test_the_settings_of_a_strategy_are_the_arguments_of_its_class():
    ddp = {"bucket_mib": 3.0, "timeout_seconds": 9.0}
    device = {"dp_dim": 1, "dp_output": None, "ddp": ddp, "fsdp": {"reshard": False}}
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


def test_asking_does_not_import_torch():
    code = "import sys, lightkit.common.strategies; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parts_of_a_batch_are_neighbours_and_cover_it():
    for size, ranks in ((8, 2), (7, 3), (2, 3), (5, 5)):
        parts = [own_part(size, rank, ranks) for rank in range(ranks)]
        assert [position for first, count in parts for position in range(first, first + count)] == [*range(size)]
        counts = [count for _, count in parts]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - counts[-1] <= 1


def test_choices_of_gpus():
    for value, read in (
        *(([0, 2], (0, 2)), ("auto", 1), ("auto:12", 12), (["MIG-3d6e-1"], ("MIG-3d6e-1",))),
        *(("MIG-GPU-5c89/7/0", ("MIG-GPU-5c89/7/0",)), (["GPU-ab", 1], ("GPU-ab", 1))),
    ):
        assert read_gpus(value) == read


WRONG_GPUS = {
    "not a choice of GPUs": ("0,2", "auto:0", "auto:", ""),
    "this chooses no GPU": ([],),
    "a GPU is named twice": ([0, 0], ["GPU-a", "GPU-a"]),
    "not the numbers or UUIDs of GPUs": ([-1], [True], ["0"], ["MIG-"]),
}


def test_what_chooses_no_gpus():
    for said, values in WRONG_GPUS.items():
        for value in values:
            with pytest.raises(ValueError, match=said):
                read_gpus(value)
