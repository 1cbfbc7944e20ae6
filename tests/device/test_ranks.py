"""What processes that train together tell each other, and when they refuse to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lightkit.common.errors import UserError
from lightkit.common.strategies import STRATEGIES
from lightkit.device.engine import Engine
from lightkit.device.parallel import Distributed, Sharded, make_parallel, synchronized
from lightkit.device.ranks import DistributedRanks, Ranks, is_lost, joined
from tests.refused import refused
from tests.runner.processes import together

CPU = torch.device("cpu")


def test_alone_nothing_is_asked() -> None:
    ranks = Ranks()
    assert (ranks.main, ranks.own(7), ranks.agree(False), ranks.vote(3), ranks.least(4)) == (True, (0, 7), False, 3, 4)
    assert ranks.mean(torch.tensor(1.5), 3) == 1.5
    assert ranks.shared(lambda: "made") == "made"
    assert ranks.gather([torch.ones(2)], "note")[0][0] == "note"
    assert ranks.unite(["a", "b", "a"]) == ["a", "b"]
    assert ranks.device_name("auto") == "auto"
    assert not is_lost(RuntimeError("gloo"))


def test_three_processes(tmp_path: Path) -> None:
    def job() -> None:
        with joined(STRATEGIES["ddp"], "cpu", batch_size=8) as ranks:
            number = ranks.rank
            facts: dict[str, Any] = {
                "agree": [ranks.agree(True), ranks.agree(number != 1)],
                "least": ranks.least(5 - number),
                "votes": [ranks.vote(15 if number == 1 else 0), ranks.vote(0), ranks.vote(0)],
                "mean": ranks.mean(torch.tensor(float(number)), number),
                "shared": ranks.shared(lambda: ["made", number]),
                "own": [ranks.own(8), ranks.leads_replica],
                "same batch": [(same := DistributedRanks(CPU, splits_batches=False)).own(8), same.leads_replica],
                "united": ranks.unite(["both", f"from {number}"]),
            }
            kinds = [torch.tensor(True), torch.zeros(0, 3), torch.randn(3, 5).T, torch.ones(3).bfloat16()]
            kinds += [torch.randn(1, 3)[:, ::3], torch.randn(4)[::2], torch.randn(2, 1).expand(2, 3)]  # with strides
            mine = [torch.full((number,), float(number)), torch.tensor(number), *kinds]
            gathered = ranks.gather(mine, f"from {number}")
            facts["gathered"] = [[note, [tensor.tolist() for tensor in tensors[:2]]] for note, tensors in gathered]
            for sent, come in zip(mine, gathered[0][1] if gathered else mine, strict=True):
                assert sent.dtype == come.dtype
                assert torch.equal(sent, come)
            with pytest.raises(UserError, match="not here"):
                ranks.shared(refuse)
            (tmp_path / f"{number}.json").write_text(json.dumps(facts))

    def refuse() -> None:
        raise UserError("not here")

    assert together(job, 3, tmp_path / "log") == [0, 0, 0], (tmp_path / "log-0").read_text()
    facts = [json.loads((tmp_path / f"{number}.json").read_text()) for number in range(3)]
    for number, own in enumerate(facts):
        assert own["agree"] == [True, False]
        assert own["least"] == 3
        assert own["united"] == ["both", "from 0", "from 1", "from 2"]
        assert own["votes"] == [0, 15, 0]
        assert own["mean"] == pytest.approx(5 / 3)
        assert own["shared"] == ["made", 0]
        assert own["own"] == [[[0, 3], [3, 3], [6, 2]][number], True]
        assert own["same batch"] == [[0, 8], number == 0]
    assert facts[0]["gathered"] == [["from 0", [[], 0]], ["from 1", [[1.0], 1]], ["from 2", [[2.0, 2.0], 2]]]
    assert facts[1]["gathered"] == []


@pytest.mark.parametrize(
    ("count", "settings", "text"),
    [
        (2, {"parallel": "none"}, "device.parallel: a launcher started 2 processes … ddp"),
        (1, {"nproc": 2}, "device.nproc: these processes are started by the command line … torchrun"),
        (4, {"nproc": 2}, "device.nproc: torchrun started 4 here"),
        (9, {"batch_size": 8}, "data.batch_size: 9 processes share each batch"),
        (2, {"name": "cuda", "gpus": "auto:2"}, "device.gpus: each process would choose for itself"),
        (2, {"name": "cuda", "gpus": [0, 1]}, "device.gpus: there is no NVIDIA GPU here"),
        (2, {"name": "cuda"}, "device.nproc: 1 processes or more are here for 0 GPUs"),
    ],
)
def test_what_was_started_has_to_fit(count, settings, text, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    given = {"parallel": "ddp", "name": "cpu", "batch_size": 16} | settings
    strategy, name = STRATEGIES[given.pop("parallel")], given.pop("name")
    refused(lambda: joined(strategy, name, **given).__enter__(), text)


def test_one_process_is_the_plain_case() -> None:
    model = nn.Linear(2, 1)
    for name, kind, text in (
        ("ddp", Distributed, ", DistributedDataParallel over 1"),
        ("fsdp", Sharded, ", FSDP2 over 1"),
    ):
        parallel = make_parallel(name, CPU, Ranks(), {"sync_batchnorm": True} if name == "ddp" else {})
        assert isinstance(parallel, kind)
        assert parallel.wrap(model) is model
        with parallel.accumulating(model, True):
            pass
        assert parallel.describe() == text
    text = "ddp.sync_batchnorm: PyTorch computes batch norm over several"
    refused(lambda: synchronized(nn.BatchNorm1d(2), CPU), text)


def test_a_replica_follows_what_is_frozen_and_keeps_the_names(tmp_path: Path) -> None:
    def job() -> None:
        with joined(STRATEGIES["ddp"], "cpu", batch_size=8) as ranks:
            engine = Engine("cpu", parallel="ddp", ranks=ranks, parallel_options={"bucket_mib": 1, "find_unused": True})
            torch.manual_seed(ranks.rank)
            model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
            network = engine.wrap(model)
            assert engine.unwrap(network) is model
            x = torch.randn(4, 3)
            for frozen in (True, False):
                model[0].requires_grad_(not frozen)
                model.zero_grad()
                with engine.accumulating(network, True):
                    network(x).square().mean().backward()
                network(x).square().mean().backward()
                grads = {name: p.grad.tolist() for name, p in model.named_parameters() if p.grad is not None}
                (tmp_path / f"{frozen}-{ranks.rank}").write_text(json.dumps(grads))

    assert together(job, 2, tmp_path / "log") == [0, 0], (tmp_path / "log-0").read_text()
    for frozen in (True, False):
        first, second = (json.loads((tmp_path / f"{frozen}-{rank}").read_text()) for rank in range(2))
        assert first == second
        assert ("0.weight" in first) != frozen


@pytest.mark.thorough
def test_a_graph_that_stays_the_same(tmp_path: Path) -> None:
    def job() -> None:
        with joined(STRATEGIES["ddp"], "cpu", batch_size=8) as ranks:
            engine = Engine("cpu", parallel="ddp", ranks=ranks, parallel_options={"static_graph": True})
            network = engine.wrap(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
            for _ in range(3):
                network(torch.ones(2, 3)).sum().backward()

    assert together(job, 2, tmp_path / "log") == [0, 0], (tmp_path / "log-0").read_text()
    assert not os.environ.get("RANK")
