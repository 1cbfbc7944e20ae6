"""Imported by tests that fork: a backward pass in the child works only if the parent's started no threads.

PyTorch starts one for every device it knows of, once, with the first backward pass of a process. On a machine without
GPUs there is none to start, unless fake tensors have been used before: they make it know of eight that do not exist.
A child leaves alone what the parent has left behind: to take a session of ONNX Runtime apart, it would wait for threads
that only the parent has.
"""

from __future__ import annotations

import gc
import os

import torch

os.register_at_fork(after_in_child=gc.freeze)
torch.ones(1, requires_grad=True).sum().backward()
