"""Two baselines on the corpus's own split: the majority class, and TF-IDF with logistic regression.

    python baselines.py FOLDER [--json]

reads `train.csv` and `validation.csv` from the folder, as `corpus.py` writes them.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter
from pathlib import Path


def read(path: Path) -> tuple[list[str], list[str]]:
    """Return labels and texts of a CSV file with the columns `label` and `text`."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["label"] for row in rows], [row["text"] for row in rows]


def majority(train_labels: list[str], labels: list[str]) -> list[str]:
    """Predict the most frequent training label for everything; of equally frequent ones, the first by name."""
    counts = Counter(train_labels)
    return [min(counts, key=lambda label: (-counts[label], label))] * len(labels)


def tfidf(
    train_labels: list[str], train_texts: list[str], texts: list[str], strength: float = 10.0
) -> list[str]:
    """Predict with logistic regression on sublinear TF-IDF of words and word pairs.

    Args:
        strength: scikit-learn's `C`, the inverse of the L2 penalty.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), strip_accents="unicode"),
        LogisticRegression(C=strength, max_iter=2000),
    )
    return list(model.fit(train_texts, train_labels).predict(texts))


def scores(labels: list[str], predictions: list[str]) -> dict[str, float]:
    """Accuracy, and F1 averaged over the classes that occur in `labels`, each class with the same weight."""
    from sklearn.metrics import accuracy_score, f1_score

    names = sorted(set(labels))
    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "macro_f1": float(f1_score(labels, predictions, labels=names, average="macro", zero_division=0.0)),
    }


def run(folder: Path) -> dict[str, dict[str, float]]:
    """Scores of both baselines on `validation.csv`."""
    train_labels, train_texts = read(folder / "train.csv")
    labels, texts = read(folder / "validation.csv")
    return {
        "majority class": scores(labels, majority(train_labels, labels)),
        "TF-IDF + logistic regression": scores(labels, tfidf(train_labels, train_texts, texts)),
    }


def table(results: dict[str, dict[str, float]]) -> str:
    """Return the scores as lines for a terminal."""
    lines = [f"{'':32}{'accuracy':>10}{'macro F1':>10}"]
    lines += [f"{name:32}{row['accuracy']:>10.3f}{row['macro_f1']:>10.3f}" for name, row in results.items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Score the majority class and TF-IDF + logistic regression.")
    parser.add_argument("folder", type=Path, help="folder with train.csv and validation.csv")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    try:
        results = run(options.folder)
    except (OSError, KeyError) as error:
        print(f"baselines: {options.folder} is not a folder that corpus.py wrote: {error}", file=sys.stderr)
        return 2
    print(json.dumps(results) if options.json else table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
