"""The files of members that trained at once: those of a run that trained alone, written in one go."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import lightkit.trainer.report as summary
from lightkit.assembly import build_store
from lightkit.assembly.origin import facts_of
from lightkit.assembly.run_rows import ensemble_of
from lightkit.common import run_files
from lightkit.common.text import counted, json_text
from lightkit.config import as_yaml, public, save_text, with_values
from lightkit.config.provenance import signer
from lightkit.data import Data
from lightkit.ensemble.methods.base import RunMember
from lightkit.ensemble.stack import Stack, StackMember
from lightkit.ensemble.validations import Validation, ValidationOutputs, of_member, read_validations, write_validations
from lightkit.loggers.events import packed, write
from lightkit.loggers.files import line, write_json
from lightkit.loggers.tensorboard import TensorBoardLogger, columns
from lightkit.runner.session import Session, keep_rows
from lightkit.runs.catalog import is_fold
from lightkit.runs.folder import RunFolder, writing
from lightkit.trainer.evaluate import ValidationMeter

_STAND_IN = 728_350_001
"""A number that stands for a value in a text that is the same for all members but for it."""
_LOG_LINE = "{time} INFO    lightkit.runner: {text}\n"


class ConfigTexts:
    """Makes the configurations of alike members as text, of which only the values differ that are each member's own.

    Args:
        member: One of them; all have values for the same keys.
        cfg: Its configuration.
        overrides: What was typed.
    """

    def __init__(self, member: RunMember, cfg: DictConfig, overrides: Sequence[str]) -> None:
        own = [key for key in leaves(member.values) if may_differ(key)]
        self._stand_ins = {key: _STAND_IN + number for number, key in enumerate(own)}
        content = public(with_values(cfg, self._stand_ins))
        self._text, self._settings = as_yaml(content), columns(content, overrides)

    def of(self, member: RunMember) -> str:
        """Return the configuration of a member as YAML."""
        values, text = leaves(member.values), self._text
        for key, number in self._stand_ins.items():
            own = values[key] if type(values[key]) is int else as_yaml({"": values[key]}).rpartition(": ")[2].rstrip()
            text = text.replace(str(number), str(own))
        return text

    def settings(self, member: RunMember) -> dict[str, bool | float | str]:
        """Return what TensorBoard's table of runs shows of a member."""
        own = {key: value for key, value in leaves(member.values).items() if key in self._settings}
        return {**self._settings, **own}


