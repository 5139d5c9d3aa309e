"""Prediction under the numerics of the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.entry import as_entry
from snugfit.core.losses import cross_entropy
from snugfit.deliver.predict import evaluate_file, extended, predictor_of
from snugfit.errors import ModelError
from snugfit.models.bundle import load_bundle, save_bundle
from snugfit.techniques import find
from tests.laws import problems


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
    ("numerics", "dtype"),
    [
        ("fp32", torch.float32),
        ("bf16", torch.bfloat16),
        ("fp16", torch.float16),
        ({"fp16": {"force": True}}, torch.float16),
    ],
)
def test_a_bundle_predicts_in_the_precision_it_was_trained_in(numerics: str, dtype: torch.dtype) -> None:
    model = Classifier()
    meta = {"task": "python", "loss": "cross_entropy", "numerics": numerics}
    predictor = predictor_of(model, meta, None, "cpu", "best")
    batch = Batch.of({"input_ids": torch.tensor([[1, 2]]), "labels": torch.tensor([1])})
    predictor.predict([{"input_ids": torch.tensor([1, 2])}])
    scored = dataclasses.replace(
        predictor, use=dataclasses.replace(predictor.inference, loss=cross_entropy)
    ).scored()
    with scored.forward(batch):
        scored.run(batch)
    assert model.seen == [dtype, dtype]
    assert not torch.is_autocast_enabled("cpu")


def test_a_model_of_another_task_is_refused_by_evaluate_in_its_own_words(tmp_path: Path) -> None:
    save_bundle(tmp_path / "best", problems.gpt2(()).model(torch.float32), {"task": "audio"})
    with pytest.raises(
        ModelError, match="task 'audio', and those that predict are of .* and text-classification"
    ):
        evaluate_file(tmp_path / "best", "rows.csv", ())


def test_a_model_whose_tokenizer_is_gone_says_so(tmp_path: Path) -> None:
    save_bundle(tmp_path / "best", problems.gpt2(()).model(torch.float32), {"task": "causal-lm"})
    with pytest.raises(ModelError, match="has no tokenizer, which predictions need"):
        evaluate_file(tmp_path / "best", "rows.csv", ())


@pytest.mark.parametrize("name", ["qk_norm", "embedding_norm"])
def test_a_bundle_is_loaded_with_the_norms_that_a_technique_had_added(name: str, tmp_path: Path) -> None:
    technique = find(name)()
    model = technique.prepare(problems.bert(()).model(torch.float32)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm.weight" in key:
                parameter.uniform_(0.5, 1.5)
    save_bundle(tmp_path / "best", model, {"extended_by": [as_entry(technique)]})
    loaded, _, _ = load_bundle(tmp_path / "best", extend=extended)
    window = problems.bert(()).windows(torch.float32)[0]
    del window["labels"]
    assert torch.equal(loaded(**window).logits, model(**window).logits)
