"""The model of each kind of task is registered with signature and example, compared, and trained on from the registry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from PIL import Image
from transformers import LlamaConfig

from snugfit.deliver.model_registry import resolve_model
from snugfit.errors import SettingError, TrackingError
from snugfit.models.small import write_small_picture_model
from snugfit.recipe import load_recipe
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from tests.unit.data.test_chat_template import TEMPLATES
from tests.unit.data.test_instruct import by_letters
from tests.unit.tasks.test_segmentation_models import SEGFORMER
from tests.unit.tasks.tiny_encoder import write_encoder
from tests.unit.tasks.tiny_writer import write_t5

pytestmark = pytest.mark.slow
pytest.importorskip("mlflow")

CHATS = [
    {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
    for ask, answer in (("red?", "warm"), ("blue?", "cold"), ("sun?", "day"), ("moon?", "night"))
]
PAIRS = [{"text": each, "completion": f"{each} {each}"} for each in ("ann", "bob", "rome", "oslo")]
TEXTS = [
    {"text": each}
    for each in ("ann met bob in rome .", "bob lives in new york .", "good film .", "bad food .")
]
PREFERENCES = [{"prompt": each["text"], "chosen": "ann", "rejected": "bob"} for each in PAIRS]
WRITTEN = [{"source": "ann good", "target": "good ann"}, {"source": "bob bad", "target": "bad bob"}]
ALIKE = [
    {"anchor": "good film", "positive": "very good film"},
    {"anchor": "bad food", "positive": "not good food"},
]
NUMBERS = [{"size": str(each), "price": str(2.5 * each)} for each in range(12)]
PICTURES = [
    {
        "image": f"pictures/{number}.png",
        "label": ["red", "red;dark"][number % 2],
        "mask": f"masks/{number}.png",
    }
    for number in range(6)
]
SOLD = [
    {"day": f"2026-01-{day:02}", "sold": str(10 + 3 * (day % 7)), "offer": str(day % 2)}
    for day in range(1, 29)
]
NAMED = [
    {"tokens": ["ann", "met", "bob"], "tags": ["B-P", "O", "B-P"]},
    {"tokens": ["in", "rome"], "tags": ["O", "B-L"]},
]

CASES: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "instruction": ("decoder", CHATS, "max_length: 96"),
    "instruction, pairs": ("decoder", PAIRS, "max_length: 96"),
    "causal-lm": ("decoder", TEXTS, "max_length: 32"),
    "preference": ("decoder", PREFERENCES, "max_length: 96"),
    "masked-lm": ("encoder", TEXTS, "max_length: 16"),
    "seq2seq": ("writer", WRITTEN, "max_length: 16, text: source, target: target, target_length: 8"),
    "sentence-embedding": ("encoder", ALIKE, "max_length: 16, text: anchor, positive: positive"),
    "token-classification": ("encoder", NAMED, "max_length: 16, text: tokens, label: tags"),
    "tabular-regression": ("mlp", NUMBERS, "label: price"),
    "multi-label-image-classification": ("pictures", PICTURES, "size: 16, label: label, separator: ';'"),
    "contrastive-pretraining": ("pictures", PICTURES, "size: 16"),
    "masked-pictures": ("vit", PICTURES, "size: 16"),
    "segmentation": ("unet", PICTURES, "size: 16, label: mask"),
    "segmentation, segformer": ("segformer", PICTURES, "size: 32, label: mask"),
    "forecasting": ("tide", SOLD, "time: day, label: sold, horizon: 2, history: 4"),
    "forecasting, ahead": ("tide", SOLD, "time: day, label: sold, known: offer, horizon: 2, history: 4"),
}
SCRATCH = ("decoder", "pictures", "vit", "segformer")
MADE = ("mlp", "unet", "tide")
"""Networks that their tasks make."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    template, marks, _ = TEMPLATES["gemma: no system"]
    tokenizer = by_letters(template, marks)
    tokenizer.save_pretrained(folder / "decoder")
    LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        eos_token_id=tokenizer.eos_token_id,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder / "decoder")
    write_encoder(folder / "encoder", mask=True)
    write_t5(folder / "writer")
    write_small_picture_model(folder / "pictures", 16)
    write_small_picture_model(folder / "vit", 16, patches=True)
    SEGFORMER.save_pretrained(folder / "segformer")
    return folder


