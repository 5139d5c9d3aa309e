"""Pictures that a model is most wrong about, in TensorBoard at each evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import Subset

from snugfit.data.examples import FILE, Examples
from snugfit.deliver.predictor import Predictor, load_predictor
from snugfit.errors import SettingError
from snugfit.models.small import write_small_picture_model
from snugfit.recipe import load_recipe
from snugfit.results.evaluation_details import WorstRow
from snugfit.run.from_recipe import train_recipe
from snugfit.run.observers import worst_pictures as module

RECIPE = """\
task: image-classification
model: vit
from_scratch: true
data: {train: rows.csv, validation: held.csv}
train: {epochs: 2, global_batch: 6}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false, tensorboard: true, pictures: 3}
"""


@pytest.mark.slow
def test_those_whose_class_was_given_least_are_shown_at_each_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small_picture_model(tmp_path / "vit", 16, patches=True)
    lines = ["image,label"]
    for number in range(12):
        Image.new("RGB", (20, 20), (20 * number, 0, 0)).save(f"{number}.png")
        lines.append(f"{number}.png,{'dark' if number < 6 else 'light'}")
    for name in ("rows.csv", "held.csv"):
        Path(name).write_text("\n".join(lines))
    Path("recipe.yaml").write_text(RECIPE)
    drawn = []
    draw = module._draw
    with monkeypatch.context() as during:
        during.setattr(module, "_draw", lambda rows, *rest: (drawn.append(rows), draw(rows, *rest)))
        # which would keep the probability of every class of every row, and decode each picture twice
        during.setattr(Predictor, "predict_examples", None)
        result = train_recipe(load_recipe(Path("recipe.yaml")))
    run = Path(result.run_dir)
    shown = EventAccumulator(str(run / "tensorboard"))
    shown.Reload()
    assert [each.step for each in shown.Images("worst")] == [2, 4]
    assert {path.name for path in (run / "pictures").glob("worst-*")} == {"worst-2.png", "worst-4.png"}
    assert result.best is not None
    best = {2: 0, 4: 1}[result.best["update"]]
    predictions = (
        load_predictor(run / "best")
        .in_detail(proba=True)
        .predict([{"image": str(tmp_path / f"{number}.png")} for number in range(12)])
    )
    given = [
        each[f"probability of {'dark' if number < 6 else 'light'}"] for number, each in enumerate(predictions)
    ]
    least = sorted(range(12), key=given.__getitem__)[:3]
    assert [each.given for each in drawn[best]] == pytest.approx([given[place] for place in least], abs=1e-5)

    with pytest.raises(SettingError, match=r"track\.pictures: needs data\.validation"):
        train_recipe(load_recipe(Path("recipe.yaml"), ["data.validation=null"]))


def test_names_of_classes_are_no_formulas(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    rows = [{FILE: str(tmp_path / f"{name}.png")} for name in ("gone", "a")]
    pictures = Subset(Examples(rows, "rows", [0, 1], unit=FILE), [1])  # as of a fold
    row = WorstRow(0, "a.png", 1.0, "$10_{", "over $20", given=0.1)
    module._draw([row], pictures, tmp_path / "pictures" / "worst.png")
    with Image.open(tmp_path / "pictures" / "worst.png") as sheet:
        assert sheet.size == (800, 240)
