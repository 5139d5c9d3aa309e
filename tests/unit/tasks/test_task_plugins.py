"""Tasks of the user's own, by path and by entry point: trained, planned, resumed, used, refused by name, never imported unasked."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

import snugfit as sf
from snugfit.cli import main
from snugfit.errors import CodeRefused, ModelError, SettingError
from snugfit.recipe import json_schema, load_recipe, schema_with_plugins
from snugfit.run.from_recipe import train_recipe
from snugfit.system import code_consent, plugins
from snugfit.tasks.plugins import TASKS
from tests.unit.system.installed_package import install

TASK = """\
from functools import partial

import torch
from torch.utils.data import default_collate

from snugfit.data.bad_rows import BadRow
from snugfit.data.files.file_rows import read_rows
from snugfit.core.losses import LOSSES
from snugfit.step.build import Material
from snugfit.tasks.inference import Inference
from snugfit.tasks.rows import read_training_rows
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card

TIMES = 1.0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)

    def forward(self, length):
        return self.scale(length)


def encode(row, label=None):
    if not row["text"]:
        raise BadRow("no text", "has no text")
    example = {"length": torch.tensor([len(row["text"]) * TIMES])}
    return example if label is None else {**example, "labels": torch.tensor([float(row[label])])}


def labelled(examples):
    assert "labels" in examples[0]
    return default_collate(examples)


def make_model(meta):
    return Net()


def load(recipe, empty, keep):
    rows = read_training_rows(recipe, partial(encode, label=recipe.data.label), labelled)
    torch.manual_seed(recipe.train.seed)
    material = Material(make_model({}), rows.train, rows.validation, loss_of(recipe), labelled)
    meta = {"task": recipe.task, "label": recipe.data.label}
    return Task(material, meta=meta, data=rows.data, fingerprints=rows.fingerprints)


def inference(meta, tokenizer):
    def read(source, /, *, labelled, bad_rows):
        label = meta["label"] if labelled else None
        return read_rows(source, partial(encode, label=label), default_collate, bad_rows=bad_rows)

    return Inference(
        encode=lambda rows: [encode(row) for row in rows],
        collate=default_collate,
        decode=lambda outputs, examples: [{"length": each} for each in outputs.flatten().tolist()],
        columns=("length",),
        read=read,
        loss=LOSSES["mse"],
        metrics=("mae",),
    )


CARD = Card(
    name="lengths",
    summary="Learn the length of a text.",
    loss="mse",
    metrics=("mae",),
    settings=("label", "bad_rows"),
    load=load,
    inference=inference,
    make_model=make_model,
    model="own",
    rows="texts",
)
OURS = Card(name="python", summary="", loss="mse", settings=(), load=load)
"""
RECIPE = """\
model: own
task: {task}
data: {{train: rows.csv, validation: 0.25, label: size}}
train: {{updates: 4, global_batch: 4}}
optimizer: {{sgd: {{learning_rate: 0.001}}}}
schedule: null
track: {{mlflow: false}}
checkpoint: {{every: 1, keep: 4}}
"""
PATH = "tasks_of_own.lengths:CARD"
MODULES = ("tasks_of_own", "tasks_of_own.lengths", "trap_of_own")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder, which is not the current one, with a package that has a task."""
    place, here = tmp_path / "there", tmp_path / "here"
    (place / "tasks_of_own").mkdir(parents=True)
    here.mkdir()
    (place / "tasks_of_own" / "__init__.py").touch()
    (place / "tasks_of_own" / "lengths.py").write_text(TASK)
    rows = "".join(f"{'x' * length},{length}\n" for length in range(1, 17))
    (place / "rows.csv").write_text(f"text,size\n{rows}")
    monkeypatch.chdir(here)
    monkeypatch.setattr(code_consent, "_granted", set())
    forget(monkeypatch)
    return place


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def recipe_in(folder: Path, task: str = PATH) -> Path:
    path = folder / "r.yaml"
    path.write_text(RECIPE.format(task=task))
    return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """A folder of installed packages, one of which is the task's."""
    place = tmp_path / "site"
    place.mkdir()
    (folder / "tasks_of_own").rename(place / "tasks_of_own")
    monkeypatch.syspath_prepend(str(place))
    return place


