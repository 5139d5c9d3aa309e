"""Prediction under the numerics of the run."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.deliver.predict import Predictor


class Classifier(nn.Module):
    """Tells in which precision its products are."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embed(input_ids).mean(dim=1))
        self.seen.append(logits.dtype)
        return {"logits": logits}


@pytest.mark.parametrize(
    ("numerics", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_bundle_predicts_in_the_precision_it_was_trained_in(numerics: str, dtype: torch.dtype) -> None:
    model = Classifier()
    meta = {"numerics": numerics, "labels": ["no", "yes"]}
    predictor = Predictor(model, meta, None, torch.device("cpu"))  # type: ignore[arg-type]
    batch = Batch.of({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([1])})
    predictor._logits(batch)
    scored = predictor.scored()
    with scored.forward(batch):
        scored.run(batch)
    assert model.seen == [dtype, dtype]
    assert not torch.is_autocast_enabled("cpu")
