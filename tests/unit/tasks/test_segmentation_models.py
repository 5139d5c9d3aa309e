"""Models of transformers for masks: their own loss as the oracle, the laws of every task, and what they are afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from transformers import (
    AutoImageProcessor,
    AutoModelForSemanticSegmentation,
    BertConfig,
    ConvNextConfig,
    DPTConfig,
    SegformerConfig,
    UperNetConfig,
)

from snugfit.core.losses import IGNORE_INDEX
from snugfit.deliver.predict import evaluate_file
from snugfit.errors import ModelError, SettingError
from snugfit.models.huggingface import load_segmenter
from snugfit.models.segmenter import Segmenter, class_weights
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.init.door import begin
from snugfit.tools.setup import recipe_setup
from tests.unit.tasks.devices import planned_for_a_gpu
from tests.unit.tasks.masked_shapes import write_shapes
from tests.unit.tasks.trained_runs import weights

SEGFORMER = SegformerConfig(
    num_encoder_blocks=2,
    depths=[1, 1],
    sr_ratios=[2, 1],
    hidden_sizes=[8, 16],
    patch_sizes=[3, 3],
    strides=[2, 2],
    num_attention_heads=[1, 2],
    mlp_ratios=[2, 2],
    decoder_hidden_size=16,
    drop_path_rate=0.0,
    classifier_dropout_prob=0.0,
)
STAGES = ["stage1", "stage2", "stage3", "stage4"]
UPERNET = UperNetConfig(
    backbone_config=ConvNextConfig(
        hidden_sizes=[8, 16, 16, 16], depths=[1, 1, 1, 1], out_features=STAGES
    ).to_dict(),
    hidden_size=16,
    auxiliary_channels=8,
    auxiliary_in_channels=16,
)
DPT = DPTConfig(
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=32,
    patch_size=8,
    backbone_out_indices=[0, 1, 2, 3],
    neck_hidden_sizes=[8, 8, 8, 8],
    fusion_hidden_size=8,
    is_hybrid=False,
    semantic_classifier_dropout=0.0,
    use_auxiliary_head=False,  # which has dropout that no setting turns off
)
CONFIGS = {"segformer": SEGFORMER, "upernet": UPERNET, "dpt": DPT}
RECIPE = """\
name: shapes
task: segmentation
model: config:./net
data: {train: shapes, validation: 0.25, size: 32, augment: [crop, flip]}
train: {epochs: 2, global_batch: 4, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: null
techniques: []
evaluate: {every: 3, metrics: [mean_iou, accuracy]}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_shapes(tmp_path / "shapes")
    SEGFORMER.save_pretrained("net")
    (tmp_path / "shapes.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("shapes.yaml"), overrides), options or RunOptions())


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_update_is_that_of_the_loss_of_transformers(project: Path, kind: str) -> None:
    CONFIGS[kind].save_pretrained("net")
    plain = "optimizer={sgd: {learning_rate: 0.1, momentum: 0.0}}"
    setup, _ = recipe_setup(load_recipe(Path("shapes.yaml"), [plain]))
    step = setup.step()
    window = next(setup.loader().windows(0, 1))
    assert isinstance(step.model, Segmenter)
    theirs = type(step.model.network)(step.model.network.config)
    theirs.load_state_dict(step.model.network.state_dict())
    labels = window.data["labels"]
    assert (labels == IGNORE_INDEX).any()
    if kind == "dpt":  # its own loss fails where it has no auxiliary head (transformers 5.23)
        logits = F.interpolate(theirs(window.data["pixel_values"]).logits, size=(32, 32), mode="bilinear")
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX)
    else:
        loss = theirs.train()(window.data["pixel_values"], labels=labels.masked_fill(labels < 0, 255)).loss
    gradients = torch.autograd.grad(loss, list(theirs.parameters()), allow_unused=True)
    result = step(window)
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    for ours, other, gradient in zip(
        step.model.network.parameters(), theirs.parameters(), gradients, strict=True
    ):
        expected = other if gradient is None else other - 0.1 * gradient
        torch.testing.assert_close(ours, expected, atol=2e-6, rtol=1e-3)


@pytest.mark.slow
def test_masks_are_learned_and_transformers_predicts_the_same_from_the_folder(project: Path) -> None:
    result = train("train.epochs=20")
    assert result.best["metrics"]["mean_iou"] > 0.8
    paths = sorted(map(str, (project / "shapes/images").iterdir()))
    here = [each["predicted_mask"] for each in result.predict([{"image": path} for path in paths])]
    again = [each["predicted_mask"] for each in load(result.run_dir).predict(paths)]
    assert all(np.array_equal(a, b) and a.shape == (20, 24) for a, b in zip(here, again, strict=True))
    best = Path(result.run_dir) / "best"
    model = AutoModelForSemanticSegmentation.from_pretrained(best)
    processor = AutoImageProcessor.from_pretrained(best)
    assert model.config.id2label == {0: "0", 1: "1"}
    pixels = processor(Image.open(paths[0]).convert("RGB"), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(
        pixels[0], load(result.run_dir).processing.encode(paths[:1])[0]["pixel_values"]
    )
    logits = F.interpolate(model(pixels).logits, size=(32, 32), mode="bilinear")
    mask = Image.fromarray(logits.argmax(1)[0].numpy().astype(np.uint8)).resize(
        (24, 20), Image.Resampling.NEAREST
    )
    assert np.array_equal(np.asarray(mask), here[0])
    scores = evaluate_file(result.run_dir, "shapes")["metrics"]
    assert scores["mean_iou"] > 0.8


def test_backbone_and_head_have_rates_of_their_own(project: Path) -> None:
    rates = "techniques=[{pattern_rates: {rates: {'network.segformer.*': 1.0e-9}}}]"
    before = load_segmenter("net", ("0", "1"), seed=3, from_scratch=True).model.state_dict()
    after = weights(train(rates, "train.epochs=1").run_dir)
    moved = {name: (after[name] - before[name]).abs().max().item() for name in before if "weight" in name}
    assert max(value for name, value in moved.items() if name.startswith("segformer")) < 1e-6
    assert moved["decode_head.classifier.weight"] > 1e-4


def test_the_loss_of_an_auxiliary_head_has_the_weight_of_the_configuration(project: Path) -> None:
    UPERNET.save_pretrained("net")
    result = train("train.epochs=1", "evaluate.metrics=[mean_iou, main_loss, auxiliary_loss]")
    metrics = result.best["metrics"]
    assert metrics["loss"] == pytest.approx(metrics["main_loss"] + 0.4 * metrics["auxiliary_loss"], rel=1e-5)
    again = evaluate_file(result.run_dir, "shapes", ["main_loss", "auxiliary_loss"])["metrics"]
    assert again["loss"] == pytest.approx(again["main_loss"] + 0.4 * again["auxiliary_loss"], rel=1e-5)


@pytest.mark.parametrize("kind", ["segformer", "upernet"])
def test_of_a_head_for_other_classes_the_last_layer_alone_is_drawn_anew(project: Path, kind: str) -> None:
    CONFIGS[kind].save_pretrained("net")
    road = load_segmenter("net", ("road", "car"), from_scratch=True)
    road.model.save_pretrained("net")
    assert load_segmenter("net", ("road", "car")).messages == ()
    before = road.model.state_dict()
    for labels, words in (
        (("sky", "sea"), "is for road, car: a new one is drawn for sky, sea"),
        (("a", "b", "c"), "newly"),
    ):
        other = load_segmenter("net", labels, seed=1)
        assert words in other.messages[0]
        after, last = other.model.state_dict(), class_weights(other.model)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        # a bias of new layers is 0 whenever it is drawn
        assert {name for name in last if "bias" not in name} <= changed <= {*last}


def test_what_cannot_be_used_is_refused(project: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.size: 1 is no size that config:.*net takes"):
        train("data.size=1")
    BertConfig().save_pretrained("texts")
    with pytest.raises(ModelError, match=r"texts \(bert\) does not tell the class of each pixel"):
        train("model=config:./texts")
    with pytest.raises(ModelError, match=r"'nvidia/mit-b9' is neither a folder here"):
        train("model=nvidia/mit-b9")


def test_a_recipe_begins_with_a_model_that_is_named(project: Path) -> None:
    made = begin("shapes", ["model=config:net"], Path("made.yaml"))
    assert (made.task, made.model) == ("segmentation", "config:net")
    assert made.origin == "its architecture, with new weights"
    named = begin("shapes", ["model=torchvision/fcn_resnet50"], Path("other.yaml"))
    assert (named.model, named.origin) == (
        "torchvision/fcn_resnet50",
        "with the weights that it comes with",
    )


@pytest.mark.slow
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path) -> None:
    answer = planned_for_a_gpu(load_recipe(Path("shapes.yaml"), ["plan.device=auto"]))
    assert answer.fits and answer.prediction.peak_bytes > 0