def trained(recipe: Path, *overrides: str) -> Path:
    before = {*Path("runs/r").glob("*")}
    assert main(["train", str(recipe), *overrides, "--allow-code", "--no-plan", "--quiet"]) == 0
    (run,) = {*Path("runs/r").glob("*")} - before
    return run


def test_what_its_batches_to_train_on_need_is_not_asked_of_new_rows(folder: Path) -> None:
    recipe = load_recipe(recipe_in(folder), allow_code=True)
    result = train_recipe(recipe)
    rows = [{"text": "xxx"}]
    assert result.predict(rows) == sf.load(result.run_dir, allow_code=True).predict(rows)


def last_loss(run: Path) -> float:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return float([each["metrics"]["loss"] for each in lines if each["event"] == "update"][-1])


@pytest.mark.slow
def test_the_planner_finds_it_in_the_recipes_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(recipe_in(folder)), "--allow-code", "--no-search", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["about"]["task"] == PATH


def test_a_run_of_it_is_trained_and_used_where_it_can_be_imported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(recipe_in(folder))
    copy = load_recipe(run / "recipe.yaml")
    assert copy.task == copy.code["task"] == PATH and copy.evaluate.metrics == ("mae",)
    rows = str(folder / "rows.csv")
    code_consent._granted.clear()
    with pytest.raises(CodeRefused, match=f"task: {PATH}"):
        sf.load(run)
    forget(monkeypatch)
    with pytest.raises(
        ModelError, match=f"is of the task '{PATH}', which cannot be used here: there is no module"
    ):
        sf.load(run, allow_code=True)
    run = run.resolve()
    monkeypatch.chdir(folder)
    (prediction,) = sf.load(run, allow_code=True).predict([{"text": "xxx"}])
    assert set(prediction) == {"length"}
    assert main(["predict", str(run), rows, "-o", "out.csv", "--allow-code"]) == 0
    with open("out.csv", newline="") as file:
        assert len([*csv.DictReader(file)]) == 16
    capsys.readouterr()
    assert main(["evaluate", str(run), rows, "--allow-code", "--json"]) == 0
    assert {"loss", "mae"} <= json.loads(capsys.readouterr().out)["metrics"].keys()


