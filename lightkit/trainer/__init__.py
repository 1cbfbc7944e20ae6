"""The training loop and what hooks into it."""

from lightkit.trainer.average import Ema, NoAverage, Swa
from lightkit.trainer.by_name import ByName
from lightkit.trainer.callbacks import Callback, EarlyStopping
from lightkit.trainer.evaluate import evaluate
from lightkit.trainer.gan import GAN
from lightkit.trainer.loop import Trainer
from lightkit.trainer.state import State, Timetable
from lightkit.trainer.tasks import Detection, Forecast, Retrieval, StepOutput, Supervised, Task, TwoViews

__all__ = [
    "GAN",
    "ByName",
    "Callback",
    "Detection",
    "EarlyStopping",
    "Ema",
    "Forecast",
    "NoAverage",
    "Retrieval",
    "State",
    "StepOutput",
    "Supervised",
    "Swa",
    "Task",
    "Timetable",
    "Trainer",
    "TwoViews",
    "evaluate",
]
