"""The contrastive loss of texts that belong together, beside a loop: further texts, and texts that are right for more than one row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from snugfit.core.losses import InfoNCE
from tests.oracles.text_pairs import losses

PAIRS = [["a", "b"], ["c", "d"], ["a", "e"], ["f", "b"], ["g", "a"], ["c", "d"]]
SHARED = [["a", "p"], ["a", "q"], ["b", "q"], ["b", "r"]]
"""A partner of one text that is the partner of another one too."""
TRIPLETS = [["a", "b", "x"], ["c", "d", "b"], ["a", "e", "c"], ["f", "b", "y"], ["g", "a", "x"]]
"""Texts that stand in rows twice, as a first, a second and a third one."""


def numbers(rows: list[list[str]]) -> Tensor:
    return torch.tensor([[ord(text) for text in row] for row in rows])


def drawn(rows: list[list[str]], width: int = 4) -> Tensor:
    """Embeddings that are equal where the texts are."""
    table = torch.randn(256, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return table[numbers(rows)]


@pytest.mark.parametrize("rows", [PAIRS, SHARED, TRIPLETS], ids=["pairs", "shared", "triplets"])
def test_texts_that_are_right_too_are_no_negatives(rows: list[list[str]]) -> None:
    embeddings = drawn(rows)
    terms = InfoNCE(temperature=0.3)({"logits": embeddings, "texts": numbers(rows)}, None)
    assert terms.values.tolist() == pytest.approx(losses(embeddings.tolist(), rows, 0.3))
    blind = InfoNCE(temperature=0.3)((embeddings[:, 0], embeddings[:, 1]), None)
    assert not torch.allclose(terms.values, blind.values)


def test_different_texts_are_compared_as_queries_and_keys_are() -> None:
    rows = [["a", "b"], ["c", "d"], ["e", "f"]]
    embeddings = drawn(rows)
    of_texts = InfoNCE(symmetric=True)({"logits": embeddings, "texts": numbers(rows)}, None)
    plain = InfoNCE(symmetric=True)(embeddings, None)
    assert torch.equal(of_texts.values, plain.values)


def test_a_row_of_a_pair_alone_has_no_loss() -> None:
    rows = [["a", "b"], ["a", "b"]]
    terms = InfoNCE()({"logits": drawn(rows), "texts": numbers(rows)}, None)
    assert terms.values.tolist() == [0.0, 0.0]