def leaves(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return values by dotted key, those in nodes too."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= leaves(value, f"{above}{key}.") if isinstance(value, Mapping) else {f"{above}{key}": value}
    return found


OWN = ("seed", "name", *(f"ensemble.member.{name}" for name in ("index", "draw", "fold", "repeat")))
OWN += ("data.split.seed", "data.split.fold")
"""Keys in which members may differ that one optimizer steps: their names and seeds, and the rows they learn from."""


def may_differ(key: str) -> bool:
    """Tell whether members that train at once may differ in a key: also in what is a number for each of them."""
    return key in (*OWN, "optim.lr", "optim.weight_decay") or (key.startswith("model.") and key.endswith("dropout"))


class MemberFiles:
    """Writes the folders of members that train at once, of a run that has begun to write.

    Nothing is forced to the disk; their state is kept elsewhere until `result.json` says that they have finished.

    Args:
        run: The run.
        members: The members.
        cfg: The configuration of the first member: that of all, but for what is each one's own.
        facts: What else is known of each member.
    """

    def __init__(self, run: Session, members: Sequence[RunMember], cfg: DictConfig, facts: Mapping[str, Any]) -> None:
        self.run, self.members, self.cfg = run, members, cfg
        self.folders = {member.name: run.place.member(member.name).path for member in members}
        self._seed, self._name, self._keeps_best = run.cfg.seed, cfg.name, cfg.checkpoint.keep_best > 0
        self.texts = ConfigTexts(members[0], cfg, run.overrides)
        self._facts = {**run.place.facts(), **facts, "seed": _STAND_IN}
        self._environment = json_text(self._facts)
        self._store = build_store(cfg.checkpoint, run.place.path, mode=cfg.metrics.mode)
        self._tensorboard = bool(cfg.logger.tensorboard.enabled)
        self._together: Path | None = None
        self._goal = {"monitor": str(cfg.metrics.monitor), "mode": str(cfg.metrics.mode)}

    def begin(self, members: Sequence[RunMember], data: Mapping[str, Data]) -> None:
        """Make the folders of some members, and write down what is about to run in them.

        Args:
            members: The members.
            data: That of each by its name.

        Raises:
            UserError: They cannot be written.
        """
        sign = signer()
        for member in members:
            path, seed = self.folders[member.name], member.values.get("seed", self._seed)
            with writing(path):
                # Those of a part that was killed while it wrote them.
                for left in path.glob(run_files.EVENTS_PATTERN) if path.is_dir() else ():
                    left.unlink()
                path.mkdir(parents=True, exist_ok=True)
                save_text(self.texts.of(member), path, sign)
                typed = self.run.place.typed_for(member.name, self.run.overrides)
                lines = "".join(f"- {json.dumps(text)}\n" for text in typed)
                (path / run_files.OVERRIDES).write_text(lines or "[]\n", encoding="utf-8")
                own = is_fold(path)
                text = json_text({**self._facts, **facts_of(data[member.name])}) if own else self._environment
                text = text.replace(str(_STAND_IN), str(seed)) + "\n"
                (path / run_files.ENVIRONMENT).write_text(text, encoding="utf-8")
                if own:
                    keep_rows(data[member.name], RunFolder(path))
                elif ensemble_of(path) is None:  # a job of a sweep, which is a run of its own
                    shutil.copyfile(self.run.place.path / run_files.ROWS, path / run_files.ROWS)

    def meters(self, stack: Stack, folder: Path) -> list[ValidationMeter]:
        """Return what keeps the outputs of the validations of all members, where they are those of an ensemble.

        Args:
            stack: The members, as they stand.
            folder: Folder of the state of all.
        """
        learner = stack.learner
        if ensemble_of(self.folders[self.members[0].name]) is None or learner.data.val is None:
            return []
        self._together = folder / run_files.VALIDATIONS
        options: dict[str, Any] = {"names": lambda: [member.name for member in stack.active], "tell": self.run.tell}
        kept = ValidationOutputs(self._together, learner.timetable, **options)
        kept.start(learner.state.step)
        return [kept]

    @cached_property
    def _validations(self) -> list[Validation]:
        """The validations of all members, once they have ended."""
        return read_validations(self._together) if self._together else []

    def save(self, member: RunMember, trained: StackMember) -> None:
        """Write the checkpoints of a member that has ended.

        Raises:
            UserError: They cannot be written.
        """
        if self._store is not None:
            self._store.folder = self.folders[member.name] / run_files.CHECKPOINTS
            self._store.fill(self._saves(trained, self.texts.of(member)))

    def events(self, ended: Sequence[tuple[RunMember, StackMember]]) -> list[bytes]:
        """Return what TensorBoard reads of members that have ended; nothing where it is not asked for."""
        loggers = [TensorBoardLogger("", **self._goal) for _ in ended if self._tensorboard]
        logged = [one.events(part.history.rows, self.texts.settings(own)) for one, (own, part) in zip(loggers, ended)]
        return packed(logged) if logged else [b""] * len(ended)

    def finish(
        self, member: RunMember, trained: StackMember, events: bytes, *, system: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """Write what a member has come to; last its result, with which it counts as finished.

        Args:
            member: Which one.
            trained: What it came to.
            events: What TensorBoard reads of it.
            system: What was seen of the machine.
            seconds: What the training of all took.

        Returns:
            The content of its `result.json`.

        Raises:
            UserError: A file cannot be written.
        """
        path, state, name = self.folders[member.name], trained.state, member.values.get("name", self._name)
        with writing(path):
            (path / run_files.METRICS).write_text("".join(map(line, trained.history.rows)), encoding="utf-8")
            if events:
                write(path, events)
            write_validations(path / run_files.VALIDATIONS, of_member(self._validations, member.name))
            facts = {"name": name, "seconds": round(seconds, 3), "system": dict(system)}
            result = summary.result(state, status="finished", reason=state.stop_reason, **self._goal, **facts)
            (path / run_files.LOG).write_text(self._log(member, trained), encoding="utf-8")
            write_json(path / run_files.RESULT, result)
        return result

    def _saves(self, trained: StackMember, text: str) -> list[tuple[dict[str, Any], float | None]]:
        """Return the contents of the checkpoints to keep, with the monitored value."""
        monitor, found = self._goal["monitor"], list[tuple[dict[str, Any], float | None]]()
        last, best = trained.last, trained.best if self._keeps_best else None
        if best is not None and last is not None and best["state"]["step"] != last["state"]["step"]:
            found.append((best | {"config": text}, best["state"]["best_value"]))
        if last is not None:
            state = last["state"]
            measured = state["closed_step"] if monitor.startswith("train/") else state["validated_step"]
            value = state["last"].get(monitor) if measured == state["step"] else None
            found.append((last | {"config": text}, value))
        return found

    def _log(self, member: RunMember, trained: StackMember) -> str:
        """Return the lines of `run.log`."""
        state, values = trained.state, summary.final_values(trained.state)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        lines = [
            f"member {member.name}, seed {member.values.get('seed', self._seed)}, trained with "
            f"{len(self.members) - 1} others at once on {self._facts['device']}",
            f"result after {counted(state.step, 'step')}: {shown}",
            *([state.stop_reason] if state.stop_reason else []),
        ]
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        return "".join(_LOG_LINE.format(time=now, text=text) for text in lines)
