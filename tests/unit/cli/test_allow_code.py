"""A recipe elsewhere, a bundle and a search's file run no code that they name, whatever reads them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import snugfit as sf
from snugfit.cli.app import main
from snugfit.deliver.predictor import extended, load_predictor
from snugfit.errors import CodeRefused, ModelError, SettingError
from snugfit.models.bundle import load_bundle, save_bundle
from snugfit.recipe import load_recipe
from snugfit.run import from_recipe, launch
from snugfit.system import code_consent
from snugfit.tools.cross_validation import door
from snugfit.tools.tune.search_space import applied, read_file

RECIPE = """\
task: python
model: trap:build
data: {train: 'trap:rows'}
loss: trap:loss
early_stopping: {stop_when: 'trap:stop'}
"""
TRAP = "import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\ndef build(): pass\nrows = loss = stop = build\n"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder beside the current one, with a recipe and the module that it names, which leaves a trace when it is imported."""
    there, here = tmp_path / "there", tmp_path / "here"
    here.mkdir(), there.mkdir()
    (there / "trap.py").write_text(TRAP)
    (there / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(here)
    monkeypatch.setattr(code_consent, "_granted", set())
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    return there


def run_of(there: Path) -> Path:
    run = there / "run"
    run.mkdir()
    (run / "events.jsonl").touch()
    (run / "recipe.yaml").write_text(f"{RECIPE}folder: {there}\n")
    return run


@pytest.mark.parametrize(
    "command",
    [
        ["train", "R"],
        ["plan", "R"],
        ["doctor", "R"],
        ["find", "lr", "R"],
        ["find", "batch", "R"],
        ["certify", "R"],
        ["profile", "R"],
        ["cv", "R"],
        ["tune", "R", "--search", "train.global_batch=2,4"],
        ["resume", "RUN"],
        ["doctor", "RUN"],
        ["certify", "RUN"],
    ],
    ids=" ".join,
)
def test_no_command_runs_what_a_recipe_elsewhere_names(command: list[str], there: Path, capsys) -> None:
    places = {"R": str(there / "r.yaml"), "RUN": str(run_of(there)) if "RUN" in command else ""}
    assert main([places.get(word, word) for word in command]) == 2
    error = capsys.readouterr().err
    assert "names code to run (model: trap:build" in error
    assert "--allow-code" in error
    assert not (there / "sprung").exists()


def test_all_code_of_a_recipe_is_named_and_nothing_else(there: Path) -> None:
    code = load_recipe(there / "r.yaml", ["data.collate=trap:join"], allow_code=True).code
    assert code == {
        "model": "trap:build",
        "data.train": "trap:rows",
        "data.collate": "trap:join",
        "loss": "trap:loss",
        "early_stopping.stop_when": "trap:stop",
    }
    assert not (there / "sprung").exists()


def test_a_teacher_is_code_and_columns_and_models_by_name_are_not(there: Path) -> None:
    (there / "t.yaml").write_text(
        "task: text-classification\nmodel: 'config:small'\ndata: {train: rows.csv, text: ['a:b'], label: 'c:d'}\n"
        "techniques: [{distillation: {teacher: 'trap:big'}}]\ntrack: {experiment: 'x:y'}\n"
    )
    with pytest.raises(CodeRefused, match=r"\(techniques.distillation.teacher: trap:big\)"):
        load_recipe(there / "t.yaml")


def test_a_recipe_under_the_current_directory_runs_and_says_what(there: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(there)
    asked = []
    monkeypatch.setattr(
        "snugfit.run.from_recipe.train_recipe", lambda recipe, *rest: asked.append(recipe) or sys.exit(3)
    )
    with pytest.raises(SystemExit):
        main(["train", "r.yaml", "--quiet"])
    assert "runs" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "r.yaml"])
    lines = [line for line in capsys.readouterr().err.splitlines() if "trap" in line]
    assert lines == [
        "code     r.yaml runs model: trap:build, data.train: trap:rows, loss: trap:loss, early_stopping.stop_when: trap:stop"
    ]
    assert len(asked) == 2


def test_consent_lets_a_recipe_elsewhere_run(there: Path, capsys) -> None:
    assert main(["train", str(there / "r.yaml"), "--allow-code", "--no-plan"]) == 2
    assert "trap:" in capsys.readouterr().err  # its functions return nothing: refused after they ran
    assert (there / "sprung").exists()


