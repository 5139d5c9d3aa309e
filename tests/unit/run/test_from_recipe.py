"""The main job through the calls the command line makes: CSV → tiny encoder → train, resume, evaluate, predict."""

from __future__ import annotations

import csv
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

from snugfit.core.tree import leaves
from snugfit.data.texts import token_cache
from snugfit.deliver.model_registry import register_best
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.deliver.predictor import load_predictor
from snugfit.display.terminal import TerminalDisplay
from snugfit.errors import (
    DataError,
    ModelError,
    OutOfMemory,
    PlanConflict,
    SettingError,
    SnugfitWarning,
    UserError,
)
from snugfit.models.bundle import load_bundle
from snugfit.models.huggingface import load_classifier
from snugfit.recipe import load_recipe
from snugfit.run import from_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.checkpoint.checkpoint_files import load_newest, remove_all
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.plans.recipe_plan import plan_recipe
from snugfit.run.trained_model import load
from snugfit.tracking.sender import replay
from snugfit.tracking.spool import read_events

GOOD = ["good", "fine", "great", "lovely"]
BAD = ["bad", "poor", "awful", "dull"]
OTHER = ["film", "book", "song", "play"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
RECIPE = """\
name: films
task: text-classification
model: encoder
data: {train: films.csv, validation: 0.25, text: [title, text], label: mood, max_length: 16}
train: {epochs: 4, global_batch: 10, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
techniques: [{clip_norm: {max_norm: 1.0}}, {ema: {decay: 0.9}}, label_smoothing]
evaluate: {every: 5}
plan: {micro_batch: 4, device: cpu}
track: {mlflow: false}
"""


def write_rows(path: Path, count: int, seed: int = 0) -> list[dict[str, str]]:
    """Films with good and bad words; the mood is what most of them say."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        words, mood = (GOOD, "happy") if number % 2 else (BAD, "sad")
        text = " ".join([*draw.choices(words + OTHER, k=draw.randint(2, 9)), draw.choice(words)])
        rows.append({"mood": mood, "title": draw.choice(OTHER), "text": text})
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["mood", "title", "text"])
        writer.writeheader()
        writer.writerows(rows)
    return rows


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a recipe, rows, and an encoder with its tokenizer."""
    folder = tmp_path_factory.mktemp("project")
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *GOOD, *BAD, *OTHER])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=32,
    ).save_pretrained(folder / "encoder")
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.1,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder / "encoder")
    write_rows(folder / "films.csv", 80)
    (folder / "films.yaml").write_text(RECIPE)
    return folder


def recipe(project: Path, tmp_path: Path, *overrides: str) -> Any:
    return load_recipe(project / "films.yaml", [f"output={tmp_path / 'runs'}", *overrides], allow_code=True)


