"""Parameter groups and learning rates over time."""

from __future__ import annotations

from lightkit.optim.annealing import Cosine, Linear, OneCycle, Plateau, Step
from lightkit.optim.composed import ComposedOptimizer, Lbfgs, Muon, Sam, SparseAdam
from lightkit.optim.groups import parameter_groups
from lightkit.optim.lasting import InverseSquareRoot, WarmupStableDecay
from lightkit.optim.layers import depth_of, layer_depths
from lightkit.optim.schedulers import Constant, Schedule
from lightkit.optim.several import Several
from lightkit.optim.wrapped import Torch, rates

__all__ = [
    "ComposedOptimizer",
    "Constant",
    "Cosine",
    "InverseSquareRoot",
    "Lbfgs",
    "Linear",
    "Muon",
    "OneCycle",
    "Plateau",
    "Sam",
    "Schedule",
    "Several",
    "SparseAdam",
    "Step",
    "Torch",
    "WarmupStableDecay",
    "depth_of",
    "layer_depths",
    "parameter_groups",
    "rates",
]
