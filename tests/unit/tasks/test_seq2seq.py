"""The laws of every task, for texts that are written after reading others: oracle, split, resume, texts after reload, rows, recognition."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.core.batch import Batch
from snugfit.data.texts.text_to_text import TextToTextData, TextToTextSettings, load_text_to_text_rows
from snugfit.deliver.generate import generate_file, load_generator
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.deliver.predictor import load_predictor
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.kit.language_models.generation import Generation
from snugfit.models.tokenizer import load_tokenizer
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.step.metrics.metric import make_metric
from snugfit.strategies.base import Strategy
from snugfit.tasks import discover
from snugfit.tasks.prepare import prepare, prepare_assumed
from snugfit.tasks.recognition import Rows
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.result import Fold
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.tiny_writer import END, write_bart, write_reversed, write_t5
from tests.unit.tasks.trained_runs import weights

RECIPE = """\
name: rows
task: seq2seq
model: ./t5
data: {train: rows.jsonl, validation: 0.25, text: source, max_length: 16, target_length: 8}
train: {epochs: 3, global_batch: 16, seed: 3}
optimizer: {adamw: {learning_rate: 5.0e-3}}
schedule: null
techniques: []
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
ROWS = 64


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts of one to five words, and the same from the last word to the first."""
    monkeypatch.chdir(tmp_path)
    write_t5(tmp_path / "t5")
    write_reversed(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("recipe.yaml"), overrides), options or RunOptions())


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]


def of_the_library(model: str, updates: int, rate: float) -> dict[str, torch.Tensor]:
    """Train by transformers' own collator and its own loss, the mean over all tokens to write of a window, which is all rows."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    module = transformers.AutoModelForSeq2SeqLM.from_pretrained(model).train()
    collate = transformers.DataCollatorForSeq2Seq(tokenizer, module)
    examples = [
        {
            "input_ids": tokenizer(row["source"], truncation=True, max_length=16)["input_ids"],
            "labels": tokenizer(text_target=row["target"], truncation=True, max_length=8)["input_ids"],
        }
        for row in rows()
    ]
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    for _ in range(updates):
        module(**collate(examples)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return module.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_t5, write_bart])
def test_three_updates_in_parts_are_those_of_the_library_on_whole_windows(project: Path, write: Any) -> None:
    write(Path("model"))
    plain = (
        "optimizer={sgd: {learning_rate: 0.3, momentum: 0.0}}",
        "data.validation=null",
        f"train.global_batch={ROWS}",
    )
    run = train(*plain, "model=./model", "plan.micro_batch=5")
    theirs = of_the_library("./model", 3, 0.3)
    ours, before = weights(run.run_dir), load_predictor_weights("./model")
    moved = max(float((theirs[name] - before[name]).abs().max()) for name in theirs)
    assert moved > 1e-2
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-4)


def load_predictor_weights(model: str) -> dict[str, torch.Tensor]:
    import transformers

    return transformers.AutoModelForSeq2SeqLM.from_pretrained(model).state_dict()


