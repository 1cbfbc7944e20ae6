from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lightkit.cli.config import print_hydra
from lightkit.common.errors import UserError, UserErrors
from lightkit.config import compose, compose_jobs, hydra_command, run_hydra
from lightkit.config.loader import make_loader
from lightkit.config.native import is_multirun, one_by_one
from tests.config.conftest import Write


def test_every_job_of_the_grid(toy: Path) -> None:
    jobs = compose_jobs(["optim=sgd,adam", "seed=range(0,2)", "optim.lr=choice(0.5)", "name=x"])
    assert [job.overrides[:2] for job in jobs] == [
        ["optim=sgd", "seed=0"],
        ["optim=sgd", "seed=1"],
        ["optim=adam", "seed=0"],
        ["optim=adam", "seed=1"],
    ]
    assert {(job.cfg.optim.lr, job.cfg.name) for job in jobs} == {(0.5, "x")}
    assert {job.cfg.loss._target_ for job in compose_jobs(["loss=glob(m*)"])} == {"torch.nn.MSELoss"}
    assert len(compose_jobs(["optim.nesterov=true,false"])) == 2
    assert len(compose_jobs([])) == 1


def test_all_jobs_are_checked_in_one_report(toy: Path) -> None:
    with pytest.raises(UserErrors, match=r"optim: no such option[\s\S]*'adm'"):
        compose_jobs(["optim=sgd,adam,adm", "seed=0,-1", "optim.momentum=0.9"])
    with pytest.raises(UserErrors) as caught:
        compose_jobs(["optim=sgd,adam", "seed=0,-1", "optim.momentum=0.9"])
    text = str(caught.value)
    assert "torch.optim.Adam takes no such argument" in text
    assert "command line: seed=-1" in text
    assert "2 problems found" in text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed=interval(0,1)", "can't be laid out"),
        ("hydra.run.dir=a,b", "can't be swept"),
        ("seed=1,{", "can't be read"),
        ("traine.epochs=1,2", "traine: unknown key"),
    ],
)
def test_wrong_sweeps(toy: Path, override: str, said: str) -> None:
    with pytest.raises(UserErrors, match=said):
        compose_jobs([override])


def test_the_sweepers_own_params_count(toy: Path, write: Write) -> None:
    write("experiments/sweep.yaml", "hydra:\n  sweeper:\n    params:\n      seed: 1,2,3\n")
    assert sorted(job.cfg.seed for job in compose_jobs(["experiment=sweep"])) == [1, 2, 3]


def test_params_of_the_sweeper_can_be_typed(toy: Path) -> None:
    for typed in ("seed=1,2", "seed='range(1,3)'"):
        more = ["hydra.sweeper.params.optim=sgd,adam", "hydra.sweeper.params.optim.lr='0.5'", "optim=sgd"]
        jobs = compose_jobs([f"hydra.sweeper.params.{typed}", *more])  # what is typed itself counts
        assert [job.cfg.seed for job in jobs] == [1, 2]
        assert not any("hydra" in text for job in jobs for text in job.overrides)
        assert {job.cfg.optim.lr for job in jobs} == {0.5}
    assert len(compose_jobs(['hydra.sweeper.params={seed:"1,2"}'])) == 2


def test_params_of_the_sweeper_want_a_sweep(toy: Path) -> None:
    for typed in ("hydra.sweeper.params.seed=1,2", "hydra.sweeper.params.seed='1,2'"):
        with pytest.raises(UserErrors, match="wants -m"):
            compose([typed], sweep=False)


def test_the_mode_in_a_file(toy: Path, write: Write) -> None:
    write("experiments/sweep.yaml", "hydra: {mode: MULTIRUN, sweeper: {params: {seed: '1,2'}}}\n")
    assert is_multirun(["experiment=sweep"])
    assert is_multirun(["experiment=sweep", "optim=sgd,adam"])
    assert not is_multirun(["experiment=sweep", "hydra.mode=RUN"])
    assert not is_multirun(["optim=nothing"])


