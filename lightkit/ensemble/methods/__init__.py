"""The methods of `ensemble._target_`: which members they train, and how these become one."""

from lightkit.ensemble.methods.adversarial import Adversarial
from lightkit.ensemble.methods.bagging import Bagging
from lightkit.ensemble.methods.base import Method, NoEnsemble, RunFacts, computed, member
from lightkit.ensemble.methods.boosting import GradientBoosting
from lightkit.ensemble.methods.fast_geometric import FastGeometric
from lightkit.ensemble.methods.greedy import Greedy
from lightkit.ensemble.methods.joint import Fusion, SoftGradientBoosting
from lightkit.ensemble.methods.snapshot import Snapshot
from lightkit.ensemble.methods.stacking import Stacking
from lightkit.ensemble.methods.voting import Voting

__all__ = [
    "Adversarial",
    "Bagging",
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
