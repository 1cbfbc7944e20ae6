"""The strongest classic of scikit-learn on the rows of an experiment, tuned on seeds that are not reported.

As the networks' settings were, those of a classic are chosen on other seeds than those of the table: it trains on the
training rows of each, and what does best on all its other rows together is taken. It then trains on the training rows
of the seeds that are reported. A tuning and a table take a minute at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from scipy.ndimage import shift
from scipy.sparse import coo_array
from scipy.sparse.linalg import lsqr
from scipy.special import softmax
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor, GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Lasso, LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import average_precision_score, f1_score, r2_score, roc_auc_score
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, PowerTransformer, StandardScaler
from sklearn.svm import SVC, SVR

from experiments.report.measure import COMMON
from experiments.report.pictures import oriented_gradients
from experiments.report.rows import PAGES
from lightkit import compose
from lightkit.assembly.parts import build_engine, build_splits

Rows = tuple[np.ndarray, np.ndarray]
Scores = Callable[[Any, np.ndarray, np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class Contest:
    """Classics that are compared on the rows of a page, and how.

    Args:
        candidates: Estimators by a name that says their settings.
        scores: Metrics of a fitted estimator on rows, named as in `result.json`; the first one decides.
        variant: Whose rows.
        tuning: Seeds to choose on.
        overrides: Changes of the configuration that the classic reads its rows with.
    """

    candidates: dict[str, Any]
    scores: Scores
    variant: str = "network"
    tuning: Sequence[int] = range(100, 105)
    overrides: tuple[str, ...] = ()


def hold(page: str, contest: Contest) -> dict[str, Any]:
    """Choose a classic and measure it on the seeds of a page.

    Returns:
        Its settings, and its scores by metric and seed.
    """
    best, chosen = choose(page, contest)
    seeds = list(PAGES[page].variants[contest.variant].seeds)
    values: dict[str, list[float]] = {}
    for seed in seeds:
        rows = rows_of(page, contest, seed)
        for name, value in fitted_scores(contest, best, rows["train"], rows["test"]).items():
            values.setdefault(name, []).append(value)
    return {"label": chosen, "seeds": seeds, "values": values}


def choose(page: str, contest: Contest) -> tuple[Any, str]:
    """The candidate that does best on the tuning seeds, and its name."""
    sums = dict.fromkeys(contest.candidates, 0.0)
    for seed in contest.tuning if len(sums) > 1 else ():
        rows = rows_of(page, contest, seed)
        held = [rows[split] for split in ("val", "test") if split in rows]
        unseen = tuple(np.concatenate(parts) for parts in zip(*held))
        for name, candidate in contest.candidates.items():
            sums[name] += next(iter(fitted_scores(contest, candidate, rows["train"], unseen).values()))
    chosen = max(sums, key=lambda name: sums[name])
    return contest.candidates[chosen], chosen


def fitted_scores(contest: Contest, candidate: Any, train: Rows, unseen: Rows) -> dict[str, float]:
    """Scores of a fresh copy of a candidate on rows it has not seen."""
    return contest.scores(clone(candidate).fit(*train), *unseen)


def rows_of(page: str, contest: Contest, seed: int) -> dict[str, Rows]:
    """Inputs as rows of numbers and targets of each split, as a run of this seed has them."""
    cfg = compose([*PAGES[page].variants[contest.variant].seeded(seed), *COMMON, *contest.overrides]).cfg
    data = build_splits(cfg, build_engine(cfg))
    return {split: _plain(data.source.take(rows)) for split, rows in data.rows.items() if len(rows)}


def _plain(batch: Any) -> Rows:
    if isinstance(batch, dict):
        x = np.concatenate([batch["left"].flatten(1), batch["right"].flatten(1)], axis=1)
        return x, batch["sum"].numpy()
    x, y = batch
    return x.numpy(), y.numpy()


# Scores ---------------------------------------------------------------------------------------------------------


def accuracy(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Share of right classes."""
    return {"test/accuracy": float(model.score(x, y))}


