"""The search for the largest batch: what is asked, what is found, what the run makes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch

import lightkit.runner.batches as batches
from lightkit.common.errors import UserError
from lightkit.config import compose, load_run, to_yaml, with_values
from lightkit.device.ranks import Ranks
from lightkit.runner import Runner
from lightkit.runner.batches import Asked, Batch, find_batch, keep_resolved_batch_size, resolve_batch_size
from lightkit.runs.catalog import has_configuration
from tests.runner.test_run import QUICK, comparable, weights

MIB = 2**20


def config(*overrides: str) -> Any:
    return compose([*QUICK, *overrides]).cfg


class Model:
    """Stands in for the process that measures: memory is a straight line, and some sizes end it."""

    rows, fixed, slope, limit, bold = 124, 100 * MIB, MIB, 1000 * MIB, False
    fails: dict[int, dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        self.fails = {}
        self.__dict__.update(values)
        self.jobs: list[dict[str, Any]] = []
        self.asked: list[tuple[int, int]] = []

    def __call__(self, job: str) -> Model:
        self.jobs.append(json.loads(job))
        return self

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def answer(self) -> dict[str, Any]:
        return {"rows": self.rows, "free": self.limit * 10 // 9, "limit": self.limit, "bold": self.bold}

    def ask(self, *, size: int, window: int) -> dict[str, Any]:
        self.asked.append((size, window))
        known = {"size": size, "peak": self.fixed + size * self.slope, "fixed": self.fixed}
        failure = self.fails.get(size, {})
        return failure if "exit_code" in failure and "peak" not in failure else {**known, **failure}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Model]:
    """`model(limit=…)`: every search from here on measures this."""

    def use(**values: Any) -> Model:
        made = Model(**values)
        monkeypatch.setattr(batches, "BenchProcess", made)
        return made

    return use


@pytest.mark.parametrize(
    ("limit", "overrides", "chosen", "first", "second"),
    [
        (1000, ["data.batch_size=64"], (64, 1), "batch   64: fits as a whole (164 MiB of 1.1 GiB free at 64)", ""),
        (130, ["data.batch_size=32", "trainer.accumulate=3"], (24, 4),
         "24 x 4 accumulated: the largest part of 96 that fits", "batch norm"),
        (130, ["data.batch_size=32", "trainer.accumulate=3"], (24, 4), "32 would take about 132 MiB", "batch norm"),
        (999, ["trainer.find_batch_size=max"], (120, 1), "", ""),
        (1000, ["data.batch_size=8", "trainer.accumulate=4"], (32, 1), "fits as a whole", ""),
        (130, ["data.batch_size=64", "data.mixup.alpha=0.4"], (16, 4), "16 x 4", "mixup"),
        (160, ["trainer.find_batch_size=max", "trainer.accumulate=2"], (56, 2), "64 does not fit",
         "3.5 times the 16 of data.batch_size: the learning rate is not adapted to that"),
    ],
)  # fmt: skip
def test_what_is_found_and_said(
    model: Callable[..., Model], limit: int, overrides: list[str], chosen: tuple[int, int], first: str, second: str
) -> None:
    model(limit=limit * MIB, bold="trainer.find_batch_size=max" in overrides)
    asked = [] if "trainer.find_batch_size=max" in overrides else ["trainer.find_batch_size=auto"]
    lines: list[str] = []
    cfg, told = resolve_batch_size(config(*asked, *overrides), Ranks(), lines.append)
    assert (cfg.data.batch_size, cfg.trainer.accumulate) == chosen
    assert first in told[0]
    assert (
        lines[0]
        == f"batch   looking for the largest that fits (trainer.find_batch_size={'max' if not asked else 'auto'})"
    )
    assert "        2 samples: needs 102 MiB of " in lines[1]
    assert second in "".join(told[1:])


def test_with_drop_last_the_same_samples_are_left_out(model: Callable[..., Model]) -> None:
    model(limit=120 * MIB)
    # 124 rows: batches of 48 leave out 28, those of 12, 6 and 3 only 4, 4 and 1, those of 24 and 16 only 4 and 12.
    asked = Asked(config("trainer.find_batch_size=auto", "data.batch_size=48", "data.drop_last=true"))
    assert asked.sizes({"rows": 124}) == [48]
    asked = Asked(config("trainer.find_batch_size=auto", "data.batch_size=24", "data.drop_last=true"))
    assert asked.sizes({"rows": 124}) == [6, 8, 12, 24]


def test_memory_that_runs_out_is_tried_in_a_new_process(model: Callable[..., Model]) -> None:
    out = {"peak": None, "error": "out of memory", "exit_code": 4}
    measured = model(bold=True, fails={64: out, 32: {"peak": None}})
    batch = find_batch(config("trainer.find_batch_size=auto", "data.batch_size=64"))
    assert (batch.size, batch.accumulate) == (16, 4)
    assert [size for size, _ in measured.asked] == [2, 8, 64, 32, 16]
    assert len(measured.jobs) == 3


def test_nothing_fits(model: Callable[..., Model]) -> None:
    model(limit=50 * MIB)
    message = r"no batch fits into memory\na training step on 1 sample needs 101 MiB, of which 100 MiB"
    with pytest.raises(UserError, match=rf"trainer\.find_batch_size: {message}") as caught:
        find_batch(config("trainer.find_batch_size=auto"))
    assert caught.value.exit_code == 4
    out = {"peak": None, "error": "out of memory in training step 1 (forward pass): CUDA out of memory"}
    single = {"size": 1, "error": "ValueError: Expected more than 1 value per channel", "exit_code": 1}
    for fails, why in (({1: out, 2: out}, "[\\s\\S]*forward pass"), ({2: {"peak": None}, 1: single}, "")):
        model(fails=fails)
        with pytest.raises(UserError, match=f"no batch fits{why}") as caught:
            find_batch(config("trainer.find_batch_size=auto"))
        assert caught.value.exit_code == 4
    model().answer = lambda: {"limit": None}  # type: ignore[method-assign]
    with pytest.raises(UserError, match="does not tell how much memory is free"):
        find_batch(config("trainer.find_batch_size=auto"))


@pytest.mark.parametrize(
    ("answer", "message", "code"),
    [
        (
            {"error": "KeyError: 'x'", "exit_code": 1},
            r"trainer\.find_batch_size: a training step fails: KeyError: 'x'",
            1,
        ),
        ({"error": "data.csv: no such file", "exit_code": 2}, r"^data\.csv: no such file", 2),
    ],
)
def test_a_step_that_fails(model: Callable[..., Model], answer: dict[str, Any], message: str, code: int) -> None:
    measured = model()
    measured.ask = lambda **_: dict(answer)  # type: ignore[method-assign]
    with pytest.raises(UserError, match=message) as caught:
        find_batch(config("trainer.find_batch_size=auto"))
    assert caught.value.exit_code == code


def test_of_several_processes_each_is_measured_with_its_part(
    model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    measured = model()
    cfg = config(
        "device=ddp", "device.nproc=3", "device.name=cpu", "trainer.find_batch_size=auto", "data.batch_size=12"
    )
    assert find_batch(cfg, ranks=3).size == 12
    assert min(Asked(cfg, 3).sizes({"rows": 124})) == 3
    (job,) = measured.jobs
    assert job["options"] == {"ranks": 3, "sharing": 3, "limit": None}
    alone = json.loads(json.dumps(job["cfg"]))
    assert "nproc: 1" in alone
    assert "parallel: none" in alone
    assert "batch_size: null" in alone


def test_one_process_searches_for_all(model: Callable[..., Model]) -> None:
    class Second(Ranks):
        rank, size = 1, 2

        def shared(self, make: Callable[[], Any]) -> Any:
            return Batch(4, 4, ("told",))

    measured = model()
    sharded = with_values(config("device.parallel=fsdp"), {"trainer.find_batch_size": "auto"})
    with pytest.raises(UserError, match="each process holds a part of the model"):
        find_batch(sharded, ranks=2)
    cfg, lines = resolve_batch_size(config("trainer.find_batch_size=auto"), Second())
    assert (cfg.data.batch_size, cfg.trainer.accumulate, cfg.trainer.find_batch_size, lines) == (4, 4, None, ("told",))
    assert not measured.jobs


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search finds batches of 8, two of which are a step."""
    monkeypatch.setattr(batches, "find_batch", lambda _cfg, **_: Batch(8, 2, ("batch   8 x 2 accumulated",)))


