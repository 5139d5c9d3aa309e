"""The laws of every task, for pictures without labels: split by the gradient cache, resume, embeddings after reload, and a probe of what was learned."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageClassification,
    ConvNextConfig,
    ResNetConfig,
    ViTImageProcessorPil,
)

from snugfit.data.pictures.labelled_pictures import PictureSettings
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.picture_pairs import load_picture_pairs
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.models.huggingface import PICTURES, load_classifier
from snugfit.models.pair_encoder import FEATURES, PairEncoder, features_of, head_of
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.init.door import begin
from snugfit.tools.setup import recipe_setup
from tests.unit.core.test_nt_xent import equation
from tests.unit.tasks.coloured_pictures import VIT, write_pictures
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64
from tests.unit.tasks.trained_runs import check_parts, weights

RECIPE = """\
name: pairs
task: contrastive-pretraining
model: ./vit
from_scratch: true
data: {train: pictures, validation: 0.25, augment: [crop, color]}
train: {epochs: 3, global_batch: 8, seed: 3}
optimizer: {adamw: {learning_rate: 3.0e-3}}
techniques: [gradient_cache]
evaluate: {every: 2}
plan: {micro_batch: 3, device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pictures()
    Path("pairs.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("pairs.yaml"), overrides), options or RunOptions())


def test_an_update_is_that_of_a_dense_loop_over_the_whole_window(project: Path) -> None:
    plain = ["optimizer={sgd: {learning_rate: 0.1, momentum: 0.0}}", "schedule=null"]
    setup, _ = recipe_setup(load_recipe(Path("pairs.yaml"), plain))
    step = setup.step()
    window = next(setup.loader().windows(0, 1))
    views = window.data["pixel_values"]
    assert views.shape == (8, 2, 3, 16, 16)
    model = step.model
    assert isinstance(model, PairEncoder)
    alone = [
        [model.projection(model.backbone(pixel_values=view[None]).logits)[0] for view in row] for row in views
    ]
    first, second = (torch.stack([row[side] for row in alone]) for side in (0, 1))
    loss = equation(first, second, 0.5).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = [
        weight.detach() - 0.1 * gradient
        for weight, gradient in zip(model.parameters(), gradients, strict=True)
    ]
    result = step(window)
    assert float(result.loss) == pytest.approx(loss.item(), abs=1e-6)
    for ours, theirs in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs.to(ours.dtype), atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_a_window_in_parts_is_the_window_and_needs_the_gradient_cache(project: Path) -> None:
    plain = "optimizer={sgd: {learning_rate: 0.05}}"
    check_parts(train(plain, "techniques=[]", "plan.micro_batch=null"), train(plain))
    with pytest.raises(SettingError, match="Add the technique 'gradient_cache'"):
        train("techniques=[]")


def test_the_encoder_alone_is_delivered_and_embeds_alike_after_a_reload(project: Path) -> None:
    result = train()
    run = Path(result.run_dir)
    rows = [{"image": str(path)} for path in sorted(Path("pictures").glob("*/0*.png"))]
    here, again = result.predict(rows), load(run).predict(rows)
    assert here == again and len(here[0]["embedding"]) == 16
    assert not any(name.startswith("projection") for name in weights(run))
    model = AutoModelForImageClassification.from_pretrained(run / "best")
    processor = ViTImageProcessorPil.from_pretrained(run / "best")
    inputs = processor(Image.open(rows[0]["image"]), return_tensors="pt")["pixel_values"]
    theirs = model.vit(inputs).last_hidden_state[0, 0].detach()
    torch.testing.assert_close(torch.tensor(here[0]["embedding"]), theirs, atol=1e-5, rtol=1e-5)
    predict_file(run, "pictures", Path("out.csv"))
    with Path("out.csv").open() as file:
        written = [json.loads(row["embedding"]) for row in csv.DictReader(file)]
    assert len(written) == 24
    with pytest.raises(ModelError, match="the projection that its loss compares is not delivered"):
        evaluate_file(run, "pictures")


@pytest.mark.slow
def test_a_classifier_is_learned_on_the_frozen_encoder(project: Path) -> None:
    run = Path(train("evaluate.every=epoch").run_dir)
    Path("probe.yaml").write_text(
        RECIPE.replace("contrastive-pretraining", "image-classification")
        .replace("from_scratch: true", "from_scratch: false")
        .replace("gradient_cache", "freeze")
        .replace("./vit", str(run / "best"))
    )
    probe = train_recipe(load_recipe(Path("probe.yaml"), ["train.epochs=8"]), RunOptions())
    assert probe.best["metrics"]["accuracy"] == 1.0
    learned, frozen = weights(Path(probe.run_dir)), weights(run)
    assert all(torch.equal(learned[name], frozen[name]) for name in frozen if name.startswith("vit."))
    assert learned["classifier.weight"].shape == (2, 16) and learned["classifier.weight"].abs().sum() > 0


def test_views_are_drawn_anew_in_each_epoch_and_once_for_validation(project: Path) -> None:
    data = load_picture_pairs(
        PictureSettings("pictures", 0.25, augment=("crop",), seed=1), PictureFormat(16, 16, None)
    )
    assert data.validation is not None
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(data.train[0]["pixel_values"])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0][0], drawn[0][1])
    held_out = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        held_out.append(data.validation[0]["pixel_values"])
    assert torch.equal(held_out[0], held_out[1]) and not torch.equal(held_out[0][0], held_out[0][1])
    numbers = [number for place in range(len(data.train)) for number in data.train[place]["labels"]]
    assert len(set(numbers)) == 2 * len(data.train)


