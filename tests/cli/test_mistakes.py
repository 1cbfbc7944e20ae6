"""What a wrong command line is told: with exit status 2, without a traceback, and before anything is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import torch

from lightkit.sweep.job import Job
from lightkit.sweep.journal import Journal
from tests.cli.tuned_runs import a_run, an_adapter
from tests.compare.made import a_sweep
from tests.conftest import Cli

MISTAKES = [
    # no command, or words in a wrong place
    ("trian", "nearest: train"),
    ("-m train seed=0,1", "fix:      lightkit train -m seed=0,1\n"),
    ("--multirun seed=0,1", "fix:      lightkit train --multirun seed=0,1\n"),
    ("--json runs", "fix:      lightkit runs --json\n"),
    ("-m", "fix:      lightkit train -m\n"),
    # attach, logs, stop, wait, ps
    ("logs", "RUN is missing"),
    ("logs a -n few", "not a number of lines"),
    ("logs a --log --output", "one of them at a time"),
    ("logs nothing", "no such run or sweep here"),
    ("stop nothing", "no such run"),
    ("ps --watch 0", "--watch: not a time"),
    ("ps last", "lightkit logs last"),
    # board
    ("board nothing", "no run here"),
    ("board no/thing", "no such folder"),
    ("board --json", "goes with --list"),
    ("board --stop --detach", "--detach begins one"),
    ("board --stop", "no board of yours shows this"),
    ("board --table --host 0.0.0.0", "the table is for this machine alone"),
    ("board --table --host localhost", "choices:  127.0.0.1, ::1"),
    ("board --via -x", "lightkit board"),
    ("board '--via=a b'", "not a machine to jump over"),
    *((f"board . {words}", "not a port") for words in ("--port 0", "--local-port http")),
    ("board . --port=65536", "--port: not a port"),
    # compare, runs
    ("compare demo --rows all", "--rows: no such split"),
    ("compare demo device.name=cpu", "overrides are for --rows"),
    ("compare demo --metric val/accurac", "--metric: no run has this metric"),
    ("compare demo --baseline nobody", "--baseline: none of the runs that are compared"),
    ("compare demo --status failed", "no runs to compare"),
    ("runs --where 'optim.learning_rate>1'", "nearest: optim.lr"),
    ("runs --where lr", "not a condition"),
    ("runs --status done", "no such status"),
    ("runs --sort val/acc", "nearest: val/accuracy"),
    *((f"runs --limit={text}", "--limit: not a number of runs") for text in ("-1", "1.5")),
    # eval, predict, resume
    ("eval outputs/nothing", "no run here"),
    ("resume outputs/nothing", "no run here"),
    ("predict", "lightkit predict: RUN is missing\n    expected: lightkit predict RUN"),
    ("resume", "lightkit resume: RUN is missing\n    expected: lightkit resume RUN"),
    ("attach a other", "lightkit attach: one word too many\n    received: 'other'"),
    ("eval base --split tset", "--split: no such split"),
    ("eval base --checkpoint missing.pt", "no such checkpoint"),
    ("eval base data.eval_batch_sze=7", "eval_batch_size"),
    ("eval base data.dataset.test_path=x.csv", "data.dataset.test_path"),
    # ensemble
    ("ensemble a", "an ensemble needs two runs"),
    ("ensemble outputs/sweeps/2026-01-31/12-00-00-run", "an ensemble needs two runs"),
    ("ensemble a nothing", "no run here"),
    ("ensemble a b --method stacking ensemble.meta.optim.lrr=1", "ensemble.meta.optim.lrr"),
    ("ensemble a b --method stacking --meta nothing", "ensemble.meta.model"),
    ("ensemble a b optim.lr=1", "a finished run stays as it is"),
    ("ensemble a b --meta mlp", "this is of --method stacking"),
    *((f"ensemble a b --weights {text}", "2 numbers from 0 on") for text in ("1,2,3", "0,0", "best")),
    ("ensemble a b --method greedy --weights uniform", "this is of --method voting"),
    ("ensemble a b --rounds 3", "this is of --method greedy"),
    ("ensemble a b --method greedy --rounds 0", "not a number of rounds"),
    # summary, graph, plan, params
    ("summary data=wine --input 3,x", "--input: not a shape"),
    ("summary data=wine --input 5", "model: the model cannot be run on such inputs"),
    ("summary data=wine --depth=-1", "--depth"),
    ("summary base", "fix:      --from base"),
    ("graph data=wine --output model.gif", "--output: not a picture"),
    ("graph data=wine --direction up", "--direction: no such direction"),
    ("plan data=wine finetune=freeze 'finetune.freeze=[nothing_like_it]'", "matches no parameter"),
    ("params base --checkpoint middle", "--checkpoint: no such checkpoint"),
    ("params base --match nothing", "--match: no such parameter"),
    ("params", "RUN is missing"),
    # show
    ("show everything", "choices:  data, results, worst"),
    ("show data --count 0", "expected: a whole number from 1 to 1000"),
    ("show data --epoch=-1", "--epoch"),
    ("show data --split vali", "val"),
    ("show data --checkpoint last", "data have no checkpoint"),
    ("show worst", "expected: lightkit show worst RUN"),
    ("show worst base --from base", "only `lightkit show data` takes it"),
    # find, doctor, verify-resume
    ("find", "what to find is missing"),
    ("find rate", "choices:  lr, batch, workers"),
    ("find lr --low 0", "--low: out of range"),
    ("find lr --low 1 --high 0.1", "--high: the rates do not rise"),
    ("find lr --steps 3", "--steps: too few steps"),
    ("find batch --steps 30", "--steps: this is for lightkit find lr"),
    ("find lr --try 1,2", "--try: this is for lightkit find workers"),
    ("find workers --try two", "--try: not numbers of processes"),
    ("doctor --seconds 0", "--seconds: out of range"),
    ("doctor nothing", "no run here"),
    ("doctor flowers.csv", "data=csv data.dataset.path=flowers.csv data.dataset.target=COLUMN"),
    ("doctor photos", "lightkit doctor data=image_folder data.dataset.root=photos model=cnn"),
    ("doctor wine", "lightkit doctor GROUP=wine"),
    ("doctor --mend", "--mend: what is mended is a run"),
    ("verify-resume --steps 0", "--steps: out of range"),
    ("verify-resume --at 2", "--at: no step to kill it at"),
    ("verify-resume --phase lunch", "invalid choice: 'lunch'"),
    ("verify-resume --kep", "nearest: --keep"),
    # gpus
    ("gpus --watch 0", "--watch: not a time"),
    ("gpus --query index,powr_w", "--query: no such field"),
    ("gpus --query utilization.gpu", "nvidia-smi's utilization.gpu is utilisation here"),
    ("gpus --explain heat", "--explain: no such field"),
    ("gpus --json --csv", "one form at a time"),
    ("gpus -q --query name", "one form at a time"),
    # new
    ("new birds --from cvs", "nearest: csv"),
    *((f"new {name}", "not a name for a project") for name in ("3birds", "class", "'a b'")),
    *((f"new {name}", "a package of this name is there already") for name in ("torch", "tests", "json")),
    ("new", "NAME is missing"),
    # config, explain, completion
    ("explain unknwn-key", "(nearest: unknown-key"),
    ("config optmi", "nearest: optim"),
    ("-sc install=foo", "choices:  bash, fish, zsh"),
    ("-sc instal=bash", "nearest: install"),
    # train
    ("train --seed=1", "fix:      seed=1, without dashes"),
    ("resume base --lr 0.1", "fix:      keys have no dashes: optim.lr=0.1"),
    ("train --batch-size", "keys have no dashes: data.batch_size=VALUE"),
    ("find lr --steps x", "argument --steps: invalid int value: 'x'"),
    ("verify-resume data=wein modle=cnn", "2 problems found"),
    ("train --info defualts", "invalid choice: 'defualts'"),
    ("train --cfg job -p optm", "nearest: optim"),
    ("train --cfg job --config-dir none", "--config-dir"),
    ("train seed=0,1", "-m"),
    ("train -m seed=0,1 hydra.mode=RUN", "hydra.mode: -m starts a sweep"),
    ("train -m seed=0,1 sweep.retries=0,1", "sweep.retries: not a key to be swept over"),
    ("train -m seed=3,4 --cfg hydra", "only the jobs of a sweep can be printed"),
    ("train sweep.slots=2", "sweep.slots: this says how a sweep is run"),
    # sweep
    ("sweep halt last", "choices:  status, resume, stop"),
    ("sweep one", "fix:      lightkit sweep status one\n"),
    ("sweep statsu last", "fix:      lightkit sweep status last\n"),
    ("sweep stop", "SWEEP is missing"),
    ("sweep status none", "no sweep here"),
    ("sweep resume wine_mlp optim.lr=1", "the jobs of a sweep are fixed"),
    ("sweep resume wine_mlp sweep.slots=no", "sweep.slots"),
    ("sweep status wine_mlp last", "one sweep at a time"),
    ("sweep status wine_mlp --trust", "only what is resumed needs trust"),
    # ckpt
    ("ckpt", "which action?"),
    ("ckpt inspect missing.pt", "missing.pt: no such file"),
    ("ckpt convert base x.pt --to onnx", "invalid choice: 'onnx'"),
    ("ckpt convert base x.safetensor", "nearest: .safetensors"),
    ("ckpt convert base plain", "an ending of these, or --to weights|safetensors|model"),
    ("ckpt convert base same.pt", "there is such a file already"),
    ("ckpt convert ADAPTER x.pt", "this is an adapter file"),
    *((f"ckpt convert base x.pt --pickle-protocol {n}", "--pickle-protocol: no such protocol") for n in ("6", "two")),
    ("ckpt convert base x.safetensors --pickle-protocol 4", "safetensors has no protocol of pickle to choose"),
    ("ckpt convert base x.pt --to state --pickle-protocol 4", "state has no protocol of pickle to choose"),
    ("ckpt convert same.pt x --to lightkit", "--like: which network does the file hold?"),
    ("ckpt prune base --keep-last=-1", "--keep-last: out of range"),
    ("ckpt prune base --keep-last=0 --keep-best=0", "no checkpoint would be left"),
    ("ckpt prune photos", "not the folder of a run with checkpoints"),
    ("ckpt merge tuned", "OUT is missing"),
    ("ckpt merge tuned x.pt --base base", "only an adapter file needs its base"),
    ("ckpt merge other.pt x.pt", "for a checkpoint in the folder of its run only"),
    ("ckpt average base x.pt", "two models or more, and the file to write"),
    ("ckpt average base base x.pt --weights 1,2,3", "the models cannot be weighted so"),
    ("ckpt average base base x.pt --weights a,b", "--weights: not numbers"),
    ("ckpt average base other.pt x.pt", "only models of one architecture can be averaged"),
    ("ckpt average same.pt base x.pt --to model", "needs a run as the first of the models"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with runs, sweeps and files, which no mistake changes.

    Runs: `base` and `tuned` with a checkpoint, `a` and `b` that have finished. Sweeps: `run`, of which one job has
    finished, `demo` with curves, and `wine_mlp`, which has only been planned.
    """
    folder = tmp_path_factory.mktemp("mistakes") / "project"
    outputs, day = folder / "outputs", "2026-01-31"
    (folder / "experiments").mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        base = a_run(folder, "base")
        tuned = a_run(folder, "tuned", "finetune=lora", "finetune.lora.rank=2", f"finetune.weights.path={base.folder}")
        an_adapter(tuned)
        a_sweep(folder, {0.1: [0.5, 0.75]})
    torch.save(base.model.state_dict(), folder / "same.pt")
    torch.save({"a": torch.ones(1)}, folder / "other.pt")
    (folder / "photos").mkdir()
    (folder / "photos" / "mine").touch()
    (folder / "flowers.csv").write_text("a,b\n1,2\n")
    text, sweep = (base.folder / "config.yaml").read_text(), outputs / "sweeps" / day / "12-00-00-run"
    for place in (*(outputs / "runs" / day / f"11-00-00-{name}" for name in "ab"), sweep / "seed=0", sweep / "seed=1"):
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(text)
        (place / "result.json").write_text(
            '{"status": "%s"}' % ("interrupted" if place.name == "seed=1" else "finished")
        )
    planned = outputs / "sweeps" / day / "10-00-00-wine_mlp"
    planned.mkdir(parents=True)
    with Journal(planned) as journal:
        journal.head(command={}, options={"retries": 0, "on_error": "continue", "engine": "local"})
        journal.plan([Job("seed=0", planned / "seed=0", ("seed=0",), "trainer: {epochs: 4}\n")])
    return folder


def contents(folder: Path) -> dict[Path, int]:
    """When each file was written, but for those in which lightkit notes what it has read."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_before_anything_is_done(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.chdir(home)
    before, adapter = contents(home), str(next(home.glob("outputs/runs/*/*-tuned/adapter.pt")))
    done = cli(*(adapter if word == "ADAPTER" else word for word in shlex.split(line)))
    assert (done.code, done.out, "Traceback" in done.err) == (2, "", False), done.err
    assert message in done.err
    assert before == contents(home)
