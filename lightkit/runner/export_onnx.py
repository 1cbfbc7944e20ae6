"""A trained model as an ONNX file: `lightkit export RUN model.onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightkit.runner.program import Leaving, Program, template


class Onnx(Program):
    """A file that ONNX Runtime opens, and other software that knows ONNX (https://onnx.ai)."""

    packages = ("onnx", "onnxscript", "onnxruntime")
    needs = "onnxruntime"
    code = template("predict_onnx.txt")

    def write(self, leaving: Leaving, path: Path) -> None:
        """Write the model; weights beyond the 2 GB of the format go to a second file. See `Format.write`."""
        self.traced(leaving).save(path)

    def trace(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Translate what PyTorch traced."""
        return torch.onnx.export(super().trace(module, args), dynamo=True, verbose=False)
