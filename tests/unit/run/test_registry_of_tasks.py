"""The model of each kind of task is registered with signature and example, compared, and trained on from the registry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from snugfit.deliver.export import read_back, reader
from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.export.exported_model import load_subject
from snugfit.deliver.export.quantization import base_quantization
from snugfit.deliver.model_registry import resolve_model
from snugfit.errors import ModelError, SettingError, TrackingError
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from tests.samples import some_of
from tests.unit.tasks.task_cases import CASES, recipe_of, write_files, write_models

pytestmark = pytest.mark.slow
pytest.importorskip("mlflow")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


Train = Callable[..., Any]


@pytest.fixture
def uri(new_store: Callable[[str], str]) -> str:
    return new_store("runs/mlflow.db")


@pytest.fixture
def train(models: Path, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains two updates of a case, registered as `kept` in the store of the test."""
    monkeypatch.chdir(tmp_path)
    write_files()

    def run(case: str, *overrides: str) -> Any:
        return train_recipe(recipe_of(case, models, *overrides, track=f"{{register: kept, uri: '{uri}'}}"))

    return run


@pytest.mark.parametrize(
    "case", some_of(CASES, ["instruction", "preference", "image-classification", "sentence-embedding"])
)
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
    own = Path(result.run_dir).resolve()
    (report,) = (path for path in Path("runs").resolve().rglob("report.html") if path.parent != own)
    assert "Registered model" in report.read_text(), "of the run in the store, with what came last"


@pytest.mark.parametrize(
    "case", some_of(["instruction", "causal-lm", "seq2seq", "masked-lm"], ["instruction", "seq2seq"])
)
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


@pytest.mark.parametrize(
    "quantized",
    [pytest.param("", id="whole", marks=pytest.mark.release), pytest.param("{nf4: {}}, ", id="nf4")],
)
def test_an_adapter_alone_is_registered_beside_its_base_and_answers_as_the_merged_model(
    quantized: str, train: Train, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if quantized:
        pytest.importorskip("bitsandbytes")
    case, base = "instruction", Path(train("instruction", "train.updates=1").run_dir) / "best"
    shutil.rmtree(base.parent / "checkpoints")
    tuned = train(
        case,
        f"model={base}",
        "from_scratch=false",
        f"techniques=[{quantized}{{lora: {{rank: 2, alpha: 64}}}}]",
        "track.register_adapter=true",
        "optimizer={adamw: {learning_rate: 0.05}}",
    )
    folder = resolve_model("models:/kept@champion", uri=uri)
    assert [path.name for path in folder.rglob("*.safetensors")] == ["adapter_model.safetensors"]
    merged, alone = load(tuned.run_dir), load("models:/kept@champion", uri=uri)
    before = load(base).model.state_dict()
    for name, weight in merged.model.state_dict().items():
        torch.testing.assert_close(alone.model.state_dict()[name], weight, rtol=0, atol=1e-6)
    assert any(not torch.equal(before[name], weight) for name, weight in merged.model.state_dict().items())
    rows = [{"messages": [{"role": "user", "content": each}]} for each in ("red?", "sun?")]
    assert alone.predict(rows) == merged.predict(rows)
    subject = load_subject("models:/kept@champion", uri=uri)
    assert ("load_in_4bit" in base_quantization(subject)) is bool(quantized)
    if not quantized:  # whose kernel takes no layers as narrow as these on some processors
        monkeypatch.setattr(read_back, "run_reader", lambda place: reader.main(str(place)))
        exported = export_source("models:/kept@champion", "adapter", tmp_path / "adapter", uri=uri)
        assert exported["compared"][0]["difference"] < 1e-4

    with pytest.raises(
        SettingError, match=rf"'model=.*': model: .* is an adapter alone, and its base is {base}"
    ):
        train(case, "model=models:/kept@champion", "from_scratch=false")
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ModelError, match=r"model.safetensors of its base .* is not the file"):
        load("models:/kept@champion", uri=uri)
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="holds an adapter alone, and its base is not here"):
        load("models:/kept@champion", uri=uri)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["techniques=[{lora: {rank: 2}}]"], "with weights drawn anew"),
        (["model=config:base", "from_scratch=false", "techniques=[{lora: {}}]"], "with weights drawn anew"),
        (["from_scratch=false"], "has no adapter"),
        (["from_scratch=false", "techniques=[{lora: {}}]", "track.register=null"], "names nothing"),
    ],
    ids=["from scratch", "architecture", "no adapter", "no name"],
)
def test_an_adapter_without_a_base_or_a_name_is_not_registered(
    overrides: list[str], words: str, train: Train, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=f"track.register_adapter: .*{words}"):
        train("instruction", *overrides, "track.register_adapter=true")
    assert not list((tmp_path / "runs").glob("kept/*"))
