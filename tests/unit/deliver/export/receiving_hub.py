"""A hub on this machine that takes uploads as the hub's API does: repositories, large files, commits."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ReceivingHub(ThreadingHTTPServer):
    """It remembers the visibility of repositories that were made, and the files of their last commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.made: dict[str, str] = {}
        self.large: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.refuses = False


class _Handler(BaseHTTPRequestHandler):
    server: ReceivingHub

    def do_GET(self) -> None:
        self._answer({}, 404 if self.server.refuses else 200)

    def do_PUT(self) -> None:
        self.server.large[self.path.rpartition("/")[2]] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        hub, body, path = self.server, self._body(), self.path
        if hub.refuses:
            self._answer({"error": "You have no right to write here"}, 403)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            hub.made[f"{asked['organization']}/{asked['name']}"] = asked["visibility"]
            self._answer({"url": f"{hub.address}/{asked['organization']}/{asked['name']}", "id": "1"})
        elif "/preupload/" in path:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = {True: "lfs", False: "regular"}
            files = [{"path": name, "uploadMode": modes[name.endswith(".safetensors")]} for name in names]
            self._answer({"files": [{**each, "shouldIgnore": False} for each in files]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{hub.address}/large/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.large[value["oid"]]
            commit = f"{hub.address}/me/chats/commit/abc"
            self._answer({"commitUrl": commit, "commitOid": "abc", "success": True})
        else:  # such as /api/validate-yaml
            self._answer({"errors": [], "warnings": []})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, values: Any, status: int = 200) -> None:
        content = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def receiving_hub() -> Iterator[ReceivingHub]:
    hub = ReceivingHub()
    threading.Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
