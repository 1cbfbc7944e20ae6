"""The folders of a sweep's jobs: below its own, apart from each other, and not what is there for something else."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.common.names import folder_below, same_name
from lightkit.config.project import is_run, project_root

_OF_JOBS = (
    run_files.JOB_LOCK,
    run_files.LOCK,
    run_files.OUTPUT_LOG,
    run_files.LOG,
    run_files.RESULT,
    run_files.METRICS,
    run_files.CHECKPOINTS,
)
"""Each of these shows that a folder is that of a job, also of one that was killed at once."""


class JobPlaces:
    """Where the jobs of a sweep run.

    Args:
        home: Folder of the sweep.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._names = dict[str, str]()
        self._own, self._around = set[str](), set[str]()

    def place(self, name: object) -> Path:
        """Return the folder of a job that a file names.

        Args:
            name: Its name; several names with slashes between them are folders in each other.

        Raises:
            UserError: It is no name, or no folder of its own below that of the sweep.
        """
        key = str(self.home / run_files.SWEEP_JOURNAL)
        expected = "the name of a job's folder, below that of the sweep"
        folder = folder_below(self.home, name, key=key, expected=expected, taken=run_files.SWEEP_OWN, nested=True)
        own = str(name)
        above = {str(path) for path in PurePosixPath(own).parents} - {"."}
        inside = above & self._own or any(is_run(self.home / path) for path in above)
        if inside or own in self._around or self._is_other(own, folder):
            what, fix = (
                "a job would write into the folder of another one",
                "leave it alone, unless you know who made it; then write another name there",
            )
            raise UserError(what, key=key, expected=expected, received=name, fix=fix, family="folder-in-use")
        self._names.setdefault(same_name(own), own)
        self._own.add(own)
        self._around |= above
        return folder

    def _is_other(self, name: str, folder: Path) -> bool:
        """Tell whether a folder is that of a job whose name differs, where the disk does not tell capitals apart."""
        known = self._names.get(same_name(name), name)
        return known != name and folder.exists() and (self.home / known).exists() and folder.samefile(self.home / known)


def check_folder(folder: Path) -> None:
    """Refuse the folder of a job that is there for something else.

    Args:
        folder: As `JobPlaces.place` returned it.

    Raises:
        UserError: It holds files, and none of those of a job.
    """
    if not folder.is_dir() or is_run(folder) or any(os.path.lexists(folder / name) for name in _OF_JOBS):
        return
    if any(folder.iterdir()):
        what, fix = "a job would write into a folder that is there for something else", "move that folder, or the sweep"
        raise UserError(what, key=str(folder), expected="no folder, or that of a job", fix=fix, family="folder-in-use")


def check_home(home: Path) -> None:
    """Refuse a sweep in the folder of the project, or around it, whose jobs would be the project's own folders.

    Raises:
        UserError: The sweep is there.
    """
    root = project_root()
    if root is not None and root.is_relative_to(home.resolve()):
        what, fix = "a sweep cannot lie in the folder of the project", "move its files into a folder of outputs/sweeps/"
        raise UserError(what, key=str(home), fix=fix, family="file")
