"""Pairs for instruction tuning, made of the plays: who is to answer what was said, and the answer."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

LONGEST = 160
"""Characters of a speech that is taken."""


def pairs(text: str) -> list[dict[str, str]]:
    """Return the pairs of speeches that follow one another, both short and of two speakers, as prompts and completions.

    >>> pairs("ROMEO:\\nIs the day so young?\\n\\nBENVOLIO:\\nBut new struck nine.\\n")
    [{'prompt': 'Answer as BENVOLIO.\\nROMEO: Is the day so young?', 'completion': 'But new struck nine.'}]
    """
    speeches = []
    for part in text.split("\n\n"):
        speaker, colon, words = part.strip().partition(":\n")
        speeches.append((speaker, words.strip()) if colon and "\n" not in speaker else None)
    pairs = []
    for one, other in itertools.pairwise(speeches):
        if one is None or other is None or one[0] == other[0]:
            continue
        if 0 < len(one[1]) <= LONGEST and 0 < len(other[1]) <= LONGEST:
            pairs.append({"prompt": f"Answer as {other[0]}.\n{one[0]}: {one[1]}", "completion": other[1]})
    return pairs


def write_pairs(text: Path, path: Path, count: int, seed: int = 0) -> Path:
    """Write so many pairs of a text, drawn by the seed, as rows."""
    rows = pairs(text.read_text())
    random.Random(seed).shuffle(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))
    return path