@pytest.mark.slow
def test_texts_are_learned_and_written_alike_after_a_reload_alone_and_by_transformers(project: Path) -> None:
    result = train(
        "train.epochs=60",
        "data.validation=rows.jsonl",
        "evaluate={every: 60, metrics: [perplexity, exact_match, chrf], best: chrf}",
    )
    best = result.best["metrics"]
    assert best["exact_match"] > 0.5 and best["chrf"] > best["exact_match"]
    reloaded = load(result.run_dir)
    here, again = result.predict(rows()), reloaded.predict(rows())
    alone = [reloaded.predict([row])[0] for row in rows()[:12]]
    assert here == again and here[:12] == alone
    share = sum(own["prediction"] == row["target"] for own, row in zip(here, rows(), strict=True)) / ROWS
    assert share == best["exact_match"]
    predict_file(result.run_dir, "rows.jsonl", Path("out.csv"))
    with Path("out.csv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == [each["prediction"] for each in here]
    scores = evaluate_file(result.run_dir, "rows.jsonl")["metrics"]
    assert scores["exact_match"] == share and scores["loss"] == pytest.approx(best["loss"], rel=1e-5)
    assert set(scores) == {"loss", "perplexity", "exact_match", "chrf", "rouge_l", "bleu"}
    beams = load_predictor(Path(result.run_dir, "best")).with_beams(3)
    searched = beams.predict(rows())
    assert searched[:12] == [beams.predict([row])[0] for row in rows()[:12]]
    by_beams = evaluate_file(result.run_dir, "rows.jsonl", num_beams=3)["metrics"]
    matches = sum(own["prediction"] == row["target"] for own, row in zip(searched, rows(), strict=True))
    assert by_beams["exact_match"] == matches / ROWS and by_beams["loss"] == scores["loss"]
    predict_file(result.run_dir, "rows.jsonl", Path("beams.csv"), num_beams=3)
    with Path("beams.csv").open() as file:
        written = [row["prediction"] for row in csv.DictReader(file)]
    assert written == [each["prediction"] for each in searched]
    with pytest.raises(ModelError, match="of whose predictions there is no mean"):
        predict_file(result.run_dir, "rows.jsonl", Path("both.csv"), others=[result.run_dir])
    generator = load_generator(result.run_dir, Generation(max_new_tokens=8))
    assert generate_file(generator, "rows.jsonl", Path("answers.jsonl"))["rows"] == ROWS
    answers = [json.loads(line)["prediction"] for line in Path("answers.jsonl").read_text().splitlines()]
    assert answers == [each["prediction"] for each in here]

    import transformers

    report = reloaded.export("hf", "exported")
    (compared,) = report["compared"]
    assert report["compared_on"] == "8 rows" and compared["answers"] == "8 of 8 equal"
    assert compared["difference"] < 1e-5 and compared["equal"] == ["tokens", "stop tokens"]
    for folder in (Path(result.run_dir, "best"), Path("exported")):
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for row, own in zip(rows()[:8], here, strict=False):
            ids = tokenizer(row["source"], return_tensors="pt")["input_ids"]
            text = tokenizer.decode(model.generate(ids)[0], skip_special_tokens=True)
            assert text == own["prediction"]
        assert model.generation_config.max_new_tokens == 8
    with pytest.raises(ModelError, match="form of a model's inputs"):
        reloaded.export("onnx", "graph")


@pytest.mark.slow
def test_adapters_learn_and_the_rest_stays(project: Path) -> None:
    result = train("techniques=[{lora: {rank: 2}}]", "train.epochs=2")
    before = load_predictor_weights("./t5")
    changed = {name for name, each in weights(result.run_dir).items() if not torch.equal(each, before[name])}
    assert changed and all(name.split(".")[-2] in ("q", "k", "v", "o", "wi", "wo") for name in changed)
    assert Path(result.run_dir, "best/adapter/adapter_config.json").read_text().count("SEQ_2_SEQ_LM") == 1
    assert len(load(result.run_dir).predict(rows()[:3])) == 3


def test_a_model_that_ends_each_text_at_once_has_scores(project: Path) -> None:
    material = prepare(
        load_recipe(Path("recipe.yaml"), ["evaluate.metrics=[exact_match, chrf, bleu]"])
    ).material
    batch = material.collate([material.train[place] for place in range(3)])  # type: ignore[misc]
    with torch.no_grad():
        material.model.lm_head.weight.zero_()  # type: ignore[union-attr, operator]
        material.model.eval()
        forward: Any = material.forward
        stopping = dataclasses.replace(forward, stops=(0,))  # the likeliest of tokens that are all alike
        outputs = stopping.scored(material.model, batch)
    assert outputs["written"].shape == (3, 0)
    for name in ("exact_match", "chrf", "bleu"):
        metric = make_metric(material.metrics[name])
        metric.update(outputs, Batch.of(batch))
        assert metric.compute(Strategy()) == 0


def test_a_plan_without_rows_has_the_longest_texts_of_both_kinds(project: Path) -> None:
    task = prepare_assumed(load_recipe(Path("recipe.yaml")))
    example = task.material.train[0]
    assert (len(example["input_ids"]), len(example["labels"])) == (16, 8)
    assert all(each.is_meta for each in task.material.model.parameters())


def test_folds_have_both_texts_of_each_row(project: Path) -> None:
    dealt = fold_rows(load_recipe(Path("recipe.yaml")))
    assert dealt.records is not None and {"source", "target"} <= set(dealt.records[0])
    files = dealt.write(Fold(1, 1, tuple(range(40)), tuple(range(40, ROWS))), Path())
    task = prepare(load_recipe(Path("recipe.yaml"), [f"data.{side}={file}" for side, file in files.items()]))
    assert (len(task.material.train), len(task.material.validation)) == (40, ROWS - 40)


def loaded(lines: list[dict[str, Any]], **others: Any) -> TextToTextData:
    Path("own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given: dict[str, Any] = {
        "train": "own.jsonl",
        "text": ("source",),
        "validation": None,
        "max_length": 8,
        "target_length": 4,
    }
    settings = TextToTextSettings(**{**given, **others})
    return load_text_to_text_rows(settings, load_tokenizer("./t5", folder=Path()))


GOOD = [{"source": "ann bob", "target": "bob ann"}, {"source": "rome", "target": "rome"}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"source": "", "target": "ann"}, "empty text"),
        ({"source": "ann", "target": " "}, "empty text"),
        ({"source": "ann", "target": None}, "empty text"),
        ({"source": "ann"}, "missing column"),
        ({"source": "ann", "target": 3}, "not text"),
    ],
)
def test_a_row_without_a_text_is_a_fault_with_its_line(
    project: Path, row: dict[str, Any], reason: str
) -> None:
    with pytest.raises(DataError, match=r"own.jsonl:3"):
        loaded([*GOOD, row])
    data = loaded([*GOOD, row], bad_rows="skip")
    assert data.report.skipped == {reason: 1} and len(data.train) == 2


