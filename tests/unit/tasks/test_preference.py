"""Preferences from rows to a model: recipes, what they refuse, runs that go on, and models that are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import snugfit as sf
from snugfit.cli.app import app
from snugfit.errors import SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.identity.source_code import code_of
from snugfit.tasks import find
from snugfit.tasks.prepare import prepare
from snugfit.tasks.recognition import Rows
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tracking.spool import read_events
from tests.unit.tasks.tiny_decoder import write_decoder

RECIPE = """\
name: taste
task: preference
model: decoder
from_scratch: true
data: {train: pairs.jsonl, validation: 0.25, text: prompt, max_length: 64}
train: {updates: 6, global_batch: 6}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: constant
techniques: []
evaluate: {every: 3}
checkpoint: {every: 2}
plan: {device: cpu, numerics: fp32, micro_batch: 4}
track: {mlflow: false}
"""
ASKED = [f"{name} {number}?" for name in ("red", "sun", "cat") for number in range(4)]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny decoder that has a chat template, pairs, single answers, and a recipe."""
    folder = tmp_path_factory.mktemp("project")
    write_decoder(folder / "decoder", 24, positions=64, dropout=0.1)
    pairs = [
        {"prompt": each, "chosen": f"yes {each[:3]}", "rejected": "no" * (1 + place % 4)}
        for place, each in enumerate(ASKED)
    ]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    single = [
        {"prompt": each, "completion": "yes" if place % 2 else "no", "label": bool(place % 2)}
        for place, each in enumerate(ASKED)
    ]
    (folder / "single.jsonl").write_text("\n".join(map(json.dumps, single)))
    (folder / "taste.yaml").write_text(RECIPE)
    return folder


def recipe_of(project: Path, *overrides: str) -> Any:
    return load_recipe(project / "taste.yaml", [f"output={project / 'runs'}", *overrides], allow_code=True)


def overrides_of(project: Path, loss: str) -> list[str]:
    return ["loss=kto", f"data.train={project / 'single.jsonl'}"] if loss == "kto" else [f"loss={loss}"]


def test_the_recipes_loss_has_its_settings(project: Path) -> None:
    material = prepare(recipe_of(project, "loss=ipo", "preference.beta=0.4", "preference.form=trl")).material
    assert repr(material.loss) == "IPO(beta=0.4, form='trl')"
    assert (len(material.train), len(material.validation)) == (9, 3)
    kto = prepare(recipe_of(project, *overrides_of(project, "kto"), "preference.undesirable=0.5")).material
    assert repr(kto.loss) == "KTO(beta=0.1, desirable=1.0, undesirable=0.5)"


STREAM = ["data.stream=4", "data.validation=null", "train.updates=5", "train.global_batch=4"]


@pytest.mark.slow
def test_a_stream_of_pairs_that_was_stopped_ends_as_one_that_was_not(project: Path) -> None:
    recipe = recipe_of(project, *STREAM, "techniques=[{lora: {}}]", "loss=ipo")
    whole = train_recipe(recipe, RunOptions(plan=False))
    stopped = train_recipe(recipe, RunOptions(plan=False, stop_after_seconds=1e-6))
    assert stopped.status == "stopped"
    resumed = resume_run(str(stopped.run_dir))
    first, second = (
        load_file(Path(str(run.run_dir)) / "best" / "model.safetensors") for run in (whole, resumed)
    )
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_losses_that_need_all_rows_are_refused_of_a_stream(project: Path) -> None:
    with pytest.raises(SettingError, match=r"data\.stream: .* and kto compares each prompt's answer"):
        prepare(recipe_of(project, *overrides_of(project, "kto"), *STREAM))
    with pytest.raises(
        SettingError, match=r"data\.stream: .* by scores of all rows\. Train new adapters alone"
    ):
        prepare(recipe_of(project, *STREAM))


