"""As much of an MLflow server as the tracker uses, which refuses every second request on average."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

PREFIX = "/api/2.0/mlflow/"


class Server(ThreadingHTTPServer):
    """`steps` are those of `train/loss` in the order they were accepted, `statuses` what the run was set to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.random = random.Random(0)
        self.requests = 0
        self.refusals = 0
        self.runs_created = 0
        self.steps: list[int] = []
        self.statuses: list[str] = []

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests += 1
        if self.random.random() < 0.5:
            self.refusals += 1
            return 503, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "try again"}
        run = {
            "info": {"run_id": "abc", "run_uuid": "abc", "experiment_id": "1", "lifecycle_stage": "active"}
        }
        if path == "experiments/get-by-name":
            return 200, {"experiment": {"experiment_id": "1", "name": "snugfit", "lifecycle_stage": "active"}}
        if path == "runs/create":
            self.runs_created += 1
            return 200, {"run": run}
        if path == "runs/get":
            return 200, {"run": run}
        if path == "runs/update":
            self.statuses.append(body["status"])
            return 200, {"run_info": run["info"]}
        if path == "runs/log-batch":
            self.steps += [int(m.get("step", 0)) for m in body.get("metrics", []) if m["key"] == "train/loss"]
            return 200, {}
        return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": path}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path.removeprefix(PREFIX)
        status, content = self.server.answer(path, json.loads(body or b"{}"))
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the test looks at what is printed."""


@contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