def test_the_run_has_the_numbers_in_place_of_the_question(halves: None, tmp_path: Path) -> None:
    Runner(config("trainer.find_batch_size=auto"), tmp_path / "run").run()
    Runner(config("data.batch_size=8", "trainer.accumulate=2"), tmp_path / "plain").run()
    cfg = load_run(tmp_path / "run").cfg
    assert (cfg.trainer.find_batch_size, cfg.data.batch_size, cfg.trainer.accumulate) == (None, 8, 2)
    assert (tmp_path / "run/config.yaml").read_text() == (tmp_path / "plain/config.yaml").read_text()
    assert comparable(tmp_path / "run") == comparable(tmp_path / "plain")
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, weights(tmp_path / "plain")[name])
    log = (tmp_path / "run/run.log").read_text()
    assert re.search(r"model .*\n.*batch   8 x 2 accumulated", log)


@pytest.mark.thorough
def test_a_resumed_run_keeps_what_was_found_and_ends_with_the_same_bits(
    halves: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["trainer.find_batch_size=auto", "checkpoint.every_steps=2"]
    kill = ["++trainer.callbacks.kill={_target_: tests.runner.test_run.KillAt, step: 11}"]
    Runner(config(*asked), tmp_path / "whole").run()
    with pytest.raises(RuntimeError, match="killed"):
        Runner(config(*asked, *kill), tmp_path / "cut").run()
    monkeypatch.setattr(batches, "find_batch", partial(pytest.fail, "searched again"))
    cfg = load_run(tmp_path / "cut", ["~trainer.callbacks.kill", "trainer.find_batch_size=max"]).cfg
    Runner(cfg, tmp_path / "cut").run(resume=True)
    assert load_run(tmp_path / "cut").cfg.trainer.find_batch_size is None
    assert comparable(tmp_path / "cut") == comparable(tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(tmp_path / "cut")[name])


def test_the_unfinished_run_of_a_configuration_that_asks_is_recognised(tmp_path: Path) -> None:
    def has(*overrides: str) -> bool:
        return has_configuration(tmp_path, to_yaml(config(*overrides)))

    saved = to_yaml(with_values(config(), Batch(4, 4).settings()))
    (tmp_path / "config.yaml").write_text(saved)
    assert has("trainer.find_batch_size=auto")
    assert has("trainer.find_batch_size=max")
    assert not has("trainer.find_batch_size=auto", "data.batch_size=32")
    assert not has("trainer.find_batch_size=auto", "seed=3")
    assert not has()
    cfg = keep_resolved_batch_size(config("trainer.find_batch_size=auto"), saved)
    assert (cfg.data.batch_size, cfg.trainer.accumulate, cfg.trainer.find_batch_size) == (4, 4, None)
    assert keep_resolved_batch_size(config(), saved).data.batch_size == 16


@pytest.mark.thorough
def test_a_real_search_on_the_cpu_splits_the_batch(tmp_path: Path) -> None:
    texts = ["data=shapes", "data.dataset.train=1024", "model=cnn", "device=cpu", "data.batch_size=512"]
    base = find_batch(compose([*texts, "trainer.find_batch_size=auto", "data.batch_size=8"]).cfg)
    measured = re.search(r"\(([\d.]+) ([MG])iB of", base.lines[0])
    assert measured, base.lines
    taken = float(measured[1]) * (1024 if measured[2] == "G" else 1)
    limit = int(taken + 250) * MIB * 10 // 9
    batch = find_batch(compose([*texts, "trainer.find_batch_size=auto"]).cfg, limit=limit)
    assert batch.size in (32, 64, 128, 256)
    assert batch.size * batch.accumulate == 512
