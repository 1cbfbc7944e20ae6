"""Jobs of a sweep that differ in their seed alone, trained at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightkit.common.errors import UserError
from lightkit.config import compose, load_run
from lightkit.runner import Runner, seeds
from lightkit.runner.seeds import check_seeds, train_seeds
from lightkit.runs.folder import RunFolder
from tests.runner.test_run import weights

SMALL = ["data=wine", "model.hidden=[8]", "trainer.epochs=2", "device=cpu", "metrics.figures=[]", "logger=quiet"]


@pytest.mark.thorough
def test_each_job_is_the_run_it_would_be_alone(tmp_path: Path) -> None:
    typed = {f"seed={seed}": [*SMALL, f"seed={seed}"] for seed in (3, 4)}
    jobs = {name: compose(texts).cfg for name, texts in typed.items()}
    found = train_seeds(jobs, tmp_path / "sweep", typed)
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {*jobs}
    for name, cfg in jobs.items():
        Runner(cfg, tmp_path / "alone" / name).run()
        folder = tmp_path / "sweep" / name
        assert load_run(folder).cfg == load_run(tmp_path / "alone" / name).cfg
        assert found[name] == json.loads((folder / "result.json").read_text())
        for key, tensor in weights(tmp_path / "alone" / name).items():
            torch.testing.assert_close(weights(folder)[key], tensor, atol=1e-5, rtol=1e-5)
        assert Runner(load_run(folder).cfg, folder).evaluate()["test/loss"] == pytest.approx(
            found[name]["test"]["test/loss"], abs=1e-5
        )


@pytest.mark.parametrize(
    ("other", "expected"), [(["optim.lr=0.5"], "other optim"), (["ensemble=voting"], "other ensemble")]
)
def test_jobs_may_differ_in_their_seed_only(other: list[str], expected: str) -> None:
    jobs = [compose([*SMALL, *more]).cfg for more in ([], ["seed=1"], other)]
    with pytest.raises(
        UserError, match=r"hydra/launcher: jobs that train at once may differ in their seed only"
    ) as info:
        check_seeds(jobs)
    assert expected in str(info.value)


def test_ensembles_are_no_jobs_that_train_at_once() -> None:
    with pytest.raises(UserError, match="ensemble: jobs that train at once are plain runs"):
        check_seeds([compose([*SMALL, "ensemble=voting", f"seed={seed}"]).cfg for seed in (0, 1)])


@pytest.mark.parametrize("name", ["../../runs/mine", "/tmp/mine", "..", "sweep.jsonl", "linked"])
def test_names_of_jobs_that_trained_at_once_lead_nowhere_else(tmp_path: Path, name: str) -> None:
    sweep, mine = tmp_path / "sweeps" / "theirs", tmp_path / "runs" / "mine"
    mine.mkdir(parents=True)
    (mine / "config.yaml").write_text("seed: 0\n")
    file = sweep / ".together" / "key" / "together" / "a" / "members.json"
    file.parent.mkdir(parents=True)
    (sweep / "linked").symlink_to(mine)
    file.write_text(json.dumps([name]))
    assert seeds._begun(sweep / ".together" / "key", sweep) == {}
    with pytest.raises(UserError):
        seeds.JobFolders(RunFolder(sweep), sweep, {}).member(name)
    assert (mine / "config.yaml").exists()
