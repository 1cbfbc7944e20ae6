"""The data set `lightkit.data.table` with its arguments, which are judged before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal

from lightkit.data.csv_columns import Spelling

if TYPE_CHECKING:
    from lightkit.data.tensors import TensorData


def table(
    path: str | None = None,
    target: str | Sequence[str] = (),
    features: Sequence[str] | None = None,
    *,
    frame: Any = None,
    task: str | None = None,
    categorical: Sequence[str] = (),
    embedded: Sequence[str] = (),
    dates: Sequence[str] = (),
    date_format: str = "",
    text: Sequence[str] = (),
    text_features: int = 256,
    delimiter: str = ",",
    encoding: str = "utf-8",
    decimal: str = ".",
    thousands: str = "",
    missing: str | Mapping[str, str] = "error",
    fill_value: float | str | Mapping[str, Any] | None = None,
    add_indicator: bool = False,
    val_path: str | None = None,
    test_path: str | None = None,
    split_column: str | None = None,
    group_column: str | None = None,
    time_column: str | None = None,
    weight_column: str | None = None,
    id_column: str | None = None,
    target_scale: float = 1.0,
    target_transform: Literal["none", "standardize", "log", "quantile"] = "none",
    max_categories: int = 100,
    cache: bool = True,
    like: TensorData | None = None,
) -> TensorData:
    """Read a table by the names of its columns: a file, several files with the same columns, or a data frame.

    Categorical columns become one 0/1 feature per value found in `path`; a value found in the other files only is none
    of them. Classes are numbered in the order of their names (of their values, if they are numbers).

    Args:
        path: A `.csv`, `.tsv`, `.parquet`, `.feather`, `.arrow` or `.jsonl` file, a folder or pattern of such files;
            other endings are read as CSV, `.gz`, `.bz2`, `.zst` and `.lz4` are unpacked. With `test_path` or `val_path`
            its rows are the training part.
        target: Column to predict; several for `multilabel` (0/1) or several regression targets.
        features: Columns to predict from; None takes all others.
        frame: A data frame of pandas, polars or Arrow in place of `path`; in a configuration a function that makes it.
        task: `multiclass`, `binary` (one output), `multilabel` or `regression`; None finds out: text and up to 20 whole
            numbers are classes, several columns of 0 and 1 are labels.
        categorical: Feature columns that hold names; those of categories and dates by their types in a Parquet or Arrow
            file or a frame need not be named.
        embedded: Feature columns that hold names, for a model that learns a vector for each name (`model=tabular`).
        dates: Feature columns that hold dates: year, month, day, weekday and hour are features, and points on a circle
            for all but the year.
        date_format: How dates are written, as for `datetime.strptime`; empty for ISO 8601.
        text: Feature columns that hold texts: words and pairs of words are counted, hashed to `text_features` features.
        text_features: Features of a column of texts.
        delimiter: What stands between two cells, such as `;`.
        encoding: How the text is written down, such as `utf-8`, `latin-1` or `cp1252`.
        decimal: What stands before the fraction of a number, `.` or `,`.
        thousands: What stands between groups of three digits, such as `,` in `1,234.5`; empty for nothing.
        missing: What to do about a missing value: `error`, `drop` its row, or fill in the `mean`, `median` or
            `most_frequent` value of the column in the training rows, or a `constant`, as scikit-learn's `SimpleImputer`
            does. A mapping says it by name pattern of columns (`{"*": mean, colour: most_frequent}`; the later win,
            what none fits is an error). Targets are never filled in. Infinite numbers count as missing.
        fill_value: What `constant` fills in, for all such columns or by name; None is 0, in columns of names a kind
            of its own, `missing_value`.
        add_indicator: Add a 0/1 feature for each column that lacks values in training rows, after the others.
        val_path: File of the validation rows.
        test_path: File of the test rows.
        split_column: Column that says `train`, `val` or `test`, or another name of these (`validation`, `dev`).
        group_column: Column that says what a row belongs to, such as a patient. Rows of a group stay together in splits
            and folds. It is no feature unless `features` names it.
        time_column: Column with the time of a row, a number or a date such as `2024-01-31`, for splits by time. It is
            no feature unless `features` names it.
        weight_column: Column that says how much a row counts, 0 or more: the loss is a weighted mean. It is no feature
            unless `features` names it.
        id_column: Column that names each row. Predictions show it, and it is no feature unless `features` names it.
        target_scale: Regression targets are divided by this.
        target_transform: What a network learns of regression targets: `none`, `standardize`, `log` or `quantile`,
            fitted on training rows. Predictions and metrics stay in the unit of the table.
        max_categories: Different names that a categorical column may hold: each becomes a feature.
        cache: Keep a decoded copy of large files in the user's cache folder, for the next start.
        like: The table of the training rows, for a further set: features, categories, task and classes are its own.

    Raises:
        UserError: A file, columns or cells are wrong; lines are named, and all that is wrong is in one report.
    """
    spec = TableSpec(**locals())
    from lightkit.data.csv_file import build_table

    return build_table(spec)


class TableSpec:
    """What a data set is made of: the arguments of `table` as attributes.

    Args:
        *args: Those that are given by position.
        **given: Those that are given by name.

    Raises:
        TypeError: There is no such argument.
    """

    def __init__(self, *args: Any, **given: Any) -> None:
        bound = signature(table).bind(*args, **given)
        bound.apply_defaults()
        found, like = bound.arguments, bound.arguments["like"]
        is_table = hasattr(getattr(like, "reader", None), "encodings")
        found |= {"features": like.reader.features, "task": like.info.task} if is_table else {"like": None}
        self.__dict__.update(found)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def targets(self) -> list[str]:
        """Return the columns to predict."""
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def marks(self) -> dict[str, str]:
        """Return the columns that tell something of a row and are no features, by their argument."""
        arguments = ("split_column", "group_column", "time_column", "weight_column", "id_column")
        return {argument: getattr(self, argument) for argument in arguments if getattr(self, argument) is not None}

    @property
    def kinds(self) -> dict[str, Sequence[str]]:
        """Return the columns that hold no numbers, by the argument that names them."""
        return {name: getattr(self, name) for name in ("categorical", "embedded", "dates", "text")}

    @property
    def too_many(self) -> bool:
        """Tell whether there are several targets and classes of one column are wanted."""
        return self.task in ("multiclass", "binary") and len(self.targets) > 1

    @property
    def spelling(self) -> Spelling:
        """Return how numbers are written."""
        return Spelling(self.decimal, self.thousands)