@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_windows_in_tokens_count_both_sequences_of_an_example(project: Path, loss: str) -> None:
    sizes = ["train.global_batch=null", "train.batch_tokens=150", "train.updates=null", "train.epochs=1"]
    recipe = recipe_of(project, *overrides_of(project, loss), *sizes)
    rows = prepare(recipe).material.train
    result = train_recipe(recipe, RunOptions(plan=False))
    run = next(
        event for event in read_events(Path(str(result.run_dir)) / "events.jsonl") if event["event"] == "run"
    )
    tokens = sum(len(ids) for row in rows for ids in row["input_ids"])
    assert run["window"] == "150 tokens"
    assert tokens / 150 <= result.updates < len(rows)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["preference.form=trl"], r"preference\.form: is trl, and dpo has no such setting"),
        (["loss=orpo", "preference.desirable=2.0"], r"preference\.desirable: is 2\.0, and orpo has no such"),
        (["loss=cross_entropy"], r"no built-in loss of task preference .* Known: dpo, ipo, kto, orpo"),
        (["preference.beta=0"], r"preference\.beta: must be a positive number, found 0"),
        (["loss=dop"], r"Did you mean 'dpo'\?"),
        (["data.scored=last"], r"data\.scored: is not used by task preference"),
    ],
)
def test_settings_that_a_loss_does_not_have_are_refused(
    project: Path, overrides: list[str], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        prepare(recipe_of(project, *overrides))


def test_other_tasks_have_no_loss_and_no_section_of_preferences(project: Path) -> None:
    for change, words in (
        ("loss=dpo", "no built-in loss of task instruction"),
        ("preference.beta=0.2", "is not used by"),
    ):
        with pytest.raises(SettingError, match=words):
            recipe_of(project, "task=instruction", change)
    written = recipe_of(project, "task=instruction").as_dict()
    assert "preference" not in written
    assert recipe_of(project).as_dict()["preference"]["beta"] == 0.1


def test_metrics_of_a_cross_entropy_are_refused(project: Path) -> None:
    with pytest.raises(
        SettingError, match="perplexity is of a cross-entropy, and the loss is of preferences"
    ):
        train_recipe(recipe_of(project, "evaluate.metrics=[perplexity]"))


HINGE = """\
import torch

from snugfit.kit.losses.preference_losses import log_ratios


def hinge(outputs, batch):
    ratios = log_ratios(outputs)
    return torch.relu(1 - 0.1 * (ratios[:, 0] - ratios[:, 1]))
"""


def test_a_loss_of_ones_own_gets_the_scores_of_answers_and_is_compared_by_a_resume(project: Path) -> None:
    (project / "own_preference_loss.py").write_text(HINGE)
    recipe = recipe_of(project, "loss=own_preference_loss:hinge")
    assert any("hinge" in part for part in code_of(prepare(recipe).material.loss))
    result = train_recipe(recipe)
    assert result.status == "finished"
    assert result.last["metrics"]["loss"] < 1, "it is 1 where nothing is preferred yet"
    assert "reward_margin" in result.last["metrics"]


ROW = {"prompt": "a", "chosen": "b", "rejected": "c"}


@pytest.mark.parametrize(
    ("row", "data", "loss"),
    [
        (ROW, {"text": ("prompt",), "answers": ("chosen", "rejected")}, None),
        ({"chosen": [], "rejected": []}, {"answers": ("chosen", "rejected")}, None),
        (
            {"question": "a", "response": "b", "label": True},
            {"text": ("question",), "completion": "response"},
            "kto",
        ),
    ],
)
def test_rows_of_preferences_are_recognised(
    row: dict[str, Any], data: dict[str, Any], loss: str | None
) -> None:
    recognized = find("preference").recognize(Rows(Path("a.jsonl"), tuple(row), [row] * 3), {})
    assert recognized is not None
    assert {key: value for key, value in recognized.data.items() if key != "max_length"} == data
    assert recognized.settings.get("loss") == loss


@pytest.mark.parametrize(
    "row", [{"prompt": "a", "completion": "b"}, {"prompt": "a", "completion": "b", "label": 1}]
)
def test_rows_without_a_preference_are_another_tasks(row: dict[str, Any]) -> None:
    assert find("preference").recognize(Rows(Path("a.jsonl"), tuple(row), [row] * 3), {}) is None


def states(run: Any) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint: weights, and what the optimizer has."""
    newest = sorted((Path(run) / "checkpoints").iterdir())[-1]
    found = {}
    for path in sorted(newest.rglob("*.safetensors")):
        found |= {f"{path.name}: {name}": each for name, each in load_file(path).items()}
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(project: Path, loss: str) -> None:
    overrides = overrides_of(project, loss)
    whole = train_recipe(recipe_of(project, *overrides))
    stopped = train_recipe(recipe_of(project, *overrides), RunOptions(stop_after_seconds=1e-6))
    assert stopped.status == "stopped"
    kept = (Path(str(stopped.run_dir)) / "reference.json").read_text()
    resumed = resume_run(str(stopped.run_dir))
    assert resumed.status == "finished"
    assert (Path(str(stopped.run_dir)) / "reference.json").read_text() == kept
    first, second = (states(run.run_dir) for run in (whole, resumed))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert whole.last["metrics"] == resumed.last["metrics"]


@pytest.mark.slow
def test_a_model_that_learned_preferences_prefers_and_answers(project: Path, tmp_path: Path) -> None:
    result = train_recipe(
        recipe_of(project, "techniques=[{lora: {}}]", "train.updates=30", "evaluate.every=30")
    )
    metrics = result.last["metrics"]
    assert metrics["reward_accuracy"] == 1.0
    assert metrics["reward_margin"] == pytest.approx(metrics["reward_chosen"] - metrics["reward_rejected"])
    run = str(result.run_dir)
    assert not (Path(run) / "reference.json").exists(), "adapters are switched off instead"
    model = sf.load(run)
    rows = [{"prompt": "red 0?"}, {"messages": [{"role": "user", "content": "red 0?"}]}]
    first, second = (each["answer"] for each in model.predict(rows))
    assert first == second
    assert result.predict(rows[:1])[0]["answer"] == first, (
        "the result of the run answers as the run's folder does"
    )
    scored = CliRunner().invoke(app, ["evaluate", run, str(project / "pairs.jsonl"), "--json"])
    assert scored.exit_code == 0, scored.output
    assert json.loads(scored.stdout.splitlines()[-1])["metrics"]["perplexity"] > 1


def test_folds_are_dealt_by_what_the_loss_reads(project: Path) -> None:
    pairs = fold_rows(load_recipe(project / "taste.yaml", allow_code=True))
    assert pairs.records is not None
    assert pairs.count == len(ASKED) and [*pairs.records[0]][:3] == ["prompt", "chosen", "rejected"]
    file = project / "single.jsonl"
    good = fold_rows(load_recipe(project / "taste.yaml", [f"data.train={file}", "loss=kto"], allow_code=True))
    assert good.records is not None and [*good.records[0]][:3] == ["prompt", "completion", "label"]
    rows = [json.loads(line) for line in (project / "pairs.jsonl").read_text().splitlines()]
    rows[3] = {"prompt": "alone"}
    (project / "lacking.jsonl").write_text("\n".join(map(json.dumps, rows)))
    overrides = [f"data.train={project / 'lacking.jsonl'}", "data.bad_rows=skip"]
    dealt = fold_rows(load_recipe(project / "taste.yaml", overrides, allow_code=True))
    assert dealt.count == len(ASKED) - 1 and "rows that cannot be used are in no fold" in dealt.notes[0]
