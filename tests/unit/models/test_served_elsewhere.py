"""`best/` of a classifier, as other libraries serve it: the same predictions, on texts longer than those trained with too."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    pipeline,
)

from snugfit.deliver.predictor import load_predictor
from snugfit.models.bundle import save_bundle
from snugfit.models.tokenizer import load_tokenizer

MAX_LENGTH = 8
LONG = "good bad film book " * 5


def best_of(
    folder: Path, config: BertConfig, tokenizer: PreTrainedTokenizerFast
) -> BertForSequenceClassification:
    torch.manual_seed(0)
    labels = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
    model = BertForSequenceClassification(BertConfig(**{**config.to_dict(), **labels})).eval()
    meta = {
        "task": "text-classification",
        "labels": ["neg", "pos"],
        "text_columns": ["text"],
        "label_column": "label",
        "max_length": MAX_LENGTH,
        "numerics": "fp32",
    }
    save_bundle(folder, model, meta, tokenizer)
    return model


def test_a_pipeline_of_transformers_gives_our_probabilities_on_long_texts(
    tmp_path: Path, bert_config: BertConfig, tokenizer: PreTrainedTokenizerFast
) -> None:
    best_of(tmp_path / "best", bert_config, tokenizer)
    ours = load_predictor(tmp_path / "best").predict([{"text": LONG}, {"text": "good"}])
    served = pipeline("text-classification", model=str(tmp_path / "best"), truncation=True)
    for own, theirs in zip(ours, served([LONG, "good"]), strict=True):
        assert theirs["label"] == own["prediction"]
        assert abs(theirs["score"] - own["probability"]) < 1e-6


def test_who_trains_on_from_best_may_take_texts_as_long_as_the_pretrained_model_does(
    tmp_path: Path, bert_config: BertConfig, tokenizer: PreTrainedTokenizerFast
) -> None:
    limit = tokenizer.model_max_length
    best_of(tmp_path / "best", bert_config, tokenizer)
    again = load_tokenizer(tmp_path / "best")
    assert tokenizer.model_max_length == limit == again.model_max_length
    best_of(tmp_path / "next", bert_config, again)
    assert load_tokenizer(tmp_path / "next").model_max_length == limit


def test_a_bundle_loads_by_the_auto_class(
    tmp_path: Path, bert_config: BertConfig, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = best_of(tmp_path / "best", bert_config, tokenizer)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "best").eval()
    tokens = torch.tensor([[2, 4, 5, 3]])
    assert torch.equal(model(tokens).logits, again(tokens).logits)