def test_jobs_of_hydras_launcher_are_composed_as_ours(toy: Path) -> None:
    seen = []

    def task(cfg: DictConfig) -> None:
        seen.append((cfg.name, cfg.extra.n, Path(HydraConfig.get().runtime.output_dir).name))

    typed = ["name=run-${seed}", "extra.n=${hydra:job.num}", "hydra.sweeper.params.seed=4,5"]
    run_hydra(typed, task, names=["first", "second"])
    assert seen == [("run-4", 0, "first"), ("run-5", 1, "second")]
    assert [path.name.partition("-run-4")[2] for path in toy.glob("outputs/sweeps/*/*")] == [""]
    run_hydra([*typed, "hydra.sweep.subdir=job_${hydra:job.num}"], task)
    assert [folder for _, _, folder in seen[2:]] == ["job_0", "job_1"]


def test_other_sweepers_get_every_value_tried(toy: Path) -> None:
    jobs = one_by_one(make_loader(), ["a=1,2", "b=interval(0,1)", "c=3"])
    assert jobs[0] == ["a=1", "b=0.0", "c=3"]
    assert ["a=2", "b=0.0", "c=3"] in jobs
    assert ["a=1", "b=1.0", "c=3"] in jobs


def test_hydra_runs_the_jobs(toy: Path) -> None:
    seen: list[tuple[float, int, str]] = []

    def task(cfg: DictConfig) -> float:
        assert OmegaConf.is_readonly(cfg)
        assert "hydra" not in cfg
        seen.append((cfg.optim.lr, cfg.data.split.folds, str(HydraConfig.get().runtime.output_dir)))
        return cfg.optim.lr

    run_hydra(["optim.lr=0.1,0.2", "optim.nesterov=true"], task)
    assert [lr for lr, _, _ in seen] == [0.1, 0.2]
    assert seen[0][1] == 5
    assert Path(seen[0][2]).parents[2] == toy / "outputs/sweeps"
    assert Path.cwd() == toy
    assert list(toy.glob("outputs/**/.hydra")) == []


def test_no_job_starts_when_one_is_wrong(toy: Path) -> None:
    with pytest.raises(UserErrors, match="seed: out of range"):
        run_hydra(["seed=1,-1"], lambda cfg: pytest.fail("started"))
    assert not (toy / "outputs").exists()


def test_the_folder_of_a_sweep_can_be_chosen(toy: Path, write: Write, tmp_path: Path) -> None:
    write("experiments/there.yaml", "hydra: {sweep: {dir: 'multirun/${now:%Y}/mine'}}\n")
    run_hydra(["experiment=there", "seed=1"], lambda cfg: None)
    assert len(list(toy.glob("multirun/*/mine"))) == 1
    run_hydra(["seed=1"], lambda cfg: None, sweep_dir=tmp_path / "here")
    assert (tmp_path / "here").is_dir()
    run_hydra(["seed=1", f"hydra.sweep.dir={tmp_path}/there"], lambda cfg: None)
    assert (tmp_path / "there").is_dir()


def test_views_leave_the_logging_of_the_process_alone(
    toy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    others = logging.StreamHandler()
    monkeypatch.setattr(others, "close", lambda: pytest.fail("a handler of another package was closed"))
    for view in (["--info", "defaults"], ["--hydra-help"]):
        print_hydra(view)
        assert "Hydra" in capsys.readouterr().out.title()
    with pytest.raises(UserErrors, match="optim: no such option"):
        print_hydra(["--info", "defaults", "optim=nope"])
    assert (list(root.handlers), root.level) == before


def test_what_hydra_refuses_is_a_user_error(toy: Path) -> None:
    with pytest.raises(UserError, match="Hydra: "):
        hydra_command(["-sc", "install=nothing"])
