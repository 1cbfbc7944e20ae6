"""The small data sets that come with scikit-learn, read from its files without importing it (which takes 0.5 s)."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lightkit.common.errors import UserError
from lightkit.data.targets import check_scale
from lightkit.data.tensors import DataInfo, TensorData

ATTRIBUTES: dict[str, Callable[[int], bool]] = {
    "even": lambda digit: digit % 2 == 0,
    "prime": lambda digit: digit in (2, 3, 5, 7),
    "square": lambda digit: digit in (0, 1, 4, 9),
    "from_five": lambda digit: digit >= 5,
    "multiple_of_three": lambda digit: digit % 3 == 0,
    "has_loop": lambda digit: digit in (0, 6, 8, 9),
    "has_open_curve": lambda digit: digit in (2, 3, 5, 6, 9),
    "turns_into_digit": lambda digit: digit in (0, 1, 6, 8, 9),
}
"""Yes-or-no attributes of a digit. The last: turned by half a circle it is a digit again."""
_MEASURED = (
    "radius", "texture", "perimeter", "area", "smoothness",
    "compactness", "concavity", "concave points", "symmetry", "fractal dimension",
)  # fmt: skip
_NUCLEI = tuple(form.format(name) for form in ("mean {}", "{} error", "worst {}") for name in _MEASURED)
_WINE = (
    "alcohol", "malic_acid", "ash", "alcalinity_of_ash", "magnesium", "total_phenols", "flavanoids",
    "nonflavanoid_phenols", "proanthocyanins", "color_intensity", "hue", "od280/od315_of_diluted_wines", "proline",
)  # fmt: skip
_DIABETES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
"""Names of the columns of scikit-learn's files, which have none of their own."""


def digits(*, image: bool = True, classes: Sequence[int] | None = None) -> TensorData:
    """Load 1,797 handwritten digits, 8 × 8 pixels in [0, 1], ten classes.

    Source: E. Alpaydin and C. Kaynak (1998), https://doi.org/10.24432/C50P49 (its test part).

    Args:
        image: Inputs as images `(1, 8, 8)`, otherwise as rows `(64,)`.
        classes: Only these digits, numbered in this order; None takes all ten.

    Raises:
        UserError: There is no such digit, one is named twice, or fewer than two are.
    """
    x, digit = _digits(image)
    chosen = list(range(10)) if classes is None else list(classes)
    if len(chosen) < 2 or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(10)):
        expected = "two or more different digits, 0 to 9"
        raise UserError("not classes of digits", argument="classes", expected=expected, received=chosen)
    rows = torch.isin(digit, torch.tensor(chosen)).nonzero().reshape(-1)
    number = torch.zeros(10, dtype=torch.int64)
    number[chosen] = torch.arange(len(chosen))
    info = DataInfo("multiclass", tuple(x.shape[1:]), len(chosen), tuple(map(str, chosen)))
    return TensorData(x[rows], number[digit[rows]], info, name="digits")


def digits_multilabel(*, image: bool = True) -> TensorData:
    """Load the digits with eight yes-or-no targets each, see `ATTRIBUTES`; splits are stratified by digit.

    Args:
        image: Inputs as images `(1, 8, 8)`, otherwise as rows `(64,)`.
    """
    x, digit = _digits(image)
    table = torch.tensor([[float(holds(d)) for holds in ATTRIBUTES.values()] for d in range(10)])
    info = DataInfo("multilabel", tuple(x.shape[1:]), len(ATTRIBUTES), tuple(ATTRIBUTES))
    return TensorData(x, table[digit], info, strata=digit, name="digits_multilabel")


def breast_cancer(*, binary: bool = False) -> TensorData:
    """Load 569 biopsies, 30 measurements of cell nuclei, malignant (0) or benign (1).

    Source: W. Wolberg et al. (1993), https://doi.org/10.24432/C5DW2B.

    Args:
        binary: One output and float targets (for `bce_with_logits`) in place of two classes.
    """
    x, y = _with_header("breast_cancer.csv")
    if binary:
        info = DataInfo("binary", (30,), 1, ("benign",))
        return TensorData(x, y.to(torch.float32), info, strata=y, name="breast_cancer", feature_names=_NUCLEI)
    info = DataInfo("multiclass", (30,), 2, ("malignant", "benign"))
    return TensorData(x, y, info, name="breast_cancer", feature_names=_NUCLEI)


def wine() -> TensorData:
    """Load 178 wines of three growers, 13 chemical measurements.

    Source: S. Aeberhard and M. Forina (1991), https://doi.org/10.24432/C5PC7J.
    """
    x, y = _with_header("wine_data.csv")
    info = DataInfo("multiclass", (13,), 3, ("class_0", "class_1", "class_2"))
    return TensorData(x, y, info, name="wine", feature_names=_WINE)


def diabetes(*, target_scale: float = 1.0) -> TensorData:
    """Load 442 patients, ten body measurements, the progress of the disease a year later (25 to 346).

    The measurements are raw, as in `load_diabetes(scaled=False)`: scale them by `data.normalize`, which looks at
    training rows only. Source: Efron et al. 2004, https://doi.org/10.1214/009053604000000067.

    Args:
        target_scale: The target is divided by this, so that a network starts near it; errors are then in this unit.
    """
    x = _read("diabetes_data_raw.csv.gz", delimiter=None)
    y = _read("diabetes_target.csv.gz", delimiter=None) / check_scale(target_scale)
    info = DataInfo("regression", (10,), 1, target_scale=target_scale)
    return TensorData(_float(x), _float(y), info, name="diabetes", feature_names=_DIABETES)


def _digits(image: bool) -> tuple[Tensor, Tensor]:
    table = _read("digits.csv.gz")
    x = _float(table[:, :-1] / 16.0)
    return x.reshape(-1, 1, 8, 8) if image else x, torch.from_numpy(table[:, -1].astype(np.int64))


def _with_header(file: str) -> tuple[Tensor, Tensor]:
    table = _read(file, skip=1)
    return _float(table[:, :-1]), torch.from_numpy(table[:, -1].astype(np.int64))


def _read(file: str, *, delimiter: str | None = ",", skip: int = 0) -> np.ndarray:
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("this data set is one of scikit-learn's files", argument="", fix="pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0], "datasets", "data", file)
    try:
        raw = path.read_bytes()
    except OSError as error:
        what, fix = f"scikit-learn's file cannot be read: {error}", "pip install --force-reinstall scikit-learn"
        raise UserError(what, argument="", received=str(path), fix=fix, family="data-unreadable") from error
    return _parsed(gzip.decompress(raw) if file.endswith(".gz") else raw, delimiter, skip)


@lru_cache(maxsize=2)  # the runs of a sweep, and the folds of a run, read the same file
def _parsed(text: bytes, delimiter: str | None, skip: int) -> np.ndarray:
    return np.loadtxt(text.decode().splitlines()[skip:], delimiter=delimiter)


def _float(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
