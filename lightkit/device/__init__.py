"""Where and how the numbers are computed: placement, parallelism, precision, seeds."""

from lightkit.device.clip import Clip, ClipNorm, ClipValue, make_clip
from lightkit.device.engine import Engine
from lightkit.device.parallel import DataParallel, Parallel, make_parallel
from lightkit.device.placement import Placement, choose
from lightkit.device.precision import Bf16, Precision, make_precision
from lightkit.device.seed import MicroSeed, seed_everything, set_threads, use_deterministic

__all__ = [
    "Bf16",
    "Clip",
    "ClipNorm",
    "ClipValue",
    "DataParallel",
    "Engine",
    "MicroSeed",
    "Parallel",
    "Placement",
    "Precision",
    "choose",
    "make_clip",
    "make_parallel",
    "make_precision",
    "seed_everything",
    "set_threads",
    "use_deterministic",
]
