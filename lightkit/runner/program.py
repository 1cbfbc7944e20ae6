"""A trained model as one file that predicts where lightkit is not installed, by PyTorch alone."""

from __future__ import annotations

import io
import json
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightkit.assembly import build
from lightkit.common.errors import UserError
from lightkit.config import to_plain
from lightkit.data import Data
from lightkit.data.impute import Filling
from lightkit.ensemble.combining import as_probabilities
from lightkit.processes.files import write_whole
from lightkit.runner.evaluation import load_weights
from lightkit.runner.models import plain_version
from lightkit.runs.catalog import find_run, project
from lightkit.runs.reading import read_run

ABOUT = "about.json"
"""Name of what the file says of itself."""
_WITHOUT_PROBABILITIES = ("language_modeling", "custom")


class Fill(nn.Module):
    """Fills missing values in, as `Filling` does, without a step that depends on where they are.

    Args:
        filling: What was fitted to the training rows.
        features: Number of features before indicators are added.
    """

    values: Tensor
    fillable: Tensor
    first: Tensor
    marked: Tensor

    def __init__(self, filling: Filling, features: int) -> None:
        super().__init__()
        values, fillable, first = torch.zeros(features), torch.zeros(features).bool(), torch.arange(features)
        for gaps in filling.columns:
            values[gaps.features] = torch.tensor(filling.values[gaps.name])
            fillable[gaps.features] = True
            first[gaps.features] = gaps.first  # NaN there, all of the column is missing
        marked = [gaps.first for gaps in filling.columns if gaps.name in filling.indicators]
        constants = {"values": values, "fillable": fillable, "first": first, "marked": torch.tensor(marked).long()}
        for name, constant in constants.items():
            self.register_buffer(name, constant)

    def forward(self, x: Tensor) -> Tensor:
        """Return filled rows `(N, F)`, with the indicators after the other features."""
        missing = x.isnan()
        filled = torch.where(missing[:, self.first] & self.fillable, self.values, x)
        return torch.cat([filled, missing[:, self.marked].to(x.dtype)], 1) if len(self.marked) else filled


class Predictor(nn.Module):
    """A network with what is done to its inputs and outputs around it.

    Args:
        model: The network.
        data: The data that it was trained on, which knows what is filled in, the scaling of inputs and the task.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, data: Data) -> None:
        super().__init__()
        self.model, self.task, scaling = model, data.info.task, data.normalizer
        self.fill = nn.Identity() if data.filling is None else Fill(data.filling, _raw_shape(data)[0])
        self.is_scaled = scaling is not None
        if scaling is not None:
            self.register_buffer("shift", scaling.shift)
            self.register_buffer("scale", scaling.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities of inputs as they are in the data set; of a language model the logits."""
        x = self.fill(x)
        outputs = self.model((x - self.shift) / self.scale if self.is_scaled else x)
        return outputs if self.task in _WITHOUT_PROBABILITIES else as_probabilities(outputs, self.task)


def write_program(run: str | Path, path: Path | str = "model.pt2", *, checkpoint: str = "best") -> Path:
    """Write a trained model so that `torch.export.load` opens it anywhere, its code and lightkit not needed.

    It takes batches of any size, of inputs as they are in the data set, and scales them as the run did. Where the run
    filled missing values in, NaN stands for one, and what was fitted to the training rows takes its place. `about.json`
    in the file tells the task, the names of the classes, the shape of an input and the arguments of the data set.

    Args:
        run: Folder of the run, its name, or `last`.
        path: The file, whose name ends in `.pt2`.
        checkpoint: `best`, `last` or the path of a checkpoint file.

    Returns:
        The file.

    Raises:
        UserError: There is no such run, its inputs are more than numbers, or the network cannot be traced.
    """
    folder = find_run(str(run), project())
    cfg = read_run(folder, ["device.name=cpu", "device.parallel=none", "device.precision=fp32"]).cfg
    learner = build(cfg, folder, pretrained=False, trains=False)
    with closing(learner.data) as data:
        if not data.info.input_shape:
            what = "a program takes inputs of one shape: of this run, lightkit itself predicts"
            raise UserError(what, key=str(folder), fix=f"lightkit predict {run}")
        load_weights(learner, checkpoint, folder)
        predictor = Predictor(plain_version(cfg, data.info, learner.engine, learner.made), data).eval()
        inputs = next(iter(data.train.epoch(0)))[0]
        if data.filling is not None:
            inputs = inputs[:, : _raw_shape(data)[0]]
        example = torch.cat([inputs, inputs])[:2]  # of one sample the number would be taken for a constant
        program = _traced(predictor, example, folder)
        about = _about(data, to_plain(cfg.data.dataset))
        extra = {ABOUT: json.dumps(about, default=str)}
    content = io.BytesIO()
    torch.export.save(program, content, extra_files=extra)
    try:
        write_whole(path, content.getvalue(), forced=True)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", key=str(path), family="cannot-write") from error
    return Path(path)


def _traced(predictor: Predictor, example: Tensor, folder: Path) -> Any:
    batch = torch.export.Dim("batch", min=1)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of how PyTorch traces its own recurrent layers
            return torch.export.export(predictor, (example,), dynamic_shapes=({0: batch},))
    except Exception as error:  # whatever a network does that cannot be traced
        what = f"torch.export cannot trace the network: {str(error).splitlines()[0]}"
        raise UserError(what, key=str(folder), fix="lightkit ckpt convert RUN FILE --to model") from error


def _raw_shape(data: Data) -> list[int]:
    """Return the shape of an input before indicators of missing values are added to a table's features."""
    first, *others = data.info.input_shape
    return [first - len(data.filling.indicators if data.filling is not None else ()), *others]


def _about(data: Data, dataset: Any) -> dict[str, Any]:
    info = data.info
    return {
        "task": info.task,
        "classes": list(info.class_names),
        "input_shape": _raw_shape(data),
        "vocabulary": list(info.vocabulary),
        "dataset": {name: value for name, value in dataset.items() if name != "_target_"},
    }