def test_texts_that_are_too_long_are_cut_counted_and_still_end(project: Path) -> None:
    data = loaded([*GOOD, {"source": "ann " * 20, "target": "bob " * 9}])
    long = data.train[2]
    assert len(long["input_ids"]) == 8 and data.report.truncated == 1
    assert len(long["labels"]) == 4 and long["labels"][-1] == END
    (warning,) = data.report.warnings
    assert "1 of 3 texts to write in own.jsonl have more than 4 tokens (data.target_length)" in warning
    batch = data.collate([data.train[0], long])
    assert batch["labels"].tolist()[0] == [4, 3, END, -100] and batch["input_ids"].shape == (2, 8)


def test_a_prefix_stands_before_each_text_that_is_read_and_none_that_is_written(project: Path) -> None:
    data = loaded(GOOD, prefix="new ")
    assert data.train[0]["input_ids"] == [10, 3, 4, END] and data.train[0]["labels"] == [4, 3, END]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.target_length=1"], r"data.target_length: 1 leaves no room for text"),
        (["data.target_length=99"], r"data.target_length: 99 is more than the 64 tokens"),
        (["data.target=answer"], r"data.target: .*no column 'answer'"),
        (["evaluate.metrics=[entity_f1]"], r"entity_f1 is of spans of tagged words"),
        (
            ["evaluate.metrics=[chrf]", "plan.strategy=fsdp"],
            r"has chrf, of texts that the model writes, and one that is spread over devices",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(project: Path, overrides: list[str], message: str) -> None:
    with pytest.raises((SettingError, DataError), match=message):
        train(*overrides)
    assert not list(Path("runs").glob("*/*/best"))


def test_models_that_write_nothing_after_reading_are_refused(project: Path) -> None:
    config = json.loads(Path("t5/config.json").read_text())
    del config["decoder_start_token_id"]
    Path("t5/config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="has no decoder_start_token_id"):
        prepare(load_recipe(Path("recipe.yaml")))
    Path("t5/config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ModelError, match="does not read one text and write another"):
        prepare(load_recipe(Path("recipe.yaml")))


def test_beams_are_for_models_that_write_and_look_for_the_likeliest() -> None:
    with pytest.raises(SettingError, match="num_beams: must be 1 or more"):
        Generation(num_beams=0)
    with pytest.raises(SettingError, match="num_beams: is 2, which looks for the likeliest answer"):
        Generation(num_beams=2, temperature=1.0)


@pytest.mark.parametrize(
    ("columns", "given", "task", "data"),
    [
        (("source", "target"), {}, "seq2seq", {"text": ("source",), "target": "target"}),
        (("id", "article", "highlights"), {}, "seq2seq", {"text": ("article",), "target": "highlights"}),
        (("text", "summary"), {}, "seq2seq", {"text": ("text",), "target": "summary"}),
        (("en", "de"), {}, "seq2seq", {"text": ("en",), "target": "de"}),
        (("en", "de"), {"target": "en"}, "seq2seq", {"text": ("de",), "target": "en"}),
        (("question", "answer"), {}, "instruction", {"completion": "answer"}),
        (("input", "output"), {}, "instruction", {"completion": "output"}),
        (("text", "label"), {}, "text-classification", {"label": "label"}),
    ],
)
def test_texts_to_write_are_recognised(
    columns: tuple[str, ...], given: dict[str, Any], task: str, data: dict[str, Any]
) -> None:
    made = [
        {name: "ab"[place % 2] if name == "label" else f"some {name} of row {place}" for name in columns}
        for place in range(60)
    ]
    seen = Rows(Path("rows.jsonl"), columns, made)
    proposals = {name: card.recognize(seen, given) for name, card in discover().items()}
    suitable = {name: each for name, each in proposals.items() if each is not None}
    best = max(suitable, key=lambda name: suitable[name].score)
    assert best == task and {name: suitable[best].data.get(name) for name in data} == data


def test_a_file_and_a_model_are_a_recipe(project: Path) -> None:
    recipe = load_recipe(begin_here("rows.jsonl", ["model=./t5"]).recipe)
    assert (recipe.task, recipe.data.text, recipe.data.target) == ("seq2seq", ("source",), "target")
    chats = [{"question": row["source"], "answer": row["target"]} for row in rows()]
    Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chats))
    assert (
        load_recipe(begin_here("chats.jsonl", ["model=./t5", "task=seq2seq"]).recipe).data.target == "answer"
    )
