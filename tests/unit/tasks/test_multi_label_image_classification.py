"""The laws of every task, for any number of labels of pictures: a plain loop, split, resume, predictions after reload, commands."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score, f1_score
from transformers import AutoModelForImageClassification, ViTConfig, ViTImageProcessorPil

from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.init.door import begin_here
from snugfit.tools.setup import recipe_setup
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64
from tests.unit.tasks.trained_runs import weights

RECIPE = """\
name: lamps
task: multi-label-image-classification
model: vit
from_scratch: true
data: {train: rows.csv, validation: 0.25, label: labels, augment: [crop]}
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
LAMPS = ("blue", "green", "red")
COLUMNS = "data.label_columns=[red, green, blue]"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures of three lamps, of which any may be lit; `rows.csv` says which, in both forms."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    Path("photos").mkdir()
    lines = ["image,labels,red,green,blue"]
    for number in range(32):
        lit = [bool(number >> place & 1) for place in range(3)]
        values = torch.randint(0, 60, (16, 16, 3), generator=generator, dtype=torch.uint8)
        for channel, one in enumerate(lit):
            values[..., channel] += 180 * one
        Image.fromarray(values.numpy()).save(f"photos/{number:02}.png")
        names = [name for name, one in zip(("red", "green", "blue"), lit, strict=True) if one]
        lines.append(f"photos/{number:02}.png,{';'.join(names)},{','.join(str(int(one)) for one in lit)}")
    Path("rows.csv").write_text("\n".join(lines))
    CONFIG.save_pretrained("vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained("vit")
    Path("lamps.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("lamps.yaml"), overrides), options or RunOptions())


@pytest.mark.slow
def test_labels_are_learned_and_predicted_alike_after_a_reload(project: Path) -> None:
    result = train("train.epochs=10", "evaluate.every=epoch")
    assert result.best["metrics"]["micro_f1"] > 0.9
    rows = [{"image": f"photos/{number:02}.png"} for number in range(32)]
    here, again = result.predict(rows), load(result.run_dir).predict(rows)
    assert here == again and set(here[0]) == {"prediction", *(f"probability of {name}" for name in LAMPS)}
    for each in here:
        assert each["prediction"] == [name for name in LAMPS if each[f"probability of {name}"] >= 0.5]
    model = AutoModelForImageClassification.from_pretrained(Path(result.run_dir) / "best")
    assert model.config.problem_type == "multi_label_classification" and model.config.id2label[0] == "blue"


@pytest.mark.slow
def test_the_two_forms_of_labels_are_one(project: Path) -> None:
    joined, binary = (train(*more, "train.epochs=1").run_dir for more in ((), (COLUMNS,)))
    # columns keep their own order
    assert [load(run).processing.labels for run in (joined, binary)] == [LAMPS, ("red", "green", "blue")]
    one, other = weights(joined), weights(binary)
    assert one.keys() == other.keys()
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_an_update_is_that_of_a_plain_loop(project: Path) -> None:
    plain = ["optimizer={sgd: {learning_rate: 0.1, momentum: 0.0}}", "schedule=null", "techniques=[]"]
    setup, _ = recipe_setup(load_recipe(Path("lamps.yaml"), plain))
    step = setup.step()
    model = AutoModelForImageClassification.from_config(step.model.config).train()
    model.load_state_dict(step.model.state_dict())
    window = next(setup.loader().windows(0, 1))
    with Path("rows.csv").open() as file:
        table = list(csv.DictReader(file))
    labels = torch.tensor([[float(table[each][name]) for name in LAMPS] for each in window.ids])
    assert torch.equal(window.data["labels"], labels)
    logits = model(window.data["pixel_values"]).logits
    loss = -(labels * logits.sigmoid().log() + (1 - labels) * (1 - logits.sigmoid()).log()).mean()
    loss.backward()
    result = step(window)
    assert float(result.loss) == pytest.approx(loss.item(), abs=1e-6)
    for ours, theirs in zip(step.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs - 0.1 * theirs.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("form", [(), (COLUMNS,)])
def test_files_are_predicted_and_scored_as_scikit_learn_scores_them(
    project: Path, form: tuple[str, ...]
) -> None:
    run = train(*form, "data.threshold=0.4").run_dir
    predict_file(run, "rows.csv", Path("out.csv"))
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    true = [[int(row[name]) for name in LAMPS] for row in rows]
    probabilities = [[float(row[f"probability of {name}"]) for name in LAMPS] for row in rows]
    predicted = [[int(value >= 0.4) for value in row] for row in probabilities]
    assert [set(json.loads(row["prediction"])) for row in rows] == [
        {name for name, one in zip(LAMPS, row, strict=True) if one} for row in predicted
    ]
    metrics = evaluate_file(run, "rows.csv")["metrics"]
    assert metrics["micro_f1"] == pytest.approx(f1_score(true, predicted, average="micro"), abs=1e-4)
    assert metrics["macro_f1"] == pytest.approx(f1_score(true, predicted, average="macro"), abs=1e-4)
    assert metrics["mean_average_precision"] == pytest.approx(
        average_precision_score(true, probabilities), abs=1e-3
    )


def test_rows_are_recognised_and_a_recipe_for_them_runs(project: Path) -> None:
    Path("listed.csv").write_text(
        "\n".join(",".join(line.split(",")[:2]) for line in Path("rows.csv").read_text().splitlines())
    )
    Path("binary.csv").write_text(
        "\n".join(
            ",".join([line.split(",")[0], *line.split(",")[2:]])
            for line in Path("rows.csv").read_text().splitlines()
        )
    )
    for name in ("listed", "binary"):
        inferred = load_recipe(begin_here(f"{name}.csv", ["model=vit"]).recipe)
        assert inferred.task == "multi-label-image-classification"
        assert inferred.data.separator == ";"
    assert inferred.data.label_columns == ("red", "green", "blue")


def test_faulty_rows_are_named_and_a_folder_is_refused(project: Path) -> None:
    with Path("rows.csv").open("a") as file:
        file.write("\nphotos/00.png,red,1,2,0\nphotos/none.png,red,1,0,0")
    with pytest.raises(
        DataError, match=r"(?s)2 rows cannot be used.*rows.csv:34: green is 2.*photos/none.png is not there"
    ):
        train(COLUMNS)
    assert train(COLUMNS, "data.bad_rows=skip", "train.epochs=1").status == "finished"
    with pytest.raises(DataError, match="photos is a folder, and a picture that lies in one has one class"):
        train("data.train=photos")


@pytest.mark.parametrize("form", [(), (COLUMNS,)])
def test_folds_keep_the_labels_of_each_row(project: Path, form: tuple[str, ...]) -> None:
    rows = fold_rows(load_recipe(Path("lamps.yaml"), form))
    assert rows.count == 32 and rows.records is not None
    assert rows.classes == (("red", "green", "blue") if form else LAMPS)
    third = rows.records[3]
    assert (third["red"], third["green"]) == ("1", "1") if form else third["labels"] == ("red", "green")


def test_an_update_and_its_evaluation_make_no_float64_on_the_device(project: Path) -> None:
    scores = without_float64(
        load_recipe(Path("lamps.yaml"), ["evaluate.metrics=[micro_f1, mean_average_precision]"])
    )
    assert all(map(math.isfinite, scores.values()))


@pytest.mark.slow
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path) -> None:
    answer = planned_for_a_gpu(load_recipe(Path("lamps.yaml"), ["plan.device=auto"]))
    assert answer.fits and answer.prediction.peak_bytes > 0
