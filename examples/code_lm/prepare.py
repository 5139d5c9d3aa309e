"""Make what `code_lm.yaml` trains: the standard library's source, a tokenizer learned from it, and a model's architecture.

    python examples/code_lm/prepare.py OUT_FOLDER [--vocabulary 4096] [--width 256] [--layers 6] [--modules 0]

writes `source.jsonl` (one module a row, as `text`), `tokenizer.json` and `config.json`: a model of Llama's kind, whose
weights `from_scratch: true` draws. Nothing is imported and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages", "encodings"}
MIN_CHARACTERS = 400


def sources(root: Path) -> Iterator[str]:
    """Yield the text of each module below `root`, in the order of their paths."""
    for path in sorted(root.rglob("*.py")):
        if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts):
            try:
                with tokenize.open(path) as file:
                    text = file.read()
            except (SyntaxError, UnicodeDecodeError):  # a template, or source of another language version
                continue
            if len(text) >= MIN_CHARACTERS:
                yield text


def write(folder: Path, texts: list[str], vocabulary: int, width: int, layers: int) -> None:
    """Write the rows, the tokenizer and the configuration."""
    from snugfit.models.small import write_small_model

    write_small_model(folder, texts, kind="decoder", vocabulary=vocabulary, width=width, layers=layers)
    with (folder / "source.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--modules", type=int, default=0, help="only so many, to try it out; 0 for all")
    given = parser.parse_args()
    texts = list(sources(Path(sysconfig.get_paths()["stdlib"])))
    if given.modules:
        texts = texts[: given.modules]
    write(given.out, texts, given.vocabulary, given.width, given.layers)
    print(f"{given.out}: {len(texts)} modules, {sum(map(len, texts)):,} characters")


if __name__ == "__main__":
    main()
