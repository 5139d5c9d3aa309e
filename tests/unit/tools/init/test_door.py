"""`snugfit init`: what lies in a folder becomes a recipe that runs as it stands, or an answer that says why not."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from snugfit.cli import main
from snugfit.data.texts.instruct import InstructSettings, load_instruct
from snugfit.data.texts.tokens import special_tokens_of_pairs
from snugfit.errors import DataError, ModelError, SettingError, UserError
from snugfit.models.small import write_small_model
from snugfit.models.tokenizer import load_tokenizer
from snugfit.recipe import load_recipe
from snugfit.recipe.strict_yaml import Places, read_yaml
from snugfit.tasks.prepare import prepare
from snugfit.tools.init import local_models
from snugfit.tools.init.door import Beginning, _leave_no_row_alone, begin
from snugfit.tools.init.model_settings import SCRATCH_PRESET
from snugfit.tools.init.recipe_text import commented
from tests.unit.tasks.drawn_sounds import write_tones

TEXTS = [
    f"the {what} was {how} and {more}"
    for what in ("film", "food", "room")
    for how in ("good", "bad")
    for more in ("slow", "loud", "new", "old")
]
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 600,
    "max_position_embeddings": 64,
}
SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x)


def make_data():
    return [(torch.randn(4), i % 2) for i in range(40)]


if __name__ == "__main__":
    raise SystemExit("init ran the script")
"""


@pytest.fixture(autouse=True)
def no_pretrained_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leave nothing of this machine: neither the cache of Hugging Face nor a package with a model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(local_models, "PACKAGE", "no_such_package")


def table(folder: Path, name: str = "reviews.csv") -> Path:
    rows = [f'{number},"{text}",{"pos" if "good" in text else "neg"}' for number, text in enumerate(TEXTS)]
    path = folder / name
    path.write_text("\n".join(["id,review,verdict", *rows]) + "\n")
    return path


def messages(folder: Path) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"say {text}"}],
            "completion": [{"role": "assistant", "content": f"{text}."}],
        }
        for text in TEXTS
    ]
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def pairs(folder: Path) -> Path:
    path = folder / "pairs.jsonl"
    rows = [{"instruction": f"say {text}", "input": "", "output": f"{text}."} for text in TEXTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def preferences(folder: Path) -> Path:
    path = folder / "preferences.jsonl"
    rows = [
        {
            "chosen": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}],
            "rejected": [{"role": "user", "content": text}, {"role": "assistant", "content": "no, never"}],
        }
        for text in TEXTS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def corpus(folder: Path) -> Path:
    path = folder / "corpus.txt"
    path.write_text("".join(f"{text}.\n" for text in TEXTS * 3))
    return path


def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    return path


def configuration(folder: Path) -> Path:
    (folder / "tiny").mkdir()
    (folder / "tiny/config.json").write_text(json.dumps(CONFIG))
    return folder / "tiny"


