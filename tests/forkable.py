"""Imported by tests that fork: a backward pass in the child works only if the parent's started no threads.

PyTorch starts one for every device it knows of, once, with the first backward pass of a process. On a machine without
GPUs there is none to start, unless fake tensors have been used before: they make it know of eight that do not exist.
"""

from __future__ import annotations

import torch

torch.ones(1, requires_grad=True).sum().backward()