def accuracy_and_auroc(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Share of right classes of two, and area under the ROC curve."""
    ranked = model.decision_function(x) if hasattr(model, "decision_function") else model.predict_proba(x)[:, 1]
    return {**accuracy(model, x, y), "test/auroc": float(roc_auc_score(y, ranked))}


def explained(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Share of the variance that is explained."""
    return {"test/r2": float(r2_score(y, model.predict(x)))}


def attributes(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """F1 averaged over attributes, and the share of rows with all of them right."""
    found = model.predict(x)
    exact = float((found == y).all(axis=1).mean())
    return {"test/f1_macro": float(f1_score(y, found, average="macro")), "test/subset_accuracy": exact}


def ranking(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Mean average precision where every row ranks all others by cosine."""
    vectors = model.transform(x) if hasattr(model, "transform") else softmax(5 * model.decision_function(x), axis=1)
    like, same = cosine_similarity(vectors), y[:, None] == y
    apart = ~np.eye(len(y), dtype=bool)
    scores = [average_precision_score(same[row][apart[row]], like[row][apart[row]]) for row in range(len(y))]
    return {"test/retrieval/map": float(np.mean(scores))}


def sums(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Share of right sums, and F1 averaged over the sums."""
    found = model.predict(x)
    return {"test/accuracy": float((found == y).mean()), "test/f1": float(f1_score(y, found, average="macro"))}


# Candidates -----------------------------------------------------------------------------------------------------


class MovedCopies(BaseEstimator):
    """A classifier that also learns from copies of its images, moved by part of a pixel (virtual support vectors).

    Args:
        model: Classifier of rows of pixels.
        by: Pixels, up, down, left and right.
        side: Pixels of a side of an image.
    """

    def __init__(self, model: Any, by: float = 0.5, side: int = 8) -> None:
        self.model, self.by, self.side = model, by, side

    def fit(self, x: np.ndarray, y: np.ndarray) -> MovedCopies:
        """Learn from images and their moved copies."""
        images = x.reshape(-1, self.side, self.side)
        moves = [(self.by, 0), (-self.by, 0), (0, self.by), (0, -self.by)] if self.by else []
        copies = [shift(images, (0, *move), order=1).reshape(len(x), -1) for move in moves]
        self.model.fit(np.concatenate([x.reshape(len(x), -1), *copies]), np.concatenate([y] * (1 + len(moves))))
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Class of each image."""
        found: np.ndarray = self.model.predict(x.reshape(len(x), -1))
        return found

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        """What the classifier makes of each image."""
        found: np.ndarray = self.model.decision_function(x.reshape(len(x), -1))
        return found

    def score(self, x: np.ndarray, y: np.ndarray) -> float:
        """Share of right classes."""
        return float((self.predict(x) == y).mean())


class Powerset(BaseEstimator):
    """Several yes-or-no attributes as one: every combination that occurs is a class (label powerset).

    Args:
        model: Classifier.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: np.ndarray, y: np.ndarray) -> Powerset:
        """Learn the combinations of attributes."""
        self.combinations, number = np.unique(y, axis=0, return_inverse=True)
        self.model.fit(x, number.reshape(-1))
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Attributes of each row."""
        return self.combinations[self.model.predict(x)]


class OneForEach(BaseEstimator):
    """One classifier for each attribute.

    Args:
        model: Classifier.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: np.ndarray, y: np.ndarray) -> OneForEach:
        """Learn each attribute by itself."""
        self.models = [clone(self.model).fit(x, column) for column in y.T]
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Attributes of each row."""
        return np.stack([model.predict(x) for model in self.models], axis=1)


class LabelsFromSums(BaseEstimator):
    """A classifier of images of which only sums of two labels are known.

    An image is in several pairs, and each of them is a linear equation: least squares give the label of every image,
    which a classifier then learns from.

    Args:
        model: Classifier of rows of pixels whose classes are numbers.
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, x: np.ndarray, y: np.ndarray) -> LabelsFromSums:
        """Learn from pairs `(N, 2 F)` and their sums `(N,)`."""
        images, number = np.unique(x.reshape(2 * len(x), -1), axis=0, return_inverse=True)
        pairs = np.repeat(np.arange(len(x)), 2)
        equations = coo_array((np.ones(len(pairs)), (pairs, number.reshape(-1))), shape=(len(x), len(images)))
        self.labels = np.rint(lsqr(equations.tocsr(), y.astype(np.float64))[0]).astype(np.int64)
        self.model.fit(images, self.labels)
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Sum of the labels of each pair."""
        found: np.ndarray = self.model.predict(x.reshape(2 * len(x), -1)).reshape(-1, 2).sum(axis=1)
        return found


class Flat(BaseEstimator, TransformerMixin):
    """Pictures as rows of pixels."""

    def fit(self, x: np.ndarray, y: np.ndarray | None = None) -> Flat:
        """Nothing is learnt."""
        return self

    def transform(self, x: np.ndarray) -> np.ndarray:
        """Rows of pixels."""
        return x.reshape(len(x), -1)


def grid(name: str, make: Callable[..., Any], **choices: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Every combination of settings, with a name that says them."""
    for values in product(*choices.values()):
        settings = dict(zip(choices, values))
        yield f"{name} ({', '.join(f'{key} = {value}' for key, value in settings.items())})", make(**settings)


