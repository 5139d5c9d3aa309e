"""Runs the parts one after the other, each in a process of its own with a limit, and keeps what is there after each."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from common import commit, machine  # noqa: E402

LIMITS = {"laws": 150, "seven": 70, "seventy": 200, "peers": 120, "predicted": 240}
"""Seconds of each part: thirteen minutes together."""

SETTINGS = {"predicted": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}}
"""Of the environment of a part: plans are about the allocator's default."""


def run_part(part: str, toy: bool, seconds: int) -> dict[str, Any]:
    """What a part has written by its end, or by its limit; `error` says what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "part.json")
        command = [sys.executable, str(HERE / f"{part}.py"), str(out), *(["--toy"] if toy else [])]
        started = time.monotonic()
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
                env={**os.environ, **SETTINGS.get(part, {})},
            )
            tail = done.stderr.strip().splitlines()[-3:] if done.returncode else []
        except subprocess.TimeoutExpired:
            tail = [f"stopped after {seconds} s"]
        found: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        found["wall_seconds"] = round(time.monotonic() - started, 1)
        return {**found, "error": " | ".join(tail)} if tail else found


def device() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"name": "cpu", "memory_bytes": None}
    properties = torch.cuda.get_device_properties(0)
    capability = f"{properties.major}.{properties.minor}"
    return {"name": properties.name, "memory_bytes": properties.total_memory, "capability": capability}


def main() -> int:
    parser = argparse.ArgumentParser(description="Snugfit on a GPU.")
    parser.add_argument("--toy", action="store_true", help="toy sizes, on any machine")
    parser.add_argument("--only", nargs="*", choices=LIMITS, help="only these parts")
    parser.add_argument("--out", type=Path, help="folder of the result")
    given = parser.parse_args()
    on = device()
    if on["name"] == "cpu" and not given.toy:
        print("There is no CUDA device here. Try it out with --toy.", file=sys.stderr)
        return 2
    out = given.out or Path(os.environ.get("OUT") or HERE.parent / "results" / "gpu")
    out.mkdir(parents=True, exist_ok=True)
    date, head = time.strftime("%Y-%m-%d"), commit() or "unknown"
    name = "-".join(on["name"].lower().split())
    path = out / f"{name}_{date}_{head.rstrip('+')}.json"
    result: dict[str, Any] = {
        "date": date,
        "commit": head,
        "toy": given.toy,
        "device": on,
        "machine": machine(),
    }
    for part in given.only or LIMITS:
        result[part] = run_part(part, given.toy, LIMITS[part])
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(part, json.dumps(result[part])[:2000], flush=True)
    print(path)
    return int(any("error" in result[part] for part in given.only or LIMITS))


if __name__ == "__main__":
    sys.exit(main())
