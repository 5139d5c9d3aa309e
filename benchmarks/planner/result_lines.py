"""Results of long benchmarks, one a line, each measured in a process of its own, so that a run that stops goes on where it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(path: Path, results: Sequence[Mapping[str, Any]], key: str, order: Sequence[str]) -> None:
    """Write results in the order of the names that they have under a key."""
    path.parent.mkdir(exist_ok=True)
    ordered = sorted(results, key=lambda one: order.index(one[key]))
    path.write_text("".join(json.dumps(each) + "\n" for each in ordered))


def measure(name: str, *command: str | Path) -> Any:
    """Return what a Python command prints as JSON in its last line; None where it fails, which is said."""
    ended = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False)
    if ended.returncode:
        print(f"{name}: {ended.stderr.strip()[-2000:]}", file=sys.stderr, flush=True)
        return None
    return json.loads(ended.stdout.strip().splitlines()[-1])
