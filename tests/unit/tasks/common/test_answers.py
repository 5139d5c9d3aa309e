"""A language model that was trained on conversations answers, and stops by itself."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import snugfit as sf
from snugfit.cli.app import app
from snugfit.deliver import generate
from snugfit.deliver.generate import answer_to, generate_file, load_generator
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.kit.language_models.generation import Generation
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.observers.sample_answers import sample_answers
from snugfit.tasks.common.texts import stream_settings
from snugfit.tasks.prepare import prepare
from snugfit.tools.cross_validation.fold_rows import fold_rows
from tests.unit.tasks.tiny_decoder import write_decoder

FACTS = [
    ("red?", "warm"),
    ("blue?", "cold"),
    ("sun?", "day"),
    ("moon?", "night"),
    ("cat?", "meow"),
    ("dog?", "woof"),
]
RECIPE = """\
name: facts
task: instruction
model: decoder
from_scratch: true
data: {train: facts.jsonl, validation: null, max_length: 128}
train: {updates: 130, global_batch: 6}
optimizer: {adamw: {learning_rate: 1.0e-2}}
schedule: constant
techniques: [{clip_norm: {max_norm: 1.0}}]
plan: {device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny decoder that has a chat template, facts as conversations, and a recipe."""
    folder = tmp_path_factory.mktemp("project")
    write_decoder(folder / "decoder", 48, heads=4)
    lines = [
        json.dumps({"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]})
        for ask, answer in FACTS
    ]
    (folder / "facts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "facts.yaml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def trained(project: Path) -> str:
    result = train_recipe(
        load_recipe(project / "facts.yaml", [f"output={project / 'runs'}"], allow_code=True)
    )
    assert result.status == "finished"
    return str(result.run_dir)


def says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def events_of(run: Path | str | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(str(run)) / "events.jsonl").read_text().splitlines()]


def questions(*asked: str) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": each}]} for each in asked]


@pytest.mark.slow
def test_it_answers_word_for_word_and_stops_at_the_templates_own_end_of_turn(trained: str) -> None:
    model = sf.load(trained)
    answers = [each["answer"] for each in model.predict(questions(*(ask for ask, _ in FACTS)))]
    assert answers == [answer for _, answer in FACTS]
    config = json.loads((Path(trained) / "best" / "generation_config.json").read_text())
    tokenizer = model.processing.tokenizer
    assert config["eos_token_id"][0] == tokenizer.convert_tokens_to_ids("<end_of_turn>")


@pytest.mark.slow
def test_an_answer_depends_on_its_row_alone(trained: str) -> None:
    for settings in (Generation(), Generation(temperature=1.5, top_p=0.9, seed=3, max_new_tokens=12)):
        generator = load_generator(trained, settings)
        asked = questions("red?", "what is the moon?", "a", "dog?")
        examples = generator.inference.encode(asked)
        together = generator.predict_examples(examples)
        alone = [generator.predict_examples([each], [place])[0] for place, each in enumerate(examples)]
        assert together == alone
        assert together == load_generator(trained, settings).predict(asked), "the same seed draws the same"
    drawn = [
        load_generator(trained, Generation(temperature=5.0, seed=seed, max_new_tokens=8)).predict(
            questions("sun?")
        )
        for seed in (0, 1)
    ]
    assert drawn[0] != drawn[1]


@pytest.mark.slow
def test_a_file_of_conversations_is_answered_line_by_line(
    trained: str, project: Path, tmp_path: Path
) -> None:
    counts = generate_file(
        load_generator(trained, Generation()), str(project / "facts.jsonl"), tmp_path / "new" / "out.jsonl"
    )
    rows = [json.loads(line) for line in (tmp_path / "new" / "out.jsonl").read_text().splitlines()]
    assert [(row["answer"], row["source_line"]) for row in rows] == [
        (answer, line) for line, (_, answer) in enumerate(FACTS, 1)
    ]
    assert counts["rows"] == len(FACTS)
    assert rows[0]["messages"][0]["content"] == "red?"


@pytest.mark.slow
def test_it_is_evaluated_on_answers(trained: str, project: Path) -> None:
    scores = evaluate_file(trained, str(project / "facts.jsonl"))
    assert scores["rows"] == len(FACTS)
    assert scores["metrics"]["perplexity"] == pytest.approx(
        torch.tensor(scores["metrics"]["loss"]).exp().item(), rel=1e-4
    )
    assert scores["metrics"]["loss"] < 0.1


def test_a_file_is_scored_as_the_recipe_scores_its_rows(project: Path, tmp_path: Path) -> None:
    turns = [
        message for ask, answer in FACTS[:2] for message in (says("user", ask), says("assistant", answer))
    ]
    long = [says("user", "why?"), says("assistant", "so " * 60)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps({'messages': each})}\n" for each in (turns, long)))
    overrides = ["data.scored=last", "data.too_long=drop", "train.updates=1", "train.global_batch=1"]
    given = [f"data.train={rows}", f"data.validation={rows}", f"output={tmp_path / 'runs'}", *overrides]
    run = train_recipe(load_recipe(project / "facts.yaml", given), RunOptions(plan=False))
    told = next(each for each in events_of(run.run_dir) if each["event"] == "evaluation")
    scores = evaluate_file(run.run_dir, str(rows))
    assert scores["metrics"]["loss"] == pytest.approx(told["metrics"]["loss"], rel=1e-6)
    assert (scores["rows"], scores["skipped"]) == (1, {"longer than data.max_length": 1})


@pytest.mark.slow
def test_the_command_answers_a_prompt_and_goes_on_in_a_conversation(trained: str, tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["generate", trained, "--prompt", "cat?"]).output.strip().endswith("meow")
    said = runner.invoke(app, ["generate", trained, "--prompt", "dog?", "--json"])
    assert json.loads(said.stdout.splitlines()[-1]) == {"answer": "woof"}
    talk = runner.invoke(app, ["generate", trained], input="red?\n/exit\n")
    assert talk.exit_code == 0 and "warm" in talk.stdout


@pytest.mark.slow
def test_a_conversation_goes_on_behind_an_empty_answer(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = generate.answer_to, []

    def answer(predictor: Any, messages: Any) -> str:
        asked.append(messages)
        return "" if len(asked) == 1 else real(predictor, messages)

    monkeypatch.setattr(generate, "answer_to", answer)
    result = CliRunner().invoke(app, ["generate", trained], input="sun?\ncat?\n")
    assert "meow" in result.output and "is empty" in result.output
    assert asked[1] == [{"role": "user", "content": "cat?"}]


@pytest.mark.slow
def test_what_cannot_be_answered_is_refused_in_one_sentence(trained: str, tmp_path: Path) -> None:
    generator = load_generator(trained, Generation())
    with pytest.raises(DataError, match="it has [0-9]+ tokens, and the model reads 128 with its answer"):
        answer_to(generator, [{"role": "user", "content": "a" * 200}])
    with pytest.raises(DataError, match="System role not supported"):
        answer_to(generator, [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    for setting in ({"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 0.5}):
        (name,) = setting
        with pytest.raises(SettingError, match=name):
            Generation(**setting)  # type: ignore[arg-type]
    result = CliRunner().invoke(app, ["generate", trained, "rows.jsonl"])
    assert isinstance(result.exception, SettingError) or result.exit_code == 2


@pytest.mark.slow
def test_an_empty_answer_is_said_to_be_empty(
    trained: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "snugfit.kit.language_models.generation.generate",
        lambda _model, _batch, places, *_: [[] for _ in places],
    )
    said = CliRunner().invoke(app, ["generate", trained, "--prompt", "cat?"])
    assert (said.exit_code, said.stdout.strip()) == (0, "") and "The answer is empty" in said.stderr
    file = str(project / "facts.jsonl")
    counts = generate_file(load_generator(trained, Generation()), file, tmp_path / "out.jsonl")
    assert (counts["rows"], counts["empty answers"]) == (len(FACTS), len(FACTS))


@pytest.mark.slow
def test_a_model_that_goes_on_with_texts_is_scored_in_blocks_and_goes_on_with_each_row(
    project: Path, tmp_path: Path
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from snugfit.deliver.predict import evaluate_file
    from snugfit.models.bundle import save_bundle
    from snugfit.models.tokenizer import load_tokenizer

    torch.manual_seed(0)
    tokenizer = load_tokenizer(str(project / "decoder"))
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(project / "decoder")).eval()
    meta = {"task": "causal-lm", "text_columns": ["line"], "max_length": 8, "numerics": "fp32"}
    save_bundle(tmp_path / "best", model, meta, tokenizer)
    texts = ["the sun is warm", "the moon is cold"]
    (tmp_path / "lines.jsonl").write_text("\n".join(json.dumps({"line": text}) for text in texts))
    (tmp_path / "lines.txt").write_text("\n".join(texts) + "\n")

    stream = [token for text in texts for token in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]]
    total, count = 0.0, 0
    for start in range(0, len(stream), 8):
        ids = torch.tensor([stream[start : start + 8]])
        losses = torch.nn.functional.cross_entropy(model(ids).logits[0, :-1], ids[0, 1:], reduction="none")
        total, count = total + losses.sum().item(), count + len(losses)
    scores = evaluate_file(tmp_path / "best", str(tmp_path / "lines.jsonl"))
    assert scores["metrics"]["loss"] == pytest.approx(total / count, rel=1e-5)
    assert scores["metrics"]["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)

    generator = load_generator(tmp_path / "best", Generation(max_new_tokens=4))
    alone = [each["answer"] for each in generator.predict([{"line": text} for text in texts])]
    for name in ("lines.jsonl", "lines.txt"):
        generate_file(generator, str(tmp_path / name), tmp_path / "out.jsonl")
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [(row["answer"], row["source_line"]) for row in rows] == [(alone[0], 1), (alone[1], 2)], name


def test_a_model_of_several_documents_goes_on_with_a_text_though_its_tokenizer_has_a_chat_template(
    project: Path, tmp_path: Path
) -> None:
    (tmp_path / "tales.txt").write_text(
        "the sun is warm\n<eos>\nthe moon is cold\n<eos>\nthe cat says meow\n"
    )
    overrides = ["task=causal-lm", "train.updates=1", "train.global_batch=1", "data.max_length=16"]
    given = [f"data.train={tmp_path / 'tales.txt'}", f"output={tmp_path / 'runs'}", *overrides]
    run = train_recipe(load_recipe(project / "facts.yaml", given), RunOptions(plan=False))
    generator = load_generator(str(run.run_dir), Generation(max_new_tokens=4))
    prompt = [{"role": "user", "content": "the sun"}]
    assert answer_to(generator, prompt) == generator.predict([{"text": "the sun"}])[0]["answer"]


def test_a_classifier_generates_nothing(tmp_path: Path) -> None:
    from snugfit.models.bundle import save_bundle

    save_bundle(tmp_path / "best", torch.nn.Linear(2, 2), {"task": "python", "model": "torch.nn:Identity"})
    with pytest.raises((ModelError, sf.UserError)):
        load_generator(tmp_path / "best", Generation(), allow_code=True)


@pytest.mark.slow
def test_the_run_shows_what_is_read_and_what_is_scored(trained: str) -> None:
    from snugfit.display.event_lines import header_lines
    from snugfit.report.page import render
    from snugfit.report.story import read_story

    story = read_story(Path(trained))
    assert any("⟦warm<end_of_turn>⟧" in line for line in header_lines(story.run))
    assert "<mark>warm&lt;end_of_turn&gt;</mark>" in render(story, Path(trained))


@pytest.mark.slow
def test_what_answers_take_is_told_before_the_first_and_too_little_memory_is_refused(
    trained: str, project: Path, tmp_path: Path
) -> None:
    def run(*options: str) -> Any:
        command = ["generate", trained, str(project / "facts.jsonl"), "-o", str(tmp_path / "out.jsonl")]
        return CliRunner().invoke(app, [*command, *options])

    done = run("--memory", "64GiB")
    assert done.exit_code == 0, done.stderr
    assert "Answers: 6 at once" in done.stderr and "of 64 GiB (weights" in done.stderr
    whole = (tmp_path / "out.jsonl").read_text()
    assert [json.loads(line)["answer"] for line in whole.splitlines()] == [answer for _, answer in FACTS]
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(SettingError, match=r"memory: 20 MiB are too little for one answer"):
        generate_file(
            load_generator(trained, Generation()),
            str(project / "facts.jsonl"),
            tmp_path / "out.jsonl",
            memory=20 * 2**20,
        )
    assert not list(tmp_path.glob("*out.jsonl*"))


def test_where_answers_go_and_prompts_come_from_is_seen_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "load_generator", lambda *_, **__: pytest.fail("a model was loaded"))
    (tmp_path / "rows.jsonl").write_text("{}\n")
    for rows, out, said in (
        ("rows.jsonl", "rows.jsonl/out.jsonl", r"-o: .*rows\.jsonl is no folder"),
        ("rows.jsonl", "rows.jsonl", r"-o: .*is the file of the rows"),
        ("none.jsonl", "new/out.jsonl", r"there is no file .*none\.jsonl"),
        ("rows.jsonl", ".", r"is a folder\. Name a file in it: .*answers\.jsonl"),
    ):
        done = CliRunner().invoke(
            app, ["generate", "runs/x/1", str(tmp_path / rows), "-o", str(tmp_path / out)]
        )
        assert isinstance(done.exception, DataError) and re.search(said, str(done.exception)), done.exception


@pytest.mark.slow
def test_a_prompt_that_fills_the_models_positions_is_named_before_anything_is_written(
    trained: str, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(map(json.dumps, questions("red?", "red? " * 40))) + "\n")
    generator = load_generator(trained, Generation())
    with pytest.raises(DataError, match=r"rows\.jsonl:2: the prompt has 215 tokens, and the model reads 128"):
        generate_file(generator, str(rows), tmp_path / "out.jsonl")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.jsonl"]
    counts = generate_file(generator, str(rows), tmp_path / "out.jsonl", bad_rows="skip")
    assert (counts["rows"], counts["skipped"]) == (1, {"prompt too long": 1})


@pytest.mark.parametrize(
    ("settings", "longest"),
    [
        ((), 210),
        (("data.stream=2", "data.max_length=250"), 250),
        (("task=causal-lm", "data.max_length=150"), 150),
    ],
)
def test_examples_longer_than_the_models_positions_are_refused_and_a_longer_max_length_alone_is_not(
    project: Path, settings: tuple[str, ...], longest: int
) -> None:
    lines = [
        json.dumps({"messages": [*messages, says("assistant", "warm")]})
        for messages in (each["messages"] for each in questions("red?", "red? " * 38))
    ]
    (project / "long.jsonl").write_text("\n".join(lines) + "\n")
    (project / "long.txt").write_text("red? " * 100)
    rows = project / ("long.txt" if "task=causal-lm" in settings else "long.jsonl")
    given = (f"data.train={rows}", "data.max_length=256", *settings)
    recipe = load_recipe(project / "facts.yaml", list(given), allow_code=True)
    said = rf"data\.max_length: {recipe.data.max_length} lets examples have {longest} tokens, and this model reads 128"
    with pytest.raises(SettingError, match=said) as caught:
        prepare(recipe)
    (factor,) = re.findall(r'"rope_type": "yarn", "factor": (\d)', str(caught.value))
    config = json.loads((project / "decoder" / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "yarn", "factor": float(factor)}
    shutil.copytree(project / "decoder", project / "stretched", dirs_exist_ok=True)
    (project / "stretched" / "config.json").write_text(json.dumps(config))
    prepare(load_recipe(project / "facts.yaml", [*given, "model=stretched"], allow_code=True))
    short = load_recipe(project / "facts.yaml", ["data.max_length=256"], allow_code=True)
    assert prepare(short).data["max_length"] == 256


@pytest.mark.slow
def test_predictions_within_memory_are_those_without(trained: str, project: Path, tmp_path: Path) -> None:
    for name, memory in (("plain.csv", None), ("planned.csv", 64 * 2**30)):
        predict_file(trained, str(project / "facts.jsonl"), tmp_path / name, memory=memory)
    assert (tmp_path / "plain.csv").read_text() == (tmp_path / "planned.csv").read_text()


@pytest.mark.slow
def test_scores_within_memory_are_those_without(
    trained: str, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text((project / "facts.jsonl").read_text() * 4)
    tuned: list[bool] = []
    monkeypatch.setattr("snugfit.deliver.generation_memory.tune_malloc", lambda: tuned.append(True))
    plain = evaluate_file(trained, str(rows))["metrics"]
    assert not tuned
    planned = evaluate_file(trained, str(rows), memory=64 * 2**30)
    assert planned["metrics"] == plain
    assert planned["memory"].endswith("Texts: 24 at once, of at most 27 tokens each")
    assert tuned, "what is freed has to go back to the system, or it stays resident beside what is planned"
    with pytest.raises(SettingError, match=r"memory: 1 MiB are too little for the scores of one text of"):
        evaluate_file(trained, str(rows), memory=2**20)
    with pytest.raises(SettingError, match="memory: is planned for scores, and exact_match is of answers"):
        evaluate_file(trained, str(rows), ("exact_match",), memory=64 * 2**30)


@pytest.mark.slow
def test_numbers_are_other_ones_only_where_they_are_asked_for(trained: str) -> None:
    plain = load_generator(trained, Generation())
    half = load_generator(trained, Generation(), numbers="bf16")
    assert {each.dtype for each in plain.model.parameters()} == {torch.float32}
    assert {each.dtype for each in half.model.parameters()} == {torch.bfloat16}
    with pytest.raises(SettingError, match=r"quantize: there is no format 'nf5'\. Did you mean 'nf4'"):
        load_generator(trained, Generation(), quantize="nf5")


@pytest.mark.slow
def test_answers_are_scored_as_texts_beside_those_of_the_rows(
    trained: str, project: Path, tmp_path: Path
) -> None:
    names = ("perplexity", "exact_match", "chrf")
    scores = evaluate_file(trained, str(project / "facts.jsonl"), names)["metrics"]
    assert list(scores) == ["loss", *names]
    assert (scores["exact_match"], scores["chrf"]) == (1.0, 1.0)
    wrong = [json.loads(line) for line in (project / "facts.jsonl").read_text().splitlines()]
    wrong[0]["messages"][1]["content"] = "cool"
    (tmp_path / "wrong.jsonl").write_text("\n".join(map(json.dumps, wrong)) + "\n")
    scores = evaluate_file(trained, str(tmp_path / "wrong.jsonl"), names)["metrics"]
    assert scores["exact_match"] == pytest.approx(5 / 6)
    assert scores["chrf"] < 1.0


def changed(project: Path, tmp_path: Path, *overrides: str) -> Path:
    """Train a few updates that are scored on the way; returns the run's folder."""
    held_out = ("data.validation=" + str(project / "facts.jsonl"), "evaluate.every=2", "train.updates=5")
    settings = [*held_out, f"output={tmp_path / 'runs'}", *overrides]
    return Path(str(train_recipe(load_recipe(project / "facts.yaml", settings, allow_code=True)).run_dir))


@pytest.mark.slow
def test_answers_to_the_same_prompts_are_told_at_each_evaluation_and_change_no_weight(
    project: Path, tmp_path: Path
) -> None:
    techniques = "techniques=[{lora: {rank: 2, dropout: 0.1}}, {ema: {decay: 0.5}}]"
    told = changed(project, tmp_path, techniques, "track.answers=2")
    events = [json.loads(line) for line in (told / "events.jsonl").read_text().splitlines()]
    answers = [each for each in events if each["event"] == "answers"]
    assert [each["update"] for each in answers] == [2, 4, 5]
    assert [row["prompt"] for each in answers for row in each["rows"]] == ["red?", "blue?"] * 3
    assert [row["expected"] for row in answers[0]["rows"]] == ["warm", "cold"]
    matches = [mean(row["answer"] == row["expected"] for row in each["rows"]) for each in answers]
    assert [each["scores"]["exact_match"] for each in answers] == matches
    assert all(list(each["scores"]) == ["exact_match", "chrf", "rouge_l", "bleu"] for each in answers)
    page = (told / "report.html").read_text()
    assert (
        "Answers to the same prompts" in page
        and "<h3>blue?</h3>" in page
        and "<th class=number>chrf</th>" in page
    )
    best = max(each["update"] for each in events if each["event"] == "evaluation" and each["best"])
    (shown,) = [each["rows"] for each in answers if each["update"] == best]
    generator = load_generator(told, Generation(64))
    assert [row["answer"] for row in shown] == [
        each["answer"] for each in generator.predict(questions("red?", "blue?"))
    ]
    untold = changed(project, tmp_path, techniques)
    assert not [
        line for line in (untold / "events.jsonl").read_text().splitlines() if '"answers"' in line[:30]
    ]
    for name, weight in sf.load(told).model.state_dict().items():
        assert torch.equal(weight, sf.load(untold).model.state_dict()[name]), name


def test_a_prompt_without_a_position_behind_it_is_not_asked_while_a_model_trains(project: Path) -> None:
    train = project / "long.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": "yes"}]}
        for ask in ("why? " * 200, "red?", "blue?")
    ]
    train.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    cut = [f"data.train={train}", "data.too_long=cut_prompt"]
    recipe = load_recipe(project / "facts.yaml", cut, allow_code=True)
    task = prepare(recipe)
    _, told = sample_answers(recipe, task, 2)(task.material.model.eval(), 0, project)
    assert [row["prompt"] for row in told["rows"]] == ["red?", "blue?"]
    with pytest.raises(SettingError, match=r"track\.answers: is 65, and a model is asked 64 prompts at most"):
        sample_answers(recipe, task, 65)
    for none in (replace(task, asked=task.asked[:1]), replace(task, asked=(), example_rows=[])):
        with pytest.raises(
            SettingError, match=r"track\.answers: no example that it could ask has a prompt that leaves"
        ):
            sample_answers(recipe, none, 2)


