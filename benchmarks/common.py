"""The base of all benchmarks: paired ratios with their interval, and results as JSON."""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "lightning", "accelerate", "transformers", "mlflow", "rich")


def paired_ratio(ours: Sequence[float], baseline: Sequence[float], draws: int = 2000) -> dict[str, float]:
    """Median of the ratios of repeats that ran side by side, with the 95% interval of that median (bootstrap)."""
    ratios = [one / other for one, other in zip(ours, baseline, strict=True)]
    generator = random.Random(0)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(draws))
    return {
        "median": statistics.median(ratios),
        "low": medians[int(0.025 * draws)],
        "high": medians[int(0.975 * draws)],
    }


def machine() -> dict[str, Any]:
    from snugfit.system.processor import processor_name

    description: dict[str, Any] = {
        "platform": platform.platform(),
        "processor": processor_name(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    for package in PACKAGES:
        try:
            description[package] = version(package)
        except PackageNotFoundError:
            description[package] = None
    return description


def commit() -> str:
    """Return the commit that was measured; '+' where the tree had changes."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=False
    )
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def write_result(folder: Path, result: dict[str, Any], name: str = "") -> Path:
    """Write `result` with date, commit and machine beside the benchmark."""
    path = folder / "results" / f"{name and name + '-'}{time.strftime('%Y-%m-%d')}.json"
    path.parent.mkdir(exist_ok=True)
    described = {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine(), **result}
    path.write_text(json.dumps(described, indent=1) + "\n")
    return path
