"""A server on this machine that answers as the hub does of one data set."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def local_hub(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Temporarily serve a data set of these files by its name; give the address for HF_ENDPOINT."""

    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Stay silent."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            about = f"/api/datasets/{name}"
            entries = [
                {"type": "file", "path": each, "size": len(files[each]), "oid": "0" * 40} for each in files
            ]
            if path == about or path.startswith(f"{about}/revision/"):
                siblings = [{"rfilename": each} for each in files]
                self._answer({"id": name, "sha": _COMMIT, "private": False, "tags": [], "siblings": siblings})
            elif path.startswith(f"{about}/tree/") and path.endswith(_COMMIT):
                self._answer(entries)
            elif path.startswith(f"/datasets/{name}/resolve/") and path.rpartition("/")[2] in files:
                self._answer(files[path.rpartition("/")[2]])
            else:
                known = path.startswith((about, f"/datasets/{name}/"))
                self._answer({"error": "not found"}, 404, "EntryNotFound" if known else "RepoNotFound")

        def _answer(self, content: Any, status: int = 200, error: str = "") -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"0"')
            self.send_header("X-Repo-Commit", _COMMIT)
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