@pytest.fixture(scope="module")
def finished(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return train_recipe(recipe(project, tmp_path_factory.mktemp("finished")))


@pytest.mark.slow  # TensorBoard is imported, and a database of MLflow made
def test_a_run_is_written_for_tensorboard_beside_mlflow_and_alone(project: Path, tmp_path: Path) -> None:
    short = ("train.updates=2", "track.tensorboard=true")
    both = Path(train_recipe(recipe(project, tmp_path, *short, "track.mlflow=true")).run_dir)
    assert (both / "tracking.json").exists() and list((both / "tensorboard").glob("events.*"))
    alone = Path(train_recipe(recipe(project, tmp_path, *short)).run_dir)
    assert not (alone / "tracking.json").exists() and list((alone / "tensorboard").glob("events.*"))


def test_a_stock_encoder_learns_and_what_was_scored_is_what_was_saved(finished: Any) -> None:
    assert finished.status == "finished"
    assert finished.updates == 24
    assert finished.best["metrics"]["accuracy"] > 0.9
    model, meta, tokenizer = load_bundle(Path(finished.run_dir) / "best")
    assert isinstance(model, BertForSequenceClassification)
    assert (meta["weights"], meta["labels"]) == ("ema", ["happy", "sad"])
    assert meta["metrics"] == finished.best["metrics"]
    assert tokenizer is not None


def test_what_was_not_said_before_is_said_when_a_run_goes_on(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, messages = from_recipe.prepare, ["the first"]
    monkeypatch.setattr(
        from_recipe, "prepare", lambda *given, **more: replace(prepare(*given, **more), messages=(*messages,))
    )
    options = RunOptions(stop=lambda: "enough", plan=False)
    run = Path(train_recipe(recipe(project, tmp_path, "evaluate.every=1"), options).run_dir)
    messages.append("the second")
    resume_run(run, options)
    said = [event["message"] for event in read_events(run / "events.jsonl") if event["event"] == "warning"]
    assert [said.count(message) for message in messages] == [1, 1]


def test_the_best_model_scores_on_its_validation_rows_what_the_run_said(
    project: Path, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "held_out.csv", 30, seed=9)
    result = train_recipe(recipe(project, tmp_path, f"data.validation={tmp_path / 'held_out.csv'}"))
    assert result.best is not None
    found = evaluate_file(result.run_dir, str(tmp_path / "held_out.csv"))
    assert found["rows"] == len(rows)
    assert found["metrics"] == pytest.approx(result.best["metrics"], rel=1e-5)  # batches are cut differently


def test_a_trigger_beside_the_recipe_ends_the_run_with_its_reason(project: Path, tmp_path: Path) -> None:
    (project / "film_rules.py").write_text(
        "def third(history):\n    return 'seen three' if len(history) == 3 else None\n"
    )
    rule = "early_stopping={stop_when: 'film_rules:third'}"
    result = train_recipe(recipe(project, tmp_path, rule))
    assert (result.status, result.stop_reason, result.updates) == (
        "finished",
        "early stopping: seen three",
        15,
    )
    end = read_events(Path(result.run_dir) / "events.jsonl")[-1]
    assert (end["event"], end["stop_reason"]) == ("end", result.stop_reason)
    with pytest.raises(SettingError, match=r"early_stopping\.stop_when: 'film_rules' has no 'fourth'"):
        train_recipe(recipe(project, tmp_path, rule.replace("third", "fourth")))


def test_an_optimizer_with_a_schedule_of_its_own_gets_none_beside_it(project: Path, tmp_path: Path) -> None:
    chosen = ["optimizer={schedule_free: {learning_rate: 0.01}}", "techniques=[]"]
    given = recipe(project, tmp_path, *chosen)
    assert given.schedule is None
    result = train_recipe(given)
    assert result.best is not None and result.best["weights"] == "schedule_free"
    with pytest.raises(PlanConflict, match="'schedule_free' and 'linear' both give the schedule"):
        recipe(project, tmp_path, *chosen, "schedule=linear")


def test_a_stopped_run_goes_on_to_the_same_weights(project: Path, tmp_path: Path, finished: Any) -> None:
    stopped = train_recipe(recipe(project, tmp_path), RunOptions(stop_after_seconds=1e-6))
    assert (stopped.status, stopped.resumable, stopped.updates) == ("stopped", True, 1)
    resumed = resume_run(stopped.run_dir)
    assert resumed.status == "finished"
    whole, parts = (load_newest(Path(result.run_dir) / "checkpoints").parts for result in (finished, resumed))
    for part in ("model", "techniques/ema"):
        assert all(torch.equal(a, b) for a, b in zip(leaves(whole[part]), leaves(parts[part]), strict=True))
    assert resumed.best == finished.best


def test_a_run_goes_on_with_tokens_from_the_cache_to_the_weights_of_one_without(
    project: Path, tmp_path: Path, finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(token_cache, "LEAST_TOKENS", 1)
    stopped = train_recipe(recipe(project, tmp_path), RunOptions(stop_after_seconds=1e-6))
    assert len(list((tmp_path / "cache" / "snugfit" / "tokens").iterdir())) == 1
    monkeypatch.setattr(token_cache, "_write", None)  # fails whoever makes tokens anew
    resumed = resume_run(stopped.run_dir)
    assert (resumed.status, resumed.best) == ("finished", finished.best)
    whole, parts = (
        load_newest(Path(result.run_dir) / "checkpoints").parts["model"] for result in (finished, resumed)
    )
    assert all(torch.equal(a, b) for a, b in zip(leaves(whole), leaves(parts), strict=True))


def test_a_run_killed_before_its_first_checkpoint_starts_again_from_its_recipe(
    project: Path, tmp_path: Path, finished: Any
) -> None:
    begun = train_recipe(recipe(project, tmp_path), RunOptions(stop_after_seconds=1e-6))
    run, whole = Path(begun.run_dir), Path(finished.run_dir)
    remove_all(run / "checkpoints")
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    lines = [line for line in lines if '"event":"checkpoint"' not in line and '"event":"end"' not in line]
    (run / "events.jsonl").write_text("".join(lines))
    (run / "notes.txt").write_text("mine")
    again = resume_run(run)
    assert (again.status, again.updates, again.best) == ("finished", finished.updates, finished.best)
    one, other = (load_newest(folder / "checkpoints").parts["model"] for folder in (whole, run))
    assert all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))
    assert (run / "notes.txt").read_text() == "mine"
    assert (run / "events.jsonl").read_text().startswith("".join(lines))


def test_resuming_under_another_plan_gives_the_same_run(project: Path, tmp_path: Path, finished: Any) -> None:
    stopped = train_recipe(
        recipe(project, tmp_path, "plan.micro_batch=5"), RunOptions(stop_after_seconds=1e-6)
    )
    assert resume_run(stopped.run_dir).updates == finished.updates


def test_a_teacher_is_a_folder_with_a_model_trained_for_the_same_labels(
    project: Path, tmp_path: Path, finished: Any
) -> None:
    def taught(teacher: Path | str) -> str:
        return (
            f"techniques=[{{distillation: {{teacher: {teacher}, features: {{bert.encoder: bert.encoder}}}}}}]"
        )

    run = train_recipe(recipe(project, tmp_path, taught(Path(finished.run_dir, "best")), "train.epochs=1"))
    assert run.status == "finished" and run.best is not None
    with pytest.raises(
        SettingError, match=r"distillation\.teacher: .*encoder was not trained for this task: the head"
    ):
        train_recipe(recipe(project, tmp_path, taught(project / "encoder")))
    with pytest.raises(
        SettingError, match=r"distillation\.teacher: config:.*encoder was not trained .*: no weights are read"
    ):
        train_recipe(recipe(project, tmp_path, taught(f"config:{project / 'encoder'}")))
    with pytest.raises(SettingError, match=r"distillation\.teacher: .*nowhere"):
        train_recipe(recipe(project, tmp_path, taught(project / "nowhere")))


def test_a_run_whose_data_changed_is_not_resumed(project: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "films.csv", 40)
    changed = recipe(project, tmp_path, f"data.train={tmp_path / 'films.csv'}")
    stopped = train_recipe(changed, RunOptions(stop_after_seconds=1e-6))
    events = Path(stopped.run_dir, "events.jsonl").read_text()
    with (tmp_path / "films.csv").open("a") as file:
        file.write("sad,film,dull\n")
    with pytest.raises(DataError, match=r"films\.csv has changed since this run began"):
        resume_run(stopped.run_dir)
    assert Path(stopped.run_dir, "events.jsonl").read_text() == events


def _more_dropout(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.3}, indent=1))


