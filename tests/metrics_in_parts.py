"""Imported where tests begin: torchmetrics comes in parts, as in every run; all of it takes seconds."""

from __future__ import annotations

import importlib

from lightkit.common.sparing import sparingly

sparingly(lambda: importlib.import_module("torchmetrics"))
