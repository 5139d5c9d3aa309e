"""The code on the card of an export: inputs of the shapes and types that a graph takes, and prompts as they were trained on."""

from __future__ import annotations

from pathlib import Path

import pytest

import snugfit as sf
from snugfit.data.tables.table_format import TableFormat
from snugfit.data.texts.conversation_tokens import Coder
from snugfit.data.texts.conversations import PAIRS, conversation_of
from snugfit.data.texts.instruct import InstructSettings
from snugfit.deliver.export.export_model import export_source
from snugfit.errors import ModelError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from tests.unit.deliver.export.models import of_bytes, run_card, stored

pytest.importorskip("onnxruntime")

RECIPE = """\
task: tabular-regression
model: ./net.json
data: {train: rows.csv, validation: 0.25, label: price, columns: [x, y, kind]}
train: {epochs: 1, global_batch: 8}
optimizer: {adamw: {learning_rate: 1.0e-2}}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.mark.slow
def test_the_code_on_the_card_of_a_graph_of_a_table_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading_here: None
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = ("flat", "house")
    rows = [f"{number},{number * 0.37 % 5},{kinds[number % 2]},{100 + number}" for number in range(32)]
    Path("rows.csv").write_text("\n".join(["x,y,kind,price", *rows]) + "\n")
    Path("net.json").write_text('{"width": 8, "members": 2, "embedding": 2, "bins": 2, "dropout": 0.0}')
    Path("recipe.yaml").write_text(RECIPE)
    run = train_recipe(load_recipe(Path("recipe.yaml")), RunOptions()).run_dir
    model = sf.load(run)
    for to in ("onnx", "torch-export"):
        export_source(run, to, tmp_path / to)
        names = run_card(tmp_path / to)
        assert names["row"].keys() == {"x", "y", "kind"}
        (predicted,) = model.predict([names["row"]])
        assert float(names["logits"][0]) == pytest.approx(predicted["prediction"], rel=1e-5), predicted
        card = (tmp_path / to / "README.md").read_text()
        assert "equal are inputs of rows" in card
        assert "for tabular-regression, from the configuration of the local file 'net.json'." in card
    monkeypatch.setattr(TableFormat, "plain", lambda table, row: {**row, "x": -1.0})
    with pytest.raises(ModelError, match=r"table_inputs\.py makes another input of row 1"):
        export_source(run, "onnx", tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("to", "templated"), [("hf", False), ("hf", True), ("onnx", False), ("onnx", True)])
def test_the_code_on_the_card_of_a_language_model_asks_as_it_was_trained(
    to: str, templated: bool, tmp_path: Path, reading_here: None
) -> None:
    tokenizer = of_bytes()
    if not templated:
        tokenizer.chat_template = None
    bundle, rows = stored(tmp_path, "llama", tokenizer)
    export_source(bundle, to, tmp_path / "out", rows=rows)
    names = run_card(tmp_path / "out")
    row, columns = {"text": "a question"}, ("text",)
    asked = conversation_of(row, PAIRS, text=columns, completion="completion", answered=False)
    coder = Coder(sf.load(bundle).processing.tokenizer, InstructSettings("rows.jsonl", text=columns))
    assert names["inputs"]["input_ids"][0].tolist() == coder.prompt(asked)
    if to == "hf":
        assert "question" not in names["printed"] and "<eos>" not in names["printed"]
