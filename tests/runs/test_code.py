"""A resume says which code of one's own, and which packages, are not those of the earlier part of the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from lightkit.loggers.environment import installed
from lightkit.runs.code import changed_code, own_modules
from lightkit.runs.folder import differences
from tests.conftest import Outcome

TASK = """
from lightkit.trainer.tasks import Supervised

class Scaled(Supervised):
    def step(self, model, batch, criterion):
        out = super().step(model, batch, criterion)
        return out._replace(loss=out.loss * 0.01)
"""


def test_a_factor_that_was_changed_in_a_task_is_named_before_training(
    process: Callable[..., Outcome], project: Path
) -> None:
    (project / "scaling.py").write_text(TASK)
    args = ("data=wine", "model=mlp", "model.hidden=[4]", "trainer.epochs=3", "metrics.figures=[]", "trainer.stop_at=1")
    assert process("train", *args, "trainer.task._target_=scaling.Scaled", "hydra.run.dir=run").code == 0
    noted = json.loads((project / "run" / "environment.json").read_text())
    assert "scaling" in noted["modules"]
    assert len(noted["packages"]) > 30
    same = process("resume", "run", "trainer.stop_at=2")
    assert "has changed" not in same.out
    assert "differs" not in same.out
    noted["packages"]["omegaconf"] = "0.1"
    (project / "run" / "environment.json").write_text(json.dumps(noted))
    (project / "scaling.py").write_text(TASK.replace("0.01", "10"))
    other = process("resume", "run", "trainer.stop_at=null")
    assert other.code == 0, other.err
    said = "the code of scaling (trainer.task) has changed since the earlier part of the run"
    assert said in other.out
    assert other.out.index(said) < other.out.index("\nepoch ")
    assert "omegaconf differs: 0.1 before" in other.out
    assert said in (project / "run" / "run.log").read_text()


def test_only_ones_own_modules_are_noted() -> None:
    found = own_modules()
    assert not [name for name in found if name.partition(".")[0] in ("lightkit", "torch", "json", "numpy")]


def test_all_keys_that_name_something_of_a_module_are_told() -> None:
    plain = {"model": {"_target_": "mine.Net"}, "trainer": {"callbacks": {"a": {"_target_": "mine.A"}}}}
    assert changed_code({"mine": "1", "gone": "2"}, {"mine": "3", "new": "4"}, plain) == [
        "the code of mine (model, trainer.callbacks.a) has changed since the earlier part of the run"
    ]


def test_many_changed_packages_are_counted() -> None:
    before = {"modules": {}, "packages": {f"p{i:02}": "1" for i in range(40)}}
    found = differences(before, {"packages": {f"p{i:02}": "2" for i in range(40)}})
    assert found[0] == "p00 differs: 1 before, 2 now"
    assert found[-1] == "28 further packages differ"
    old = {"packages": {"torch": "1"}}
    assert differences(old, {"packages": {"torch": "1", "aiohttp": "3"}}) == []


def test_versions_are_read_from_names_of_folders(tmp_path: Path) -> None:
    for name in ("hydra_core-1.3.2.dist-info", "Old.Pkg-0.5-py3.11.egg-info", "torch", "x-y.dist-info"):
        (tmp_path / name).mkdir()
    assert installed((str(tmp_path), str(tmp_path / "lost"))) == {"hydra-core": "1.3.2", "old-pkg": "0.5"}
