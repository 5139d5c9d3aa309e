from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.techniques import find
from snugfit.techniques.learning.embedding_norm import EmbeddingNorm, token_embeddings
from tests.laws import problems


@pytest.mark.parametrize("make", [problems.bert, problems.gpt2])
def test_embeddings_of_stock_models_are_normalised_and_the_places_are_not(make: problems.Maker) -> None:
    model = EmbeddingNorm().prepare(make(()).model())
    table = model.get_input_embeddings()
    with torch.no_grad():
        table.weight.mul_(100)  # beside which epsilon is nothing
    found = table(torch.tensor([[1, 5, 3]])).detach()
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    torch.testing.assert_close(found.mean(dim=-1), zeros, atol=1e-7, rtol=0)
    torch.testing.assert_close(found.var(dim=-1, unbiased=False), zeros + 1, atol=1e-4, rtol=0)
    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not table]
    assert others and not any(hasattr(other, "norm") for other in others)


def test_tied_output_weights_stay_as_they_are() -> None:
    model = problems.gpt2(()).model()
    before = model.lm_head.weight.detach().clone()
    EmbeddingNorm().prepare(model)
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert torch.equal(model.lm_head.weight, before)


def test_a_copy_of_the_model_has_a_norm_of_its_own() -> None:
    model = EmbeddingNorm().prepare(nn.Sequential(nn.Embedding(10, 4)))
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[0].norm.weight.zero_()
    ids = torch.tensor([1, 2])
    assert (other(ids) == 0).all() and (model(ids) != 0).any()


def test_the_largest_table_is_that_of_the_tokens_unless_one_is_named() -> None:
    model = nn.ModuleDict({"tokens": nn.Embedding(100, 4), "places": nn.Embedding(16, 4)})
    assert token_embeddings(model) is model["tokens"]
    assert token_embeddings(model, "places") is model["places"]
    assert token_embeddings(nn.ModuleDict({"body": model}), "places") is model["places"]


def test_a_model_without_such_embeddings_is_refused() -> None:
    with pytest.raises(
        SettingError, match="embedding_norm.embeddings: the model has no nn.Embedding .* Give its name"
    ):
        EmbeddingNorm().prepare(nn.Linear(2, 2))
    with pytest.raises(
        SettingError, match="embedding_norm.embeddings: '0' matches no Embedding of the model"
    ):
        EmbeddingNorm(embeddings="0").prepare(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize("adapters", ["lora", "ia3"])
def test_adapters_which_would_freeze_the_norm_are_refused(adapters: str) -> None:
    with pytest.raises(PlanConflict, match="the norm would not train with the adapters"):
        check([EmbeddingNorm(), find(adapters)()])
