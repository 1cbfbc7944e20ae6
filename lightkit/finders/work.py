"""The process of a finder: `lightkit find --measure`, which is told by standard input what to measure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from lightkit.config.project import make_importable, project_root
from lightkit.finders import lr, throughput, workers
from lightkit.finders.child import begin, failure

MEASURES: dict[str, Callable[..., None]] = {"lr": lr.measure, "batch": throughput.measure, "workers": workers.measure}
"""What can be measured."""


def work() -> int:
    """Measure in this process, and write what is found to standard output, a line of JSON each."""
    job, answers = begin()

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    make_importable(project_root())
    cfg: Any = OmegaConf.create(job["cfg"])
    OmegaConf.set_readonly(cfg, True)
    try:
        MEASURES[job["what"]](cfg, answer, **job["options"])
    except Exception as error:
        answer(failure(error))
    return 0
