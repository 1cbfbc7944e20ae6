"""`lightkit find`: a learning rate, a batch size, the number of loader processes, or what more rows are worth."""

from __future__ import annotations

from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stdout
from io import StringIO
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, NamedTuple

from lightkit.cli.arguments import Parser
from lightkit.cli.inspected import configuration
from lightkit.cli.terminal import complain, number, report, table
from lightkit.common import run_files
from lightkit.common.doors import SHIPPED, import_path
from lightkit.common.errors import FAILED, UserError
from lightkit.common.ranking import LEAST_SEEDS
from lightkit.common.text import slug, three_digits
from lightkit.runs.catalog import has_checkpoints, project
from lightkit.runs.reading import read_result

if TYPE_CHECKING:
    from omegaconf import DictConfig

DOOR = "find"
_OPTIONS = ("--low", "--high", "--steps", "--try", "--seeds")
_ROWS = 12
"""Rows of the table of rates."""


class Answer(NamedTuple):
    """What a finder came to, to be shown."""

    key: str
    """The key that it is about."""
    value: Any
    """The value that is suggested; None where there is none."""
    reason: str
    """What speaks for it."""
    titles: tuple[str, ...]
    """Heads of the table."""
    rows: list[list[str]]
    """Its cells."""
    numbers: dict[str, Any]
    """All of it, for a program."""
    draw: Callable[[str], Any] | None
    """Makes the picture, with a title."""


Finder = Callable[["DictConfig", Namespace], Answer]
"""Tries values for a configuration, with the options of the command line."""


def taking(*options: str) -> Callable[[Finder], Finder]:
    """Say which options a finder takes; one that does not say so takes all."""

    def mark(finder: Finder) -> Finder:
        vars(finder)["takes"] = options
        return finder

    return mark


def find(args: list[str]) -> int:
    """Try values of a key, and suggest one."""
    parser = Parser("find", "what?", "overrides*", low=float, high=float, steps=int, seeds=int)
    # For the process that measures, which is told by standard input what.
    parser.add_argument("--measure", action="store_true", help=SUPPRESS)
    options = parser.read(args)
    if options.measure:
        from lightkit.finders.child import work

        return work()
    from lightkit.config.doors import load, names

    if options.what is None:
        raise UserError("what to find is missing", key="lightkit find", choices=names(DOOR), fix="lightkit find --help")
    if options.what not in (choices := names(DOOR)):
        raise UserError("nothing to find by this name", key="lightkit find", received=options.what, choices=choices)
    finder, own = load(DOOR, options.what)
    _check(options, getattr(finder, "takes", _OPTIONS))
    cfg, _ = configuration(options)
    answer = finder(**own)(cfg, options) if isinstance(finder, type) else finder(cfg, options, **own)
    plot = _draw(answer, cfg, options)
    content = {"key": answer.key, "suggested": answer.value, "reason": answer.reason, **answer.numbers, "plot": plot}
    report(options, content, lambda: _lines(answer, plot))
    return FAILED if answer.value is None else 0


def _check(options: Namespace, takes: Sequence[str]) -> None:
    """Refuse options that the finder does not take, and ranges that are none.

    Args:
        options: Of the command line.
        takes: Those that it takes.

    Raises:
        UserError: There is one.
    """
    for name in _OPTIONS:
        value = getattr(options, {"--try": "numbers"}.get(name, name[2:]))
        if value is not None and name not in takes:
            what = " or ".join(each for each, path in SHIPPED[DOOR].items() if name in import_path(path).takes)
            raise UserError(f"this is for lightkit find {what}", key=name, received=value, fix="leave it out")
        if value is not None and name != "--try" and not value > 0:
            raise UserError("out of range", key=name, expected="above 0", received=value)
    low, high = options.low, options.high
    if low is not None and high is not None and low >= high:
        raise UserError("the rates do not rise", key="--high", expected=f"above {low:g}", received=high)
    limits = (("steps", 10, "steps to tell rates apart"), ("seeds", 3, "seeds to tell noise from gain"))
    for name, least, what in limits:
        if (given := getattr(options, name)) is not None and given < least:
            raise UserError(f"too few {what}", key=f"--{name}", expected=f"{least} or more", received=given)


def _draw(answer: Answer, cfg: DictConfig, options: Namespace) -> Path | None:
    """Write the picture; None where there is nothing to draw."""
    if answer.draw is None:
        return None
    from lightkit.common.drawing import png

    name = slug(f"{cfg.name}-{options.what}")
    path = Path(options.plot) if options.plot else project() / run_files.OUTPUTS / run_files.FOUND / f"{name}.png"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(answer.draw(f"{cfg.name}: {answer.key}")))
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror}", key="--plot", received=path, family="file") from error
    return Path(path)


def _lines(answer: Answer, plot: Path | None) -> Iterator[str]:
    """Yield table, suggestion and where the picture is."""
    if answer.rows:
        yield table(answer.titles, answer.rows, right=range(len(answer.titles))) + "\n"
    yield answer.reason if answer.value is None else f"suggested: {answer.key}={answer.value}\n  {answer.reason}"
    if plot is not None:
        yield f"picture: {plot}"