def test_python_needs_consent_too(there: Path) -> None:
    with pytest.raises(CodeRefused, match=r"allow_code=True"):
        sf.load_recipe(there / "r.yaml")
    with pytest.raises(CodeRefused):
        from_recipe.resume_run(run_of(there))
    cv = there / "cv"
    cv.mkdir()
    (cv / "recipe.yaml").write_text(RECIPE)
    (cv / "cv.json").write_text("{}")
    with pytest.raises(CodeRefused):
        door.resume(cv)
    lines: list[str] = []
    with pytest.raises(KeyError):  # it has no folds
        door.resume(cv, tell=lines.append, allow_code=True)
    assert lines[0].startswith("runs model: trap:build, data.train: trap:rows")


def test_processes_of_a_run_are_told_of_the_consent(there: Path) -> None:
    recipe = load_recipe(there / "r.yaml", allow_code=True)
    assert launch._consent(recipe) == ["--allow-code"]


def test_a_searchs_file_elsewhere_needs_consent(there: Path) -> None:
    (there / "space.yaml").write_text("search: {loss: 'mse,trap:loss'}\n")
    with pytest.raises(CodeRefused, match="loss: trap:loss"):
        read_file(there / "space.yaml")
    assert read_file(there / "space.yaml", allow_code=True) == {"loss": "mse,trap:loss"}


def test_a_trial_whose_values_were_consented_to_may_be_gone_on_with(there: Path) -> None:
    trial = applied(load_recipe(there / "r.yaml", allow_code=True), {"loss": "trap:other"})
    (there / "trial.yaml").write_text(trial.to_yaml())
    assert load_recipe(there / "trial.yaml").loss == "trap:other"


@pytest.mark.parametrize(
    "meta",
    [
        {"model": "os:abort"},
        {"model": None, "numerics": {"distillation": {"teacher": "os:abort"}}},
        {"model": None, "extended_by": [{"distillation": {"teacher": "os:abort"}}]},
        {"model": None, "numerics": "os:abort"},
        {"model": None, "numerics": {"os:abort": {}}},
        {"model": None, "extended_by": [{"os:abort": {}}]},
        {"model": None, "task": "python", "collate": "os:abort"},
    ],
    ids=[
        "model",
        "numerics",
        "extended_by",
        "own precision",
        "own precision with settings",
        "own technique",
        "own collate",
    ],
)
def test_a_bundle_runs_no_code_that_it_names_wherever_it_lies(meta: dict, there: Path) -> None:
    save_bundle(Path("best"), nn.Linear(2, 2), {"task": "text-classification", **meta})
    for load in (lambda: load_bundle(Path("best"), extend=extended), lambda: load_predictor("best")):
        with pytest.raises(CodeRefused, match="os:abort"):
            load()
    Path("rows.csv").write_text("text\nfine\n")
    for command in (["predict", "best", "rows.csv", "-o", "out.csv"], ["evaluate", "best", "rows.csv"]):
        assert main(command) == 2


def test_a_bundle_runs_with_consent_and_with_a_model_that_is_given(there: Path) -> None:
    model = nn.Linear(2, 2)
    save_bundle(Path("best"), model, {"model": "linear_of_two:build"})
    assert torch.equal(load_bundle(Path("best"), model=nn.Linear(2, 2))[0].weight, model.weight)
    Path("linear_of_two.py").write_text("from torch import nn\ndef build(): return nn.Linear(2, 2)\n")
    loaded = load_bundle(Path("best"), search=Path.cwd(), allow_code=True)[0]
    assert torch.equal(loaded.weight, model.weight)


def test_a_configuration_names_a_model_of_transformers_and_no_other_function(there: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import BertConfig

    save_bundle(Path("best"), nn.Linear(2, 2), {"extended_by": []})
    BertConfig(architectures=["pipeline"]).save_pretrained("best")
    with pytest.raises(ModelError, match="needs pipeline"):
        load_bundle(Path("best"))


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/tmp/x",
        "a/b",
        "a\\b",
        "C:x",
        "",
        " ",
        ".",
        "..",
        ".x",
        "x.",
        "x ",
        "con",
        "NUL.txt",
        "Com1",
        "a\nb",
        "x" * 300,
    ],
)
def test_a_runs_name_stays_in_the_output_folder(name: str, there: Path) -> None:
    with pytest.raises(SettingError, match="name: .*cannot be a folder's name"):
        sf.train(nn.Linear(2, 2), None, name=name)  # before anything else is looked at, on every rank
    Path("r.yaml").write_text(RECIPE)
    with pytest.raises(SettingError, match="name"):
        load_recipe("r.yaml", [f"name={json.dumps(name)}"])
    assert sorted(os.listdir()) == ["r.yaml"]
