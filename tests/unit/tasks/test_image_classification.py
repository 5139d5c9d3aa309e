"""The laws of every task, for classes of pictures: split, resume in the middle of an epoch, predictions after reload, commands."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    AutoModelForImageClassification,
    ResNetConfig,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

from snugfit.cli import main
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import ModelError, SettingError
from snugfit.models.huggingface import PICTURES, load_classifier
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64
from tests.unit.tasks.trained_runs import AfterWindows, check_resume, weights

RECIPE = """\
name: colours
task: image-classification
model: vit
from_scratch: true
data: {train: pictures, validation: 0.25, augment: [crop, flip, color]}
train: {epochs: 3, global_batch: 8, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
CONFIG = ViTConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    image_size=16,
    patch_size=4,
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    for name, colour in (("red", 0), ("green", 1)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(16):
            values = torch.randint(0, 120, (18, 20, 3), generator=generator, dtype=torch.uint8)
            values[..., colour] += 130
            Image.fromarray(values.numpy()).save(tmp_path / f"pictures/{name}/{number:02}.png")
    CONFIG.save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    (tmp_path / "colours.yaml").write_text(RECIPE)
    return tmp_path


def train(project: Path, *overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(project / "colours.yaml", overrides), options or RunOptions())


def test_pictures_are_learned_and_predicted_alike_after_a_reload(project: Path) -> None:
    result = train(project, "train.epochs=6")
    assert result.best["metrics"]["accuracy"] == 1.0
    rows = [{"image": str(path)} for path in sorted(project.glob("pictures/*/0*.png"))]
    here, again = result.predict(rows), load(result.run_dir).predict(rows)
    assert here == again and {each["prediction"] for each in here} == {"red", "green"}
    assert load(result.run_dir).predict([{"image": Image.open(rows[0]["image"])}]) == here[:1]


def test_transformers_reads_the_bundle_and_its_processor(project: Path) -> None:
    run = Path(train(project).run_dir)
    model = AutoModelForImageClassification.from_pretrained(run / "best")
    processor = ViTImageProcessorPil.from_pretrained(run / "best")
    path = project / "pictures/red/03.png"
    logits = model(**processor(Image.open(path), return_tensors="pt")).logits.detach().softmax(-1)
    (ours,) = load(run).predict([{"image": str(path)}])
    assert model.config.id2label[int(logits.argmax())] == ours["prediction"]
    assert float(logits.max()) == pytest.approx(ours["probability"], abs=1e-6)


@pytest.mark.slow
def test_a_run_that_was_stopped_in_an_epoch_goes_on_with_workers_to_the_weights_of_one_without(
    project: Path,
) -> None:
    stopped = train(project, "plan.num_workers=1", options=RunOptions(stop=AfterWindows(4)))
    check_resume(train(project), stopped, 4)


@pytest.mark.slow
def test_pictures_that_a_technique_changes_are_the_same_after_a_stop(project: Path) -> None:
    given = "techniques=[{rand_augment: {magnitude: 12}}]"
    whole, plain = (weights(train(project, *more).run_dir) for more in ((given,), ()))
    assert any(not torch.equal(whole[name], plain[name]) for name in whole)
    stopped = train(project, given, "plan.num_workers=1", options=RunOptions(stop=AfterWindows(4)))
    after = weights(resume_run(stopped.run_dir).run_dir)
    assert all(torch.equal(after[name], whole[name]) for name in whole)


def test_files_are_predicted_and_evaluated(project: Path) -> None:
    run = train(project).run_dir
    counts = predict_file(run, "pictures", Path("out.csv"))
    assert counts["rows"] == 32 and sum(counts["predictions"].values()) == 32
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["image"] == "green/00.png" and set(rows[0]) == {
        "image",
        "prediction",
        "probability",
        "source_line",
    }
    scored = evaluate_file(run, "pictures")
    right = sum(row["image"].startswith(row["prediction"]) for row in rows)
    assert scored["metrics"]["accuracy"] == pytest.approx(right / 32)


def test_predictions_have_every_class_where_that_is_asked_for(project: Path) -> None:
    run = train(project).run_dir
    predict_file(run, "pictures", Path("out.csv"), top=5, proba=True)
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    likely = {"prediction", "probability", "prediction_2", "probability_2"}
    assert set(rows[0]) == {"image", *likely, "probability of green", "probability of red", "source_line"}
    for row in rows:
        assert {row["prediction"], row["prediction_2"]} == {"red", "green"}
        assert row["probability"] == row[f"probability of {row['prediction']}"] >= row["probability_2"]
        assert float(row["probability of green"]) + float(row["probability of red"]) == pytest.approx(
            1, abs=1e-5
        )
    (first,) = load(run).predict([{"image": "pictures/green/00.png"}], top=2)
    assert first["prediction_2"] == rows[0]["prediction_2"] and "probability of red" not in first
    with pytest.raises(SettingError, match="top: got 0"):
        load(run).predict([{"image": "pictures/green/00.png"}], top=0)


def test_views_of_a_picture_are_drawn_as_in_training_and_averaged(project: Path) -> None:
    run = train(project).run_dir
    predictor = load(run).predictor
    assert predictor.inference.view is not None and predictor.inference.read is not None
    rows = predictor.inference.read("pictures", labelled=True, bad_rows="fail")
    views = [rows.examples, *(predictor.inference.view(rows.examples, number) for number in (1, 2))]
    torch.manual_seed(4)
    drawn, again = (views[1][3]["pixel_values"] for _ in range(2))
    assert torch.equal(drawn, again) and not torch.equal(drawn, rows.examples[3]["pixel_values"])
    assert (
        not torch.equal(drawn, views[2][3]["pixel_values"])
        and views[1][3]["labels"] == rows.examples[3]["labels"]
    )
    alone = [predictor.in_detail(proba=True).predict_examples(examples) for examples in views]
    means = [sum(each["probability of red"] for each in of) / 3 for of in zip(*alone, strict=True)]
    predict_file(run, "pictures", Path("out.csv"), views=3, proba=True)
    with Path("out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["probability of red"]) for row in written] == pytest.approx(means, abs=1e-6)
    right = sum(row["image"].startswith(row["prediction"]) for row in written)
    assert evaluate_file(run, "pictures", views=3)["metrics"]["accuracy"] == pytest.approx(right / 32)
    plain = train(project, "data.augment=[]").run_dir
    with pytest.raises(ModelError, match="was trained on rows as they are"):
        predict_file(plain, "pictures", Path("out.csv"), views=2)
    for wrong in (0, "many"):
        with pytest.raises(SettingError, match=f"--views: got {wrong}"):
            predict_file(run, "pictures", Path("out.csv"), views=wrong)


def test_a_picture_and_its_mirror_image_are_averaged_whatever_was_drawn_in_training(project: Path) -> None:
    run = train(project, "data.augment=[]").run_dir
    predictor = load(run).predictor
    use = predictor.inference
    assert use.mirrored is not None and use.read is not None
    rows = use.read("pictures", labelled=True, bad_rows="fail")
    mirrored = use.mirrored(rows.examples)
    assert len(mirrored) == 32 and mirrored[3]["labels"] == rows.examples[3]["labels"]
    for place in range(4):
        with Image.open(rows.examples.rows[place]["file"]) as picture:
            other = Path(f"mirrored{place}.png")
            picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(other)
        (alone,) = use.encode([{"image": str(other)}])
        assert torch.allclose(mirrored[place]["pixel_values"], alone["pixel_values"], atol=1e-6)
    both = [
        predictor.in_detail(proba=True).predict_examples(examples) for examples in (rows.examples, mirrored)
    ]
    means = [sum(each["probability of red"] for each in of) / 2 for of in zip(*both, strict=True)]
    command = ["predict", str(run), "pictures", "-o", "out.csv", "--proba", "--views", "flips"]
    assert main(command) == 0
    with Path("out.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["probability of red"]) for row in written] == pytest.approx(means, abs=1e-6)
    right = sum(row["image"].startswith(row["prediction"]) for row in written)
    assert evaluate_file(run, "pictures", views="flips")["metrics"]["accuracy"] == pytest.approx(right / 32)


def test_a_table_of_pictures_needs_no_recipe(project: Path) -> None:
    lines = [f"{path},{path.parent.name}" for path in sorted(Path("pictures").glob("*/*.png"))]
    Path("rows.csv").write_text("\n".join(["photo,colour", *lines]))
    data = load_recipe(begin_here("rows.csv", ["model=vit"]).recipe).data
    assert (data.image, data.label, data.augment) == ("photo", "colour", ("crop", "flip"))


def test_a_head_for_other_classes_is_drawn_anew(project: Path) -> None:
    ViTForImageClassification(CONFIG).save_pretrained(project / "trained")
    loaded = load_classifier(project / "trained", ["a", "b", "c"], of=PICTURES)
    assert loaded.model.config.num_labels == 3
    assert any("head" in message for message in loaded.messages)


def test_a_size_that_the_model_does_not_take_is_refused_before_it_trains(project: Path) -> None:
    with pytest.raises(
        SettingError, match=r"data.size: 32 is no size that .*vit takes: Input image size \(32\*32\)"
    ):
        train(project, "data.size=32")
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    config.image_size = 224  # as ConvNeXt's says, whose layers take any
    config.save_pretrained(project / "resnet")
    assert train(project, "model=./resnet", "data.size=16", "train.epochs=1").status == "finished"


def test_a_model_of_texts_is_refused(project: Path) -> None:
    from transformers import BertConfig

    BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    ).save_pretrained("bert")
    with pytest.raises(ModelError, match="bert"):
        train(project, "model=./bert")


def test_an_update_and_its_evaluation_make_no_float64_on_the_device(project: Path) -> None:
    scores = without_float64(load_recipe(project / "colours.yaml", ["evaluate.metrics=[accuracy, auroc]"]))
    assert all(map(math.isfinite, scores.values()))


@pytest.mark.slow
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path) -> None:
    answer = planned_for_a_gpu(load_recipe(project / "colours.yaml", ["plan.device=auto"]))
    assert answer.fits and answer.prediction.peak_bytes > 0
