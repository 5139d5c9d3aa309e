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


def described(result: dict[str, Any]) -> dict[str, Any]:
    """Return `result` with date, commit and machine."""
    return {"date": time.strftime("%Y-%m-%d"), "commit": commit(), "machine": machine(), **result}


def keep_compiled_files() -> None:
    """Have the processes that a benchmark starts keep what they compile, as those of an installed package do, whatever the environment says."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def write_result(folder: Path, result: dict[str, Any], name: str = "") -> Path:
    """Write `result` with date, commit and machine beside the benchmark."""
    path = folder / "results" / f"{name and name + '-'}{time.strftime('%Y-%m-%d')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(described(result), indent=1) + "\n")
    return path


def put_on_page(page: Path, name: str, text: str) -> None:
    """Put a text in its place on a page: between `<!-- NAME -->` and `<!-- /NAME -->`.

    Raises:
        SystemExit: the page has no such place.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    if end not in rest:
        raise SystemExit(f"{page} has no markers {begin} and {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


class Rows:
    """Rows of a benchmark that are written as they are measured, so that one that was ended goes on with those that lack.

    Args:
        folder: of the benchmark. Its newest `results/DATE.json` is gone on with where rows lack in it, or it is of today.
        names: of all rows, in order.
        settings: of the measurements; rows of others are not mixed with these.
    Raises:
        SystemExit: the file of today is of other settings.
    """

    def __init__(self, folder: Path, names: Sequence[str], settings: dict[str, Any]) -> None:
        self._names, self._settings = names, settings  # plain values
        self.path = folder / "results" / f"{time.strftime('%Y-%m-%d')}.json"
        self.runs: dict[str, dict[str, Any]] = {}
        newest = max((folder / "results").glob("20*.json"), default=self.path)
        if not newest.exists():
            return
        content = json.loads(newest.read_text())
        same = content.get("settings") == settings
        if newest == self.path and not same:
            raise SystemExit(f"{newest} was measured with other settings than {settings}: move it away first")
        if same and (newest == self.path or {*names} - {*content["runs"]}):
            self.path, self.runs = newest, content["runs"]

    @property
    def missing(self) -> list[str]:
        return [name for name in self._names if name not in self.runs]

    def add(self, name: str, row: dict[str, Any]) -> None:
        """Write a row to the file, with the date, commit and machine that it was measured at."""
        rows = {**self.runs, name: described(row)}
        self.runs = {each: rows[each] for each in self._names if each in rows}
        self.path.parent.mkdir(exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps({"settings": self._settings, "runs": self.runs}, indent=1) + "\n")
        partial.replace(self.path)  # rows before outlast an end in the middle
