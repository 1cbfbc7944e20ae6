"""A server as Weights & Biases' client sees it: runs, with the history that was uploaded; it can go away."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.loggers.trackers.reading import told

HISTORY = "wandb-history.jsonl"


class Server(ThreadingHTTPServer):
    """Holds, by the id of a run, what was said of it; answers with an error while it is `gone`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.gone = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client that was killed."""

    def only(self) -> dict[str, Any]:
        (run,) = self.runs.values()
        return run

    def rows(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.only()["history"]]
        return [told(line) for line in lines if "epoch" in line]

    def steps(self) -> list[int]:
        return [json.loads(line)["_step"] for line in self.only()["history"]]

    def answer(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        if operation == "RunResumeStatus":
            return {
                "model": {
                    "id": "p",
                    "name": asked["project"],
                    "entity": {"id": "e", "name": "me"},
                    **self._bucket(asked),
                }
            }
        if operation == "UpsertBucket":
            run = self.runs.setdefault(asked["name"], {"history": [], "state": {}})
            run["facts"] = {
                **run.get("facts", {}),
                **{name: value for name, value in asked.items() if value is not None},
            }
            project = {"id": "p", "name": "lightkit", "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": asked["name"], "displayName": "d", "project": project, "historyLineCount": 0}
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.address}/put/{name}"} for name in asked["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def _bucket(self, asked: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(asked["name"])
        if run is None or not run["history"]:
            return {"bucket": None}
        counts = dict.fromkeys(("logLineCount", "eventsLineCount"), 0) | {"historyLineCount": len(run["history"])}
        tails = {"historyTail": json.dumps(run["history"][-1:]), "eventsTail": "[]", "summaryMetrics": "{}"}
        facts = {
            "id": "b",
            "name": asked["name"],
            "displayName": "d",
            "config": "{}",
            "tags": [],
            "wandbConfig": '{"t": 1}',
        }
        return {"bucket": {**facts, **counts, **tails}}

    def stream(self, name: str, sent: dict[str, Any]) -> None:
        run = self.runs[name]
        part = sent.get("files", {}).get(HISTORY)
        if part is not None:
            run["history"][part["offset"] :] = part["content"]
        run["state"] |= {key: value for key, value in sent.items() if key not in ("files", "uploaded", "dropped")}


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer, code = dict[str, Any](), 503 if self.server.gone else 200
        if self.path.endswith("/graphql") and not self.server.gone:
            asked = json.loads(body)
            answer = {"data": self.server.answer(asked["operationName"], asked["variables"])}
        elif self.path.endswith("/file_stream") and not self.server.gone:
            self.server.stream(self.path.split("/")[-2], json.loads(body))
        self.server.gone = self.server.gone or self.path == "/leave"
        if self.path == "/rows":
            answer = {"rows": sum(len(run["history"]) for run in self.server.runs.values())}
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_PUT = do_POST


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()