@pytest.mark.parametrize("make", [table, pairs, preferences, corpus, script, configuration])
@pytest.mark.slow  # a whole run each
def test_the_recipe_runs_as_it_stands(make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make(tmp_path)
    assert main(["init", source.name, "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    command = said["next"][0].split()
    assert command[:2] == ["snugfit", "train"] and command[-1] == "--fast-dev-run"
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stderr


@pytest.mark.parametrize(
    ("make", "task", "data"),
    [
        (table, "text-classification", {"text": ("review",), "label": "verdict"}),
        (pairs, "instruction", {"text": ("instruction",), "completion": "output"}),
        (messages, "instruction", {"text": ("prompt",), "completion": "completion", "template": "chatml"}),
        (preferences, "preference", {"answers": ("chosen", "rejected"), "template": "chatml"}),
        (corpus, "causal-lm", {}),
        (script, "python", {"train": "train:make_data"}),
    ],
)
def test_rows_and_scripts_are_recognised_by_the_tasks(make, task: str, data: dict, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    made = begin(make(tmp_path).name)
    recipe = load_recipe(made.recipe)
    assert recipe.task == made.task == task
    assert {key: getattr(recipe.data, key) for key in data} == data
    assert [command.split()[1] for command, _ in made.commands] == ["train", "plan", "train"]


def rows_of_texts(columns: Sequence[str], *values: Callable[[int], object]) -> Path:
    path = Path("rows.csv")
    lines = [",".join(str(value(number)) for value in values) for number in range(80)]
    path.write_text(
        "\n".join([",".join(columns), *(f"{TEXTS[at % 24]} {at},{line}" for at, line in enumerate(lines))])
    )
    return path


@pytest.mark.parametrize("label", ["stars", "rating", "score", "Grade", "sentiment_label", "flagged"])
def test_a_column_of_few_whole_numbers_has_the_classes_of_texts(label: str, tmp_path: Path) -> None:
    rows_of_texts(["text", label], lambda number: number % 5 + 1)
    recipe = load_recipe(begin("rows.csv").recipe)
    assert (recipe.task, recipe.data.text, recipe.data.label) == ("text-classification", ("text",), label)


def test_ratings_of_many_values_stay_a_number_to_predict(tmp_path: Path) -> None:
    rows_of_texts(["text", "score"], lambda number: number % 20)
    assert load_recipe(begin("rows.csv").recipe).task == "text-regression"


def test_a_column_that_could_hold_classes_is_named_beside_a_language_model(tmp_path: Path) -> None:
    rows_of_texts(["text", "first part"], lambda number: number % 9)
    made = begin("rows.csv")
    assert made.task == "causal-lm"
    command = (
        "snugfit init rows.csv task=text-classification 'data.label=first part' -o text-classification.yaml"
    )
    assert made.others["text-classification"] == command
    Path(made.model).rename("first-model")
    assert main(shlex.split(command)[1:]) == 0
    assert load_recipe("text-classification.yaml").data.label == "first part"
    with pytest.raises(DataError, match=r"or name its columns, such as data\.label=COLUMN\."):
        begin("rows.csv", ["task=text-regression", "data.text=text"])


def test_years_beside_texts_are_no_classes(tmp_path: Path) -> None:
    rows_of_texts(["text", "published"], lambda number: 2019 + number % 3)
    made = begin("rows.csv")
    assert made.task == "causal-lm" and "text-classification" not in made.others


def test_numbers_of_any_name_beside_texts_are_offered_and_the_recipe_names_those_that_were_seen(
    tmp_path: Path,
) -> None:
    rows_of_texts(["text", "width", "depth"], lambda number: number / 4, lambda number: number**2 / 8)
    assert "text-regression" in begin("rows.csv").others
    made = begin("rows.csv", ["task=text-regression"], Path("numbers.yaml"))
    text = " ".join(made.recipe.read_text().replace("#", " ").split())
    assert (
        "numbers are in width too: another is named by snugfit init … data.label=COLUMN label: depth" in text
    )


def test_rows_in_another_encoding_come_with_the_command_that_saves_them_anew(tmp_path: Path) -> None:
    lines = [f"{text},{'good' if 'good' in text else 'bad'}" for text in TEXTS]
    Path("some.csv").write_bytes("\n".join(["text,label", *lines, "café,good"]).encode("latin-1"))
    saved = "Save it as UTF-8, for example: iconv -f latin1 -t utf-8 some.csv > some-utf8.csv"
    assert saved in begin("some.csv").notes
    Path("all.csv").write_bytes("text,label\ncafé,good\ntoo bad à,bad".encode("latin-1"))
    with pytest.raises(
        DataError, match=r"all.csv: no row can be used: byte 0xe9 on line 2 .* > all-utf8.csv"
    ):
        begin("all.csv")


def test_a_new_model_says_what_kind_of_model_there_is_none_of(tmp_path: Path) -> None:
    table(tmp_path)
    assert "no pretrained model of texts is here" in begin("reviews.csv").origin
    Path("reviews.yaml").unlink()
    shutil.rmtree("reviews-model")
    assert "no pretrained language model is here" in begin("reviews.csv", ["task=causal-lm"]).origin


def test_a_model_from_scratch_learns_preferences_by_a_loss_that_teaches_answers_too(tmp_path: Path) -> None:
    preferences(tmp_path)
    made = begin("preferences.jsonl")
    assert load_recipe(made.recipe).loss == "orpo"
    assert "loss: orpo  # for a model that has learned nothing yet; dpo for one" in made.recipe.read_text()
    given = begin("preferences.jsonl", ["loss=ipo", "name=given"], Path("elsewhere/given.yaml"))
    assert load_recipe(given.recipe).loss == "ipo"


def test_a_pretrained_model_and_answers_that_are_called_good_or_bad_keep_their_loss(tmp_path: Path) -> None:
    preferences(tmp_path)
    write_small_model(Path("decoder"), TEXTS, kind="decoder")
    (tmp_path / "decoder/model.safetensors").touch()
    made = begin("preferences.jsonl", ["model=decoder"])
    assert load_recipe(made.recipe).loss == "dpo"
    shutil.rmtree("decoder")
    Path("judged.jsonl").write_text('{"prompt": "say it", "completion": "it", "label": true}\n' * 9)
    assert load_recipe(begin("judged.jsonl").recipe).loss == "kto"


@pytest.mark.parametrize("fixed", [[], ["model=shape"]])
def test_pairs_of_texts_are_a_recipe_whose_new_tokenizer_tells_the_two_apart(
    fixed: list[str], tmp_path: Path
) -> None:
    lines = [
        f"{first},{second},{'ab'[at % 2]}" for at, (first, second) in enumerate(itertools.pairwise(TEXTS))
    ]
    Path("nli.csv").write_text("\n".join(["premise,hypothesis,label", *lines]))
    Path("shape").mkdir()
    Path("shape/config.json").write_text(json.dumps({"model_type": "bert"}))
    recipe = load_recipe(begin("nli.csv", fixed).recipe)
    assert (recipe.model, recipe.from_scratch) == (str(tmp_path / "nli-model"), True)
    assert (recipe.data.text, recipe.data.pair) == (("premise",), "hypothesis")
    assert special_tokens_of_pairs(load_tokenizer(recipe.model, folder=recipe.folder)) == 3


def test_the_recipe_says_its_schema_and_every_setting_says_what_it_is(tmp_path: Path) -> None:
    table(tmp_path)
    made = begin()
    text = made.recipe.read_text()
    first, *lines = text.splitlines()
    assert first == "# yaml-language-server: $schema=snugfit.schema.json"
    assert json.loads(Path("snugfit.schema.json").read_text())["title"] == "Snugfit recipe"
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line and not line.startswith(("#", "name:", "task:")) and not line.endswith(":")
        if "#" not in line and "#" not in before
    ]
    assert not bare
    assert "24 rows, 2 classes" in text and "causal-lm" in text
    assert load_recipe(made.recipe).model == str(tmp_path / "reviews-model")


def test_another_task_that_was_named_can_be_had(tmp_path: Path) -> None:
    table(tmp_path)
    made = begin("reviews.csv")
    command = made.others["causal-lm"].split()
    Path("reviews-model").rename("first-model")  # which would be taken
    assert main(command[1:]) == 0
    assert load_recipe("causal-lm.yaml").task == "causal-lm"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    table(tmp_path)
    begin()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SettingError, match=r"reviews\.yaml: exists, and nothing is overwritten"):
        begin()
    (tmp_path / "reviews-model/config.json").unlink()
    with pytest.raises(SettingError, match="reviews-model: exists"):
        begin(output=Path("other.yaml"))
    del before[tmp_path / "reviews-model/config.json"]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert not Path("other.yaml").exists()


def test_settings_that_are_given_count(tmp_path: Path) -> None:
    table(tmp_path)
    recipe = load_recipe(begin("reviews.csv", ["data.label=id", "train.epochs=7", "name=mine"]).recipe)
    assert (recipe.data.label, recipe.train.epochs, recipe.name) == ("id", 7, "mine")
    with pytest.raises(DataError, match=r"data\.label: reviews\.csv has no column 'verdit'.*verdict"):
        begin("reviews.csv", ["data.label=verdit"], Path("b.yaml"))
    shutil.rmtree("reviews-model")
    with pytest.raises(SettingError, match=r"train\.epochs"):
        begin("reviews.csv", ["train.epochs=none"], Path("c.yaml"))
    assert not Path("b.yaml").exists() and not Path("c.yaml").exists()


def test_files_of_a_folder_have_their_parts(tmp_path: Path) -> None:
    folder = tmp_path / "beer"
    folder.mkdir()
    for name in ("train.csv", "valid.csv", "test.csv"):
        table(folder, name)
    (folder / "requirements.txt").write_text("torch\n" * 1000)
    made = begin("beer")
    assert made.recipe == Path("beer/beer.yaml")
    recipe = load_recipe(made.recipe)
    assert recipe.data.train == str(folder / "train.csv")
    assert recipe.data.validation == str(folder / "valid.csv")
    assert any("test.csv" in note for note in made.notes)


def test_files_of_a_folder_with_the_same_columns_are_trained_on_together_and_others_are_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "beer"
    folder.mkdir()
    for name in ("january.csv", "february.csv", "test.csv"):
        table(folder, name)
    (folder / "february.csv").open("a").write("99,too,many,fields\n")
    (folder / "cities.csv").write_text("city,country\nRome,Italy\n")
    made = begin("beer")
    recipe = load_recipe(made.recipe)
    assert made.recipe == Path("beer/beer.yaml")
    assert set(recipe.data.train) == {str(folder / "january.csv"), str(folder / "february.csv")}
    assert "48 rows" in made.reason
    notes = "\n".join(made.notes)
    assert "2 files of the same columns are trained on" in notes
    assert "left out, without the columns of february.csv: cities.csv" in notes
    assert "february.csv:26: 4 fields, the header has 3" in notes


def test_files_of_another_form_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "beer"
    folder.mkdir()
    for name in ("january.csv", "february.csv"):
        table(folder, name)
    (folder / "short.jsonl").write_text('{"text": "x", "label": "y"}\n')
    heard: list[str] = []
    made = begin("beer", tell=heard.append)
    assert [each for each in heard if "february" in each or "january" in each]
    assert not [each for each in heard if "short.jsonl" in each]
    assert any("short.jsonl" in note for note in made.notes)


def test_one_file_that_is_named_is_trained_on_alone(tmp_path: Path) -> None:
    for name in ("january.csv", "february.csv"):
        table(tmp_path, name)
    assert load_recipe(begin("january.csv").recipe).data.train == str(tmp_path / "january.csv")


def test_rows_that_cannot_be_read_are_left_out_and_said(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + "99,too,many,fields\n")
    made = begin()
    assert load_recipe(made.recipe).data.bad_rows == "skip"
    assert any("line 26: 4 fields, the header has 3" in note for note in made.notes)


def test_a_label_of_numbers_with_fractions_is_one_to_predict(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{word} word", "score": float(n % 5)}) for n, word in enumerate(TEXTS)]
    (tmp_path / "scored.jsonl").write_text("\n".join(lines))
    assert begin("scored.jsonl", ["data.text=text", "data.label=score"]).task == "text-regression"


def test_a_table_whose_header_is_a_row_is_said(tmp_path: Path) -> None:
    path = table(tmp_path)
    assert not any("read as names of columns" in note for note in begin().notes)
    (tmp_path / "bare.csv").write_text(path.read_text().partition("\n")[2])
    assert any("read as names of columns" in note for note in begin("bare.csv").notes)


def test_a_pretrained_model_that_is_here_is_taken(tmp_path: Path) -> None:
    import transformers

    write_small_model(
        tmp_path / "enc", TEXTS, kind="encoder", width=64, layers=1, vocabulary=300, positions=64
    )
    transformers.BertModel(transformers.AutoConfig.from_pretrained(tmp_path / "enc")).save_pretrained(
        tmp_path / "enc"
    )
    table(tmp_path)
    made = begin()
    recipe = load_recipe(made.recipe)
    assert recipe.model == str(tmp_path / "enc") and not recipe.from_scratch
    assert recipe.data.max_length <= 64
    assert not Path("reviews-model").exists()
    corpus(tmp_path)
    with pytest.raises(ModelError, match="is an encoder"):
        begin("corpus.txt", ["model=enc"])


def test_a_model_in_the_cache_is_taken_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = tmp_path / "cache/models--some--decoder"
    snapshot = cached / "snapshots/abc"
    write_small_model(snapshot, TEXTS, kind="decoder", width=64, layers=1, vocabulary=300)
    (snapshot / "model.safetensors").write_bytes(b"weights that are not read here")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("abc")
    corpus(tmp_path)
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path / "cache"), raising=False)
    made = begin("corpus.txt")
    assert (made.model, made.origin) == ("some/decoder", "in the cache of Hugging Face")


def test_chats_become_a_recipe_with_a_template_for_a_model_from_scratch(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hello you"}, {"role": "assistant", "content": "hello"}]
    Path("chats.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 20)
    made = begin("chats.jsonl")
    recipe = load_recipe(made.recipe, [], allow_code=True)
    assert (recipe.task, recipe.data.format, recipe.data.template) == ("instruction", "messages", "chatml")
    tokenizer = load_tokenizer(recipe.model, folder=recipe.folder)
    settings = InstructSettings(recipe.data.rows, validation=None, max_length=64, template="chatml")
    data = load_instruct(settings, tokenizer, folder=recipe.folder)
    tokens = tokenizer.convert_ids_to_tokens(data.train[0]["input_ids"])
    # each mark is one token, the last one ends the answer, and no text stands for the padding
    assert [token for token in tokens if token.startswith("<|")] == ["<|im_start|>", "<|im_end|>"] * 2
    assert tokens[-1] == "<|im_end|>" and data.stops == (tokenizer.eos_token_id,)
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def write_pictures(folder: Path, classes: Sequence[str], count: int = 6) -> None:
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (9, 9), (number * 20, 0, 0)).save(folder / name / f"{number}.png")


def test_a_folder_of_pictures_is_a_recipe_that_runs(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets/train", ["cat", "dog"])
    write_pictures(tmp_path / "pets/val", ["cat", "dog"], 1)
    write_pictures(tmp_path / "pets/test", ["cat", "dog"], 1)
    made = begin("pets")
    recipe = load_recipe(made.recipe)
    assert (recipe.task, made.recipe) == ("image-classification", Path("pets.yaml"))
    assert recipe.data.train == str(tmp_path / "pets/train")
    assert recipe.data.validation == str(tmp_path / "pets/val")
    assert any("snugfit evaluate RUN pets/test" in note for note in made.notes)
    task = prepare(recipe)
    assert task.meta["labels"] == ["cat", "dog"] and len(task.material.train) == 12


def test_no_window_of_pictures_has_one_row_of_which_batch_norm_has_no_statistics(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets", ["cat", "dog"], 16)
    recipe = load_recipe(begin("pets").recipe)
    rows = len(prepare(recipe).material.train)
    assert rows == 29 and recipe.train.global_batch == 5
    shutil.rmtree("pets-model")
    chosen = begin("pets", ["train.global_batch=4"], Path("chosen.yaml"))
    assert load_recipe(chosen.recipe).train.global_batch == 4


@pytest.mark.parametrize(
    ("examples", "validation", "batch", "left"),
    [(29, None, 4, 5), (32, 0.1, 4, 5), (32, "held.csv", 4, 4), (33, None, 32, 33), (9, None, 2, 3), (1, None, 4, 4)],
)  # fmt: skip
def test_a_batch_is_raised_until_its_last_window_has_more_than_one_row(
    examples: int, validation: float | str | None, batch: int, left: int
) -> None:
    tree = {"data": {"validation": validation}, "train": {"global_batch": batch}}
    _leave_no_row_alone(tree, examples)
    assert tree["train"]["global_batch"] == left


def test_pictures_are_held_out_in_folders_of_their_name(tmp_path: Path) -> None:
    for name in ("birds_val", "pets_test", "pets_train", "val"):
        write_pictures(tmp_path / "all" / name, ["a", "b"], 2)
    made = begin("all")
    assert load_recipe(made.recipe).data.validation == str(tmp_path / "all/val")
    assert any("snugfit evaluate RUN all/pets_test" in note for note in made.notes)


def test_a_folder_of_sounds_is_a_recipe_that_runs(tmp_path: Path) -> None:
    write_tones(tmp_path / "tones/train", 6, seconds=0.6)
    write_tones(tmp_path / "tones/test", 1)
    made = begin("tones")
    recipe = load_recipe(made.recipe)
    assert (recipe.task, recipe.data.train) == ("audio-classification", str(tmp_path / "tones/train"))
    assert any("snugfit evaluate RUN tones/test" in note for note in made.notes)
    task = prepare(recipe)
    assert task.meta["labels"] == ["high", "low"]
    # half seconds, up to the longest of nearly all
    assert task.meta["sounds"]["samples"] == pytest.approx(16_000, abs=160)


def test_sounds_without_classes_get_an_honest_answer(tmp_path: Path) -> None:
    write_tones(tmp_path / "tones", 1)
    for path in [*tmp_path.glob("tones/*/*.wav")]:
        path.rename(tmp_path / f"{path.parent.name}.wav")
    with pytest.raises(DataError, match="holds 2 sounds, and no two folders of them"):
        begin()
    Path("rows.csv").write_text("file,size\nhigh.wav,3\nlow.wav,3\n")
    with pytest.raises(DataError, match="'file' names sounds, and no other column"):
        begin("rows.csv")


def write_table(file: Path, label: str, values: Sequence[Any]) -> None:
    header = f"id,seen,size,city,note,{label}"
    rows = [
        f"{number},2026-01-{number % 28 + 1:02},{number * 7 % 11}.5,{'xyz'[number % 3]},note {number},{value}"
        for number, value in enumerate(values)
    ]
    file.write_text("\n".join([header, *rows]))


@pytest.mark.parametrize(
    ("label", "values", "task"),
    [
        ("class", ["yes", "no"] * 20, "tabular-classification"),
        ("sold", [0, 1] * 20, "tabular-classification"),
        ("price", [number * 1.5 for number in range(40)], "tabular-regression"),
    ],
)
def test_a_table_of_numbers_and_categories_is_a_recipe_that_runs(
    label: str, values: Sequence[Any], task: str
) -> None:
    write_table(Path("rows.csv"), label, values)
    made = begin("rows.csv")
    recipe = load_recipe(made.recipe)
    assert (recipe.task, recipe.model, recipe.data.label) == (task, "tabm", label)
    # an id only counts the rows, a date is no number, and each note is another
    assert recipe.data.columns == ("size", "city")
    assert "without id, seen, note" in made.recipe.read_text()
    assert prepare(recipe).data["train"] == 36


def test_rows_of_a_table_without_a_label_are_left_out_and_counted() -> None:
    write_table(Path("rows.csv"), "price", ["" if number % 4 == 0 else number * 1.5 for number in range(40)])
    made = begin("rows.csv")
    recipe = load_recipe(made.recipe)
    assert recipe.data.bad_rows == "skip"
    assert "10 rows without a 'price' to learn" in made.recipe.read_text()
    assert prepare(recipe).data["skipped"] == {"missing label": 10}


def test_a_table_all_of_whose_columns_are_useful_names_none() -> None:
    rows = [f"{number * 7 % 11}.5,{'xyz'[number % 3]},{number % 2}" for number in range(40)]
    Path("rows.csv").write_text("\n".join(["size,city,label", *rows]))
    assert load_recipe(begin("rows.csv").recipe).data.columns is None


@pytest.mark.parametrize(
    ("by", "columns"),
    [("group: city", ("size",)), ("group: [city, id]", ("size",)), ("time: seen", ("size", "city"))],
)
def test_columns_that_rows_of_a_table_are_held_out_by_are_not_learned_from(
    by: str, columns: tuple[str, ...]
) -> None:
    write_table(Path("rows.csv"), "class", ["yes", "no"] * 20)
    made = begin("rows.csv", [f"data.validation={{share: 0.2, {by}}}"])
    assert load_recipe(made.recipe).data.columns == columns
    assert "by which rows are held out" in made.recipe.read_text()


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nothere/", r"there is no file nothere"),
        ("not here", r"'not here' is no file, no folder and no name of a model"),
        ("nothere.csv", r"there is no file nothere\.csv"),
    ],
)
def test_what_is_not_there_is_one_message(source: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        begin(source)


def test_predictions_in_a_folder_are_no_rows_to_train_on(tmp_path: Path) -> None:
    write_pictures(tmp_path / "cat-or-dog", ["cat", "dog"])
    Path("predictions.csv").write_text(
        "image,prediction,probability,source_line\n"
        + "".join(f"{n}.png,cat,0.{n},{n}\n" for n in range(1, 40))
    )
    assert load_recipe(begin().recipe).task == "image-classification"
    with pytest.raises(DataError, match="was recognised|column"):  # a file that is named is looked at
        begin("predictions.csv", ["data.label=kind"])


def test_a_folder_among_others_holds_the_pictures(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets", ["cat", "dog"])
    made = begin()
    assert load_recipe(made.recipe).data.train == str(tmp_path / "pets")


def test_a_table_of_pictures_has_its_columns_named(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pets", ["cat", "dog"])
    rows = "".join(f"pets/{name}/{number}.png,{name}\n" for name in ("cat", "dog") for number in range(6))
    Path("files.csv").write_text(f"file,kind\n{rows}")
    data = load_recipe(begin("files.csv").recipe).data
    assert (data.image, data.label) == ("file", "kind")


def test_a_pretrained_model_of_pictures_is_taken(tmp_path: Path) -> None:
    from snugfit.models.small import write_small_picture_model

    write_pictures(tmp_path / "pets", ["cat", "dog"])
    write_small_picture_model(tmp_path / "resnet")
    made = begin("pets", ["model=resnet"])
    assert made.model == "resnet" and "new weights" in made.origin
    named = begin("pets", ["model=config:timm/resnet18"], Path("timm.yaml"))
    assert (named.task, named.model) == ("image-classification", "config:timm/resnet18")
    Path("rows.csv").write_text("text,label\n" + "a good film it is,x\nno good film it is,y\n" * 5)
    with pytest.raises(
        ModelError, match="resnet sees pictures, and text-classification needs a model of texts"
    ):
        begin("rows.csv", ["model=resnet"])


def test_pictures_without_classes_get_an_honest_answer(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    for number in range(3):
        (tmp_path / f"cats/{number}.jpg").touch()
    with pytest.raises(
        DataError, match="holds 3 pictures, and no two folders.*without labels.*masked-pictures"
    ):
        begin()
    Path("files.csv").write_text("file\na.jpg\nb.jpg\nc.jpg\nd.jpg\n")
    with pytest.raises(DataError, match="'file' names pictures, and no other column"):
        begin("files.csv")
    assert not list(tmp_path.glob("*.yaml"))


@pytest.mark.parametrize("task", [None, "masked-pictures"])
def test_a_folder_of_pictures_without_classes_is_learned_from_without_labels(
    tmp_path: Path, task: str | None
) -> None:
    write_pictures(tmp_path / "photos", ["2024"])
    write_pictures(tmp_path / "photos/2024", ["may"])
    made = begin("photos", [] if task is None else [f"task={task}"])
    other = {None: "masked-pictures", "masked-pictures": "contrastive-pretraining"}[task]
    assert made.task == (task or "contrastive-pretraining") and list(made.others) == [other]
    made_task = prepare(load_recipe(made.recipe))
    assert made_task.data["train"] + made_task.data["validation"] == 12


def test_what_cannot_be_trained_on_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds nothing to train on"):
        begin()
    Path("numbers.csv").write_text("a,b\n1,2.5\n3,4.5\n")
    with pytest.raises(DataError, match="none of its columns"):
        begin()
    Path("numbers.csv").unlink()
    Path("loop.py").write_text("for _ in range(3):\n    pass\n")
    with pytest.raises(DataError, match="init --from loop.py"):
        begin()
    with pytest.raises(DataError, match="there is no file none.csv"):
        begin("none.csv")
    with pytest.raises(ModelError, match="no_one/nothing"):
        begin("no_one/nothing")


def test_a_model_without_rows_gets_some_that_show_the_form(tmp_path: Path) -> None:
    configuration(tmp_path)
    made = begin("tiny")
    assert Path("sample.txt") in made.files
    assert any("put your own in its place" in note for note in made.notes)
    config = json.loads(Path("sample-model/config.json").read_text())
    assert config == CONFIG


def test_the_script_is_not_run(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.write_text(path.read_text() + "\nopen('ran', 'w').close()\n")
    with pytest.raises(DataError, match="without training"):
        begin("train.py")
    assert not Path("ran").exists()


def test_lines_that_are_too_long_for_their_comment_have_it_above() -> None:
    tree = {"name": "a", "model": "m", "data": {"train": "t.csv", "max_length": 3}}
    text = commented(tree, ["One."], {"data.train": "word " * 40, "model": ""})
    assert read_yaml(text, "a.yaml", Places()) == tree
    assert max(map(len, text.splitlines())) <= 110
    assert text.index("word") < text.index("train:")


def test_the_answer_in_plain_values_is_json(tmp_path: Path) -> None:
    table(tmp_path)
    made = begin()
    assert isinstance(made, Beginning) and SCRATCH_PRESET == "from_scratch"
    values = json.loads(json.dumps(made.as_dict()))
    assert values["files"][0] == os.fspath(made.recipe) == "reviews.yaml"


def test_rows_of_a_table_with_an_infinite_number_are_left_out_and_counted() -> None:
    write_table(Path("rows.csv"), "class", ["yes", "no"] * 20)
    Path("rows.csv").write_text(Path("rows.csv").read_text().replace(",7.5,", ",inf,"))
    made = begin("rows.csv")
    assert "rows with an infinite number; fail ends the run instead" in made.recipe.read_text()
    assert prepare(load_recipe(made.recipe)).data["skipped"] == {"infinite number": 4}


def test_commands_to_go_on_with_can_be_pasted_whatever_the_recipe_is_called() -> None:
    write_table(Path("rows.csv"), "class", ["yes", "no"] * 20)
    made = begin("rows.csv", output=Path("my rows.yaml"))
    assert made.recipe == Path("my rows.yaml")
    assert [command for command, _ in made.commands][-1] == "snugfit train 'my rows.yaml'"


@pytest.mark.parametrize("overrides", [[], ["data.label=price"]])
def test_numbers_that_are_written_with_separators_are_said_to_be_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.csv").write_text(
        "a,price\n" + "".join(f'{each},"{each + 1},234.50"\n' for each in range(30))
    )
    with pytest.raises(
        DataError, match="column 'price' holds numbers that are read as texts, such as 1,234.50"
    ):
        begin("prices.csv", overrides)


def test_columns_that_are_left_out_for_their_decimal_commas_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (f"{each % 9},{each * 37 % 101};{'uvw'[each % 3]};{'ab'[each % 2]}\n" for each in range(80))
    Path("sizes.csv").write_text("size;kind;class\n" + "".join(rows))
    made = begin("sizes.csv")
    assert "columns: [kind]" in made.recipe.read_text()
    note = "column 'size' holds numbers that are read as texts, such as 0,0, and is left out. Write them with digits and a point"
    assert note in "".join(made.notes)


def test_a_column_with_some_decimal_commas_is_left_out_as_training_would_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (
        f"{each % 9}{',5' if each % 7 == 0 else ''};{'uvw'[each % 3]};{'ab'[each % 2]}\n"
        for each in range(80)
    )
    Path("sizes.csv").write_text("size;kind;class\n" + "".join(rows))
    made = begin("sizes.csv")
    assert "columns: [kind]" in made.recipe.read_text()
    assert "column 'size' holds numbers that are read as texts, such as" in "".join(made.notes)


def test_a_row_without_labels_is_learned_where_it_may_have_any_number_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    labels = itertools.cycle(["gr\u00fcn|red", "", "red", "blue|gr\u00fcn", "blue|red"])
    lines = [f"{text},{each}" for text, each in zip(TEXTS, labels, strict=False)]
    Path("tags.csv").write_text("m\u00e4rkte,tags\n" + "\n".join(lines) + "\n", encoding="utf-8")
    found = begin("tags.csv", ["task=multi-label-classification"])
    assert (found.task, found.notes) == ("multi-label-classification", ())
    assert "text: [m\u00e4rkte]" in found.recipe.read_text(encoding="utf-8")
    data = prepare(load_recipe(found.recipe)).data
    assert (data["train"] + data["validation"], data["skipped"]) == (len(TEXTS), {})


def test_a_column_of_classes_with_one_alone_is_said_and_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.csv").write_text("text,label\n" + "".join(f"{text},billing\n" for text in TEXTS))
    one = f"column 'label' has one class alone, 'billing' in {len(TEXTS)} rows"
    for overrides in ([], ["task=text-classification"]):
        with pytest.raises(DataError, match=f"{one}.* task=causal-lm or task=masked-lm"):
            begin("one.csv", overrides)
    with pytest.raises(DataError, match=f"data.label: {one}"):
        begin("one.csv", ["data.label=label"])
    Path("latin.csv").write_bytes(
        b"text,label\n"
        + b"".join(f"{text},{each}\n".encode("latin-1") for each in ("a", "\xe9") for text in TEXTS)
    )
    with pytest.raises(
        DataError, match=f"'a' in {len(TEXTS)} rows.* {len(TEXTS)} rows cannot be read, .*Latin-1"
    ):
        begin("latin.csv")
    Path("table.csv").write_text("a,b,target\n" + "".join(f"{each},{each / 3},yes\n" for each in range(30)))
    with pytest.raises(DataError, match="column 'target' has one class alone"):
        begin("table.csv")
    assert begin("one.csv", ["task=causal-lm"]).task == "causal-lm"