@pytest.mark.release
def test_two_ranks_train_it_as_one_process(folder: Path) -> None:
    recipe = recipe_in(folder)
    command = [sys.executable, "-m", "snugfit", "train", str(recipe), "--allow-code", "--no-plan", "--quiet"]
    done = subprocess.run(
        [*command, "plan.devices=2", "output=runs2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    (run,) = Path("runs2/r").iterdir()
    assert last_loss(run) == pytest.approx(last_loss(trained(recipe)), rel=1e-5)


def test_a_resume_refuses_source_that_has_changed_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(recipe_in(folder))
    for checkpoint in sorted((run / "checkpoints").iterdir())[2:]:
        for file in checkpoint.iterdir():
            file.unlink()
        checkpoint.rmdir()
    source = folder / "tasks_of_own" / "lengths.py"
    source.write_text(
        TASK.replace("def load(recipe, empty, keep):\n", "def load(recipe, empty, keep):\n    keep = None\n")
    )
    os.utime(source, (1, 1))  # another time of change, so that no byte code of before is taken
    forget(monkeypatch)
    assert main(["resume", str(run), "--quiet"]) == 2
    errors = capsys.readouterr().err
    assert "task: tasks_of_own.lengths.load was changed" in errors
    assert main(["resume", str(run), "--quiet", "--accept-changes", "task"]) == 0


def test_a_name_from_elsewhere_is_not_imported_without_consent(folder: Path) -> None:
    (folder / "trap_of_own.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\n"
    )
    recipe = recipe_in(folder, "trap_of_own:CARD")
    with pytest.raises(CodeRefused, match=r"task: trap_of_own:CARD\), and nothing"):
        load_recipe(recipe)
    assert not (folder / "sprung").exists()
    with pytest.raises(SettingError, match=r"r\.yaml:2: task: 'trap_of_own' has no 'CARD'"):
        load_recipe(recipe, allow_code=True)
    assert (folder / "sprung").exists(), "the trap was none"


def test_a_task_that_a_package_lists_is_named_by_its_name_and_is_code_too(site: Path, folder: Path) -> None:
    install(site, "own-package", TASKS.group, lengths=PATH)
    recipe = recipe_in(folder, "lengths")
    with pytest.raises(CodeRefused, match=f"task: {PATH}"):
        load_recipe(recipe)
    assert "tasks_of_own.lengths" not in sys.modules
    assert load_recipe(recipe, allow_code=True).task == PATH
    assert load_recipe(recipe, ["data.label=other"], allow_code=True).data.label == "other"
    assert load_recipe(recipe_in(folder, "causal-lm"), [f"task={PATH}"], allow_code=True).loss == "mse"


def test_names_of_ours_read_no_entry_points_and_a_broken_one_harms_nobody(
    site: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "own-package", TASKS.group, lengths=PATH)
    install(site, "broken-package", TASKS.group, broken="trap_of_own:Nothing")
    (site / "trap_of_own.py").write_text("1 / 0\n")
    with monkeypatch.context() as patched:
        patched.setattr(plugins, "installed_entry_points", lambda **_: pytest.fail("entry points were read"))
        assert main(["--help"]) == 0
        json_schema()
    load_recipe(recipe_in(folder, "lengths"), allow_code=True)
    with pytest.raises(
        SettingError,
        match=r"r.yaml:2: task: the entry point 'broken' of broken-package 1.0 cannot be used: importing "
        r"'trap_of_own' failed: ZeroDivisionError.*Upgrade or uninstall",
    ):
        load_recipe(recipe_in(folder, "broken"), allow_code=True)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("tasks_of_own.length:CARD", "there is no module 'tasks_of_own.length'"),
        ("tasks_of_own.lengths:Net", "which is a type, expected the card of a task"),
        ("tasks_of_own.lengths:OURS", "is named 'python', as a task of Snugfit's is"),
        ("lengthz", "must be .* or package.module:CARD, found 'lengthz'"),
    ],
)
def test_what_cannot_be_used_is_refused_with_file_line_and_reason(
    folder: Path, task: str, words: str
) -> None:
    with pytest.raises(SettingError, match=rf"r\.yaml:2: task: .*{words}"):
        load_recipe(recipe_in(folder, task), allow_code=True)


def test_the_listing_names_what_packages_list_and_imports_nothing(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "own-package", TASKS.group, lengths=PATH, python=PATH)
    assert main(["tasks"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lengths", "own-package", "1.0,", PATH] in lines
    refused = ["refused:", "it", "has", "the", "name", "of", "a", "task", "of", "Snugfit's"]
    assert ["python", "own-package", "1.0,", f"{PATH},", *refused] in lines
    assert "tasks_of_own.lengths" not in sys.modules
    for name in ("lengths", PATH):
        assert main(["tasks", name]) == 0
        page = capsys.readouterr().out
        assert page.startswith("lengths: Learn the length of a text.") and f"task: {PATH}" in page
    assert main(["tasks", "lenghts"]) == 2
    assert "there is no task 'lenghts'. Did you mean 'lengths'?" in capsys.readouterr().err


def test_the_schema_takes_tasks_of_others(site: Path, folder: Path) -> None:
    install(site, "own-package", TASKS.group, lengths=PATH)
    validator = jsonschema.Draft202012Validator(schema_with_plugins())
    for task, fits in ((PATH, True), ("lengths", True), ("causal-lm", True), ("lengthz", False)):
        assert validator.is_valid(yaml.safe_load(recipe_in(folder, task).read_text())) == fits, task


@pytest.mark.slow
def test_folds_of_it_predict_each_row_once(folder: Path) -> None:
    assert main(["cv", str(recipe_in(folder)), "--folds", "2", "--no-plan", "--allow-code", "--json"]) == 0
    (file,) = Path("runs/r/cv").glob("*/out_of_fold.csv")
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["source_line"]) for row in rows] == list(range(2, 18))
    assert all(float(row["length"]) for row in rows) and {row["fold"] for row in rows} == {
        "fold-1-1",
        "fold-1-2",
    }