@pytest.fixture
def pictures(tmp_path: Path) -> None:
    for name in ("pictures", "masks"):
        (tmp_path / name).mkdir()
    for number in range(6):
        Image.new("RGB", (20, 18), (40 * number, 0, 0)).save(tmp_path / f"pictures/{number}.png")
        Image.new("L", (20, 18), number % 2).save(tmp_path / f"masks/{number}.png")


Train = Callable[..., Any]


@pytest.fixture
def uri(new_store: Callable[[str], str]) -> str:
    return new_store("runs/mlflow.db")


@pytest.fixture
def train(models: Path, pictures: None, tmp_path: Path, uri: str) -> Train:  # they are written
    """Trains two updates of a case, registered as `kept` in the store of the test."""

    def run(case: str, *overrides: str) -> Any:
        model, rows, data = CASES[case]
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        task, scratch = case.partition(",")[0], model in SCRATCH
        lines = {
            "name": "kept",
            "task": task,
            "model": model if model in MADE else models / model,
            "from_scratch": json.dumps(scratch),
            "data": f"{{train: rows.jsonl, validation: null, {data}}}",
            "train": "{updates: 2, global_batch: 2}",
            "plan": "{device: cpu, numerics: fp32}",
            "track": f"{{register: kept, uri: '{uri}'}}",
            "output": "runs",
        }
        path = tmp_path / "recipe.yaml"
        path.write_text("".join(f"{name}: {value}\n" for name, value in lines.items()))
        return train_recipe(load_recipe(path, list(overrides), allow_code=True))

    return run


@pytest.mark.parametrize("case", CASES)
def test_it_is_stored_with_signature_and_example_and_compared_before_the_alias_moves(
    case: str, train: Train, uri: str
) -> None:
    result = train(case)
    assert result.status == "finished"
    folder = resolve_model("models:/kept@champion", uri=uri)
    model = next(path for path in folder.parents if (path / "MLmodel").is_file())
    description = yaml.safe_load((model / "MLmodel").read_text())
    inputs = {each["name"] for each in json.loads(description["signature"]["inputs"])}
    examples = json.loads((model / "input_example.json").read_text())
    assert inputs == set(examples["columns"])
    rows = [dict(zip(examples["columns"], values, strict=True)) for values in examples["data"]]
    stored = load("models:/kept@champion", uri=uri)
    assert repr(stored.predict(rows)) == repr(load(result.run_dir).predict(rows))  # masks are arrays
    assert set(json.loads(description["signature"]["outputs"])[0]) >= {"name", "type"}


@pytest.mark.parametrize("case", ["instruction", "causal-lm", "seq2seq", "masked-lm"])
def test_a_recipe_trains_on_from_the_version_that_is_registered_as_it_begins_adapters_merged(
    case: str, train: Train, uri: str
) -> None:
    adapters = "techniques=[{lora: {rank: 2}}]"
    first = train(case, adapters)
    began = resolve_model("models:/kept@champion", uri=uri)
    further = train(case, "model=models:/kept@champion", "from_scratch=false", "train.updates=1")
    recipe = yaml.safe_load((Path(further.run_dir) / "recipe.yaml").read_text())
    assert Path(recipe["model"]) == began
    assert resolve_model("models:/kept@champion", uri=uri) != began, "the alias has moved"
    untrained = train(
        case, "model=models:/kept/1", "from_scratch=false", "optimizer={sgd: {learning_rate: 1.0e-12}}"
    )
    before, after = load(first.run_dir).model.state_dict(), load(untrained.run_dir).model.state_dict()
    assert before.keys() == after.keys()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-7)


def test_a_name_that_is_not_registered_is_refused_before_anything_is_read(
    train: Train, tmp_path: Path
) -> None:
    with pytest.raises(TrackingError, match="'nothing' is registered"):
        train("causal-lm", "model=models:/nothing@champion", "from_scratch=false")
    assert not list((tmp_path / "runs").glob("kept/*"))


def test_new_weights_in_place_of_the_registered_ones_are_refused_before_anything_is_read(
    train: Train, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="from_scratch: is true, and the weights of models:/kept@champion"):
        train("causal-lm", "model=models:/kept@champion")
    assert not list((tmp_path / "runs").glob("kept/*"))
