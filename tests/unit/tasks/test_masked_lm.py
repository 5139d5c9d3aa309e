"""The laws of every task, for hidden tokens: what is hidden and how often, oracle, split, resume, filled masks after reload, rows, recognition."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from snugfit.data.examples import Examples
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.texts.masked import MaskedData, MaskedSettings, MaskedTexts, Masks, load_masked
from snugfit.data.texts.token_rows import TokenRows
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.models.tokenizer import load_tokenizer
from snugfit.recipe import load_recipe
from snugfit.recipe.jobs import job_of, plan_of
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.step.build import training_loader
from snugfit.tasks.prepare import prepare, prepare_assumed
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.cross_validation.out_of_fold import write_out_of_fold
from snugfit.tools.init.door import begin_here
from tests.unit.tasks.tiny_encoder import PIECES, write_encoder
from tests.unit.tasks.trained_runs import weights

RECIPE = """\
name: texts
task: masked-lm
model: ./encoder
from_scratch: true
data: {train: rows.jsonl, validation: 0.25, max_length: 16}
train: {epochs: 3, global_batch: 16, seed: 3}
optimizer: {adamw: {learning_rate: 5.0e-3}}
schedule: null
techniques: []
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
ROWS = 64
MASK = len(PIECES)
IGNORED = -100


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts in which a word is known by the one before it."""
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder", mask=True)
    drawn = random.Random(0)
    pairs = ["ann lives", "bob met", "new york", "good food", "bad film", "not very"]
    texts = [" ".join(drawn.choice(pairs) for _ in range(drawn.randint(2, 6))) for _ in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "corpus.txt").write_text("\n".join(texts))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("recipe.yaml"), overrides), options or RunOptions())


def masked(ids: list[list[int]], seed: int | None = None, probability: float = 0.15) -> MaskedTexts:
    rows = TokenRows.of({"input_ids": each, "attention_mask": [1] * len(each)} for each in ids)
    masks = Masks(mask=99, special=np.array([0, 1, 2, 99]), others=np.arange(3, 99), probability=probability)
    return MaskedTexts(Examples(rows, "rows", range(len(ids))), masks, seed)


def test_tokens_are_hidden_as_often_and_as_the_paper_says() -> None:
    length, count = 40, 1000
    texts = masked([[1, *[3 + (row + at) % 90 for at in range(length)], 2] for row in range(count)], seed=7)
    hidden = masks = same = others = 0
    places = np.zeros(length + 2)
    for row in range(count):
        before = texts.rows.examples[row]["input_ids"]
        after, labels = (np.array(texts[row][name]) for name in ("input_ids", "labels"))
        chosen = np.flatnonzero(labels != IGNORED)
        assert len(chosen) == 6 == round(0.15 * length)
        assert labels[chosen].tolist() == [before[place] for place in chosen]
        apart = labels == IGNORED
        assert after[apart].tolist() == np.array(before)[apart].tolist()
        places[chosen] += 1
        hidden += len(chosen)
        masks += int((after[chosen] == 99).sum())
        same += int((after[chosen] == labels[chosen]).sum())
        others += int(((after[chosen] != 99) & (after[chosen] != labels[chosen])).sum())
        assert not np.isin(after[chosen], [0, 1, 2]).any()
    assert places[0] == places[-1] == 0  # special tokens
    # each share is within four standard deviations of a binomial count, for these seeds always the same
    for number, share in ((masks, 0.8), (same, 0.1 + 0.1 / 96), (others, 0.1 - 0.1 / 96)):
        assert abs(number - share * hidden) < 4 * (hidden * share * (1 - share)) ** 0.5
    expected = hidden / length
    assert np.all(np.abs(places[1:-1] - expected) < 4.5 * (expected * 0.85) ** 0.5)


def test_a_short_text_has_a_hidden_token_and_one_of_special_tokens_alone_has_none() -> None:
    texts = masked([[1, 5, 2], [1, 2]], seed=0)
    assert texts[0]["labels"] == [IGNORED, 5, IGNORED]
    assert texts[1]["labels"] == [IGNORED] * 2 and texts[1]["input_ids"] == [1, 2]


@pytest.mark.slow
def test_masks_are_of_the_seed_the_epoch_and_the_example_alone(project: Path) -> None:
    recipe = load_recipe(Path("recipe.yaml"), ["data.validation=null"])
    material = prepare(recipe).material

    def by_example(loader: Loader, windows: int) -> dict[tuple[int, int], Any]:
        seen: dict[tuple[int, int], Any] = {}
        for number, window in enumerate(loader.windows(0, windows)):
            for place, example in enumerate(window.ids):
                length = window.lengths[place]  # type: ignore[index]
                seen[number * len(window.ids) // ROWS, example] = [
                    window.data[name][place, :length].tolist() for name in ("input_ids", "labels")
                ]
        return seen

    def loader(batch: int, seed: int = 3, workers: int = 0) -> Loader:
        order = Order(ROWS, batch, seed)
        return Loader(material.train, order, material.collate, num_workers=workers)

    here = by_example(loader(16), 8)
    assert here == by_example(loader(4), 32) == by_example(loader(16, workers=2), 8)
    first, second = ([here[epoch, row] for row in range(ROWS)] for epoch in (0, 1))
    assert first != second and first != [by_example(loader(16, seed=4), 4)[0, row] for row in range(ROWS)]


def test_masks_of_rows_to_validate_on_are_always_the_same(project: Path) -> None:
    held_out = prepare(load_recipe(Path("recipe.yaml"))).material.validation
    before = torch.random.get_rng_state()
    once = held_out[3]
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    assert held_out[3] == once and held_out[4]["labels"] != once["labels"]


@pytest.mark.slow
def test_three_updates_in_parts_are_a_plain_loop_over_whole_windows_with_the_same_masks(
    project: Path,
) -> None:
    import transformers

    plain = (
        "optimizer={sgd: {learning_rate: 0.5, momentum: 0.0}}",
        "data.validation=null",
        "train={updates: 3, epochs: null, global_batch: 16, seed: 3}",
    )
    run = train(*plain, "plan.micro_batch=5")
    recipe = load_recipe(Path("recipe.yaml"), plain)
    task = prepare(recipe)
    loader = training_loader(job_of(recipe), plan_of(recipe), task.material)
    module = task.material.model.train()
    assert isinstance(module, transformers.BertForMaskedLM)
    before = {name: each.clone() for name, each in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for window in loader.windows(0, 3):
        module(**window.data).loss.backward()  # the mean over all hidden tokens of the window
        optimizer.step()
        optimizer.zero_grad()
    ours, theirs = weights(run.run_dir), module.state_dict()
    assert max(float((theirs[name] - before[name]).abs().max()) for name in theirs) > 1e-2
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_hidden_words_are_learned_and_filled_alike_after_a_reload_alone_and_by_transformers(
    project: Path,
) -> None:
    result = train(
        "train.epochs=200",
        "optimizer={adamw: {learning_rate: 1.0e-2}}",
        "data.validation=rows.jsonl",
        "evaluate.every=200",
    )
    best = result.best["metrics"]
    assert best["accuracy"] > 0.5 and best["perplexity"] < 5
    scores = evaluate_file(result.run_dir, "rows.jsonl")["metrics"]
    assert scores == pytest.approx({"loss": best["loss"], **best}, rel=1e-5)  # by the same masks
    questions = [{"text": "new [MASK] good food"}, {"text": "bob [MASK] bad [MASK] ann lives new york"}]
    reloaded = load(result.run_dir)
    here, again = result.predict(questions), reloaded.predict(questions)
    assert here == again
    assert here[0]["prediction"] == "new york good food"
    assert [len(each["tokens"]) for each in here] == [1, 2]
    for own, question in zip(here, questions, strict=True):
        (alone,) = reloaded.predict([question])
        assert alone["prediction"] == own["prediction"]
        for one, other in zip(alone["tokens"], own["tokens"], strict=True):
            assert [each["probability"] for each in one] == pytest.approx(
                [each["probability"] for each in other], abs=2e-6
            )
    Path("questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
    predict_file(result.run_dir, "questions.jsonl", Path("out.csv"))
    with Path("out.csv").open() as file:
        assert [json.loads(row["tokens"]) for row in csv.DictReader(file)] == [
            each["tokens"] for each in here
        ]

    import transformers

    reloaded.export("hf", "exported")
    fill = transformers.pipeline("fill-mask", model="exported", top_k=5)
    theirs = fill(questions[0]["text"])
    (own,) = here[0]["tokens"]
    assert [each["token_str"] for each in theirs] == [each["token"] for each in own]
    assert [each["score"] for each in theirs] == pytest.approx(
        [each["probability"] for each in own], abs=1e-5
    )


@pytest.mark.slow
def test_a_pretrained_encoder_is_the_model_of_a_classifier(project: Path) -> None:
    pretrained = Path(train("train.epochs=1").run_dir, "best")
    lines = [f"{'good food' if at % 2 else 'bad film'},{'ab'[at % 2]}" for at in range(40)]
    Path("labels.csv").write_text("\n".join(["text,label", *lines]))
    recipe = load_recipe(begin_here("labels.csv", [f"model={pretrained}", "data.max_length=16"]).recipe)
    model = prepare(recipe).material.model
    trained, name = weights(pretrained.parent), "bert.embeddings.word_embeddings.weight"
    assert torch.equal(model.state_dict()[name], trained[name])


def test_a_plain_text_is_read_in_blocks_between_special_tokens_of_which_the_last_are_held_out(
    project: Path,
) -> None:
    data = loaded("corpus.txt", validation=0.25)
    whole = load_tokenizer("./encoder", folder=Path())(
        Path("corpus.txt").read_text(), add_special_tokens=False
    )
    blocks = [data.train.rows[place]["input_ids"] for place in range(len(data.train))]
    blocks += [data.validation.rows[place]["input_ids"] for place in range(len(data.validation))]
    assert all((block[0], block[-1]) == (2, 3) and len(block) <= 16 for block in blocks)
    assert [token for block in blocks for token in block[1:-1]] == whole["input_ids"]
    assert data.report.unit == "blocks" and data.train.lengths[0] == 16
    assert len(data.validation) == round(0.25 * len(blocks))


def test_a_plan_without_rows_reads_the_longest_texts(project: Path) -> None:
    task = prepare_assumed(load_recipe(Path("recipe.yaml")))
    assert len(task.material.train[0]["input_ids"]) == len(task.material.train[0]["labels"]) == 16
    assert all(each.is_meta for each in task.material.model.parameters())


def test_folds_have_the_text_of_each_row(project: Path) -> None:
    dealt = fold_rows(load_recipe(Path("recipe.yaml")))
    assert dealt.count == ROWS and dealt.records is not None and "text" in dealt.records[0]


def loaded(source: str, **others: Any) -> MaskedData:
    settings = MaskedSettings(**{"train": source, "validation": None, "max_length": 16, **others})
    return load_masked(settings, load_tokenizer("./encoder", folder=Path()))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": ""}, "empty text"),
        ({"text": None}, "empty text"),
        ({}, "missing column"),
        ({"text": 3}, "not text"),
    ],
)
def test_a_row_without_a_text_is_a_fault_with_its_line(
    project: Path, row: dict[str, Any], reason: str
) -> None:
    rows = [{"text": "ann lives"}, {"text": "bob met"}, row]
    Path("own.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with pytest.raises(DataError, match=r"own.jsonl:3"):
        loaded("own.jsonl")
    data = loaded("own.jsonl", bad_rows="skip")
    assert data.report.skipped == {reason: 1} and len(data.train) == 2


def test_a_text_to_fill_without_a_mask_is_a_fault(project: Path) -> None:
    run = train("train={updates: 1, epochs: null, global_batch: 16}").run_dir
    Path("own.jsonl").write_text('{"text": "ann [MASK]"}\n{"text": "bob met"}\n')
    with pytest.raises(DataError, match=r"own.jsonl:2: has no mask: write \[MASK\] in place of"):
        predict_file(run, "own.jsonl", Path("out.csv"))
    assert not Path("out.csv").exists()
    assert predict_file(run, "own.jsonl", Path("out.csv"), bad_rows="skip")["skipped"] == {"no mask": 1}
    fold: Any = [SimpleNamespace(run_dir=run, fold=1)]  # of which no held-out text has a mask
    assert write_out_of_fold(load_recipe(Path("recipe.yaml")), Path(), fold, "own.jsonl") is None
    with pytest.raises(DataError, match=r"row 1: has no mask\. Write \[MASK\] in place of"):
        load(run).predict([{"text": "bob met"}])


def test_models_that_hide_nothing_are_refused(project: Path) -> None:
    write_encoder(Path("plain"))
    with pytest.raises(ModelError, match="the tokenizer has no mask token"):
        prepare(load_recipe(Path("recipe.yaml"), ["model=./plain"]))
    Path("encoder/config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelError, match="is no encoder that predicts hidden tokens"):
        prepare(load_recipe(Path("recipe.yaml")))
    with pytest.raises(SettingError, match="data.mask_probability"):
        load_recipe(Path("recipe.yaml"), ["data.mask_probability=1"])


def test_a_file_and_a_model_are_a_recipe_where_the_task_is_named(project: Path) -> None:
    for source in ("rows.jsonl", "corpus.txt"):
        assert (
            load_recipe(begin_here(source, ["model=./encoder", "task=masked-lm"]).recipe).task == "masked-lm"
        )
