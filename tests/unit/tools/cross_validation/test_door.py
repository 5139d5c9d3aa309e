"""Cross-validation of whole recipes: what each fold's run reads, going on in the middle, the tracker, the command."""

from __future__ import annotations

import csv
import dataclasses
import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from snugfit.cli import main
from snugfit.data.examples import Examples
from snugfit.data.sources import Table, read_table
from snugfit.errors import DataError, ModelError, RunFolderError, SettingError, TrainingFailed
from snugfit.recipe import Recipe, load_recipe
from snugfit.run import from_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.checkpoint.checkpoint_files import load_newest
from snugfit.tasks.prepare import prepare, prepare_sides
from snugfit.tools.cross_validation import door
from snugfit.tools.cross_validation.door import cross_validate, resume
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.result import Fold
from snugfit.tracking.spool import read_events
from snugfit.tracking.translate import to_batch
from tests.unit.data.shard_files import write_shard

POINTS = """\
import torch
from torch import nn

def make_model():
    return nn.Linear(2, 2)

def make_rows():
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(30, 2, generator=draw)
    return [(point, int(point.sum() > 0)) for point in points]
"""
RECIPE = """\
name: points
task: python
model: points_of_cv:make_model
data: {train: points_of_cv:make_rows, validation: null}
train: {epochs: 2, global_batch: 5}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: null
techniques: []
evaluate: {metrics: [accuracy]}
plan: {device: cpu}
track: {mlflow: false}
"""
FILMS = """\
name: films
task: text-classification
model: encoder
data: {train: films.csv, validation: 0.25, text: [title, text], label: mood, max_length: 16}
train: {epochs: 1, global_batch: 8}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: null
techniques: []
plan: {device: cpu}
track: {mlflow: false}
"""
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cv")
    (folder / "points_of_cv.py").write_text(POINTS)
    (folder / "points.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    tokenizer = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder / "encoder")
    BertModel(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=16,
        )
    ).save_pretrained(folder / "encoder")
    with (folder / "films.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["author", "mood", "title", "text"])
        for row in range(24):
            # the title tells rows apart, so that one that leaks is seen
            writer.writerow([f"author{row // 2}", "happy" if row % 2 else "sad", f"t{row}", "good film"])
    (folder / "films.yaml").write_text(FILMS)
    return folder


def points(project: Path, tmp_path: Path, *overrides: str) -> Recipe:
    return load_recipe(project / "points.yaml", [f"output={tmp_path / 'runs'}", *overrides], allow_code=True)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_no_held_out_row_is_in_the_training_rows_of_its_fold(films: Path, tmp_path: Path):
    recipe = load_recipe(films / "films.yaml", [f"output={tmp_path / 'runs'}"])
    found = cross_validate(recipe, folds=3)
    folder = Path(found.folder)
    seen: Counter[str] = Counter()
    for score in found.scores:
        stored = load_recipe(Path(score.run_dir) / "recipe.yaml")
        material = prepare(stored).material
        trained, held_out = (
            {(each["text"], each["title"]) for each in rows_of(Path(path))}
            for path in (stored.data.train, str(stored.data.validation))
        )
        assert not trained & held_out and len(trained | held_out) == 24
        assert (len(material.train), len(material.validation)) == (16, 8), "what the run itself reads"
        moods = Counter(row["mood"] for row in rows_of(folder / score.fold / "validation.jsonl"))
        assert moods == {"happy": 4, "sad": 4}, "stratified by default"
        seen.update(title for _, title in held_out)
    assert set(seen.values()) == {1} and len(seen) == 24
    assert found.summary.mean["accuracy"] == pytest.approx(sum(s.best["accuracy"] for s in found.scores) / 3)


def test_the_run_of_a_fold_trains_on_its_rows_of_a_python_data_set_alone(
    project: Path, tmp_path: Path, monkeypatch
):
    sides = []
    train = from_recipe.train_recipe

    def watched(recipe: Recipe, options: RunOptions, display: Any) -> Any:
        sides.append(prepare_sides(recipe, options.sides).material)
        return train(recipe, options, display)

    monkeypatch.setattr(from_recipe, "train_recipe", watched)
    recipe = points(project, tmp_path)
    cross_validate(recipe, folds=3)
    whole = {tuple(point.tolist()) for point, _ in prepare(recipe).material.train}
    held_out = []
    for material in sides:
        training = {tuple(point.tolist()) for point, _ in material.train}
        validation = {tuple(point.tolist()) for point, _ in material.validation}
        assert not training & validation and training | validation == whole
        held_out += validation
    assert len(held_out) == 30 == len(set(held_out))


def test_a_fold_that_fails_is_gone_on_with_from_its_checkpoint_and_finished_ones_are_not_run_again(
    project: Path, tmp_path: Path, monkeypatch
):
    whole = cross_validate(points(project, tmp_path), folds=3)
    output = tmp_path / "other"
    recipe = points(project, tmp_path, f"output={output}")
    updates = 0
    from snugfit.step.step import Step

    real = Step.__call__

    def failing(self: Step, *given: Any, **named: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates == 8 + 6:  # the second fold, in its second epoch: 20 rows are 4 windows of 5
            raise RuntimeError("the power is gone")
        return real(self, *given, **named)

    monkeypatch.setattr(Step, "__call__", failing)
    with pytest.raises(RuntimeError, match="the power is gone"):
        cross_validate(recipe, folds=3)
    monkeypatch.undo()
    (folder,) = (output / "points" / "cv").iterdir()
    assert [path.parent.name for path in folder.glob("fold-*/result.json")] == ["fold-1-1"]
    first = (folder / "fold-1-1" / "result.json").stat().st_mtime_ns
    counted = []
    resume_run, train_recipe = from_recipe.resume_run, from_recipe.train_recipe
    monkeypatch.setattr(
        from_recipe, "resume_run", lambda *given: counted.append("resumed") or resume_run(*given)
    )
    monkeypatch.setattr(
        from_recipe, "train_recipe", lambda *given: counted.append("begun") or train_recipe(*given)
    )
    found = resume(folder)
    assert counted == ["resumed", "begun"] and found.folder == str(folder)
    assert (folder / "fold-1-1" / "result.json").stat().st_mtime_ns == first
    assert [score.best for score in found.scores] == [score.best for score in whole.scores]
    assert [score.last for score in found.scores] == [score.last for score in whole.scores]
    for one, other in zip(whole.scores, found.scores, strict=True):
        a, b = (
            load_newest(Path(s.run_dir) / "checkpoints").parts["model"]["parameters"] for s in (one, other)
        )
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert json.loads((folder / "found.json").read_text())["finished"] and whole.folder != found.folder


def test_a_fold_that_was_killed_after_its_end_is_not_trained_again(project: Path, tmp_path: Path):
    found = cross_validate(points(project, tmp_path), folds=2)
    folder = Path(found.folder)
    (folder / "fold-1-2" / "result.json").unlink()
    again = resume(folder)
    assert [score.best for score in again.scores] == [score.best for score in found.scores]
    assert [score.last for score in again.scores] == [score.last for score in found.scores]
    assert [score.run_dir for score in again.scores] == [score.run_dir for score in found.scores]


def test_time_is_that_of_all_folds_and_what_is_left_is_resumed(project: Path, tmp_path: Path):
    found = cross_validate(points(project, tmp_path), folds=2, options=RunOptions(stop_after_seconds=1e-6))
    folder = Path(found.folder)
    assert not found.finished and found.stop_reason and found.scores == ()
    found = resume(folder)
    assert found.finished and found.stop_reason is None


def test_rows_that_changed_are_not_gone_on_with(films: Path, tmp_path: Path):
    data = tmp_path / "films.csv"
    data.write_bytes((films / "films.csv").read_bytes())
    recipe = load_recipe(films / "films.yaml", [f"output={tmp_path / 'runs'}", f"data.train={data}"])
    folder = cross_validate(recipe, folds=2, options=RunOptions(stop_after_seconds=1e-6)).folder
    data.write_text(data.read_text().replace("good", "bad"))
    with pytest.raises(DataError, match="has changed since"):
        resume(folder)


def test_a_changed_fold_that_leaks_is_refused(project: Path, tmp_path: Path, monkeypatch):
    leaky = door.Fold(1, 1, (0, 1, 2), (2, 3))
    monkeypatch.setattr(door, "folds_of", lambda dealt, forward, seeds: iter([leaky]))
    with pytest.raises(DataError, match="both trained and scored"):
        cross_validate(points(project, tmp_path))
    assert not (tmp_path / "runs").exists()


def test_groups_are_read_from_columns(films: Path, tmp_path: Path):
    recipe = load_recipe(films / "films.yaml", [f"output={tmp_path / 'runs'}"])
    rows = fold_rows(recipe, ["author"])
    assert rows.groups is not None and len(set(rows.groups)) == 12 and rows.groups[0] == rows.groups[1]
    with pytest.raises(DataError, match="no column 'auther'"):
        fold_rows(recipe, ["auther"])


def test_texts_on_both_sides_are_told_with_their_number(films: Path, tmp_path: Path):
    recipe = load_recipe(films / "films.yaml", [f"output={tmp_path / 'runs'}", "data.text=text"])
    told: list[str] = []
    cross_validate(recipe, folds=2, options=RunOptions(stop_after_seconds=1e-6), tell=told.append)
    assert any("24 of 24 held-out rows" in words and "--groups text" in words for words in told)


def test_rows_without_labels_are_stratified_only_if_they_have_some(project: Path, tmp_path: Path):
    labels = fold_rows(points(project, tmp_path), labelled=True).labels
    assert labels is not None and set(labels) == {0, 1}
    with pytest.raises(
        DataError, match="--groups: names a column, and row 0 of points_of_cv:make_rows is a tuple"
    ):
        fold_rows(points(project, tmp_path), ["author"])


def test_rows_that_cannot_be_used_are_in_no_fold_and_validation_rows_of_their_own_stay_unseen(
    films: Path, tmp_path: Path
):
    data = tmp_path / "films.csv"
    data.write_text((films / "films.csv").read_text() + "author1,happy,,\n")
    given = [f"data.train={data}", f"data.validation={films / 'films.csv'}"]
    with pytest.raises(DataError, match=r"films\.csv:26: title and text are empty"):
        fold_rows(load_recipe(films / "films.yaml", given))
    rows = fold_rows(load_recipe(films / "films.yaml", [*given, "data.bad_rows=skip"]))
    assert rows.count == 24 == len(rows.records or ())
    assert any("is not used: it stays unseen" in note for note in rows.notes)
    assert any("empty text (1)" in note for note in rows.notes)


def test_rows_of_a_fold_are_named_by_the_line_of_the_source_that_they_were_dealt_from(
    films: Path, tmp_path: Path
):
    recipe = load_recipe(films / "films.yaml")
    rows = fold_rows(recipe)
    fold = Fold(1, 1, training=(20, 3, 7), validation=(5, 11))
    files = rows.write(fold, tmp_path)
    with (films / "films.csv").open(newline="") as file:
        texts = dict(enumerate((row["text"] for row in csv.DictReader(file)), start=2))
    for side, places in (("train", fold.training), ("validation", fold.validation)):
        table = read_table(files[side])
        examples = Examples.of(table.rows, table, range(len(table.rows)))
        assert list(examples.rows) == list(places)
        for place, row in enumerate(table.rows):
            source, _, line = examples.origin(place).rpartition(":")
            assert source == recipe.data.train and texts[int(line)] == row["text"]


def test_the_columns_to_keep_copies_together_by_are_those_that_are_there(films: Path, tmp_path: Path):
    data = tmp_path / "copies.csv"
    data.write_text("title,text,mood,size\n" + "a film,good,happy,1\n" * 6)
    folds = [Fold(1, 1, training=(0, 1, 2), validation=(3, 4, 5))]
    texts = load_recipe(films / "films.yaml", [f"data.train={data}"])
    (note,) = door.doubts_of(texts, folds, fold_rows(texts))
    assert note.endswith("Keep them together with --groups title,text")
    (tmp_path / "cells.csv").write_text("mood,size\n" + "happy,1\n" * 6)
    (tmp_path / "cells.yaml").write_text(
        "task: tabular-classification\nmodel: tabm\ndata: {train: cells.csv, label: mood}\n"
    )
    cells = load_recipe(tmp_path / "cells.yaml")
    rows = dataclasses.replace(fold_rows(cells), contents=["same"] * 6)
    (note,) = door.doubts_of(cells, folds, rows)
    assert "--groups text" not in note and "--groups COLUMN" in note


def test_one_long_text_has_no_rows_to_hold_out(films: Path, tmp_path: Path):
    (tmp_path / "long.txt").write_text("good film " * 50)
    given = ["task=causal-lm", f"data={{train: {tmp_path / 'long.txt'}, max_length: 16}}", "evaluate={}"]
    with pytest.raises(DataError, match=r"long\.txt is one text"):
        fold_rows(load_recipe(films / "films.yaml", given))


def test_a_mistake_in_the_first_fold_leaves_no_folder(project: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="has no 'nothing'"):
        cross_validate(points(project, tmp_path, "model=points_of_cv:nothing"))
    assert not list(tmp_path.glob("runs/points/cv/*"))


def test_a_folder_that_is_no_cross_validation_is_refused(tmp_path: Path):
    with pytest.raises(RunFolderError, match=r"no cv\.json"):
        resume(tmp_path)


def test_a_failed_fold_fails_the_whole_and_is_named(project: Path, tmp_path: Path):
    given = ["non_finite={policy: stop}", "optimizer={sgd: {learning_rate: 1.0e+38}}", "evaluate={}"]
    with pytest.raises(TrainingFailed):
        cross_validate(points(project, tmp_path, *given), folds=2)
    (folder,) = tmp_path.glob("runs/points/cv/*")
    assert '"failed"' in (folder / "events.jsonl").read_text().splitlines()[-1]


def test_all_folds_run_by_the_plan_of_the_first(project: Path, tmp_path: Path, monkeypatch):
    planned = []

    def plan(
        recipe: Recipe, options: RunOptions, made: Any, meanwhile: Any
    ) -> tuple[Recipe, None, list[str]]:
        planned.append(options.plan)
        chosen = dataclasses.replace(recipe.plan, micro_batch=3) if options.plan else recipe.plan
        return dataclasses.replace(recipe, plan=chosen), None, []

    monkeypatch.setattr(from_recipe, "planned", plan)
    found = cross_validate(points(project, tmp_path), folds=3, options=RunOptions(plan=True))
    assert planned == [True, False, False]
    ran = [load_recipe(Path(score.run_dir) / "recipe.yaml").plan.micro_batch for score in found.scores]
    assert ran == [3, 3, 3]


def test_the_run_of_a_fold_of_python_data_is_not_resumed_on_other_rows(project: Path, tmp_path: Path):
    found = cross_validate(points(project, tmp_path), folds=2, options=RunOptions(stop_after_seconds=1e-6))
    (run,) = (path.parent for path in Path(found.folder).glob("fold-1-1/*/events.jsonl"))
    with pytest.raises(DataError, match="rows of the fold"):
        from_recipe.resume_run(run)


def test_the_tracker_is_sent_mean_and_spread_of_the_folds_finished_so_far(project: Path, tmp_path: Path):
    found = cross_validate(points(project, tmp_path), folds=2)
    batch, malformed = to_batch(read_events(Path(found.folder) / "events.jsonl"))
    assert malformed == 0 and batch.status == "finished"
    sent = {(each.name, each.step): each.value for each in batch.metrics}
    assert sent["mean/accuracy", 1] == found.scores[0].best["accuracy"]
    assert sent["mean/accuracy", 2] == found.summary.mean["accuracy"]
    assert sent["deviation/accuracy", 2] == found.summary.spread["accuracy"].deviation
    assert ("deviation/accuracy", 1) not in sent, "one fold has none"


@pytest.mark.slow
def test_runs_of_folds_are_shown_under_one_run_with_mean_and_spread(project: Path, tmp_path: Path):
    found = cross_validate(points(project, tmp_path, "track.mlflow=true"), folds=2)
    store = sqlite3.connect(tmp_path / "runs" / "mlflow.db")
    parents = store.execute(
        "select value, count(*) from tags where key = 'mlflow.parentRunId' group by value"
    )
    ((parent, children),) = parents.fetchall()
    assert children == 2
    measured = dict(
        store.execute("select key, value from latest_metrics where run_uuid = ?", (parent,)).fetchall()
    )
    assert measured["mean/accuracy"] == pytest.approx(found.summary.mean["accuracy"])
    assert measured["deviation/accuracy"] == pytest.approx(found.summary.spread["accuracy"].deviation)
    assert store.execute("select status from runs").fetchall() == [("FINISHED",)] * 3


def test_the_command_says_its_result_as_one_object_and_writes_a_page(project: Path, tmp_path: Path, capsys):
    given = [
        "cv",
        str(project / "points.yaml"),
        f"output={tmp_path / 'runs'}",
        "--folds",
        "2",
        "--no-plan",
        "--allow-code",
        "--json",
    ]
    assert main(given) == 0
    printed = capsys.readouterr()
    phases = [line for line in printed.err.splitlines() if line.startswith("cv ") and not line.endswith("s)")]
    assert phases[:-1] == [
        "cv       reading the recipe and its rows …",
        "cv       dealing 30 rows into 2 folds …",
        *(line for line in phases if "is not" in line or "put copies" in line or "are made by" in line),
        "cv       fold 1 of 2: 15 rows to train on, 15 held out",
        "cv       fold 2 of 2: 15 rows to train on, 15 held out",
    ]
    said = json.loads(printed.out.splitlines()[-1])
    assert [fold["fold"] for fold in said["folds"]] == ["fold-1-1", "fold-1-2"]
    assert said["mean"]["accuracy"] == pytest.approx(sum(f["best"]["accuracy"] for f in said["folds"]) / 2)
    page = Path(said["page"]).read_text()
    assert "2 of 2 folds" in page and "fold-1-2" in page and Path(said["folder"]).name in said["page"]
    assert main(["cv", "--resume", said["folder"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["mean"] == said["mean"]


def test_going_on_takes_no_other_folds(project: Path, tmp_path: Path, capsys):
    assert main(["cv", "--resume", str(tmp_path), "--folds", "3"]) == 2
    assert "Leave out --folds" in capsys.readouterr().err
    assert main(["cv"]) == 2


SALES = """\
name: sales
task: tabular-regression
model: mlp
data: {train: sales.csv, label: sold, columns: [price], validation: %s}
train: {epochs: 1, global_batch: 8}
plan: {device: cpu}
track: {mlflow: false}
"""


def sales(folder: Path, validation: str) -> Recipe:
    """A recipe on 40 rows of ten days and of five shops, in no order."""
    order = [7 * n % 40 for n in range(40)]
    rows = [f"2026-01-{1 + n // 4:02},shop{n % 5},{n % 9},{n + n % 3}" for n in order]
    (folder / "sales.csv").write_text("\n".join(["day,shop,price,sold", *rows]) + "\n")
    (folder / "sales.yaml").write_text(SALES % validation)
    return load_recipe(folder / "sales.yaml", [f"output={folder / 'runs'}"])


def days(folder: Path, path: Path) -> list[int]:
    table = (folder / "sales.csv").read_text().splitlines()
    return [int(table[row["snugfit.origin"][2] - 1][8:10]) for row in rows_of(path)]


def test_folds_in_time_train_on_the_days_before_them_as_the_recipe_holds_rows_out(tmp_path: Path):
    told: list[str] = []
    found = cross_validate(
        sales(tmp_path, "{share: 0.2, time: day}"), folds=4, options=RunOptions(plan=False), tell=told.append
    )
    assert any("in the order of day" in words for words in told)
    last = 2
    for score in found.scores:
        trained, held_out = (
            days(tmp_path, Path(found.folder) / score.fold / f"{side}.jsonl")
            for side in ("train", "validation")
        )
        assert set(trained) == set(range(1, last + 1)) and set(held_out) == {last + 1, last + 2}
        last += 2
    with (Path(found.folder) / "out_of_fold.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 32, "the first days are trained on alone"
    (Path(found.folder) / "fold-1-3" / "result.json").unlink()
    again = resume(found.folder, RunOptions(plan=False))
    assert [score.training_rows for score in again.scores] == [8, 16, 24, 32]


def test_folds_are_made_by_the_groups_of_the_recipe_unless_others_are_asked_for(tmp_path: Path):
    recipe = sales(tmp_path, "{share: 0.2, group: shop}")
    found = cross_validate(recipe, folds=5, options=RunOptions(plan=False))
    table = (tmp_path / "sales.csv").read_text().splitlines()
    for score in found.scores:
        held_out = rows_of(Path(found.folder) / score.fold / "validation.jsonl")
        assert len({table[row["snugfit.origin"][2] - 1].split(",")[1] for row in held_out}) == 1
    with pytest.raises(SettingError, match="10 of 5 groups"):
        cross_validate(recipe, folds=10)
    assert fold_rows(recipe, (), time="day").groups is None
    whole = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, columns=None))
    assert set(fold_rows(whole, ("shop",), time="day").records[0]) == {"price", "sold", "snugfit.origin"}
    with pytest.raises(SettingError, match=r"--time: is given beside --groups"):
        cross_validate(recipe, group_by=("shop",), time="day")
    with pytest.raises(DataError, match=r"--time: .*sales\.csv:2: shop is 'shop0', no date"):
        cross_validate(recipe, time="shop")


def test_groups_of_folds_are_those_by_which_a_run_holds_rows_out(tmp_path: Path, monkeypatch):
    recipe = sales(tmp_path, "{share: 0.2, group: shop}")
    path = tmp_path / "sales.csv"
    head, *rows = path.read_text().splitlines()
    spaced = [row.replace("shop0", "shop0 ") if place % 2 else row for place, row in enumerate(rows)]
    path.write_text("\n".join([head, *spaced]) + "\n")
    assert len(set(fold_rows(recipe, ("shop",)).groups or ())) == 5
    path.write_text("\n".join([head, *rows[:3], rows[3].replace("shop1", " "), *rows[4:]]) + "\n")
    with pytest.raises(DataError, match=r"^--groups: .*sales\.csv:5: the row has no shop"):
        fold_rows(recipe, ("shop",))


def test_rows_of_shards_have_no_lines_that_a_fold_could_name(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = sales(tmp_path, "0.2")
    write_shard(
        tmp_path / "sales.tar", {f"{n}.json": json.dumps({"price": n, "sold": 2 * n}) for n in range(20)}
    )
    recipe = dataclasses.replace(
        recipe, data=dataclasses.replace(recipe.data, train="sales.tar", columns=None)
    )
    records = fold_rows(recipe).records
    assert records is not None and records[3]["snugfit.origin"] == ["sales.tar", 3, 0]
    written = Table("train.jsonl", ("price", "sold", "snugfit.origin"), records, list(range(1, 21)), "")
    assert Examples.of(records, written, range(20)).origin(3) == "row 3 of sales.tar"


def test_rows_of_a_python_data_set_are_held_out_by_groups_and_in_time(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "visits_of_cv.py").write_text(VISITS)
    written = "{share: 0.25, %s}"
    (tmp_path / "visits.yaml").write_text(
        RECIPE.replace("points_of_cv:make_model", "visits_of_cv:make_model")
        .replace("points_of_cv:make_rows", "visits_of_cv:make_rows")
        .replace("validation: null", f"validation: {written}")
    )

    def recipe(how: str) -> Recipe:
        path = tmp_path / f"{how[:4]}.yaml"
        path.write_text((tmp_path / "visits.yaml").read_text() % how)
        return load_recipe(path, allow_code=True)

    material = prepare(recipe("group: patient")).material
    sides = [{row["patient"] for row in side} for side in (material.train, material.validation)]
    assert not sides[0] & sides[1] and len(sides[1]) == 1
    material = prepare(recipe("time: day")).material
    assert {row["day"] for row in material.validation} == {3}
    rows = fold_rows(recipe("time: day"), time="day")
    assert rows.times == [n // 5 for n in range(20)]
    assert fold_rows(recipe("time: day"), ("patient",)).groups == [(str(n % 4),) for n in range(20)]
    with pytest.raises(DataError, match="^--groups: visits_of_cv:make_rows has no column 'ward'"):
        fold_rows(recipe("time: day"), ("ward",))
    with pytest.raises(DataError, match=r"visits_of_cv:make_rows has no column 'ward'"):
        prepare(recipe("group: ward"))


VISITS = """\
import torch
from torch import nn

def make_model():
    return nn.Linear(2, 2)

def make_rows():
    return [{"input": torch.ones(2), "labels": n % 2, "patient": n % 4, "day": n // 5} for n in range(20)]
"""
