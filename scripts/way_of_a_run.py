"""The way of a run of three updates: how many files of the package it enters, and where a call climbs to a higher floor.

    python -m scripts.way_of_a_run           counts, and each climb from one file to another
    python -m scripts.way_of_a_run --files   the files too

The run is of a recipe, planned, without a tracker. A file counts when one of its functions runs; a call climbs when its caller's package
lies on a lower floor of docs/architecture.md than its own. Climbs are counted up to the first update. What the planner predicts in a
process of its own is not counted.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import snugfit
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe

ROOT = f"{Path(snugfit.__file__).parent}/"
FLOORS = (
    ("errors.py", "units.py", "system"),
    ("core",),
    ("kit",),
    ("techniques", "strategies", "data", "models", "tracking", "results"),
    ("step",),
    ("tasks",),
    ("planner",),
    ("deliver",),
    ("report",),
    ("recipe",),
    ("display",),
    ("run",),
)
LEVELS = {package: level for level, packages in enumerate(FLOORS) for package in packages}
RECIPE = """\
name: three
task: tabular-classification
model: mlp
data: {train: rows.csv, validation: 0.25, label: label}
train: {updates: 3, global_batch: 8}
optimizer: {adamw: {learning_rate: 0.01}}
plan: {device: cpu}
track: {mlflow: false}
"""


class Way:
    """The files that calls enter, and the climbs up to the first update."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.climbs: Counter[tuple[str, str]] = Counter()
        self._begins = True

    def follow(self, frame: FrameType, event: str, _: Any) -> None:
        """Take in a call, as a profile function of `sys.setprofile`."""
        code = frame.f_code
        if (
            event != "call"
            or not code.co_filename.startswith(ROOT)
            or not code.co_flags & inspect.CO_OPTIMIZED
            or is_in_body(frame)
        ):
            return  # bodies of modules and classes have no fast locals
        file = code.co_filename.removeprefix(ROOT)
        self.files.add(file)
        self._begins &= (file, code.co_name) != ("step/step.py", "__call__")
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(ROOT):
            caller = caller.f_back
        if self._begins and caller is not None:
            place = caller.f_code.co_filename.removeprefix(ROOT)
            if level_of(place) < level_of(file):
                self.climbs[place, file] += 1


def is_in_body(frame: FrameType) -> bool:
    """Return whether it is a comprehension in the body of a module, which runs when that is imported: a function of its own to Python."""
    return (
        frame.f_code.co_name.endswith(("comp>", "genexpr>"))
        and getattr(frame.f_back, "f_code", frame.f_code).co_name == "<module>"
    )


def level_of(file: str) -> int:
    """Return the floor on which a file lies, from below."""
    return LEVELS[file.split("/")[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description="The way of a run of three updates.")
    parser.add_argument("--files", action="store_true", help="list the files")
    options = parser.parse_args()
    way = Way()
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"{row % 7},{row % 5},{'ab'[row % 2]}\n" for row in range(48)]
        Path(folder, "rows.csv").write_text("x,y,label\n" + "".join(rows), encoding="utf-8")
        recipe = Path(folder, "three.yaml")
        recipe.write_text(RECIPE, encoding="utf-8")
        threading.setprofile(way.follow)
        sys.setprofile(way.follow)
        train_recipe(load_recipe(recipe, [f"output={folder}/runs"]), RunOptions(plan=True, replan=True))
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    if "planner/answers/answer.py" not in way.files:
        sys.exit(
            "The run was not planned, as the planner gave no answer in time: its way is not the whole one. Try again where this machine does less else."
        )
    packages = Counter(file.split("/")[0] for file in way.files)
    print(
        f"{len(way.files)} files: {', '.join(f'{package} {count}' for package, count in packages.most_common())}"
    )
    print(f"{way.climbs.total()} climbs before the first update")
    for (place, file), count in way.climbs.most_common():
        print(f"  {count:3} {place} -> {file}")
    if options.files:
        print("\n".join(sorted(way.files)))


if __name__ == "__main__":
    main()
