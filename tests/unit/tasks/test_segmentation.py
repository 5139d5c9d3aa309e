"""Masks: learned and predicted, folds, the auxiliary loss, rates by part, and commands; the laws of every task are in `test_laws`."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from snugfit.cli import main
from snugfit.core.batch import Batch
from snugfit.core.losses import cross_entropy
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.kit.losses.auxiliary_loss import WithAuxiliary
from snugfit.models.mask_network import MaskNetwork, MaskSettings, mask_settings
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.step.metrics.metric import make_metric
from snugfit.strategies.base import Strategy
from snugfit.tasks.prepare import prepare
from snugfit.tools.cross_validation.door import cross_validate
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.result import Fold
from tests.unit.tasks.masked_shapes import write_shapes
from tests.unit.tasks.trained_runs import weights

RECIPE = """\
name: shapes
task: segmentation
model: ./net.json
data: {train: shapes, validation: 0.25, size: 16, augment: [crop, flip]}
train: {epochs: 2, global_batch: 4, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: null
techniques: []
evaluate: {every: 3, metrics: [mean_iou, accuracy, main_loss, auxiliary_loss]}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
NET = '{"width": 8, "levels": 2, "blocks": 1, "dropout": %s, "auxiliary": 0.4}'
SETTINGS = MaskSettings(width=8, levels=2, blocks=1)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_shapes(tmp_path / "shapes")
    (tmp_path / "net.json").write_text(NET % 0.1)
    (tmp_path / "shapes.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("shapes.yaml"), overrides), options or RunOptions())


def test_classes_have_their_names_in_metrics_of_each(project: Path) -> None:
    task = prepare(load_recipe(Path("shapes.yaml"), ["data.classes=[ground, disc, square]"]), empty=True)
    assert task.material.class_names == ("ground", "disc", "square")


def test_a_recipe_with_a_picture_cache_keeps_pictures_and_masks(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / "cache"))
    task = prepare(load_recipe(Path("shapes.yaml"), ["data.picture_cache=1MiB"]), empty=True)
    for side in (task.material.train, task.material.validation):
        assert side is not None and len([side[place] for place in range(len(side))]) == len(side)
    kept = [path for path in (project / "cache/snugfit/pictures").rglob("*") if path.is_file()]
    assert len(kept) == 2 * 16


@pytest.mark.slow
def test_masks_are_learned_and_predicted_alike_after_a_reload(project: Path) -> None:
    result = train("train.epochs=15")
    assert result.best["metrics"]["mean_iou"] > 0.8
    paths = sorted(map(str, (project / "shapes/images").iterdir()))
    here = [each["predicted_mask"] for each in result.predict([{"image": path} for path in paths])]
    again = [each["predicted_mask"] for each in load(result.run_dir).predict(paths)]
    assert all(np.array_equal(a, b) and a.shape == (20, 24) for a, b in zip(here, again, strict=True))
    counts = predict_file(result.run_dir, "shapes", Path("out.csv"))
    assert counts["rows"] == 16
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row, path, mask in zip(rows, paths, here, strict=True):
        assert Path(path).name == row["image"]
        assert np.array_equal(np.asarray(Image.open(row["predicted_mask"])), mask)
    with pytest.raises(DataError, match="out-files: is there already, and nothing is overwritten"):
        predict_file(result.run_dir, "shapes", Path("out.csv"))


def test_masks_of_several_models_have_no_mean(project: Path) -> None:
    run = train("train.epochs=1").run_dir
    with pytest.raises(ModelError, match="of the task 'segmentation', of whose predictions there is no mean"):
        predict_file(run, "shapes", Path("out.csv"), others=[run])
    assert not Path("out.csv").exists() and not Path("out-files").exists()


def test_folds_are_files_of_pictures_and_masks(project: Path) -> None:
    dealt = fold_rows(load_recipe(Path("shapes.yaml")))
    assert dealt.count == 16 and dealt.labels is None
    files = dealt.write(Fold(1, 1, tuple(range(12)), tuple(range(12, 16))), project)
    result = train(*(f"data.{side}={file}" for side, file in files.items()), "train.epochs=1")
    assert result.status == "finished"


@pytest.mark.slow
def test_each_fold_has_the_classes_of_all_rows_and_no_mask_is_a_cell_of_a_file(project: Path) -> None:
    mask = np.asarray(Image.open(project / "shapes/masks/0.png")).copy()
    mask[mask == 1] = 2  # a class of one picture alone
    Image.fromarray(mask).save(project / "shapes/masks/0.png")
    scored = cross_validate(load_recipe(Path("shapes.yaml"), ["train.epochs=1"]), folds=2)
    assert len(scored.scores) == 2
    made = [load(Path(each.run_dir)).model.state_dict()["head.weight"].shape for each in scored.scores]
    assert made[0] == made[1]
    assert not list(project.rglob("out_of_fold.csv"))


def test_the_mean_iou_is_over_all_pixels_however_they_are_cut() -> None:
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, 4, 3, generator=drawn)
    labels = torch.randint(0, 2, (6, 5, 4), generator=drawn)  # the third class is only ever predicted
    labels[2, 1] = -100
    predicted, scored = logits.argmax(dim=-1), labels != -100
    each = []
    for number in range(3):
        one, other = (predicted == number) & scored, labels == number
        each.append(((one & other).sum() / (one | other).sum()).item())
    for parts in ([6], [1, 2, 3]):
        metric = make_metric("mean_iou")
        for rows in torch.arange(6).split(parts):
            metric.update(logits[rows], Batch.of({"labels": labels[rows]}))
        assert metric.compute(Strategy()) == pytest.approx(sum(each) / 3)