def scaled(kind: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
    """A model behind features of mean 0 and variance 1."""
    return lambda **settings: make_pipeline(StandardScaler(), kind(**fixed, **settings))


def table_classifiers() -> dict[str, Any]:
    """For rows of measurements."""
    return {
        **dict(grid("logistic regression", scaled(LogisticRegression, max_iter=2000), C=(0.03, 0.1, 0.3, 1, 3))),
        **dict(grid("support vector machine", scaled(SVC), C=(0.3, 1, 3, 10, 30), gamma=(0.003, 0.01, 0.03, 0.1))),
        **dict(
            grid(
                "logistic regression behind Yeo–Johnson",
                lambda **s: make_pipeline(PowerTransformer(), LogisticRegression(max_iter=2000, **s)),
                C=(0.03, 0.1, 0.3, 1, 3),
            )
        ),
        **dict(grid("quadratic discriminants", scaled(QuadraticDiscriminantAnalysis), reg_param=(0.01, 0.1, 0.3))),
        "Gaussian process": make_pipeline(StandardScaler(), GaussianProcessClassifier(1.0 * RBF(5.0), random_state=0)),
        "linear discriminants (shrinkage by Ledoit and Wolf)": LinearDiscriminantAnalysis("lsqr", shrinkage="auto"),
        "extremely randomized trees (300)": ExtraTreesClassifier(300, random_state=0),
        **dict(grid("nearest neighbours", scaled(KNeighborsClassifier), n_neighbors=(3, 7))),
    }


def table_regressors() -> dict[str, Any]:
    """For rows of measurements and a number."""
    return {
        **dict(grid("ridge regression", scaled(Ridge), alpha=(0.3, 1, 3, 10, 30, 100))),
        **dict(grid("lasso", scaled(Lasso), alpha=(0.003, 0.01, 0.03))),
        **dict(grid("support vector regression", scaled(SVR), C=(0.1, 0.3, 1), gamma=(0.003, 0.01, 0.03))),
        "Gaussian process": make_pipeline(
            StandardScaler(), GaussianProcessRegressor(1.0 * RBF(5.0) + WhiteKernel(), normalize_y=True, random_state=0)
        ),
        "extremely randomized trees (300)": ExtraTreesRegressor(300, min_samples_leaf=5, random_state=0),
        "gradient boosting (100 trees of depth 2, rate 0.05)": GradientBoostingRegressor(
            learning_rate=0.05, max_depth=2, random_state=0
        ),
    }


def digit_classifiers(copies: Sequence[float] = (0.0, 0.5)) -> dict[str, Any]:
    """For images of 8 × 8 pixels in [0, 1]."""
    made = {}
    for by in copies:
        name = f"support vector machine, images and copies moved by {by} pixel" if by else "support vector machine"
        for settings, model in grid(name, SVC, C=(3, 10), gamma=(0.2, 0.35, 0.6)):
            made[settings] = MovedCopies(model, by)
    return made


def few_pictures() -> dict[str, Any]:
    """For a few pictures of each class: pixels, or gradients in cells of 4 or 8 pixels."""
    made = {**dict(grid("support vector machine on pixels", lambda **s: make_pipeline(Flat(), SVC(**s)), C=(1, 10)))}
    for cell in (4, 8):
        seen = FunctionTransformer(partial(oriented_gradients, cell=cell))
        name = f"support vector machine on gradients in cells of {cell} pixels"
        made |= dict(grid(name, lambda seen=seen, **s: make_pipeline(seen, SVC(**s)), C=(1, 10)))
        name = f"logistic regression on gradients in cells of {cell} pixels"
        made |= dict(
            grid(name, lambda seen=seen, **s: make_pipeline(seen, LogisticRegression(max_iter=500, **s)), C=(0.3, 3))
        )
    return made


def many_pictures() -> dict[str, Any]:
    """For tens of thousands of pictures."""

    def made(gamma: float, alpha: float) -> Any:
        kernel = Nystroem(gamma=gamma, n_components=1500, random_state=0)
        gradients = FunctionTransformer(partial(oriented_gradients, cell=4))
        return make_pipeline(gradients, kernel, RidgeClassifier(alpha))

    return dict(grid("kernel ridge (Nyström, 1,500) on gradients", made, gamma=(0.02, 0.05), alpha=(0.1,)))


CONTESTS: dict[str, Callable[[], dict[str, Contest]]] = {
    "digits_cnn": lambda: {"classic": Contest(digit_classifiers(), accuracy)},
    "digits_mlp": lambda: {"classic": Contest(digit_classifiers(), accuracy)},
    "finetune_timm": lambda: {
        "classic": Contest(
            digit_classifiers(),
            accuracy,
            "resnet",
            overrides=("data.dataset.size=8", "data.dataset.channels=1", "data.normalize=none"),
        )
    },
    "breast_cancer": lambda: {"classic": Contest(table_classifiers(), accuracy_and_auroc, tuning=range(100, 110))},
    "wine": lambda: {"classic": Contest(table_classifiers(), accuracy, tuning=range(100, 115))},
    "diabetes": lambda: {"classic": Contest(table_regressors(), explained, tuning=range(100, 115))},
    "digits_multilabel": lambda: {
        "classic": Contest(
            {
                **{f"{name}, combinations as classes": Powerset(each) for name, each in digit_classifiers().items()},
                **{f"{name}, one an attribute": OneForEach(each) for name, each in digit_classifiers((0.0,)).items()},
            },
            attributes,
            tuning=range(100, 102),
        )
    },
    "retrieval": lambda: {
        "classic": Contest(
            {
                "pixels": Flat(),
                "linear discriminants": make_pipeline(Flat(), LinearDiscriminantAnalysis("eigen", shrinkage=0.01)),
                **{f"beliefs about the ten classes of a {n}": each for n, each in digit_classifiers((0.5,)).items()},
            },
            ranking,
            tuning=range(100, 102),
        )
    },
    "custom_task": lambda: {
        "classic": Contest(
            {f"labels by least squares, {n}": LabelsFromSums(each) for n, each in digit_classifiers((0.5,)).items()},
            sums,
            tuning=range(100, 102),
        )
    },
    "shapes": lambda: {"classic": Contest(many_pictures(), accuracy, tuning=range(100, 101))},
    "transfer_shapes": lambda: {
        f"classic-{size}": Contest(few_pictures(), accuracy, f"none-{size}", range(100, 103)) for size in (5,)
    },
    "transfer_digits": lambda: {
        f"classic-{size}": Contest(digit_classifiers((0.0, 0.5, 1.0)), accuracy, f"none-{size}", range(100, 103))
        for size in (5,)
    },
}
"""For each page the contests that are held on its rows, by the name their result gets."""