def _other_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _padded_on_the_left(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}))


@pytest.mark.parametrize(
    ("edit", "message", "name"),
    [
        (_more_dropout, r"model: config hidden_dropout_prob 0\.1 then, 0\.3 now, modules bert", "model"),
        (_other_weights, r"model_files: model\.safetensors was changed", "model_files"),
        (_padded_on_the_left, r"model_files: tokenizer_config\.json was changed", "model_files"),
    ],
)
def test_a_run_whose_models_files_changed_is_resumed_only_if_that_is_accepted(
    project: Path, tmp_path: Path, edit: Any, message: str, name: str
) -> None:
    encoder = tmp_path / "encoder"
    shutil.copytree(project / "encoder", encoder)
    stopped = train_recipe(recipe(project, tmp_path, f"model={encoder}"), RunOptions(stop_after_seconds=1e-6))
    edit(encoder)
    with pytest.raises(UserError, match=f"^resume: .*{message}"):
        resume_run(stopped.run_dir, RunOptions(stop_after_seconds=1e-6))
    again = resume_run(stopped.run_dir, RunOptions(stop_after_seconds=1e-6, accept_changes=(name,)))
    assert again.updates == stopped.updates + 1


def test_predictions_stand_beside_the_input_columns(tmp_path: Path, finished: Any) -> None:
    rows = write_rows(tmp_path / "new.csv", 41, seed=5)
    found = predict_file(finished.run_dir, str(tmp_path / "new.csv"), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    assert list(written[0]) == ["mood", "title", "text", "prediction", "probability", "source_line"]
    assert [row["text"] for row in written] == [row["text"] for row in rows]
    assert [int(row["source_line"]) for row in written] == list(range(2, 43))
    right = sum(row["prediction"] == row["mood"] for row in written)
    assert right / len(rows) > 0.9
    assert all(0.5 <= float(row["probability"]) <= 1 for row in written)
    assert found["rows"] == sum(found["predictions"].values()) == 41


def test_a_run_is_loaded_with_its_processing_and_predicts_as_the_command(
    tmp_path: Path, finished: Any
) -> None:
    rows = write_rows(tmp_path / "new.csv", 9, seed=6)
    predict_file(finished.run_dir, str(tmp_path / "new.csv"), tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        written = [row["prediction"] for row in csv.DictReader(file)]
    loaded = load(finished.run_dir)
    assert [each["prediction"] for each in loaded.predict(rows)] == written
    assert [each["prediction"] for each in finished.predict(rows)] == written
    assert (loaded.processing.labels, loaded.about["weights"]) == (("happy", "sad"), "ema")
    batch = loaded.processing.collate(loaded.processing.encode(rows))
    assert batch["input_ids"].shape[0] == len(rows)
    assert loaded.processing.tokenizer.cls_token == "[CLS]"
    assert isinstance(loaded.model, BertForSequenceClassification)


def test_a_loaded_run_goes_on(project: Path, tmp_path: Path) -> None:
    short = recipe(project, tmp_path, "evaluate.every=1", "train.updates=2")
    stopped = train_recipe(short, RunOptions(stop_after_seconds=1e-6))
    resumed = load(str(stopped.run_dir), allow_code=True).resume(display=None)
    assert (stopped.updates, resumed.status, resumed.updates) == (1, "finished", 2)


@pytest.mark.slow  # MLflow reads the environment's packages
def test_a_registered_model_is_loaded_as_one_object(
    tmp_path: Path, finished: Any, created_store: tuple[Path, str]
) -> None:
    uri = f"sqlite:///{shutil.copy(created_store[0], tmp_path)}"
    rows = [
        {"title": row["title"], "text": row["text"]} for row in write_rows(tmp_path / "new.csv", 5, seed=6)
    ]
    register_best(
        finished.run_dir,
        name="films",
        uri=uri,
        run_id=replay(finished.run_dir, uri).run_id,
        example_rows=rows,
        predict=lambda bundle, some: load_predictor(bundle).predict(some),
    )
    registered = load("models:/films@champion", uri=uri)
    assert registered.predict(rows) == finished.predict(rows)
    assert registered.run is None


def test_a_column_named_prediction_is_not_overwritten(tmp_path: Path, finished: Any) -> None:
    (tmp_path / "new.csv").write_text("title,text,prediction\nfilm,good,mine\n")
    with pytest.raises(DataError, match="'prediction' already"):
        predict_file(finished.run_dir, str(tmp_path / "new.csv"), tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_a_label_not_seen_in_training_is_named(tmp_path: Path, finished: Any) -> None:
    (tmp_path / "new.csv").write_text("mood,title,text\nhappy,film,good\nangry,film,bad\n")
    with pytest.raises(DataError, match=r"new\.csv:3.*angry"):
        evaluate_file(finished.run_dir, str(tmp_path / "new.csv"))


def test_a_checkpoint_found_alone_says_what_made_it(finished: Any) -> None:
    described = load_newest(Path(finished.run_dir) / "checkpoints").parts["run"]["description"]
    assert described["recipe"]["name"] == "films"
    assert described["plan"]["micro_batch"] == 4
    assert described["versions"]["torch"] == torch.__version__


def test_events_tell_the_whole_run(finished: Any) -> None:
    events = read_events(Path(finished.run_dir) / "events.jsonl")
    kinds = [event["event"] for event in events]
    assert kinds[0] == "run"
    assert kinds[-1] == "end"
    assert kinds.count("update") == finished.updates
    assert events[0]["data"]["labels"] == {"happy": 30, "sad": 30}
    (read,) = events[0]["inputs"]
    assert (read["context"], Path(read["source"]).name, len(read["sha256"])) == ("train", "films.csv", 64)
    assert any("newly initialised" in event["message"] for event in events if event["event"] == "warning")


@pytest.mark.parametrize(
    ("numerics", "saved"),
    [
        ("fp16", {torch.float32}),
        ("bf16", {torch.float32}),
        ("pure_bf16", {torch.bfloat16}),
        ("{master_weights: {gradients: fp32}}", {torch.bfloat16, torch.float32}),
        ("fp16_master_weights", {torch.float16, torch.float32}),
        ("{tf32: {required: false}}", {torch.float32}),
        ("{fp8: {smallest: 16, emulate: true}}", {torch.float32}),
    ],
)
def test_a_pretrained_model_trains_in_every_precision(
    project: Path, tmp_path: Path, numerics: str, saved: set[torch.dtype]
) -> None:
    result = train_recipe(recipe(project, tmp_path, f"plan.numerics={numerics}", "train.epochs=1"))
    assert result.status == "finished" and result.updates == 6 and result.best is not None
    newest = load_newest(Path(result.run_dir) / "checkpoints").parts["model"]
    assert {each.dtype for each in newest["parameters"].values()} == saved
    said = [str(event.get("message")) for event in read_events(Path(result.run_dir) / "events.jsonl")]
    assert sum(message.startswith("tf32: does nothing") for message in said) == ("tf32" in numerics)


def test_a_resumed_run_does_not_say_again_how_it_began(project: Path, tmp_path: Path) -> None:
    stopped = train_recipe(recipe(project, tmp_path), RunOptions(stop_after_seconds=1e-6))
    resume_run(stopped.run_dir, RunOptions(stop_after_seconds=1e-6))
    events = read_events(Path(stopped.run_dir) / "events.jsonl")
    assert [event["event"] for event in events].count("run") == 2
    said = [event["message"] for event in events if event["event"] == "warning"]
    assert sum("newly initialised" in message for message in said) == 1


def test_what_a_technique_warns_of_during_the_run_is_an_event_said_once(
    project: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    result = train_recipe(recipe(project, tmp_path, "techniques=[fp32_logits]", "train.epochs=1"))
    events = read_events(Path(result.run_dir) / "events.jsonl")
    place = {event["event"]: place for place, event in reversed([*enumerate(events)])}
    (warned,) = [place for place, event in enumerate(events) if "fp32_logits" in str(event.get("message"))]
    assert warned > place["run"] and "without autocast it does nothing" in events[warned]["message"]
    assert not [each for each in recwarn if issubclass(each.category, SnugfitWarning)]


def test_a_failed_set_up_names_no_folder_that_was_removed(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError), TerminalDisplay() as display:
        train_recipe(recipe(project, tmp_path, "techniques=[cutmix]"), display=display)
    said = capsys.readouterr().err.splitlines()
    assert any(line.startswith("failed") for line in said), "it failed after it was described"
    assert not [line for line in said if line.startswith("run ")] and not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
def test_the_plan_of_a_recipe_is_made_without_its_weights(project: Path, tmp_path: Path) -> None:
    plan = plan_recipe(recipe(project, tmp_path, "techniques=[lora]"))
    assert plan.fits and plan.choice.micro_batch == 4, "which the recipe names"
    assert plan.about["total_updates"] == 24 and plan.about["window"] == 10
    parameters = plan.about["parameters"]
    assert plan.prediction.peak_by_kind["weights"] >= 4 * parameters["total"]
    assert 0 < plan.prediction.peak_by_kind["optimizer"] < 8 * parameters["total"], "of the adapters alone"
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_run_that_is_planned_says_what_was_predicted_and_measured(project: Path, tmp_path: Path) -> None:
    wanted = recipe(project, tmp_path, "plan.micro_batch=null")
    result = train_recipe(wanted, RunOptions(plan=True))
    events = read_events(Path(result.run_dir) / "events.jsonl")
    (predicted,) = [event["predicted"] for event in events if event["event"] == "plan"]
    warm, measured = (event for event in events if event["event"] == "measured")
    assert (warm["update"], measured["update"]) == (20, 24) and "peak_bytes" not in warm
    assert predicted["peak_bytes"] > 0 and measured["peak_bytes"] > 0
    assert predicted["seconds_per_update"] > 0 and measured["seconds_per_update"] > 0
    stored = json.loads((Path(result.run_dir) / "plan.json").read_text())
    assert stored["fits"] is True and stored["choice"]["micro_batch"] <= 10, (
        "the fastest, which caches decide"
    )
    report = (Path(result.run_dir) / "report.html").read_text(encoding="utf-8")
    assert "Memory, predicted" in report and '<svg class="plot stack"' in report


@pytest.mark.slow
def test_a_run_that_cannot_fit_is_refused_before_it_begins(project: Path, tmp_path: Path) -> None:
    with pytest.raises(OutOfMemory, match=r"Nothing that was tried fits in 1 MiB"):
        train_recipe(recipe(project, tmp_path, "budget.memory=1MiB"), RunOptions(plan=True))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("override", "error", "words"),
    [
        ("data.train=missing.csv", DataError, r"missing\.csv"),
        ("data.label=moood", DataError, "mood"),
        ("model=nowhere", ModelError, "nowhere"),
        ("evaluate.metrics=[accurracy]", SettingError, "accuracy"),
        ("techniques=[ema, ema]", PlanConflict, "twice"),
        ("data.max_length=400", SettingError, r"data\.max_length"),
        ("track={mlflow: true, uri: 'nothing://here'}", UserError, "nothing"),
        ("techniques=[{lora: {targets: [nothing_like_it]}}]", SettingError, r"lora\.targets"),
        ("techniques=[{freeze: {patterns: [heead]}}]", SettingError, r"freeze\.patterns"),
        ("techniques=[cutmix]", UserError, "cutmix"),
        ("techniques=[mixup]", UserError, "hidden_mixup"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing_behind(
    project: Path, tmp_path: Path, override: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        train_recipe(recipe(project, tmp_path, override))
    assert not list(tmp_path.glob("runs/*/*"))


# what is scored has the adapters beside the weights, what is saved has them in the weights: one product of the forward
# is rounded otherwise in each layer
MERGED = 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("adapters", "rate"),
    [
        ("{lora: {rank: 4, plus: 4.0, dropout: 0.1}}", 0.01),
        ("{lora: {rank: 4, dora: true}}", 0.03),
        ("{ia3: {targets: [key, value], head: [classifier, word_embeddings, dense]}}", 0.01),
    ],
)
def test_adapters_are_merged_into_the_model_that_is_saved(
    project: Path, tmp_path: Path, adapters: str, rate: float
) -> None:
    rows = write_rows(tmp_path / "held_out.csv", 30, seed=9)
    chosen = [
        f"techniques=[{adapters}, {{ema: {{decay: 0.5}}}}]",
        f"data.validation={tmp_path / 'held_out.csv'}",
        f"optimizer={{adamw: {{learning_rate: {rate}}}}}",
    ]
    result = train_recipe(recipe(project, tmp_path, *chosen))
    assert result.status == "finished" and result.best is not None
    assert result.best["metrics"]["accuracy"] > 0.8
    best = Path(result.run_dir) / "best"
    model, meta, tokenizer = load_bundle(best)
    fresh = load_classifier(project / "encoder", meta["labels"], tokenizer=tokenizer, seed=3).model
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in fresh.named_parameters()]
    found = evaluate_file(result.run_dir, str(tmp_path / "held_out.csv"))
    assert found["metrics"]["loss"] == pytest.approx(result.best["metrics"]["loss"], rel=MERGED)
    assert found["metrics"]["accuracy"] == result.best["metrics"]["accuracy"]
    # the adapter alone, on the encoder that the run began from
    loaded = peft.PeftModel.from_pretrained(fresh, str(best / "adapter")).eval()
    ids = torch.tensor([[2, 4, 9, 13, 3]])
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(input_ids=ids).logits, model(input_ids=ids).logits, rtol=MERGED, atol=MERGED
        )
    said = predict_file(result.run_dir, str(tmp_path / "held_out.csv"), tmp_path / "out.csv")
    assert said["rows"] == len(rows) and said["weights"] == "ema"


@pytest.mark.slow
def test_a_stopped_run_with_adapters_goes_on_to_the_same_weights(project: Path, tmp_path: Path) -> None:
    chosen = recipe(project, tmp_path, "techniques=[{lora: {dropout: 0.1}}]", "train.epochs=2")
    whole = train_recipe(chosen)
    stopped = train_recipe(chosen, RunOptions(stop_after_seconds=1e-6))
    assert stopped.resumable
    resumed = resume_run(stopped.run_dir)
    one, other = (load_newest(Path(run.run_dir) / "checkpoints").parts["model"] for run in (whole, resumed))
    assert all(torch.equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))
    assert resumed.best == whole.best


def test_a_damaged_adapter_is_found_like_a_damaged_model(project: Path, tmp_path: Path) -> None:
    result = train_recipe(recipe(project, tmp_path, "techniques=[lora]", "train.epochs=1"))
    weights = Path(result.run_dir) / "best" / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors is missing or damaged"):
        load_bundle(Path(result.run_dir) / "best")


def test_a_run_without_adapters_has_no_folder_for_them(finished: Any) -> None:
    assert not (Path(finished.run_dir) / "best" / "adapter").exists()


@pytest.mark.parametrize("adding", ["qk_norm", "embedding_norm"])
def test_modules_that_a_technique_adds_are_in_the_model_that_is_loaded_again(
    project: Path, tmp_path: Path, adding: str
) -> None:
    write_rows(tmp_path / "held_out.csv", 30, seed=9)
    chosen = [f"techniques=[{adding}]", f"data.validation={tmp_path / 'held_out.csv'}", "train.epochs=2"]
    result = train_recipe(recipe(project, tmp_path, *chosen))
    assert result.best is not None
    found = evaluate_file(result.run_dir, str(tmp_path / "held_out.csv"))
    assert found["metrics"]["loss"] == pytest.approx(result.best["metrics"]["loss"], rel=MERGED)
    with pytest.raises(ModelError, match="holds modules that .*norm added"):
        load_bundle(Path(result.run_dir) / "best")


def test_hooks_of_a_recipe_see_the_run_and_are_no_part_of_what_is_learned(
    project: Path, tmp_path: Path, finished: Any
) -> None:
    (project / "film_hooks.py").write_text(
        "seen = []\n\ndef watch(result):\n    seen.append(result)\n    return {'seen': len(seen)}\n\ndef third(metrics):\n"
        "    return 'three are enough' if len(seen) >= 15 else None\n"
    )
    hooks = "hooks={on_update: 'film_hooks:watch', on_evaluation: 'film_hooks:third'}"
    hooked = recipe(project, tmp_path, hooks)
    assert hooked.hash() == recipe(project, tmp_path).hash()
    assert hooked.code["hooks.on_update"] == "film_hooks:watch"  # of which a consent is asked elsewhere
    result = train_recipe(hooked)
    assert (result.status, result.stop_reason, result.updates) == (
        "stopped",
        "hooks.on_evaluation: three are enough",
        15,
    )
    with pytest.raises(SettingError, match=r"hooks\.on_end: 'film_hooks' has no 'fourth'"):
        train_recipe(
            recipe(
                project,
                tmp_path,
                hooks.replace("on_evaluation: 'film_hooks:third'", "on_end: 'film_hooks:fourth'"),
            )
        )
    resumed = resume_run(result.run_dir, changes=["hooks.on_evaluation=null"])
    assert (resumed.status, resumed.best) == ("finished", finished.best)


def test_a_hook_that_is_no_path_of_a_function_is_refused_with_its_line(project: Path, tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"hooks\.on_update: must be package\.module:function or null, found 'later'"
    ):
        recipe(project, tmp_path, "hooks.on_update=later")
