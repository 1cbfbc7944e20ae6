"""A trained model as an ONNX file: `lightkit export RUN model.onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightkit.runner.program import Leaving, Program


class Onnx(Program):
    """A file that ONNX Runtime opens, and other software that knows ONNX (https://onnx.ai)."""

    packages = ("onnx", "onnxscript", "onnxruntime")
    needs = "onnxruntime"
    code = '''
import numpy
import onnxruntime


@cache
def load():
    return onnxruntime.InferenceSession(FILE, providers=["CPUExecutionProvider"])


def predict(inputs):
    """Return an array of what the model predicts of inputs, an array."""
    inputs, name = numpy.asarray(inputs), load().get_inputs()[0].name
    inputs = inputs / numpy.float32(255) if LEVELS and inputs.dtype == "uint8" else inputs.astype(ABOUT["dtype"])
    parts = [inputs[start : start + 1024] for start in range(0, len(inputs), 1024)]
    return numpy.concatenate([load().run(None, {name: part})[0] for part in parts])
'''

    def write(self, leaving: Leaving, path: Path) -> None:
        """Write the model; weights beyond the 2 GB of the format go to a second file. See `Format.write`."""
        self.traced(leaving).save(path)

    def trace(self, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Translate what PyTorch traced."""
        return torch.onnx.export(super().trace(module, args), dynamo=True, verbose=False)
