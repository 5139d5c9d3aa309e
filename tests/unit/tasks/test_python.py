"""The task of a model and rows of one's own: whose loss it takes, and how its models are scored afterwards."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import snugfit as sf
from snugfit.cli import main
from snugfit.deliver.predict import evaluate_file
from snugfit.errors import ModelError, SettingError, UserError
from snugfit.recipe import load_recipe
from snugfit.tasks.prepare import prepare

CODE = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


def model():
    return nn.Linear(3, 1)


def writer():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=12, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    ))


def rows():
    inputs = torch.arange(36.0).view(12, 3) / 36
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1))


def texts():
    return [{"input_ids": torch.arange(5), "labels": torch.arange(5)} for _ in range(8)]


def loss(outputs, batch):
    return {"far": (outputs[:, 0] - batch[1]) ** 2, "large": outputs[:, 0] ** 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "of_my_own.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("of_my_own", None)


def written(folder: Path, model: str, rows: str, more: str = "") -> Path:
    recipe = folder / "own.yaml"
    recipe.write_text(
        f"task: python\nmodel: of_my_own:{model}\ndata: {{train: of_my_own:{rows}, validation: 0.25}}\n"
        f"train: {{updates: 2, global_batch: 4}}\noptimizer: {{adamw: {{learning_rate: 0.01}}}}\n{more}"
    )
    return recipe


@pytest.mark.parametrize(
    ("model", "rows", "named", "taken"),
    [
        ("writer", "texts", "", "causal_lm"),
        ("writer", "texts", "loss: auto", "causal_lm"),
        ("writer", "texts", "loss: cross_entropy", "cross_entropy"),
        ("model", "rows", "", "cross_entropy"),
    ],
)
def test_a_recipe_that_names_no_loss_takes_the_models_own(
    folder: Path, model: str, rows: str, named: str, taken: str
) -> None:
    recipe = load_recipe(written(folder, model, rows, named), allow_code=True)
    task = prepare(recipe)
    assert task.material.loss == taken
    assert task.meta["loss"] == taken


def test_a_model_is_scored_by_the_loss_of_ones_own_that_its_recipe_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "loss: of_my_own:loss\nloss_weights: {large: 0.5}\ntrack: {mlflow: false}\n"
    recipe = written(folder, "model", "rows", more)
    assert main(["train", str(recipe), "--allow-code", "--quiet", "--no-plan"]) == 0
    (run,) = (folder / "runs" / "own").iterdir()
    capsys.readouterr()
    loaded = sf.load(run, allow_code=True)
    outputs = loaded.model(own_rows().tensors[0]).detach()[:, 0]
    expected = ((outputs - own_rows().tensors[1]) ** 2 + 0.5 * outputs**2).mean().item()
    assert loaded.evaluate(own_rows()).metrics["loss"] == pytest.approx(expected, rel=1e-6)
    assert main(["evaluate", str(run), "of_my_own:rows", "--allow-code", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["loss"] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ModelError, match="name a function that returns its examples"):
        evaluate_file(run, str(recipe), allow_code=True)


def test_to_predict_needs_no_loss_of_ones_own_whose_source_is_gone(folder: Path) -> None:
    (folder / "losses_of_my_own.py").write_text("def loss(outputs, batch):\n    return outputs[:, 0] ** 2\n")
    recipe = written(folder, "model", "rows", "loss: losses_of_my_own:loss\ntrack: {mlflow: false}\n")
    assert main(["train", str(recipe), "--allow-code", "--quiet", "--no-plan"]) == 0
    (run,) = (folder / "runs" / "own").iterdir()
    (folder / "losses_of_my_own.py").unlink()
    sys.modules.pop("losses_of_my_own")
    loaded = sf.load(run, allow_code=True)
    assert len(loaded.predict([row for row, _ in own_rows()])) == 12
    assert "loss" in loaded_with_loss(run)
    with pytest.raises(SettingError, match="loss"):
        loaded.evaluate(own_rows())


@pytest.mark.parametrize(
    ("given", "setting"),
    [({"memory": 1 << 30}, "memory"), ({"views": 2}, "--views"), ({"num_beams": 2}, "num_beams")],
)
def test_what_is_for_rows_of_files_is_refused_beside_a_function(
    folder: Path, given: dict[str, int], setting: str
) -> None:
    recipe = written(folder, "model", "rows", "loss: mse\ntrack: {mlflow: false}\n")
    assert main(["train", str(recipe), "--allow-code", "--quiet", "--no-plan"]) == 0
    (run,) = (folder / "runs" / "own").iterdir()
    with pytest.raises(UserError, match=setting):
        evaluate_file(run, "of_my_own:rows", allow_code=True, **given)  # type: ignore[arg-type]


def loaded_with_loss(run: Path) -> dict[str, float]:
    loaded = sf.load(run, allow_code=True, loss=lambda outputs, batch: outputs[:, 0] ** 2)
    return dict(loaded.evaluate(own_rows()).metrics)


def own_rows() -> torch.utils.data.TensorDataset:
    inputs = torch.arange(36.0).view(12, 3) / 36
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1))
