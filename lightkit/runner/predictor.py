"""`lightkit.load`: the trained model of a run as an object that predicts from new inputs, without a configuration.

Shapes: N rows, C classes, labels or targets, `...` the shape of one input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lightkit.assembly import build_engine, build_network, build_splits, build_store
from lightkit.assembly.ensemble import build_ensemble
from lightkit.assembly.learner import build_task
from lightkit.assembly.member import own_task
from lightkit.assembly.origin import preprocessing_of, recorded_preprocessing, run_of
from lightkit.assembly.parts import build_loss, build_metrics, role_of
from lightkit.checkpoint.fitting import fit
from lightkit.checkpoint.weights import read_weights
from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.failures import in_short, is_out_of_memory
from lightkit.common.names import SPLIT_NAMES
from lightkit.config import to_plain
from lightkit.data import Loader
from lightkit.data.padding import IGNORED
from lightkit.data.prepare import LoaderOptions
from lightkit.data.preprocessing import Preprocessing
from lightkit.data.reader import NUMBERS, Faults, NewRows, in_pieces, join_inputs, natural
from lightkit.data.sources import SampleData, kept_generators
from lightkit.data.table_reader import TableReader
from lightkit.data.tensors import DataInfo, TensorData
from lightkit.device import Engine
from lightkit.runner.calibrate import calibration_of
from lightkit.runner.evaluation import checkpoint_path, pass_over, predict_rows
from lightkit.runner.models import holds_ensemble, plain_version
from lightkit.runner.run import Runner
from lightkit.runs.catalog import find_run, folds_of, project
from lightkit.runs.reading import read_run
from lightkit.trainer.evaluate import Predictions
from lightkit.trainer.learner import Evaluable
from lightkit.trainer.tasks import Supervised

_AT_ONCE = 1 << 16
"""Rows of a table that are in memory at once, about."""


class Predictor:
    """The trained model of a run, with all that the run does to inputs and outputs.

    What it predicts from is an array of inputs as they are in the data set (a tensor, or one of NumPy), a table (a data
    frame of pandas, polars or Arrow, the path of a CSV or Parquet file) with the columns of the data set in any order,
    or images (the path of one, or of a folder of them).

    Args:
        network: The model, on its device: one network, or an ensemble.
        preprocessing: What the run does to inputs.
        engine: The device.
        cfg: The configuration of the run.
        folder: Its folder.
        checkpoint: Which weights they are.
        members: Which members of the ensemble; empty for all.
    """

    def __init__(
        self,
        network: nn.Module,
        preprocessing: Preprocessing,
        engine: Engine,
        cfg: DictConfig,
        folder: Path,
        *,
        checkpoint: str = "best",
        members: Sequence[str] = (),
    ) -> None:
        self.network = network.eval()
        """The network, or the ensemble as one module; it sees inputs that are preprocessed."""
        self.preprocessing, self.folder = preprocessing, folder
        self._engine, self._cfg, self._weights = engine, cfg, (checkpoint, members)
        self.after = calibration_of(folder, checkpoint, members)
        last, mode, trust = cfg.trainer.test == "last", cfg.metrics.mode, to_plain(cfg.trust)
        task = build_task(cfg.trainer.task, None, self.info, engine)
        task = own_task(role_of(cfg), task, self.info, engine, folder, last=last, mode=mode, trust=trust)
        self._trained = Evaluable(engine.wrap(network), task, _no_loss, engine)

    def __repr__(self) -> str:
        """Return the run, the network, the task and the classes in one line."""
        known = f", classes {', '.join(map(str, self.classes[:10]))}" if len(self.classes) else ""
        return f"<{type(self.network).__name__} of {self.folder.name}: {self.info.task}{known}>"

    @property
    def info(self) -> DataInfo:
        """Facts about the data that the run was trained on."""
        return self.preprocessing.info

    @cached_property
    def classes(self) -> np.ndarray:
        """The classes as they stand in the data, in the order of `predict_proba`; names of labels; empty for values."""
        words: Sequence[str] = self.info.class_names
        if self.info.task == "binary":
            words = self.preprocessing.reader.words or ("0", "1")
        return natural(words)

    def inputs(self, given: Any, *, skip_bad: bool = False) -> Tensor:
        """Return what the network sees of new inputs, `(N, ...)`, on the CPU: filled in and scaled.

        Args:
            given: See the class.
            skip_bad: Leave out rows that cannot be used.

        Raises:
            UserError: It is nothing that the run can predict from, or a row cannot be used.
        """
        pieces = [self.preprocessing(piece.inputs) for piece in self._pieces(given, Faults(skip=skip_bad))]
        return join_inputs(pieces) if pieces else torch.zeros(0, *self.info.input_shape)

    def outputs(self, given: Any, *, skip_bad: bool = False) -> Any:
        """Return what the network puts out for new inputs, `(N, ...)` float32 on the CPU: logits, or values learnt.

        Of a model with several outputs by name it is such a tensor for each of them, of segmentation the class of each
        pixel, of detection a list with the boxes of each picture, of tagging one with the tags of each text.

        Args:
            given: See the class.
            skip_bad: Leave out rows that cannot be used.

        Raises:
            UserError: It is nothing that the run can predict from, or a row cannot be used.
        """
        found = [collected.outputs() for _, collected, _ in self._outputs(given, Faults(skip=skip_bad))]
        if found and isinstance(found[0], dict):
            return {name: torch.cat([piece[name] for piece in found]) for name in found[0]}
        if self.info.task in ("detection", "tagging"):
            return [one for each in found for one in each]
        wide = self.info.task in ("multiclass", "multilabel")
        return torch.cat(found) if found else torch.zeros(0, *([self.info.num_classes] if wide else []))

    def predict(self, given: Any, *, skip_bad: bool = False) -> Any:
        """Return what is predicted for each row: the class in the words of the data, labels, or values in their unit.

        Of a model with several outputs by name it is an array for each of them.

        Args:
            given: See the class.
            skip_bad: Leave out rows that cannot be used.

        Raises:
            UserError: It is nothing that the run can predict from, or a row cannot be used.
        """
        columns = self._columns(given, skip_bad)
        heads = [name for name in columns if name.endswith("/prediction")]
        if heads:
            return {name.partition("/")[0]: np.array(columns[name]) for name in heads}
        found = columns.get("prediction", [])
        if self.info.task == "binary":
            return self.classes[np.array(found, dtype=np.int64)]
        if found and isinstance(found[0], str):  # of classes their names
            places = {name: place for place, name in enumerate(self.info.class_names)}
            return self.classes[[places[name] for name in found]] if places else np.array(found)
        return found if self.info.task == "tagging" else np.array(found)

    def predict_proba(self, given: Any, *, skip_bad: bool = False) -> np.ndarray:
        """Return the probability of each of `classes`, `(N, C)`; see `predict`.

        Raises:
            UserError: See `predict`; or the run predicts values, which have none.
        """
        columns = self._columns(given, skip_bad)
        if "p" in columns:
            yes = np.array(columns["p"]).reshape(-1, 1)
            return np.concatenate([1 - yes, yes], 1)
        chances = [values for name, values in columns.items() if name.startswith("p(")]
        if not chances:
            what = "only classes and labels have probabilities"
            raise UserError(what, received=self.info.task, fix="predict", family="data-setting")
        return np.array(chances).T

    def rows(self, given: Any, faults: Faults | None = None, *, proba: bool = True) -> Iterator[dict[str, Any]]:
        """Yield for each row its number, what else was given of it, and what is predicted, as `lightkit predict` does.

        Args:
            given: See the class.
            faults: Takes the rows that cannot be used; None makes them an error.
            proba: Whether to yield probabilities, and how sure an ensemble is of classes, too.

        Raises:
            UserError: See `predict`.
        """
        for piece, collected, more in self._outputs(given, faults or Faults()):
            columns = {**collected.columns(collected.outputs()), **more}
            columns = {
                name: values
                for name, values in columns.items()
                if proba or name.rpartition("/")[2] in ("prediction", "std", "set", "low", "high")
            }
            if words := self.info.task == "binary" and self.preprocessing.reader.words:
                columns["prediction"] = [words[value] for value in columns["prediction"]]
            taken = {"row", *columns}
            kept = {f"input:{name}" if name in taken else name: values for name, values in piece.kept.items()}
            found = {"row": piece.numbers, **kept, **columns}
            yield from (dict(zip(found, cells)) for cells in zip(*found.values(), strict=True))

    def evaluate(self, given: Any = "test", targets: Any = None) -> dict[str, float]:
        """Return loss and metrics of the run's test split by name, for one of its splits or for other rows.

        Args:
            given: `train`, `val`, `test` or a set of `data.more`; or rows, see the class.
            targets: Their targets as in the data set; None takes them from the columns of a table, or from the folders
                that images are in.

        Raises:
            UserError: There is no such split, or a row or target cannot be used.
        """
        if isinstance(given, str) and targets is None and given in (*SPLIT_NAMES, *(self._cfg.data.get("more") or ())):
            checkpoint, members = self._weights
            found = Runner(self._cfg, self.folder).evaluate(given, checkpoint, members=members)
            return {name.partition("/")[2]: value for name, value in found.items()}
        pieces = [*self._pieces(given, Faults())]
        x = join_inputs([piece.inputs for piece in pieces]) if pieces else torch.zeros(0)
        y, wanted = self._targets(pieces, targets), tuple(self._no_targets(x).shape)
        if not len(y) or tuple(y.shape) != wanted:
            what = "as many targets as inputs are needed" if len(x) else "there are no rows to evaluate"
            raise UserError(what, argument="", received=tuple(y.shape), expected=str(wanted))
        metrics = build_metrics(self._cfg.metrics, self.info, self._engine)["test"]
        trained = replace(self._trained, criterion=build_loss(self._cfg.loss, self.info, self._engine, self.network))
        with kept_generators():
            pass_over(trained, self._loader(self.preprocessing(x), y), [metrics])
        return {name.partition("/")[2]: value for name, value in metrics.compute().items()}

    def _targets(self, pieces: Sequence[NewRows], given: Any) -> Tensor:
        """Return targets as the network learnt them, `(N,)` or `(N, C)`."""
        info, given = self.info, self._given_targets(pieces) if given is None else given
        try:
            values = given.cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
            values = values[:, 0] if values.shape[1:] == (1,) and info.task != "multilabel" else values
            if info.task not in ("multiclass", "binary"):
                return info.transform(torch.as_tensor(values.astype(np.float32)) / info.target_scale)
            places = {str(name): place for place, name in enumerate(self.classes)}
            if values.dtype.kind in NUMBERS:
                values = values.astype(np.int64)
                if not {*map(str, values.tolist())} <= places.keys():  # numbers of classes, which have names
                    places = {str(place): place for place in places.values()}
            numbers = torch.tensor([places[str(cell)] for cell in values.ravel().tolist()]).reshape(values.shape)
        except (ValueError, KeyError) as error:
            what, choices = f"no target of this run: {error}", map(str, self.classes)
            raise UserError(what, argument="", choices=choices, family="data-setting") from error
        return numbers if info.task == "multiclass" else numbers.float()

    def _given_targets(self, pieces: Sequence[NewRows]) -> Any:
        """Return the targets that rows come with: columns of a table, or the folders that images are in."""
        names = self.preprocessing.reader.targets
        lacking = [name for name in names or ("file",) if pieces and name not in pieces[0].kept]
        if lacking:
            what = f"the rows have no column {', '.join(lacking)}" if names else "the rows come without targets"
            raise UserError(what, argument="", fix="give the targets: evaluate(rows, targets)", family="data-setting")
        found = [[cell for piece in pieces for cell in piece.kept[name]] for name in names or ("file",)]
        if len(names) > 1:
            return np.array(found).T
        return found[0] if names else [name.partition("/")[0] for name in found[0]]

    def _columns(self, given: Any, skip_bad: bool) -> dict[str, list[Any]]:
        """Predict all rows; return a column for each thing that is predicted."""
        found = dict[str, list[Any]]()
        for _, collected, _ in self._outputs(given, Faults(skip=skip_bad)):
            for name, cells in collected.columns(collected.outputs()).items():
                found.setdefault(name, []).extend(cells)
        return found

    def _outputs(self, given: Any, faults: Faults) -> Iterator[tuple[NewRows, Predictions, dict[str, list[Any]]]]:
        """Run the network over rows, piece by piece; yields them, its outputs, and how sure an ensemble is."""
        self.network.to(self._engine.device)  # an ensemble forgets how it has computed earlier inputs
        for piece in self._pieces(given, faults):
            targets = self._no_targets(piece.inputs)
            loader = self._loader(self.preprocessing(piece.inputs), targets)
            with kept_generators(), self._translated():
                found = predict_rows(self._trained, loader, self.info, self.after)
            yield piece, *found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Say what errors mean of a task that takes batches of its own apart."""
        try:
            yield
        except (RuntimeError, TypeError, LookupError, AttributeError) as error:
            if type(self._trained.task) is Supervised or is_out_of_memory(error):
                raise
            what = f"the task of the run cannot do with inputs alone: {in_short(error)}"
            fix = "call the network itself: lightkit.load(RUN).network"
            raise UserError(what, argument="", received=self._cfg.trainer.task["_target_"], fix=fix) from error

    def _pieces(self, given: Any, faults: Faults) -> Iterator[NewRows]:
        """Yield new rows in pieces of whole batches."""
        if isinstance(given, Tensor) or (isinstance(given, np.ndarray) and given.dtype.kind in NUMBERS):
            yield from self._array_rows(torch.as_tensor(given).cpu(), faults)
            return
        size, reader = self._batch_size, self.preprocessing.reader
        if self.info.task == "detection":  # pictures of other sizes
            yield from reader.read(given, 1, faults)
            return
        if isinstance(reader, TableReader):
            reader, size = reader.spelt(to_plain(self._cfg.data.dataset)), -(-_AT_ONCE // size) * size
        yield from in_pieces(reader.read(given, size, faults), size)

    def _array_rows(self, x: Tensor, faults: Faults) -> Iterator[NewRows]:
        """Yield the rows of an array, without those that hold NaN or infinities that nothing fills in."""
        info, filling = self.info, self.preprocessing.filling
        if info.vocab_size is None:
            levels = x.dtype == torch.uint8 and not isinstance(self.preprocessing.reader, TableReader)
            x = x.float() / 255.0 if levels else x.float()
        shape = info.input_shape
        if filling is not None:
            x, shape = x.masked_fill(x.isinf(), torch.nan), (shape[0] - len(filling.indicators),)
        if shape and tuple(x.shape[1:]) != tuple(shape):
            expected, received = str(("N", *shape)), tuple(x.shape)
            raise UserError("these are no inputs of the run", argument="", expected=expected, received=received)
        filled = x if filling is None else filling(x)
        fine = filled.isfinite().flatten(1).all(1) if len(x) else torch.ones(0, dtype=torch.bool)
        faults.take([(f"row {row}", "NaN or an infinity") for row in (~fine).nonzero()[:, 0].tolist()])
        if fine.any():
            yield NewRows(fine.nonzero()[:, 0].tolist(), x[fine], {})

    def _no_targets(self, inputs: Any) -> Any:
        """Return targets that stand for none, of the shape that outputs are compared with; tags stand for words."""
        info, count = self.info, len(inputs)
        if info.task == "tagging" and isinstance(inputs, list):
            return [row.pop("words").clamp(max=0) for row in inputs]
        if info.task == "tagging":
            return torch.where(inputs == info.padding_idx, IGNORED, 0)
        if info.task in ("binary", "regression", "multilabel"):
            is_table = info.task == "multilabel" or info.num_classes > 1
            return torch.zeros(count, *([info.num_classes] if is_table else []))
        shape = info.input_shape if info.task == "language_modeling" else ()
        return torch.zeros(count, *shape, dtype=torch.int64)

    @property
    def _batch_size(self) -> int:
        return int(self._cfg.data.eval_batch_size or self._cfg.data.batch_size)

    def _loader(self, x: Any, y: Any) -> Loader:
        """Return the batches that an evaluation of these rows would see, on which the last bits of outputs depend."""
        collate = getattr(self.preprocessing.reader, "collate_fn", None)
        info = replace(self.info, fingerprint="new rows")
        source: Any = SampleData([*zip(x, y)]) if collate else TensorData(x, y, info, name="new rows")
        options = LoaderOptions(self._batch_size, split="new rows", collate=collate)
        return Loader(source, torch.arange(len(x)), options)


def load(
    run: str | Path = "last",
    *,
    checkpoint: str = "best",
    members: Sequence[str] = (),
    device: str | None = "cpu",
    trust: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> Predictor:
    """Load the trained model of a run: one network, or an ensemble.

    Args:
        run: Folder or name of the run, or `last` for the newest; or a file of weights in the folder of a run.
        checkpoint: `best` or `last`, or the path of a file of weights.
        members: Names of the members of an ensemble to take; none takes all.
        device: Where to compute: `cpu`, `cuda`, `auto`; None goes by the run.
        trust: Packages that a run from elsewhere may build parts of, as the user says.
        overrides: Values of the run's configuration to change.

    Raises:
        UserError: There is no such run, it has no weights, or its model cannot be built.

    Example:
        ```python
        model = lightkit.load("last")
        labels = model.predict(pandas.read_csv("new.csv"))
        ```
    """
    folder, checkpoint = _meant(run, checkpoint)
    if folds := folds_of(folder):
        from lightkit.runner.folded import FoldedPredictor  # which is a predictor itself

        refit, given = folder / run_files.MEMBERS / run_files.REFIT, {"trust": trust, "overrides": overrides}
        options: dict[str, Any] = {"checkpoint": checkpoint, "members": members, "device": device, **given}
        if refit.is_dir():
            return load(refit, **options)
        return FoldedPredictor([load(fold, **options) for fold in folds], read_run(folder, **given).cfg, folder)
    together = holds_ensemble(folder, checkpoint, members)
    plain = ["device.parallel=none", "device.nproc=1", "device.compile=none", "device.cuda_graphs=false"]
    plain += [f"device.name={device}"] if device is not None else []
    cfg = read_run(folder, [*plain, *overrides], trust=trust).cfg
    if role_of(cfg).features:
        what, fix = "this member predicts from what other members predict", f"the whole ensemble: {folder.parents[1]}"
        raise UserError(what, key=str(folder), fix=fix, family="ensemble")
    with kept_generators():
        engine = build_engine(cfg)
        known = recorded_preprocessing(folder)
        if known is None:  # of a run before these facts were recorded: its data set has them
            data = build_splits(cfg, engine, folder)
            data.close()
            known = preprocessing_of(data)
        if together:
            made = build_ensemble(folder, known.info, engine, trust=to_plain(cfg.trust), members=members)
            network = engine.place_model(made)
        else:
            network = _trained_network(cfg, folder, checkpoint, known.info, engine)
        return Predictor(network, known, engine, cfg, folder, checkpoint=checkpoint, members=members)


def _meant(run: str | Path, checkpoint: str) -> tuple[Path, str]:
    """Return the folder of a run, and which of its weights are meant."""
    path = Path(str(run)).expanduser()
    if not path.is_file():
        return find_run(str(run), project()), checkpoint
    folder = run_of(path.resolve())
    if folder is None:
        what = "the file is in no folder of a run, which knows what is done to inputs, and the classes"
        fix = "give the folder of the run, or put the file back into it"
        raise UserError(what, key=str(path), fix=fix, family="no-such-run")
    return folder, "best" if path.name in (run_files.ENSEMBLE_WEIGHTS, run_files.CONFIG) else str(path)


def _trained_network(cfg: DictConfig, folder: Path, checkpoint: str, info: DataInfo, engine: Engine) -> nn.Module:
    """Build the network of a run, on its device, with the weights of a checkpoint or of a file."""
    made = build_network(cfg, info, engine, pretrained=False, run=folder)
    path = checkpoint_path(build_store(cfg.checkpoint, folder, mode=cfg.metrics.mode), checkpoint, folder)
    weights, model = read_weights(path), engine.place_model(made.model)
    if not model.state_dict().keys() <= weights.state.keys():
        model = engine.place_model(plain_version(cfg, info, engine, made))
    fit(model, weights.state, source=weights.source, finite=True)
    return model


def _no_loss(*_outputs: Any) -> Tensor:
    """Stand for the loss where there are no targets."""
    return torch.zeros(())
