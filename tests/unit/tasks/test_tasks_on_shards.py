"""Tasks learn from shards what they learn from the files that were put into them, wherever the run stops."""

from __future__ import annotations

import csv
import io
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTImageProcessorPil

from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.trained_runs import AfterWindows, weights

RECIPE = """\
name: colours
task: image-classification
model: vit
from_scratch: true
data: {train: "shards/train-{0..2}.tar", validation: 0.25, augment: [crop, flip, color]}
train: {epochs: 2, global_batch: 8, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures as files with a table, and the same in the same order as shards."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    (tmp_path / "shards").mkdir()
    (tmp_path / "files").mkdir()
    table = ["image,label"]
    for number in range(3):
        with tarfile.open(tmp_path / f"shards/train-{number}.tar", "w") as shard:
            for place in range(8):
                colour = place % 2
                values = torch.randint(0, 120, (18, 20, 3), generator=generator, dtype=torch.uint8)
                values[..., colour] += 130
                path = tmp_path / f"files/{number}-{place}.png"
                Image.fromarray(values.numpy()).save(path)
                table.append(f"{path.name},{('red', 'green')[colour]}")
                shard.add(path, f"{place:03}.png")
                label = ("red", "green")[colour].encode()
                about = tarfile.TarInfo(f"{place:03}.cls")
                about.size = len(label)
                shard.addfile(about, io.BytesIO(label))
    (tmp_path / "files/table.csv").write_text("\n".join(table) + "\n")
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=4,
    )
    config.save_pretrained(tmp_path / "vit")
    ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    (tmp_path / "colours.yaml").write_text(RECIPE)
    return tmp_path


def test_shards_give_the_weights_that_files_give_also_stopped_and_by_workers(project: Path) -> None:
    whole = weights(train_recipe(load_recipe("colours.yaml")).run_dir)
    files = weights(train_recipe(load_recipe("colours.yaml", ["data.train=files/table.csv"])).run_dir)
    workers = load_recipe("colours.yaml", ["plan.num_workers=2"])
    stopped = train_recipe(workers, RunOptions(stop=AfterWindows(2)))
    resumed = weights(resume_run(stopped.run_dir).run_dir)
    for other in (files, resumed):
        assert all(torch.equal(whole[name], value) for name, value in other.items())


def test_shards_are_found_scored_and_predicted_by_commands(project: Path) -> None:
    (project / "shards" / "train-2.tar").rename(project / "test.tar")
    recipe = load_recipe(begin_here("shards", ["model=vit"]).recipe)
    assert (recipe.task, recipe.data.image) == ("image-classification", "image")
    assert recipe.data.train == str(project / "shards/*.tar")
    result = train_recipe(load_recipe("colours.yaml", ["data.train=shards", "train.epochs=8"]))
    assert evaluate_file(result.run_dir, "test.tar")["metrics"]["accuracy"] == 1.0
    predict_file(result.run_dir, "test.tar", Path("out.csv"))
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [f"test.tar/{place:03}.png" for place in range(8)]
    assert [row["prediction"] for row in rows] == ["red", "green"] * 4
