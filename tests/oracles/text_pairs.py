"""The contrastive loss of texts and the ranks of their partners, as loops over numbers that know each text by name."""

from __future__ import annotations

import math


def cosine(one: list[float], other: list[float]) -> float:
    dot = sum(a * b for a, b in zip(one, other, strict=True))
    return dot / math.sqrt(sum(a * a for a in one)) / math.sqrt(sum(b * b for b in other))


def is_right(rows: list[list[str]], row: int, text: str) -> bool:
    """Return whether a text is right for a row too: its first text, and the partner of any row with the same first text."""
    first = rows[row][0]
    return text == first or any(each[0] == first and each[1] == text for each in rows)


def losses(embeddings: list[list[list[float]]], rows: list[list[str]], temperature: float) -> list[float]:
    """Return van den Oord et al. 2018, equation 4, of each row, without texts that are right too among its negatives."""
    values = []
    for row, texts in enumerate(rows):
        own = cosine(embeddings[row][0], embeddings[row][1]) / temperature
        total = math.exp(own)
        for owner, others in enumerate(rows):
            for place in range(1, len(others)):
                if (owner, place) == (row, 1) or is_right(rows, row, others[place]):
                    continue
                total += math.exp(cosine(embeddings[row][0], embeddings[owner][place]) / temperature)
        assert len(texts) > 1
        values.append(math.log(total) - own)
    return values


def ranks(embeddings: list[list[list[float]]], rows: list[list[str]]) -> list[float]:
    """Return the place of each row's partner among all different texts that are no first ones; texts as near count half."""
    places = []
    for row in range(len(rows)):
        own = cosine(embeddings[row][0], embeddings[row][1])
        known: dict[str, float] = {}
        for owner, others in enumerate(rows):
            for place in range(1, len(others)):
                text = others[place]
                if not is_right(rows, row, text):
                    known.setdefault(text, cosine(embeddings[row][0], embeddings[owner][place]))
        above = sum(each > own + 1e-9 for each in known.values())
        level = sum(abs(each - own) <= 1e-9 for each in known.values())
        places.append(1 + above + level / 2)
    return places