def test_the_auxiliary_loss_is_added_with_its_weight_and_logged_by_itself(project: Path) -> None:
    drawn = torch.Generator().manual_seed(0)
    outputs = {name: torch.randn(3, 4, 4, 2, generator=drawn) for name in ("logits", "auxiliary")}
    data = {"labels": torch.randint(0, 2, (3, 4, 4), generator=drawn)}
    main_values, other = (cross_entropy(outputs[name], data).values for name in ("logits", "auxiliary"))
    torch.testing.assert_close(WithAuxiliary(0.4)(outputs, data).values, main_values + 0.4 * other)
    metrics = train("train.epochs=1").best["metrics"]
    assert metrics["loss"] == pytest.approx(metrics["main_loss"] + 0.4 * metrics["auxiliary_loss"], rel=1e-5)


def test_a_network_without_an_auxiliary_head_has_no_such_loss(project: Path) -> None:
    (project / "net.json").write_text('{"width": 8, "levels": 2, "blocks": 1, "auxiliary": 0}')
    with pytest.raises(SettingError, match="no 'auxiliary' in what the model returns"):
        train("train.epochs=1")
    run = train("train.epochs=1", "evaluate.metrics=[mean_iou]").run_dir
    assert set(evaluate_file(run, "shapes")["metrics"]) == {"loss", "mean_iou", "accuracy"}


def test_backbone_and_head_have_rates_of_their_own(project: Path) -> None:
    rates = "techniques=[{pattern_rates: {rates: {'backbone.*': 1.0e-9}}}]"
    before = MaskNetwork(settings=mask_settings("./net.json", project), classes=2).make(3).state_dict()
    after = weights(train(rates, "train.epochs=1").run_dir)
    moved = {name: (after[name] - before[name]).abs().max().item() for name in before}
    assert max(value for name, value in moved.items() if name.startswith("backbone")) < 1e-6
    assert moved["head.weight"] > 1e-4 and moved["auxiliary.weight"] > 1e-4


def test_settings_that_fit_no_network_are_refused(project: Path) -> None:
    with pytest.raises(SettingError, match="data.size: 18 cannot be halved 2 times. Give a multiple of 4"):
        train("data.size=18")
    for text, words in (
        ('{"width": 12}', "Write a multiple of 8"),
        ('{"depth": 2}', "has 'depth'"),
        ("[1]", "no settings"),
    ):
        (project / "net.json").write_text(text)
        with pytest.raises(ModelError, match=words):
            train()


def test_a_picture_does_not_hang_on_those_beside_it() -> None:
    model = MaskNetwork(settings=SETTINGS, classes=3).make(0)
    pictures = torch.randn(4, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    whole, alone = model(pictures), model(pictures[2:3])
    assert whole["logits"].shape == whole["auxiliary"].shape == (4, 16, 24, 3)
    for name in whole:
        torch.testing.assert_close(alone[name][0], whole[name][2], atol=1e-5, rtol=1e-4)
    again = MaskNetwork.of(json.loads(json.dumps(MaskNetwork(settings=SETTINGS, classes=3).as_dict())))
    assert all(map(torch.equal, again.make(0).parameters(), model.parameters()))


@pytest.mark.slow
def test_a_folder_alone_is_enough(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "shapes", "-o", "made.yaml"]) == 0
    made = load_recipe(Path("made.yaml"))
    assert (made.task, made.model, made.evaluate.best) == ("segmentation", "unet", "mean_iou")
    capsys.readouterr()
    options = [
        "plan={micro_batch: null, device: cpu, numerics: fp32}",
        "track={mlflow: false}",
        "data.size=16",
    ]
    assert (
        main(
            ["train", "--data", "shapes", "--model", "unet", *options, "--fast-dev-run", "--json", "--quiet"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == "finished"
