"""All runs as a live page: a small server that reads what the folders say, and writes nothing.

It listens on this machine only, and answers only to names of this machine: a page from elsewhere whose name was made to
lead here (DNS rebinding) has another one in its `Host`. Names, tags and notes may be anybody's, so the page takes texts
as texts, and its policy lets no script run but its own.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from werkzeug import Request, Response
from werkzeug.exceptions import abort
from werkzeug.serving import make_server
from werkzeug.utils import send_file

from lightkit.common import run_files
from lightkit.common.errors import UserError
from lightkit.compare.grouping import Group, read_curves
from lightkit.detached.boards import free_port
from lightkit.detached.folders import entry_of
from lightkit.runs.filters import COLUMNS, Condition, direction_of, look_up, matching, order
from lightkit.runs.index import RunIndex, newest_last
from lightkit.runs.reading import run_folders
from lightkit.runs.record import RunRecord

POINTS = 200
"""Points of a curve at most."""
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d+)?", re.I)
"""What a browser calls this machine; the port is another one at the other end of a tunnel."""
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_PACKED = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
_FILES = {"/": ".html", "/run_table.css": ".css", "/run_table.js": ".js"}
_LEAST_SECONDS, _SHARE, _MOST_SECONDS = 2.0, 9, 20.0
"""Time between two looks at the folders; in between, it is so many times as long as a look."""
_MOST_CURVES, _LONGEST_CELL = 8, 300


class RunTable:
    """The runs below a folder, looked at again when somebody asks and the last look is some time ago.

    Args:
        folder: Where the runs are.
        root: The project.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._index, self._lock = folder, RunIndex(root, writes=False), threading.Lock()
        self._runs, self._live, self._changed = dict[str, RunRecord](), dict[str, Any](), dict[str, int]()
        self._version = time.time_ns() // 10**6  # later than all of a server that was here before
        self._pause, self._due = _LEAST_SECONDS, 0.0

    def rows(self, args: Any) -> dict[str, Any]:
        """Return a part of the table.

        Args:
            args: Words of the address: `where` (conditions as of `lightkit runs`, joined by `and`), `sort` (a column,
                `-NAME` for the other way round), `first` and `count` of the rows, any `column`, and `since`: the
                version of the same part that the page has.

        Returns:
            `version`, and the `pause` until it is worth asking again; nothing more where nothing has changed. Else the
            `order` of the rows by their folders, those `rows` that have changed, and the progress of all that are
            `live`; or the `mistake`.
        """
        first, count, since = (abs(args.get(name, 0, int)) for name in ("first", "count", "since"))
        where, sort = (args.get(name, "").strip() for name in ("where", "sort"))
        with self._lock:
            self._look()
            known, runs = {"version": self._version, "pause": self._pause}, [*self._runs.values()]
            if since == self._version:
                return known
            try:
                chosen = matching(runs, conditions=[*map(Condition.parse, filter(None, re.split(r"\s+and\s+", where)))])
                chosen = order(chosen, sort, lambda name: direction_of(name, runs)) if sort else chosen
            except UserError as error:
                return {**known, "mistake": str(error)}
            part = {str(run.folder): run for run in chosen[first : first + count]}
            new = [mark for mark in part if self._changed[mark] > since]
            rows = {mark: [_cell(look_up(part[mark], name)) for name in args.getlist("column")] for mark in new}
            counts = {"of": len(runs), "total": len(chosen), "folder": str(self._folder), "live": self._live}
            return {**known, **counts, "order": [*part], "rows": rows}

    def names(self, _: Any) -> list[str]:
        """Return what there may be columns of: facts, metrics, keys of the configuration: first those that differ."""
        runs, values = [*self._runs.values()], defaultdict[str, set[str]](set)
        for section in dict.fromkeys(section for run in runs for section in run.sections):
            for key, value in section.keys.items():
                values[key.removesuffix("._target_")].add(json.dumps(value))
        metrics = {name for run in runs for name in run.values}
        return [*dict.fromkeys([*COLUMNS, *sorted(metrics), *sorted(values, key=lambda key: len(values[key]) == 1)])]

    def curve(self, args: Any) -> dict[str, Any]:
        """Return what a page shows of a `run`, with the curve of its main metric; of several or members their mean."""
        runs = [run for mark in args.getlist("run")[:_MOST_CURVES] if (run := self._runs.get(mark))]
        metric = runs[0].metric or "train/loss" if runs else abort(404)
        members = self._index.records(run_folders(runs[0].folder / run_files.MEMBERS))
        curves = [read_curves(Group({}, tuple(each)), metric, POINTS - 1).get(metric) for each in (runs, members)]
        said = "\n".join([str(runs[0].result.get("reason") or ""), *runs[0].damage]).strip()
        texts = {"name": runs[0].name, "typed": " ".join(runs[0].overrides), "note": runs[0].note, "said": said}
        return {**{key: _cell(text) for key, text in texts.items()}, "metric": metric, "curve": curves[0] or curves[1]}

    def _look(self) -> None:
        """Look at the folders, if it is time, and note what has changed."""
        if time.monotonic() < self._due:
            return
        begun = time.thread_time()
        found = newest_last(self._index.records(run_folders(self._folder)))[::-1]
        runs, before, known = {str(run.folder): run for run in found}, self._runs, self._live
        self._live = {mark: entry_of(run.folder).facts() for mark, run in runs.items() if run.status == "running"}
        changed = {mark for mark, run in runs.items() if before.get(mark) != run or before[mark].status != run.status}
        changed |= {mark for mark, facts in self._live.items() if known.get(mark) != facts}
        self._runs = {mark: run if mark in changed else before[mark] for mark, run in runs.items()}
        self._version += bool(changed or runs.keys() != before.keys())
        self._changed |= dict.fromkeys(changed, self._version)
        self._pause = min(max(_LEAST_SECONDS, _SHARE * (time.thread_time() - begun)), _MOST_SECONDS)
        self._due = time.monotonic() + self._pause


def _cell(value: Any) -> Any:
    """Return a value as a page takes it: a number that it knows, all others as text, which is cut."""
    if value is None or (isinstance(value, int | float) and abs(value) < 2**53):
        return value
    return (value if isinstance(value, str) else json.dumps(value))[:_LONGEST_CELL]


@contextmanager
def serving_table(folder: Path, root: Path, *, host: str, **wanted: Any) -> Iterator[int]:
    """Serve the table of the runs below a folder while inside.

    Args:
        folder: Folder with the runs.
        root: The project.
        host: Address of this machine alone.
        **wanted: Of `lightkit.detached.boards.free_port`.

    Yields:
        The port.

    Raises:
        UserError: It cannot listen there.
    """
    table = RunTable(folder, root)
    answers = {"/rows": table.rows, "/names": table.names, "/curve": table.curve}

    @Request.application
    def answer(request: Request) -> Response:
        if request.method != "GET" or not _HOST.fullmatch(request.headers.get("Host", "")):
            abort(403)
        if request.path in _FILES:
            response = send_file(Path(__file__).with_suffix(_FILES[request.path]), request.environ)
        else:
            content = json.dumps(answers.get(request.path, lambda _: abort(404))(request.args), default=vars).encode()
            response = Response(gzip.compress(content, 1), headers=_PACKED)
        response.headers.update(_HEADERS)
        return response

    logging.getLogger("werkzeug").setLevel("ERROR")  # else it says what was asked
    port = free_port(host, **wanted)
    server = make_server(host, port, answer, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield port
    finally:
        server.shutdown()
