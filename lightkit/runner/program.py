"""A trained model as one file that predicts where lightkit is not installed, by PyTorch alone."""

from __future__ import annotations

import io
import json
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightkit.common.errors import UserError
from lightkit.config.missing import package_of
from lightkit.data.impute import Filling
from lightkit.data.preprocessing import Preprocessing
from lightkit.ensemble.combining import as_probabilities
from lightkit.finetune.peft.merging import merge
from lightkit.trainer.tasks import logits

ABOUT = "about.json"
"""Name of what the file says of itself."""
WITHOUT_PROBABILITIES = ("language_modeling", "custom")
_FIXES = {
    "specialized it to be a constant": "the size of a batch has to stay open: x.shape[0] in place of len(x)",
    "data-dependent": "what is computed may decide by torch.where, not by `if`",
}
"""What to do about errors of torch.export, by what is said in them."""
_ELSE = "lightkit ckpt convert RUN FILE --to model writes the network with its class"


def template(name: str) -> str:
    """Return a text beside this module, of which a Python file is made."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


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
        missing = x.isnan() | x.isinf()
        filled = torch.where(missing[:, self.first] & self.fillable, self.values, x)
        return torch.cat([filled, missing[:, self.marked].to(x.dtype)], 1) if len(self.marked) else filled


class Whole(nn.Module):
    """A network with what is done to its inputs and outputs around it.

    Args:
        network: The network.
        known: What its run does to inputs, and the task.
        curves: Makes probabilities believable (`lightkit calibrate`); None leaves them.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, known: Preprocessing, curves: nn.Module | None = None) -> None:
        super().__init__()
        self.curves = curves
        self.network, self.task, scaling = network, known.info.task, known.normalizer
        self.unit, self.undo = known.info.target_scale if self.task == "regression" else 1.0, known.info.undo
        self.fill = nn.Identity() if known.filling is None else Fill(known.filling, raw_shape(known)[0])
        self.is_scaled = scaling is not None
        if scaling is not None:
            self.register_buffer("shift", scaling.shift)
            self.register_buffer("scale", scaling.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities of inputs as they are in the data set; of a language model the logits."""
        x = self.fill(x)
        return self.predictions(logits(self.network((x - self.shift) / self.scale if self.is_scaled else x)))

    def predictions(self, outputs: Tensor) -> Tensor:
        """Turn outputs of the network into probabilities, of regression into values in their own unit."""
        if self.task in WITHOUT_PROBABILITIES:
            return outputs
        found = as_probabilities(outputs if self.curves is None else self.curves(outputs), self.task)
        found = self.undo(found)
        return found * self.unit if self.unit != 1 else found


def raw_shape(known: Preprocessing) -> list[int]:
    """Return the shape of an input before indicators of missing values are added to a table's features."""
    added = len(known.filling.indicators) if known.filling is not None else 0
    return [size - added * (place == 0) for place, size in enumerate(known.info.input_shape)]


@dataclass(frozen=True)
class Leaving:
    """A trained model that is to be written.

    Args:
        network: The network, on the CPU in eval mode.
        known: What the run does to inputs, and facts about its data.
        inputs: Rows `(N, ...)` as they are in the data set, two at least.
        about: What a file says of itself: task, classes, shapes, the columns of a table.
    """

    network: nn.Module
    known: Preprocessing
    inputs: Tensor
    about: Mapping[str, Any]
    curves: nn.Module | None = None

    @property
    def whole(self) -> Whole:
        """Return the network with what is done before and after it."""
        return Whole(self.network, self.known, self.curves).eval()


class Format(ABC):
    """A form in which a trained model leaves: files that other software opens."""

    packages: ClassVar[tuple[str, ...]] = ()
    """What has to be installed to write it."""
    needs: ClassVar[str] = "PyTorch"
    """What has to be installed to predict by it, in words."""
    code: ClassVar[str]
    """Python code that defines `predict(inputs)`, with `FILE`, the path that is written, and `ABOUT` in sight."""
    is_folder: ClassVar[bool] = False
    """Whether several files are written, into a folder."""

    def check(self, key: str) -> None:
        """Refuse to begin where a package is missing.

        Args:
            key: What asks for it, for the message.

        Raises:
            UserError: One is not installed.
        """
        missing = [name for name in self.packages if find_spec(name) is None]
        if missing:
            what, fix = f"{', '.join(missing)} not installed", f"pip install {package_of(missing[0]) or missing[0]}"
            raise UserError(what, key=key, fix=fix, family="package-missing")

    @abstractmethod
    def write(self, leaving: Leaving, path: Path) -> None:
        """Write the model.

        Args:
            leaving: The model, with rows to try it on.
            path: A file that does not exist, in a folder for this alone; or that folder.

        Raises:
            UserError: The model cannot be written in this form.
        """


class Program(Format):
    """A file that `torch.export.load` opens."""

    code = template("predict_program.txt")

    def write(self, leaving: Leaving, path: Path) -> None:
        """Write the traced model; see `Format.write`."""
        program = self.traced(leaving)
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(leaving.about, default=str)})

    def traced(self, leaving: Leaving) -> Any:
        """Trace the model for batches of any size.

        Raises:
            UserError: It cannot be traced; the innermost module that cannot be is named.
        """
        example = leaving.inputs[:2]  # of one sample the number would be taken for a constant
        with suppress(UserError):  # there is no LoRA, or what is there cannot be merged
            merge(leaving.network)
        whole = leaving.whole
        try:
            with torch.no_grad():
                return self.trace(whole, (example,))
        except Exception as error:  # whatever a network does that cannot be traced
            place, kind, reason = self._culprit(whole, example, error)
            text = _first_line(reason)
            what = f"this part of the network ({kind}) cannot be written in this form: {text}"
            fix = next((fix for sign, fix in _FIXES.items() if sign in str(reason)), None)
            raise UserError(what, key=place, fix=fix or _ELSE, family="model-misfit") from error

    def trace(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Make a program of a module, for any number in the place of the batch."""
        batch, size = torch.export.Dim("batch", min=1), 2
        dims = [{0: batch} if isinstance(arg, Tensor) and arg.ndim and len(arg) == size else None for arg in args]
        # As a tuple for `*args`: the names of the arguments differ from module to module.
        return torch.export.export(module, args, dynamic_shapes=tuple(dims))

    def _culprit(self, whole: Whole, example: Tensor, error: Exception) -> tuple[str, str, Exception]:
        """Find the innermost module that cannot be traced by itself, with what is said then."""
        seen = dict[nn.Module, tuple[Any, ...]]()
        names = {module: name for name, module in whole.named_modules()}

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not kwargs:
                seen.setdefault(module, args)

        hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in names]
        with torch.no_grad():
            whole(example)
        for hook in hooks:
            hook.remove()
        found: nn.Module = whole.network
        while inner := next(self._failing(found.children(), seen), None):
            found, error = inner
        place = names[found].removeprefix("network").removeprefix(".")
        return place or "model", type(found).__name__, error

    def _failing(
        self, modules: Iterator[nn.Module], seen: Mapping[nn.Module, tuple[Any, ...]]
    ) -> Iterator[tuple[nn.Module, Exception]]:
        """Yield modules that cannot be traced, or have such a part while they are never called themselves."""
        for module in modules:
            if module not in seen:
                yield from self._failing(module.children(), seen)
                continue
            try:
                with torch.no_grad():
                    self.trace(module, seen[module])
            except Exception as error:  # as above
                yield module, error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what packages say while they trace, translate and load to themselves; what they raise is told."""
    before, silence = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(silence), redirect_stderr(silence):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: BaseException) -> str:
    """Return type and first line of the error at the root."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def write_program(run: str | Path, path: Path | str = "model.pt2", *, checkpoint: str = "best") -> Path:
    """Write a trained model so that `torch.export.load` opens it anywhere, its code and lightkit not needed.

    It takes batches of any size, of inputs as they are in the data set, and scales them as the run did. Where the run
    filled missing values in, NaN stands for one, and what was fitted to the training rows takes its place. `about.json`
    in the file tells the task, the names of the classes, the shape of an input and the arguments of the data set.

    Args:
        run: Folder of the run, its name, or `last`.
        path: The file, whose name ends in `.pt2`; one of that name is replaced.
        checkpoint: `best`, `last` or the path of a checkpoint file.

    Returns:
        The file.

    Raises:
        UserError: There is no such run, its inputs are more than numbers, or the network cannot be traced.
    """
    from lightkit.runner.export import export

    export(run, path, checkpoint=checkpoint, overwrite=True, beside=False)
    return Path(path)