def _drawing(function: str, *args: Any, **options: Any) -> Callable[[str], Any]:
    """Return what makes a picture with a title; matplotlib is imported only then."""
    return lambda title: import_path(f"lightkit.finders.drawing.{function}")(*args, **options, title=title)


@taking("--low", "--high", "--steps")
def suggest_lr(cfg: DictConfig, options: Namespace) -> Answer:
    """Find a learning rate."""
    from lightkit.finders.lr import HIGH, LOW, STEPS, find_lr

    steps = options.steps or STEPS

    def tell(step: int, point: Any) -> None:
        if step % max(1, steps // 10) == 0:
            complain(f"step {step}/{steps}: rate {point.lr:.2g}, loss {point.loss:.4g}")

    def tell_training(training: Any) -> None:
        complain(f"short training: rate {training.lr:g}, loss {_end(training)}")

    low, high = options.low or LOW, options.high or HIGH
    found = find_lr(cfg, low=low, high=high, steps=steps, tell=tell, tell_training=tell_training)
    best, seen, every = found.suggestion, found.range, max(1, -(-len(found.points) // _ROWS))
    rows = [["rising", f"{point.lr:.2g}", f"{point.loss:.4g}"] for point in found.points[::every]]
    rows += [[f"{found.short} steps", f"{each.lr:.2g}", _end(each)] for each in sorted(found.trainings)]
    numbers = {"configured": found.configured, "points": [point._asdict() for point in found.points]}
    ends = [{**each._asdict(), "loss": each.loss if each.losses else None} for each in found.trainings]
    numbers |= {"trainings": ends, "training_steps": found.short, "run_steps": found.total}
    reason = "the loss falls with none of these rates: a wider range (--low, --high), or look at the data and the model"
    if best is not None:
        reason = ";\n  ".join([*best.reason.split("; "), f"it is {found.configured:g} now"])
    if seen is not None:
        numbers |= {"lowest": seen.lowest._asdict(), "steepest": seen.steepest._asdict(), "harmful": seen.harmful}
    shown = _drawing("draw_lr", found) if found.points else None
    return Answer("optim.lr", best and best.lr, reason, ("steps", "learning rate", "loss"), rows, numbers, shown)


def _end(training: Any) -> str:
    """Put in words what the last batches of a short training came to."""
    return f"{training.loss:.4g}" if training.losses else "diverges"


@taking()
def suggest_batch(cfg: DictConfig, options: Namespace) -> Answer:
    """Find a batch size."""
    from lightkit.config import with_values
    from lightkit.diagnostics.memory import in_gib
    from lightkit.finders.speeds import find_throughput
    from lightkit.runner.batches import find_batch

    if cfg.trainer.find_batch_size is None:
        cfg = with_values(cfg, {"trainer.find_batch_size": "max"})
    found = find_batch(cfg, ranks=cfg.device.nproc, tell=lambda line: complain(line.strip()))
    memory, *more = (line.removeprefix("batch").strip() for line in found.lines)
    suggested, reason, speeds = found.size, "\n  ".join([memory, *more]), dict[int, float]()
    # With auto the samples of a step are given, and the fewest parts are the fastest.
    if cfg.trainer.find_batch_size == "max":

        def tell(speed: Any) -> None:
            complain(f"{speed.size} samples: {three_digits(speed.samples)} a second")

        fast = find_throughput(cfg, largest=found.size, ranks=cfg.device.nproc, tell=tell)
        suggested, reason = fast.suggested, "\n  ".join([*fast.reason.splitlines(), f"memory: {memory}"])
        speeds = dict(fast.speeds)
    probes = sorted(found.probes, key=lambda probe: probe.size)
    needed = {probe.size: "does not fit" if probe.peak is None else in_gib(probe.peak) for probe in probes}
    rows = list[list[str]]()
    for size in sorted({*needed, *speeds}):
        rows.append([str(size), needed.get(size, ""), in_gib(found.limit) if size in needed else ""])
        if speeds:
            rows[-1].append(three_digits(speeds[size]) if size in speeds else "")
    fits = {"accumulate": found.accumulate, "largest": found.size, "limit": found.limit, "free": found.free}
    tried = [{"size": probe.size, "bytes": probe.peak} for probe in probes]
    fast_ones = [{"size": size, "samples": samples} for size, samples in speeds.items()]
    numbers = {**fits, "tried": tried, "speeds": fast_ones}
    draw = _drawing("draw_batch", probes, speeds, limit=found.limit, free=found.free, size=suggested)
    titles = ("samples", "needed", "may be used", *(("samples/s",) if speeds else ()))
    return Answer("data.batch_size", suggested, reason, titles, rows, numbers, draw)


@taking("--try")
def suggest_workers(cfg: DictConfig, options: Namespace) -> Answer:
    """Find a number of loader processes."""
    from lightkit.finders.speeds import find_workers

    try:
        numbers = None if options.numbers is None else sorted({int(text) for text in options.numbers.split(",")})
    except ValueError:
        numbers = [-1]
    if numbers and min(numbers) < 0:
        raise UserError("not numbers of processes", key="--try", expected="such as 0,2,8", received=options.numbers)

    def tell(speed: Any) -> None:
        complain(f"{speed.workers} processes: {three_digits(speed.samples)} samples a second")

    found = find_workers(cfg, numbers=numbers, tell=tell)
    rows = [[str(s.workers), three_digits(s.samples), f"{s.waited:.0%}", f"{s.first:.2f}"] for s in found.speeds]
    speeds = [speed._asdict() for speed in found.speeds]
    content = {"configured": found.configured, "cpus": found.cpus, "compute": found.compute, "speeds": speeds}
    titles = ("processes", "samples/s", "waits", "s to first batch")
    shown = _drawing("draw_workers", found) if found.speeds else None
    return Answer("data.num_workers", found.suggested, found.reason, titles, rows, content, shown)


@taking("--seeds")
def suggest_rows(cfg: DictConfig, options: Namespace) -> Answer:
    """Find whether more training rows are worth it."""
    from lightkit.compare.statistics import fit_power_law, paired, resolution

    values, name = dict[int, list[float]](), ""
    for size, seed, name, value in _trainings(cfg, options.seeds or LEAST_SEEDS):
        values.setdefault(size, []).append(value)
        complain(f"{size:,} rows, seed {seed}: {name} {number(value)}")
    step, most = resolution([value for own in values.values() for value in own], None), max(values)
    curve = {size: paired(own, step=step) for size, own in values.items()}
    laws = [fit_power_law([*values], own) for own in zip(*values.values())]
    gain = paired([law(2 * most) - law(most) for law in laws], step=step)
    low, high = gain.low or 0.0, gain.high or 0.0
    certain, ends = (low if cfg.metrics.mode == "max" else -high) > 0, f"{low:+.3g} to {high:+.3g} (95 %)"
    reason = f"with {2 * most:,} rows, twice as many, {name} would change by {gain.mean:+.3g}, {ends}, by a power law"
    reason = reason if certain else f"no gain beyond noise: {reason}"
    numbers = {"metric": name, "values": values, "rows": 2 * most, "gain": [gain.mean, low, high]}
    rows = [[f"{size:,}", number(at.mean), number(at.low), number(at.high)] for size, at in curve.items()]
    draw = _drawing("draw_rows", curve, laws, name=name)
    return Answer("rows", 2 * most if certain else None, reason, ("rows", name, "low", "high"), rows, numbers, draw)


def _trainings(cfg: DictConfig, seeds: int) -> Iterator[tuple[int, int, str, float]]:
    """Train with parts of the training rows, for as many steps as with all of them, or take what has finished before.

    Args:
        cfg: The configuration.
        seeds: Trainings with each number of rows; each draws rows of its own.

    Yields:
        Rows, seed, metric and value: that which is monitored, of the test where there is one.

    Raises:
        UserError: No rows are held out.
    """
    from lightkit.assembly import build_engine, build_splits, build_timetable
    from lightkit.config import to_yaml, with_values
    from lightkit.data.tensors import fingerprint
    from lightkit.runner import Runner
    from lightkit.runs.code import own_modules

    with closing(build_splits(cfg, build_engine(cfg))) as data:
        most, steps = len(data.rows["train"]), build_timetable(cfg, data).steps_per_epoch
        mark = f"{slug(str(cfg.name))}-{fingerprint([to_yaml(cfg), data.info.fingerprint, str(own_modules())])[:12]}"
    if len(data.loaders()) < 2 or cfg.cv.folds:
        raise UserError("there is no one split to measure on", key="data.split", fix="data.split.test=0.2, without cv")
    home, monitor = project() / run_files.OUTPUTS / run_files.FOUND / run_files.FOUND_RUNS / mark, cfg.metrics.monitor
    for size, seed in ((most >> n, seed) for n in range(4, -1, -1) for seed in range(cfg.seed, cfg.seed + seeds)):
        place, result = home / f"{size}-{seed}", read_result(home / f"{size}-{seed}")
        own = {"seed": seed, "data.split.limit": size, "data.split.limit_seed": seed, "trainer.epoch_steps": steps}
        if result.get("status") != "finished":
            with redirect_stdout(StringIO()):  # which is for the answer
                result = Runner(with_values(cfg, own), place, on_end=False).run(resume=has_checkpoints(place))
            rmtree(place / run_files.CHECKPOINTS, ignore_errors=True)  # of so many runs they would fill the disk
        found = {**result["metrics"], monitor: result["objective"]["value"]}
        name = next(name for name in (f"test/{monitor.partition('/')[2]}", monitor) if name in found)
        yield size, seed, name, found[name]
