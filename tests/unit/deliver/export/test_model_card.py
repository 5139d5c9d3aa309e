"""The model card: what the hub reads of it, and what people do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from torch import nn
from transformers import LlamaForCausalLM

from snugfit.deliver.export.comparison import Comparison
from snugfit.deliver.export.export_format import ExportOptions, Written
from snugfit.deliver.export.export_model import FORMATS
from snugfit.deliver.export.exported_model import subject_of
from snugfit.deliver.export.model_card import write_card
from snugfit.deliver.export.scored import ScoredRows
from snugfit.deliver.predictor import load_predictor, predictor_of
from snugfit.models.bundle import save_bundle
from snugfit.tracking.spool import Spool
from tests.unit.data.texts.test_chat_template import TEMPLATES
from tests.unit.data.texts.test_instruct import by_letters
from tests.unit.tasks.tiny_decoder import decoder_config

LABELS = ["bad", "good"]


def card(folder: Path, metrics: dict[str, Any], **event: Any) -> ModelCard:
    """The card of a classifier that was trained so."""
    (folder / "best").mkdir(parents=True)
    with Spool(folder / "events.jsonl") as spool:
        spool.append("run", name="reviews", versions={"torch": "2.13.0"}, **event)
    meta = {
        "task": "text-classification",
        "labels": LABELS,
        "update": 1200,
        "metrics": metrics,
        "max_length": 64,
    }
    predictor = predictor_of(nn.Linear(2, 2), meta, None, "cpu", "here")
    subject = subject_of(predictor, folder / "best")
    compared = [Comparison("transformers 5.23.0", 8, 2e-7, 1e-6, checked=("tokens",)).in_words()]
    written = Written(
        usage="print('used')\n", notes=["It is small."], header={"library_name": "transformers"}
    )
    scored = ScoredRows(nn.Linear(2, 2), inputs=[{}] * 8)
    write_card(subject, folder, FORMATS["hf"], ExportOptions("bf16"), scored, written, compared)
    return ModelCard.load(folder / "README.md")


def test_the_hub_reads_the_kind_the_base_and_the_metrics_with_what_they_were_measured_on(
    tmp_path: Path,
) -> None:
    read = card(
        tmp_path,
        {"accuracy": 0.9, "loss": "NaN"},
        recipe={"model": "somebody/encoder", "loss": "cross_entropy"},
        inputs=[
            {"context": "train", "source": "/home/me/train.csv", "sha256": "aa"},
            {"context": "validation", "source": "/home/me/held.csv", "sha256": "bb"},
        ],
    )
    assert (read.data.pipeline_tag, read.data.library_name, read.data.base_model) == (
        "text-classification",
        "transformers",
        "somebody/encoder",
    )
    (result,) = read.data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_name) == ("accuracy", 0.9, "held.csv")


def test_people_read_use_comparison_data_limits_and_recipe_and_no_path_of_the_machine(tmp_path: Path) -> None:
    text = card(
        tmp_path,
        {"accuracy": 0.9},
        recipe={
            "model": "/home/me/models/encoder",
            "data": {"train": "/home/me/train.csv", "max_length": 64},
            "output": "/home/me/runs",
            "track": {"uri": "http://me:secret@host"},
        },
        data={"train": 900, "validation": 100, "unit": "rows", "skipped": {"empty text": 3}},
        inputs=[{"context": "train", "source": "/home/me/train.csv", "sha256": "aa"}],
    ).content
    for sentence in (
        "A Linear for text-classification of 2 classes (bad, good), trained from the local folder 'encoder'.",
        "model: ./encoder\n",
        "print('used')",
        "It is small.",
        "compared on 8 rows",
        "- transformers 5.23.0, 8 rows: logits differ by 2e-07 of their spread",
        "At update 1,200, on the rows held out:",
        "| accuracy | 0.9 |",
        "900 rows to train on, 100 held out.",
        "- train: `train.csv`, sha256 `aa`",
        "Left out: empty text (3).",
        "at most 64 tokens a row",
        "The rows held out were drawn from the training data.",
        "train: train.csv",
    ):
        assert sentence in text, sentence
    assert "/home/me" not in text and "secret" not in text


@pytest.mark.parametrize(("template", "told"), [("llama 3.2: today's date", True), ("chatml", False)])
def test_a_template_that_writes_todays_date_is_told_with_the_day_that_was_learned_from(
    template: str, told: bool, tmp_path: Path
) -> None:
    text, marks, _ = TEMPLATES[template]
    tokenizer = by_letters(text, marks)
    model = LlamaForCausalLM(decoder_config(tokenizer, 8))
    save_bundle(tmp_path / "best", model, {"task": "instruction", "max_length": 64}, tokenizer)
    subject = subject_of(load_predictor(tmp_path / "best", "cpu"), tmp_path / "best")
    scored = ScoredRows(model, inputs=[{}] * 8)
    write_card(subject, tmp_path, FORMATS["hf"], ExportOptions("fp32"), scored, Written(usage=""), ())
    said = "It learned from conversations of 26 July 2024 alone."
    assert (said in (tmp_path / "README.md").read_text()) == told


def test_a_model_that_was_measured_on_nothing_says_so(tmp_path: Path) -> None:
    text = card(tmp_path, {}).content
    assert "It was measured on nothing: the run had no rows held out." in text
    assert "model-index" not in text


def test_an_architecture_that_is_trained_from_scratch_is_no_base_and_tells_no_folder(tmp_path: Path) -> None:
    local = card(tmp_path / "local", {}, recipe={"model": "config:/home/me/models/encoder"})
    assert "good), from the configuration of the local folder 'encoder'." in local.content
    assert "model: config:./encoder\n" in local.content and "/home/me" not in local.content
    for recipe in ({"model": "config:some/encoder"}, {"model": "some/encoder", "from_scratch": True}):
        of_hub = card(tmp_path / str(len(recipe)), {}, recipe=recipe)
        assert "good), from the configuration of some/encoder." in of_hub.content
        assert of_hub.data.base_model is None


def test_the_class_of_a_network_of_ours_is_named_without_the_mark_of_what_is_private() -> None:
    class _Network(nn.Linear):
        pass

    predictor = predictor_of(_Network(2, 2), {"task": "python"}, None, "cpu", "here")
    assert subject_of(predictor, None).class_name == "Network"