@pytest.mark.parametrize(
    ("override", "words"),
    [("techniques=[{lora: {}}, {weight_streaming: {}}]", "weight_streaming"), ("plan.strategy=fsdp", "fsdp")],
)
def test_a_model_that_is_not_on_one_device_is_not_asked_while_it_trains(
    project: Path, tmp_path: Path, override: str, words: str
) -> None:
    with pytest.raises(SettingError, match=rf"track\.answers: .*{words}"):
        changed(project, tmp_path, override, "track.answers=2")
    assert not list((tmp_path / "runs").glob("facts/*"))


def test_what_needs_all_rows_is_refused_of_a_stream(project: Path) -> None:
    streamed = ["data.stream=4", f"data.train={project / 'facts.jsonl'}"]
    with pytest.raises(DataError, match=r"data\.stream: reads .*facts\.jsonl as a stream, of which no folds"):
        fold_rows(load_recipe(project / "facts.yaml", streamed, allow_code=True))
    balanced = load_recipe(project / "facts.yaml", [*streamed, "data.balance=label"], allow_code=True)
    with pytest.raises(SettingError, match=r"data\.balance: counts all rows"):
        stream_settings(balanced)


@pytest.mark.slow
def test_a_run_on_a_stream_that_was_stopped_ends_as_one_that_was_not(project: Path) -> None:
    texts = [json.dumps({"text": f"{ask} {answer} " * 4}) for ask, answer in FACTS]
    (project / "texts.jsonl").write_text("\n".join(texts))
    for task, train in (("causal-lm", "texts.jsonl"), ("instruction", "facts.jsonl")):
        given = [
            f"task={task}",
            f"data.train={project / train}",
            "data.stream=4",
            f"data.validation={project / train if task == 'instruction' else 'null'}",
            "train.updates=5",
            "train.global_batch=3",
            f"output={project / 'streamed'}",
        ]
        recipe = load_recipe(project / "facts.yaml", given, allow_code=True)
        whole = train_recipe(recipe)
        stopped = train_recipe(recipe, RunOptions(stop_after_seconds=1e-6))
        assert stopped.status == "stopped"
        resumed = resume_run(str(stopped.run_dir))
        first, second = (
            load_file(Path(str(run.run_dir)) / "best" / "model.safetensors") for run in (whole, resumed)
        )
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)
