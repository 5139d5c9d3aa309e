"""The tests of the suite that only CUDA can run, found by what they are skipped for."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from checks import Settings, check, require

ROOT = Path(__file__).resolve().parents[3]


def tests_that_need_cuda() -> Iterator[str]:
    """Give the ids of tests with a skip that asks torch for CUDA."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "cuda.is_available" not in text:
            continue
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            skips = [ast.unparse(each) for each in node.decorator_list]
            if any("skipif" in each and "cuda.is_available" in each for each in skips):
                yield f"{path.relative_to(ROOT)}::{node.name}"


@check("the suite's tests that need CUDA", 120, modules=("pytest",))
def suite(settings: Settings) -> Mapping[str, Any]:
    """Run them; on a CPU they are collected, and each is skipped."""
    ids = [*tests_that_need_cuda()]
    require(len(ids) >= 4, f"only {len(ids)} tests ask for CUDA, which were more", ids=ids)
    if settings.toy:  # a few are enough to see them collected
        ids = ids[:2]
    report = settings.folder / "tests.xml"
    options = [
        "-q",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={ROOT}",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "-o",
        f"pythonpath={ROOT}",
        f"--junit-xml={report}",
        *ids,
    ]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), *filter(None, sys.path)])
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    require(
        report.exists(), f"pytest ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    )
    rows = {
        f"{case.get('classname')}::{case.get('name')}": next((child.tag for child in case), "passed")
        for case in ElementTree.parse(report).getroot().iter("testcase")
    }
    failed = [name for name, status in rows.items() if status in ("failure", "error")]
    figures = {"tests": rows}
    require(not failed, f"{len(failed)} tests fail: {', '.join(failed)}\n{done.stdout[-3000:]}", **figures)
    ran = sum(status == "passed" for status in rows.values())
    require(bool(rows) and (ran > 0 or not settings.cuda), "no test ran", **figures)
    return figures
