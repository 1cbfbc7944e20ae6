"""A trained model as files for other software, which are compared with the run before they get their names."""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from pprint import pformat
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig
from torch import Tensor

from lightkit.common.errors import UserError, writing_to
from lightkit.common.failures import in_short
from lightkit.common.text import MISSING
from lightkit.config import instantiate, to_plain
from lightkit.config.doors import load as load_part
from lightkit.config.doors import names
from lightkit.data.build import read_inputs
from lightkit.data.prepare import LoaderOptions
from lightkit.data.sources import as_source
from lightkit.data.table_reader import TableReader
from lightkit.data.text_reader import TextReader
from lightkit.processes.files import put_in_place, sync_file
from lightkit.runner.models import refuse_folds
from lightkit.runner.predictor import Predictor, load
from lightkit.runner.program import Format, Leaving, quiet, raw_shape, template
from lightkit.runs.reading import read_run
from lightkit.trainer.tasks import logits

DOOR = "export"
FOLDER = "folder"
"""The name behind the door for a path without an ending."""
TOLERANCE = 1e-4
"""How far what the files predict may be from what the run does, relative to values above 1."""
_ROWS = 128
"""Rows that are compared, at most."""
_NOT_FINITE = ("inf", "infinity", "nan")
"""Numbers in a cell that count as no value, as `lightkit.common.text.is_missing` says."""


class Exported(NamedTuple):
    """What was written, and how it was tried."""

    files: tuple[Path, ...]
    """The files, in the order of their names."""
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
    path = Path(path)
    form = _format(path)
    word = "".join(letter if letter.isalnum() else "_" for letter in path.name)
    script = path / "predict.py" if form.is_folder else path.with_name(f"predict_{word}.py")
    taken = [one for one in (path, script)[: 1 + beside] if one.exists() and (not one.is_dir() or any(one.iterdir()))]
    if taken and not overwrite:
        what = "there is such a file already"
        raise UserError(what, key=str(taken[0]), fix="another name, or --overwrite", family="file")
    model = load(run, checkpoint=checkpoint, members=members, overrides=[*overrides, "device.precision=fp32"])
    refuse_folds(model.folder)
    dataset = read_run(model.folder, overrides).cfg.data.dataset
    leaving = _leaving(model, dataset)
    with torch.no_grad():
        outputs = logits(model.network(model.preprocessing(leaving.inputs)))
    expected = leaving.whole.predictions(outputs)
    about = {**leaving.about, "output_shape": list(expected.shape[1:])}
    with writing_to(path), quiet(), TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as place:
        form.write(leaving, Path(place) / ("" if form.is_folder else path.name))
        own = Path(place) / script.name
        own.write_text(_script(form, about, path, script), encoding="utf-8")
        difference = _compared(own, leaving.inputs, expected, tolerance)
        if not beside:
            own.unlink()
        files = _placed(Path(place), path if form.is_folder else path.parent)
    return Exported(files, len(expected), difference)


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
    made, given = load_part(DOOR, kind, Format)
    form: Format = made(**given)
    form.check(str(path))
    return form


def _leaving(model: Predictor, dataset: DictConfig) -> Leaving:
    """Return the model to write, with rows from all over the data set as they are there: not filled in, not scaled.

    Raises:
        UserError: The inputs are no arrays of one shape, or the data are not there.
    """
    known, info = model.preprocessing, model.info
    if not info.input_shape and not isinstance(known.reader, TextReader):
        what, fix = "a file takes inputs of one shape: of this run, lightkit itself predicts", "lightkit predict RUN"
        raise UserError(what, key=str(model.folder), fix=fix)
    source = as_source(instantiate(dataset, key="data.dataset"))
    rows = torch.linspace(0, len(source) - 1, max(2, min(len(source), _ROWS))).long()
    found: list[Any] = [*read_inputs(source, rows, LoaderOptions(len(rows)), purpose="export")]
    inputs = found[0]["input_ids"] if isinstance(found[0], Mapping) else torch.cat(found)
    reader = known.reader
    own: dict[str, Any] = {"columns": {}, "encodings": {}, "filled": []}
    if isinstance(reader, TableReader):
        own["columns"] = {name: reader.kinds.get(name, []) for name in reader.features}
        own |= {"encodings": dict(reader.others), "filled": list(reader.filled)}
    about = {
        "task": info.task,
        "unit": info.target_scale,
        "classes": list(info.class_names),
        "words": list(reader.words),
        "thresholds": list(getattr(model.after, "thresholds", ())),
        "input_shape": raw_shape(known),
        "dtype": str(inputs.dtype).removeprefix("torch."),
        "vocabulary": list(info.vocabulary),
        "padding": info.more.get("pad_token_id"),
        **own,
        "missing": sorted({*MISSING, *(sign + word for sign in ("", "+", "-") for word in _NOT_FINITE)}),
        "dataset": {name: value for name, value in to_plain(dataset).items() if name != "_target_"},
    }
    return Leaving(model.network, known, inputs, about, getattr(model.after, "curves", None))


def _script(form: Format, about: Mapping[str, Any], path: Path, script: Path) -> str:
    """Return the Python file that predicts."""
    what = "probabilities of the classes or labels" if about["classes"] else "the outputs of the network"
    marks = {
        "FILE": path.name.replace("\\", "/").replace('"', "'"),
        "PLACE": "parent" if form.is_folder else f"with_name({path.name!r})",
        "NEEDS": form.needs,
        "SCRIPT": script.name,
        "SHAPE": _shape(about["input_shape"]),
        "RETURNS": f"{'values' if about['task'] == 'regression' else what} {_shape(about['output_shape'])}",
        "CODE": form.code.strip("\n"),
        "ABOUT": pformat(dict(about), width=100, sort_dicts=False),
    }
    text = template("predict.txt")
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
