"""The methods of `ensemble._target_`: which members they train, and how these become one."""

from lightkit.ensemble.methods.base import Combination, Method, NoEnsemble, RunFacts, computed, member
from lightkit.ensemble.methods.plain import (
    Adversarial,
    Bagging,
    FastGeometric,
    Fusion,
    GradientBoosting,
    Greedy,
    Snapshot,
    SoftGradientBoosting,
    Voting,
)
from lightkit.ensemble.methods.stacking import Stacking

__all__ = [
    "Adversarial",
    "Bagging",
    "Combination",
    "FastGeometric",
    "Fusion",
    "GradientBoosting",
    "Greedy",
    "Method",
    "NoEnsemble",
    "RunFacts",
    "Snapshot",
    "SoftGradientBoosting",
    "Stacking",
    "Voting",
    "computed",
    "member",
]
