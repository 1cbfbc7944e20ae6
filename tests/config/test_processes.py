"""Several processes in a configuration: refused before torch is imported where they cannot share a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lightkit.common.errors import UserError
from lightkit.common.strategies import STRATEGIES
from lightkit.config import compose


def test_two_processes_compose() -> None:
    cfg = compose(["device=ddp"]).cfg
    assert (cfg.device.parallel, cfg.device.nproc, cfg.device.ddp.bucket_mib) == ("ddp", 2, 25.0)


def test_processes_that_compute_the_same_batch_need_no_sample_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "ddp", replace(STRATEGIES["ddp"], splits_batches=False))
    assert compose(["device=ddp", "data.batch_size=1"]).cfg.data.batch_size == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["device.nproc=2"], r"device\.nproc: several processes share a run only with device\.parallel=ddp"),
        (["device.nproc=2", "device.parallel=dp"], r"device\.nproc: several processes share"),
        (["device=ddp", "device.name=cuda:1"], r"device\.name: one device cannot be that of several processes"),
        (["device=ddp", "device.name=mps"], r"device\.name: one device cannot be"),
        (["device=ddp", "device.nproc=9", "data.batch_size=8"], r"data\.batch_size: 9 processes (.|\n)*at least 9"),
        (["device=ddp", "data.eval_batch_size=1"], r"data\.eval_batch_size: 2 processes \(device\.nproc\) share each"),
        (
            ["device=ddp", "device.gpus=[MIG-1,MIG-2]"],
            r"device\.gpus: 2 processes \(device\.nproc\) need a whole GPU each",
        ),
        (["device.wait=true"], r"device\.wait: device\.gpus=null takes all GPUs(.|\n)*fix: +device\.gpus=auto:1"),
        (["device=ddp", "device.gpus=[0,1]", "device.wait=true"], r"device\.wait: each process would wait for itself"),
        (["device=ddp", "device.nproc=0"], r"device\.nproc: out of range"),
        (["device.ddp.bucket_mib=0"], r"device\.ddp\.bucket_mib: out of range"),
        (["device.ddp.timeout_seconds=-1"], r"device\.ddp\.timeout_seconds: out of range"),
        (
            ["device.ddp.static_graph=true", "trainer.accumulate=2"],
            r"static_graph: PyTorch cannot add up gradients over",
        ),
        (["device=fsdp", "device.compile=default"], r"device\.compile: not with fsdp.*: code is compiled for a whole"),
        (["device=fsdp", "device.channels_last=true"], r"device\.channels_last: not with fsdp.*usual order in memory"),
        (["device=fsdp", "device.cuda_graphs=true"], r"device\.cuda_graphs: not with fsdp.*: kernels are recorded"),
        (
            ["device=fsdp", "finetune.peft={_target_: peft.LoraConfig}"],
            r"finetune\.peft: not with fsdp: the layers of peft",
        ),
        (["device.ddp.bucket=3"], r"device\.ddp\.bucket"),
        (["device=fsdp", "device.batch_size=auto"], r"device\.batch_size: each process holds a part of the model"),
        (
            ["device=ddp", "device.ddp.static_graph=true", "device.batch_size=auto"],
            r"device\.batch_size: the batch may be split, and PyTorch cannot add up",
        ),
        (["device.batch_size=64"], r"device\.batch_size: not one of the choices"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        compose(overrides)
