"""Exports of models that predict numbers: in the unit of the labels, or with the scale on the card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import BertForSequenceClassification

import snugfit as sf
from snugfit.deliver.export.export_model import export_source
from tests.unit.deliver.export.models import run_card, text_classifier, text_regressor

pytest.importorskip("onnxruntime")

PAIRS = {"title": "a text", "text": "another text"}


def predicted(bundle: Path, row: dict[str, str]) -> float:
    return float(sf.load(bundle).predict([row])[0]["prediction"])


def printed_score(folder: Path) -> float:
    """The number that the pipeline on a card prints."""
    printed = run_card(folder)["printed"]
    (value,) = [each["score"] for each in (printed if isinstance(printed, list) else [printed])]
    return float(value)


def row_of(pairs: bool) -> dict[str, str]:
    """The row of the text, or the texts, that a card's code gives to a model."""
    return PAIRS if pairs else {"title": "a text"}


@pytest.fixture(scope="module", params=[False, True], ids=["texts", "pairs"])
def regressor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, bool]:
    folder = tmp_path_factory.mktemp("numbers")
    columns = {} if request.param else {"text_columns": ["title"]}
    return *text_regressor(folder, pairs=request.param, **columns), request.param


def test_the_code_on_the_card_of_transformers_gives_the_number_that_is_predicted_here(
    regressor: tuple[Path, str, bool], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows, pairs = regressor
    (compared,) = export_source(bundle, "hf", tmp_path / "out", rows=rows)["compared"]
    assert compared["difference"] < 1e-6 and compared["equal"] == ["tokens"]
    own = predicted(bundle, row_of(pairs))
    assert own > 20 and printed_score(tmp_path / "out") == pytest.approx(own, rel=1e-5)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["problem_type"] == "regression", "who leaves out function_to_apply gets no probability"
    assert (
        "A logit is a number in the unit of the column 'minutes'."
        in (tmp_path / "out" / "README.md").read_text()
    )


def test_the_model_that_was_loaded_keeps_its_scale(
    regressor: tuple[Path, str, bool], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows, pairs = regressor
    trained = sf.load(bundle)
    (before,) = trained.predict([row_of(pairs)])
    trained.export("hf", tmp_path / "out", rows=rows)
    assert trained.predict([row_of(pairs)]) == [before]
    assert trained.model.config.problem_type is None


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_the_code_on_the_card_of_a_graph_gives_the_number_that_is_predicted_here(
    to: str, regressor: tuple[Path, str, bool], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows, pairs = regressor
    export_source(bundle, to, tmp_path / "out", rows=rows)
    logits = run_card(tmp_path / "out")["logits"]
    assert logits.item() == pytest.approx(predicted(bundle, row_of(pairs)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "numbers"), [("state-dict", None), ("hf", "bf16")], ids=["weights by their names", "rounded"]
)
def test_the_card_has_the_scale_where_the_head_does_not_hold_it(
    to: str, numbers: str | None, regressor: tuple[Path, str, bool], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows, pairs = regressor
    export_source(bundle, to, tmp_path / "out", numbers=numbers, rows=rows)
    assert "`value = 40.0 + 8.0 * logit`" in (tmp_path / "out" / "README.md").read_text()
    if to == "hf":
        value = 40.0 + 8.0 * printed_score(tmp_path / "out")
        assert value == pytest.approx(predicted(bundle, row_of(pairs)), rel=2e-3)


@pytest.mark.slow
def test_a_head_without_a_bias_leaves_the_scale_to_the_card(tmp_path: Path, reading_here: None) -> None:
    bundle, rows = text_regressor(tmp_path)
    trained = sf.load(bundle)
    trained.model.classifier.bias = None
    trained.export("onnx", tmp_path / "out", rows=rows)
    assert "`value = 40.0 + 8.0 * logit`" in (tmp_path / "out" / "README.md").read_text()


def test_a_layer_that_is_not_the_head_is_not_scaled(
    tmp_path: Path, reading_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, rows = text_regressor(tmp_path)
    forward = BertForSequenceClassification.forward

    def squared(self: Any, **inputs: Any) -> Any:
        output = forward(self, **inputs)
        output.logits = output.logits**2
        return output

    monkeypatch.setattr(BertForSequenceClassification, "forward", squared)
    export_source(bundle, "hf", tmp_path / "out", rows=rows)
    assert "`value = 40.0 + 8.0 * logit`" in (tmp_path / "out" / "README.md").read_text()


def test_a_classifier_of_pairs_has_code_that_gives_it_both_texts(tmp_path: Path, reading_here: None) -> None:
    bundle, rows = text_classifier(tmp_path, pairs=True)
    export_source(bundle, "hf", tmp_path / "out", rows=rows)
    printed = run_card(tmp_path / "out")["printed"]
    (own,) = sf.load(bundle).predict([PAIRS])
    (given,) = printed if isinstance(printed, list) else [printed]
    assert given["label"] == own["prediction"]
