"""Where numbers, figures and messages go: TensorBoard, files and the console behind one interface."""

from lightkit.loggers.base import Logger, Loggers, Progress
from lightkit.loggers.console import ConsoleLogger
from lightkit.loggers.files import JsonlLogger, ProgressFile
from lightkit.loggers.members import MembersTable
from lightkit.loggers.own import OwnLogger
from lightkit.loggers.runlog import LogLogger
from lightkit.loggers.tensorboard import TensorBoardLogger

__all__ = [
    "ConsoleLogger",
    "JsonlLogger",
    "LogLogger",
    "Logger",
    "Loggers",
    "MembersTable",
    "OwnLogger",
    "Progress",
    "ProgressFile",
    "TensorBoardLogger",
]
