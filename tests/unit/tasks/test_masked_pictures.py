"""The laws of every task, for pictures of which squares are hidden: split, resume, embeddings after reload, and a classifier that goes on from it."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageClassification,
    DeiTConfig,
    ResNetConfig,
    ViTConfig,
    ViTForMaskedImageModeling,
    ViTImageProcessorPil,
)

from snugfit.core.losses import masked_pixels
from snugfit.data.pictures.labelled_pictures import PictureSettings
from snugfit.data.pictures.masked_pictures import Squares, load_masked_pictures
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.models.huggingface import load_masked_pictures as load_model
from snugfit.models.masked_encoder import MaskedEncoder
from snugfit.models.pair_encoder import features_of
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.setup import recipe_setup
from tests.unit.tasks.coloured_pictures import SIZES, write_pictures
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64
from tests.unit.tasks.trained_runs import weights

RECIPE = """\
name: squares
task: masked-pictures
model: ./vit
from_scratch: true
data: {train: pictures, validation: 0.25, augment: [crop]}
train: {epochs: 3, global_batch: 8, seed: 3}
optimizer: {adamw: {learning_rate: 3.0e-3}}
evaluate: {every: 2}
plan: {micro_batch: 3, device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pictures()
    Path("squares.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("squares.yaml"), overrides), options or RunOptions())


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_an_update_is_that_of_the_loss_of_transformers_over_the_whole_window(
    project: Path, micro_batch: int | None
) -> None:
    plain = ["optimizer={sgd: {learning_rate: 0.1, momentum: 0.0}}", "schedule=null", "techniques=[]"]
    cut = f"plan.micro_batch={'null' if micro_batch is None else micro_batch}"
    setup, _ = recipe_setup(load_recipe(Path("squares.yaml"), [*plain, cut]))
    step = setup.step()
    window = next(setup.loader().windows(0, 1))
    assert isinstance(step.model, MaskedEncoder)
    theirs = ViTForMaskedImageModeling(step.model.backbone.config)
    theirs.load_state_dict(step.model.backbone.state_dict())
    data = window.data
    loss = theirs(data["pixel_values"], bool_masked_pos=data["mask"].flatten(1)).loss
    gradients = torch.autograd.grad(loss, list(theirs.parameters()), allow_unused=True)
    result = step(window)
    assert result.loss == pytest.approx(loss.item(), rel=1e-5)
    assert result.weight == data["mask"].sum()
    for ours, other, gradient in zip(
        step.model.backbone.parameters(), theirs.parameters(), gradients, strict=True
    ):
        expected = other if gradient is None else other - 0.1 * gradient
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-4)


def test_what_is_seen_counts_for_nothing_and_a_patch_for_its_mean() -> None:
    pictures, mask = torch.randn(2, 3, 8, 4), torch.zeros(2, 4, 2, dtype=torch.bool)
    mask[0, 1, 1] = True
    drawn = pictures.clone()
    drawn[:, :, :2] += 9.0  # seen
    drawn[0, 0, 2:4, 2:4] += torch.tensor([[1.0, -2.0], [0.0, 3.0]])
    terms = masked_pixels(drawn, {"pixel_values": pictures, "mask": mask})
    assert terms.values.shape == (2, 4, 2) and terms.weight() == 1
    assert float(terms.weighted_sum()) == pytest.approx(6 / 12, rel=1e-5)
    with pytest.raises(SettingError, match="masked_pixels of outputs .* without a mask"):
        masked_pixels(drawn, {"pixel_values": pictures})


@pytest.mark.parametrize(
    ("down", "across", "probability", "side", "hidden"),
    [(4, 4, 0.6, 2, 12), (6, 4, 0.5, 2, 12), (3, 4, 0.6, 1, 8), (2, 2, 0.9, 1, 3), (4, 4, 0.01, 2, 4)],
)
def test_squares_of_two_patches_are_hidden_and_never_all(
    down: int, across: int, probability: float, side: int, hidden: int
) -> None:
    squares = Squares(down, across, probability)
    assert squares.side == side
    torch.manual_seed(0)
    first, second = squares.drawn(), squares.drawn()
    assert first.shape == (down, across) and first.sum() == second.sum() == hidden
    coarse = first[::side, ::side]
    assert torch.equal(coarse.repeat_interleave(side, 0).repeat_interleave(side, 1), first)


def test_squares_are_drawn_anew_in_each_epoch_and_once_for_validation(project: Path) -> None:
    data = load_masked_pictures(
        PictureSettings("pictures", 0.25, augment=("crop",), seed=1),
        PictureFormat(16, 16, None),
        Squares(8, 8),
    )
    assert data.validation is not None

    def drawn(examples: Any, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(seed)
        example = examples[0]
        return example["pixel_values"], example["mask"]

    first, again, other = (drawn(data.train, seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0]) and not torch.equal(first[1], other[1])
    held_out = [drawn(data.validation, seed) for seed in (1, 2)]
    assert all(map(torch.equal, *held_out))
    masks = [data.validation[place]["mask"] for place in range(len(data.validation))]
    assert not torch.equal(masks[0], masks[1])


def test_the_encoder_alone_is_delivered_and_embeds_alike_after_a_reload(project: Path) -> None:
    result = train()
    run = Path(result.run_dir)
    rows = [{"image": str(path)} for path in sorted(Path("pictures").glob("*/0*.png"))]
    here, again = result.predict(rows), load(run).predict(rows)
    assert here == again and len(here[0]["embedding"]) == 16
    assert not any("decoder" in name or "mask_token" in name for name in weights(run))
    model = AutoModelForImageClassification.from_pretrained(run / "best")
    processor = ViTImageProcessorPil.from_pretrained(run / "best")
    inputs = processor(Image.open(rows[0]["image"]), return_tensors="pt")["pixel_values"]
    theirs = model.vit(inputs).last_hidden_state[0, 0].detach()
    torch.testing.assert_close(torch.tensor(here[0]["embedding"]), theirs, atol=1e-5, rtol=1e-5)
    predict_file(run, "pictures", Path("out.csv"))
    with Path("out.csv").open() as file:
        assert len([json.loads(row["embedding"]) for row in csv.DictReader(file)]) == 24
    with pytest.raises(ModelError, match="the layer that draws what is hidden is not delivered"):
        evaluate_file(run, "pictures")


@pytest.mark.slow
def test_a_classifier_goes_on_from_the_encoder_and_pretraining_from_it_too(project: Path) -> None:
    run = Path(train("evaluate.every=epoch").run_dir)
    on = RECIPE.replace("from_scratch: true", "from_scratch: false").replace("./vit", str(run / "best"))
    Path("classes.yaml").write_text(on.replace("masked-pictures", "image-classification"))
    setup, _ = recipe_setup(load_recipe(Path("classes.yaml")))
    begun, learned = dict(setup.material.model.named_parameters()), weights(run)
    assert all(torch.equal(begun[name], learned[name]) for name in begun if name.startswith("vit."))
    classes = train_recipe(load_recipe(Path("classes.yaml"), ["train.epochs=8"]), RunOptions())
    assert classes.best["metrics"]["accuracy"] == 1.0
    Path("squares.yaml").write_text(on)
    assert train("train.epochs=1").status == "finished"


@pytest.mark.parametrize("kind", [ViTConfig, DeiTConfig], ids=["vit", "deit"])
def test_the_encoder_is_a_classifier_with_the_same_features(project: Path, kind: Any) -> None:
    kind(**SIZES, image_size=16, patch_size=4).save_pretrained("other")
    model = MaskedEncoder(load_model("other", ("vit", "deit"), from_scratch=True).model).eval()
    pixels, mask = torch.randn(2, 3, 16, 16), Squares(4, 4).drawn().expand(2, 4, 4)
    assert model(pixels, mask).shape == pixels.shape
    torch.testing.assert_close(features_of(model.encoder, pixels), features_of(model, pixels))
    changed = pixels.clone()
    changed[:, :, mask[0].repeat_interleave(4, 0).repeat_interleave(4, 1)] = 7.0
    torch.testing.assert_close(model(changed, mask), model(pixels, mask))  # what is hidden is not seen


def test_what_cannot_be_used_is_refused(project: Path) -> None:
    with pytest.raises(
        SettingError, match=r"data\.size: gives pictures of 18 x 18 pixels, .* patches of 4 x 4"
    ):
        train("data.size=18")
    with pytest.raises(SettingError, match=r"data\.mask_probability"):
        train("data.mask_probability=1.0")
    with pytest.raises(SettingError, match="loss"):
        train("loss=cross_entropy")
    ResNetConfig(hidden_sizes=[8, 16], depths=[1, 1]).save_pretrained("resnet")
    ViTImageProcessorPil().save_pretrained("resnet")
    with pytest.raises(ModelError, match=r"resnet \(resnet\) takes no token in place of a hidden patch"):
        train("model=./resnet")
    Path("pictures/red/cut.png").write_bytes(Path("pictures/red/00.png").read_bytes()[:200])
    with pytest.raises(DataError, match="1 row cannot be used: truncated picture"):
        train()
    assert train("data.bad_rows=skip", "train.epochs=1").status == "finished"


def test_folds_are_of_paths_alone(project: Path) -> None:
    rows = fold_rows(load_recipe(Path("squares.yaml")))
    assert rows.count == 24 and rows.records is not None and "label" not in rows.records[0]


def test_an_update_and_its_evaluation_make_no_float64_on_the_device(project: Path) -> None:
    scores = without_float64(load_recipe(Path("squares.yaml"), ["plan.micro_batch=null"]))
    assert all(map(math.isfinite, scores.values()))


@pytest.mark.slow
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path) -> None:
    answer = planned_for_a_gpu(
        load_recipe(Path("squares.yaml"), ["plan.device=auto", "plan.micro_batch=null"])
    )
    assert answer.fits and answer.prediction.peak_bytes > 0
