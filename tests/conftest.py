"""Fixtures every test may use: a project folder of its own, and the command line inside and outside of this process."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

# Before torch is imported: one thread per operation here and in every process the tests start, as results are compared
# bit by bit and tests run side by side.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
# Runs whose words and bits are compared are those of a CPU, also on a machine with a GPU; `make test-gpu` uses that.
os.environ.setdefault("LIGHTKIT_TESTS_ON", "gpu" if any("tests/gpu" in word for word in sys.argv) else "cpu")
if os.environ["LIGHTKIT_TESTS_ON"] == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no processes that import everything to compile a few lines

import pytest

from tests.warm import FOR_ALL, SHARED, Warm, begin

WHOLE_RUNS = {"benchmarks", "docs", "experiments", "faults", "gpu", "resume", "runner"}
"""Folders of tests that are about nothing else, which take seconds each."""
STARTING = {"cli", "project", "run_bash", "warm"}
"""Fixtures of tests that start a command or a run."""
SERVER = pytest.StashKey[subprocess.Popen[bytes]]()
"""Starts processes for all workers."""
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]
"""`cli("train", "data=wine")` runs a command."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: some tests wait for a process, a disk or a time limit."""
    return (os.cpu_count() or 1) + 1


def pytest_sessionstart() -> None:
    """A shell that starts the tests in the background, or nohup, lets all their processes ignore these."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also what is marked thorough, with all its cases")
    parser.addoption("--fast", action="store_true", help="one case of each test that starts no run and no process")
    parser.addoption("--rewrite", action="store_true", help="write what commands print into the pages that show it")


def pytest_configure(config: pytest.Config) -> None:
    """Files and tests that are named run whole; here, as worker processes take their options from this one."""
    gc.disable()  # until all is imported and collected, which leaves few cycles
    gives_out = config.getoption("dist", "no") != "no"
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        os.environ[SHARED] = tempfile.mkdtemp(prefix="lightkit-tests-")
        place = [str(config.invocation_params.dir), *config.invocation_params.args]
        config.stash[SERVER] = begin(_socket(), place if gives_out and not _on_gpu() else ())
    if not gives_out:  # what gives the tests to others runs none
        for name in FOR_ALL:
            importlib.import_module(name)
    if config.args_source is config.ArgsSource.ARGS and not hasattr(config, "workerinput"):
        config.option.all = True


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Fork the processes that run tests from one that has imported the tests."""
    import execnet

    if not _on_gpu():
        program = Warm(_socket("workers")).client(_socket("worker"), "-m", "tests.warm")
        specs[:] = [execnet.XSpec(f"{spec}//id={spec.id}//python={program}") for spec in specs]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        _choose(config, items, _fast(items))
    elif (
        not config.getoption("--all") and config.args_source is not config.ArgsSource.ARGS
    ):  # a file that is named runs
        _choose(config, items, _short(items))
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # so that no long file is left for last, and alone
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def _on_gpu() -> bool:
    """Whether the tests compute on a GPU, which does not survive a fork."""
    return os.environ["LIGHTKIT_TESTS_ON"] == "gpu"


def _socket(name: str = "socket") -> Path:
    return Path(os.environ[SHARED]) / name


def _choose(config: pytest.Config, items: list[pytest.Item], chosen: Iterator[pytest.Item]) -> None:
    """Leave out what is not chosen."""
    kept = dict.fromkeys(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _short(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """All tests, but of those that take long the first case, or the first cases that their mark says."""
    kept: Counter[str] = Counter()
    for item in items:
        name, _, case = item.nodeid.partition("[")
        first = [mark.kwargs.get("first", 1) for mark in item.iter_markers("thorough")]
        if not first or (case and kept[name] < min(first)):
            kept[name] += 1
            yield item


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders of whole runs where only what is fast is asked for."""
    folder = collection_path if collection_path.is_dir() else collection_path.parent
    parts = folder.relative_to(ROOT / "tests").parts if folder.is_relative_to(ROOT / "tests") else ()
    return True if config.getoption("--fast") and WHOLE_RUNS & {*parts} else None


def _fast(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """The first case of every test that starts nothing and takes less than a third of a second."""
    seen: set[str] = set()
    for item in items:
        name, fixtures = item.nodeid.partition("[")[0], getattr(item, "fixturenames", ())
        marks = {mark.name for mark in item.iter_markers()}
        if name not in seen and not STARTING & {*fixtures} and not {"slow", "thorough"} & marks:
            seen.add(name)
            yield item


def pytest_collection_finish() -> None:
    """Python's search for unreachable cycles leaves out what was imported: it would take a third of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Libraries look at the end whether anything of theirs is left."""
    gc.unfreeze()
    if server := config.stash.get(SERVER, None):
        server.communicate()
        shutil.rmtree(os.environ[SHARED], ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder of the tests' own, in which lightkit keeps its key."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty user project that is the working directory; runs are written into its `outputs/`.

    None of its modules stays importable, or imported: the next project may have others of these names.
    """
    folder, before = tmp_path / "project", {*sys.modules}
    (folder / "experiments").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("LIGHTKIT_PROJECT", raising=False)
    monkeypatch.delenv("LIGHTKIT_DEBUG", raising=False)
    yield folder
    ours = [name for name in {*sys.modules} - before if _of(sys.modules[name], folder)]
    for name in ours:  # only now: a namespace package looks for its parent while its path is read
        del sys.modules[name]


def _of(module: ModuleType, folder: Path) -> bool:
    """Whether a module was imported from `folder`."""
    known = object.__getattribute__(module, "__dict__")  # modules that are imported in parts would import the rest
    places = [known.get("__file__") or "", *(known.get("__path__") or ())]
    return any(str(place).startswith(str(folder)) for place in places)


@pytest.fixture
def cli(project: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """`cli("train", "data=wine")`: the command line in this process, inside `project`."""
    from lightkit.cli import main

    def run(*args: str) -> Outcome:
        capfd.readouterr()
        code = main(list(args))
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture(scope="session")
def warm() -> Warm:
    """What starts processes without importing everything once more: one for all that run tests side by side."""
    return Warm(_socket())


@pytest.fixture
def process(project: Path, request: pytest.FixtureRequest) -> Callable[..., Outcome]:
    """`process("train", "data=wine")`: the command line in a process of its own, inside `project`.

    It is forked from one that has imported everything; on a GPU, which does not survive a fork, it starts anew.
    """
    start = _anew if request.node.get_closest_marker("gpu") else request.getfixturevalue("warm").run

    def run(*args: str, cwd: Path = project, **variables: str) -> Outcome:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return Outcome(*start(args, cwd, {**os.environ, "PYTHONPATH": path, **variables}))

    return run


def _anew(args: Sequence[str], folder: Path, variables: Mapping[str, str]) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "lightkit", *args]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr
