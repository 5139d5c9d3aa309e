"""A server that answers as W&B's does, as far as a run needs it: it creates runs, says how far they are, and takes their rows."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PROJECT = {"id": "UA==", "name": "snugfit", "entity": {"id": "RQ==", "name": "me"}}
_RUN = {"id": "QQ==", "displayName": "", "description": "", "config": "{}", "sweepName": None}


@dataclass
class WandbServer:
    """What the server was sent: rows in their order, the newest summary, exit codes, and the names of runs."""

    address: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the data of a query."""
        name = variables.get("name")
        if "mutation UpsertBucket" in query:
            is_new = name not in self.names
            self.names.append(str(name))
            run = {**_RUN, "name": name, "project": _PROJECT, "historyLineCount": len(self.rows)}
            return {"upsertBucket": {"bucket": run, "inserted": is_new}}
        if "RunResumeStatus" in query:
            known = {
                **_RUN,
                "name": name,
                "historyLineCount": len(self.rows),
                "eventsLineCount": 0,
                "logLineCount": 0,
                "historyTail": json.dumps([json.dumps(row) for row in self.rows[-1:]]),
                "eventsTail": "[]",
                "summaryMetrics": json.dumps(self.summary),
                "wandbConfig": "{}",
                "tags": [],
                "stopped": False,
            }
            return {"model": {**_PROJECT, "bucket": known if name in self.names else None}}
        return {"createRunFiles": {"runID": "QQ==", "uploadHeaders": [], "files": []}, "model": None}

    def take(self, part: dict[str, Any]) -> None:
        """Keep a part of a run's stream."""
        files = part.get("files") or {}
        if history := files.get("wandb-history.jsonl"):
            self.offsets.append(history["offset"])
            self.rows += [json.loads(line) for line in history["content"]]
        if summary := files.get("wandb-summary.json"):
            self.summary = json.loads(summary["content"][0])
        if part.get("complete"):
            self.exit_codes.append(part["exitcode"])


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Temporarily have such a server on this machine."""
    server = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Write nothing."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            asked = json.loads(body or b"{}")
            if self.path.startswith("/graphql"):
                self._reply({"data": server.answer(asked["query"], asked.get("variables") or {})})
                return
            if "file_stream" in self.path:
                server.take(asked)
            self._reply({})

        def _reply(self, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    server.address = f"http://127.0.0.1:{http.server_address[1]}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