@pytest.mark.parametrize(
    "config",
    [
        VIT,
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
        ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    ],
    ids=["vit", "resnet", "convnext"],
)
def test_the_encoder_is_the_classifier_again_with_the_same_features(project: Path, config: Any) -> None:
    config.save_pretrained("other")
    model = load_classifier("other", FEATURES, of=PICTURES, from_scratch=True).model
    pixels = torch.randn(2, 3, 16, 16)
    before = features_of(model, pixels)
    pair = PairEncoder(model, "other", 8, 0).eval()
    torch.testing.assert_close(features_of(pair, pixels), before)
    torch.testing.assert_close(features_of(pair.encoder, pixels), before)
    assert pair(pixels[:, None].expand(2, 2, 3, 16, 16)).shape == (2, 2, 8)
    made = pair.encoder
    assert not made.get_submodule(head_of(made, "other")).weight.any()


def test_what_cannot_be_used_is_refused(project: Path) -> None:
    with pytest.raises(
        SettingError, match="data.augment: is empty, and two views of a picture would be the same"
    ):
        train("data.augment=[]")
    with pytest.raises(SettingError, match="loss"):
        train("loss=cross_entropy")
    Path("one").mkdir()
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save("one/a.png")
    with pytest.raises(DataError, match="data.train: leaves 1 picture,"):
        train("data.train=one", "data.validation=null")
    Path("pictures/red/cut.png").write_bytes(Path("pictures/red/00.png").read_bytes()[:200])
    with pytest.raises(DataError, match="1 row cannot be used: truncated picture"):
        train()
    assert train("data.bad_rows=skip", "train.epochs=1").status == "finished"


def test_folds_are_of_paths_alone_and_a_column_of_pictures_is_recognised_where_it_is_named(
    project: Path,
) -> None:
    rows = fold_rows(load_recipe(Path("pairs.yaml")))
    assert rows.count == 24 and rows.records is not None
    assert "label" not in rows.records[0] and Path(rows.records[0]["image"]).is_file()
    lines = ["file", *map(str, sorted(Path("pictures").glob("*/*.png")))]
    Path("rows.csv").write_text("\n".join(lines))
    assert begin("rows.csv", ["data.image=file"]).task == "contrastive-pretraining"


def test_an_update_and_its_evaluation_make_no_float64_on_the_device(project: Path) -> None:
    scores = without_float64(load_recipe(Path("pairs.yaml"), ["plan.micro_batch=null"]))
    assert all(map(math.isfinite, scores.values())) and 0 <= scores["recall_at_1"] <= 1


@pytest.mark.slow
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path) -> None:
    answer = planned_for_a_gpu(load_recipe(Path("pairs.yaml"), ["plan.device=auto", "plan.micro_batch=null"]))
    assert answer.fits and answer.prediction.peak_bytes > 0
