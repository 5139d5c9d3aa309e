"""`make test-all` tries the mutations; that each still fits the source is seen at once."""

from __future__ import annotations

from scripts.mutations import MUTATIONS, ROOT


def test_the_passage_of_each_mutation_occurs_once() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / "src/snugfit" / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.passage) == 1, mutation.name
        assert mutation.broken not in ("", mutation.passage), mutation.name
