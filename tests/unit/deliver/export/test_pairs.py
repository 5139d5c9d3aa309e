"""Exports of models that read pairs of texts: the second text reaches them as it did when they were trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.deliver.export.example_rows import score
from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.export.exported_model import load_subject
from snugfit.deliver.export.graph import with_graph_inputs
from tests.unit.deliver.export.models import text_classifier

pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return text_classifier(tmp_path_factory.mktemp("pairs"), pairs=True)


def test_a_graph_of_pairs_takes_the_types_of_their_tokens_from_rows_and_from_drawn_inputs(
    pairs: tuple[Path, str],
) -> None:
    subject = load_subject(pairs[0])
    for rows in (pairs[1], None):
        scored = score(subject, rows)
        inputs = with_graph_inputs(subject, scored).inputs
        assert [list(each) for each in inputs] == [["input_ids", "attention_mask", "token_type_ids"]] * len(
            scored.inputs
        )
        assert all(set(each["token_type_ids"][0].tolist()) == {0, 1} for each in inputs)


def test_a_model_without_embeddings_of_types_has_no_input_of_them(pairs: tuple[Path, str]) -> None:
    subject = load_subject(pairs[0])
    subject.config.type_vocab_size = 1
    assert not subject.reads_token_types
    scored = score(subject, pairs[1])
    assert "token_type_ids" not in with_graph_inputs(subject, scored).inputs[0]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_a_graph_of_pairs_gives_the_scored_logits(
    to: str, pairs: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    (compared,) = export_source(pairs[0], to, tmp_path / "out", rows=pairs[1])["compared"]
    assert compared["rows"] == 4 and compared["difference"] < 1e-5
    assert "`token_type_ids` (batch × length, int64)" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_transformers_joins_the_texts_of_a_pair_as_they_were_scored(
    pairs: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    (compared,) = export_source(pairs[0], "hf", tmp_path / "out", rows=pairs[1])["compared"]
    assert compared["equal"] == ["tokens", "label names"]
