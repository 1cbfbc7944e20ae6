"""A trained model as files for other software, compared with the run on rows of its data before they get their names."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from pprint import pformat
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.assembly import Learner
from lightkit.assembly.run_rows import known_rows
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short
from lightkit.config import instantiate, to_plain
from lightkit.config.doors import load, names
from lightkit.data.build import read_inputs
from lightkit.data.csv_columns import MISSING
from lightkit.data.sources import as_source
from lightkit.data.tensors import TensorData
from lightkit.finetune.peft.merging import unmergeable
from lightkit.processes.files import put_in_place, sync_file
from lightkit.runner.evaluation import pass_over, rows_of
from lightkit.runner.models import plain_version
from lightkit.runner.program import Format, Leaving, Predictor, describe, quiet
from lightkit.runner.run import Runner
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run
from lightkit.trainer.evaluate import Predictions

DOOR = "export"
FOLDER = "folder"
"""The name behind the door for a path without an ending."""
TOLERANCE = 1e-4
"""How far what the files predict may be from what the run does, relative to values above 1."""
_ROWS = 128
"""Rows that are compared, at most."""
_ON_CPU = ["device.name=cpu", "device.parallel=none", "device.precision=fp32"]
_ORDER = ("test", "val", "train")
"""From which split the rows are taken: the first there is."""


class Exported(NamedTuple):
    """What was written, and how it was tried."""

    files: tuple[Path, ...]
    """The files, in the order of their names."""
    split: str
    """Where the rows are from."""
    rows: int
    """How many rows were compared."""
    difference: float
    """The largest difference between what the files predict and what the run does."""


def export(
    run: str | Path,
    path: str | Path,
    *,
    checkpoint: str = "best",
    members: Sequence[str] = (),
    tolerance: float = TOLERANCE,
    overwrite: bool = False,
    beside: bool = True,
    overrides: Sequence[str] = (),
) -> Exported:
    """Write a trained model for other software, with a Python file beside it that predicts by it.

    Inputs are as they are in the data set: missing values are filled in and inputs are scaled inside. Of an ensemble
    all members and their combination are in one file. Low-rank updates are merged where they can be.

    Args:
        run: Folder of the run, its name, or `last`.
        path: A file that ends in `.pt2` (for PyTorch) or `.onnx`, or a folder (for a network with `save_pretrained`).
        checkpoint: `best`, `last` or the path of a checkpoint file.
        members: Names of the members of an ensemble to take; none takes all.
        tolerance: How far predictions may be from those of the run, relative to values above 1.
        overwrite: Replace files of these names.
        beside: Keep the Python file.
        overrides: Values of the configuration to change, such as where the data are now.

    Returns:
        What was written, and the largest difference that was found.

    Raises:
        UserError: There is no such run, it cannot be written in this form, the files predict something else, or there
            are such files already. Nothing was written then.
    """
    path, folder = Path(path), find_run(str(run), project())
    form = _format(path)
    script = path / "predict.py" if form.is_folder else path.with_name(f"predict_{_word(path.name)}.py")
    taken = [one for one in (path, script)[: 1 + beside] if one.exists() and not _is_empty(one)]
    if taken and not overwrite:
        what = "there is such a file already"
        raise UserError(what, key=str(taken[0]), fix="another name, or --overwrite", family="file")
    cfg = read_run(folder, [*overrides, *_ON_CPU]).cfg
    with Runner(cfg, folder).trained(checkpoint, members) as learner:
        split = next(name for name in _ORDER if learner.data.evaluation(name) is not None)
        leaving, expected = _leaving(learner, cfg, folder, split)
        try:
            with quiet(), TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as place:
                made = Path(place) / (path.name if not form.is_folder else "")
                form.write(leaving, made)
                own = Path(place) / script.name
                own.write_text(_script(form, leaving, path, script), encoding="utf-8")
                difference = _compared(own, leaving.inputs, expected, tolerance)
                if not beside:
                    own.unlink()
                files = _placed(Path(place), path if form.is_folder else path.parent)
        except OSError as error:
            what = f"cannot write: {error.strerror or error}"
            raise UserError(what, key=str(path), family="cannot-write") from error
    return Exported(files, split, len(expected), difference)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _format(path: Path) -> Format:
    """Return the form that the name of a file asks for.

    Raises:
        UserError: There is no such form, or a package for it is missing.
    """
    kind = path.suffix.removeprefix(".") or FOLDER
    if kind not in names(DOOR):
        choices = [f".{name}" for name in names(DOOR) if name != FOLDER]
        fix = "one of these endings, or a name without one for a folder"
        raise UserError("no such form", key=str(path), received=path.suffix, choices=choices, fix=fix, family="file")
    made, given = load(DOOR, kind, Format)
    form: Format = made(**given)
    form.check(str(path))
    return form


def _leaving(learner: Learner, cfg: DictConfig, folder: Path, split: str) -> tuple[Leaving, Tensor]:
    """Return the model to write with some rows of a split, and what the run predicts of these rows."""
    data = learner.data
    rows, found = data.rows[split][:_ROWS], Predictions(data.info.task, data.info.class_names)
    inputs = _raw(learner, cfg, folder, rows)
    pass_over(learner, rows_of(learner, split).with_rows(rows), [found])
    merges = learner.model is learner.made.model and not unmergeable(learner.model)
    network = plain_version(cfg, data.info, learner.engine, learner.made) if merges else learner.model
    predictor = Predictor(network, data).eval()
    expected = predictor.predictions(found.outputs())
    about = describe(data, to_plain(cfg.data.dataset), inputs, expected) | {"missing": sorted(MISSING)}
    return Leaving(predictor, data, inputs, about), expected


def _raw(learner: Learner, cfg: DictConfig, folder: Path, rows: Tensor) -> Tensor:
    """Return inputs as they are in the data set: not filled in, and not scaled."""
    data, source = learner.data, learner.data.source
    if not data.info.input_shape:
        what, fix = "a file takes inputs of one shape: of this run, lightkit itself predicts", "lightkit predict RUN"
        raise UserError(what, key=str(folder), fix=fix)
    if isinstance(source, TensorData):  # in which they are changed already
        source = as_source(instantiate(cfg.data.dataset, key="data.dataset"))
        source = known_rows(cfg.data, source, folder, ()).source
    inputs = torch.cat([*read_inputs(source, rows, learner.data.train.options, purpose="export")])
    return inputs if len(inputs) > 1 else inputs.repeat(2, *[1] * (inputs.ndim - 1))


def _word(text: str) -> str:
    """Return what a module may be called after a text."""
    return "".join(letter if letter.isalnum() else "_" for letter in text)


def _script(form: Format, leaving: Leaving, path: Path, script: Path) -> str:
    """Return the Python file that predicts."""
    about = leaving.about
    what = "probabilities of the classes or labels" if about["classes"] else "the outputs of the network"
    marks = {
        "FILE": path.name.replace("\\", "/").replace('"', "'"),
        "PLACE": "parent" if form.is_folder else f"with_name({path.name!r})",
        "NEEDS": form.needs,
        "SCRIPT": script.name,
        "SHAPE": _shape(about["input_shape"]),
        "RETURNS": f"{'values' if about['task'] == 'regression' else what} {_shape(about['output_shape'])}",
        "CODE": form.code.rstrip(),
        "ABOUT": pformat(dict(about), width=100, sort_dicts=False),
    }
    text = Path(__file__).with_name("predict.txt").read_text(encoding="utf-8")
    for name, value in marks.items():
        text = text.replace(f"@{name}@", value)
    return text


def _shape(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, ('N', *sizes)))})"


def _compared(script: Path, inputs: Tensor, expected: Tensor, tolerance: float) -> float:
    """Return how far what the files predict is from what is expected; of one row alone, too.

    Raises:
        UserError: They cannot be loaded, or predict something else.
    """
    try:
        predict = runpy.run_path(str(script))["predict"]
        found = torch.as_tensor(predict(inputs))[: len(expected)]
        alone = torch.as_tensor(predict(inputs[:1]))
    except Exception as error:  # of whatever package computes it
        what = f"what was written cannot be loaded again: {in_short(error)}"
        raise UserError(what, key="lightkit export", family="wrong-value") from error
    pairs = ((found, expected), (alone, expected[:1]))
    difference = max(_difference(one.reshape(other.shape), other) for one, other in pairs)
    if difference <= tolerance:
        return difference
    what = f"what was written predicts something else than the run: the largest difference is {difference:.2g}"
    fix = "another form, or a larger --tolerance where so much does no harm"
    raise UserError(what, key="lightkit export", expected=f"{tolerance:g} at most", fix=fix, family="wrong-value")


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to values above 1; NaN and infinities count where they are not alike."""
    one, other = one.double(), other.double()
    apart = (one - other).abs() / other.abs().clamp_min(1)
    alike = (one == other) | (one.isnan() & other.isnan())
    return float(apart.nan_to_num(torch.inf).masked_fill(alike, 0).max())


def _placed(made: Path, home: Path) -> tuple[Path, ...]:
    """Give what is whole its names in a folder, and return them."""
    home.mkdir(exist_ok=True)
    files = [path for path in sorted(made.iterdir()) if path.is_file()]
    for path in files:
        sync_file(path)
        put_in_place(path, home / path.name)
    return tuple(home / path.name for path in files)
