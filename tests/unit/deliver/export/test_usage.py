"""The code on the card of a graph of tables: its inputs have the shapes and types that the graph takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.deliver.export.export_model import export_source
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from tests.unit.deliver.export.models import run_card

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
    for to in ("onnx", "torch-export"):
        export_source(run, to, tmp_path / to)
        names = run_card(tmp_path / to)
        assert set(names["inputs"]) == {"numbers", "categories"}
        assert names["logits"].shape == (1,)
        card = (tmp_path / to / "README.md").read_text()
        assert "for tabular-regression, from the configuration of the local file 'net.json'." in card
