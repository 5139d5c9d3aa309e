"""`make test-all` tries the mutations; that each still fits the source is seen at once."""

from __future__ import annotations

import pytest

from scripts.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name.partition(":")[0])
def test_the_passage_of_a_mutation_occurs_once(mutation: Mutation) -> None:
    text = (ROOT / "src/snugfit" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.passage) == 1
    assert mutation.broken not in ("", mutation.passage)
