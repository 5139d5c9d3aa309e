"""Exports of models that give texts any number of labels: transformers and a graph give the probabilities that were scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.predictor import load_predictor
from tests.unit.deliver.export.models import run_card, text_labeller

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def labeller(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return text_labeller(tmp_path_factory.mktemp("labels"))


@pytest.mark.slow
def test_the_pipeline_on_the_card_gives_the_probability_of_each_label(
    labeller: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows = labeller
    (compared,) = export_source(bundle, "hf", tmp_path / "out", rows=rows)["compared"]
    assert compared["equal"] == ["tokens", "label names"]
    assert (
        json.loads((tmp_path / "out/config.json").read_text())["problem_type"] == "multi_label_classification"
    )
    card = (tmp_path / "out/README.md").read_text()
    assert "for multi-label-classification of 3 labels (film, praise, blame)" in card
    assert "the sigmoid of its logit is 0.45 or more" in card
    (own,) = load_predictor(bundle).predict([{"title": "", "text": "a text"}])
    given = run_card(tmp_path / "out")["printed"]
    assert {each["label"] for each in given[0]} == {"film", "praise", "blame"}
    for each in given[0]:
        assert each["score"] == pytest.approx(own[f"probability of {each['label']}"], abs=1e-5)


@pytest.mark.slow
def test_a_graph_gives_the_scored_logits_and_names_the_labels(
    labeller: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows = labeller
    (compared,) = export_source(bundle, "onnx", tmp_path / "out", rows=rows)["compared"]
    assert compared["rows"] == 4 and compared["difference"] < 1e-5
    assert json.loads((tmp_path / "out/labels.json").read_text()) == ["film", "praise", "blame"]
