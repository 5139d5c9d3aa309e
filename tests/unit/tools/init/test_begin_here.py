"""`snugfit train --data`: data alone are enough, and become a recipe in the current folder."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from snugfit.data.files.shards import shard_files
from snugfit.data.sources import read_table
from snugfit.errors import DataError, SettingError
from snugfit.models.small import write_small_model
from snugfit.recipe import Recipe, load_recipe
from snugfit.tasks.recognition import Rows
from snugfit.tools.init import door, local_models
from snugfit.tools.init.door import Beginning, begin_here
from tests.unit.data.shard_files import png, write_shard

TEXTS = [f"the {what} was {how}" for what in ("film", "food", "room") for how in ("good", "bad", "new")]


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pretrained encoder in the current folder, as far as a recipe looks at it, and none elsewhere."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(local_models, "PACKAGE", "no_such_package")
    write_small_model(Path("enc"), TEXTS, kind="encoder", width=64, layers=1, vocabulary=300)
    Path("enc/model.safetensors").write_bytes(b"weights that are not read here")


def begun(data: str, *overrides: str, **options: str) -> Beginning:
    """Begin with options such as `--text`, and settings as a command has them."""
    names = {"task": "task", "model": "model", "text": "data.text", "label": "data.label"}
    by_option = {names[name]: (f"--{name}", value) for name, value in options.items()}
    return begin_here(data, overrides, options=by_option)


def test_two_that_begin_at_once_in_a_folder_train_by_one_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    table(("text", "label"))
    both, see = threading.Barrier(2), door._see

    def seen_by_both(*given: Any) -> Any:
        seen = see(*given)
        both.wait(30)
        return seen

    monkeypatch.setattr(door, "_see", seen_by_both)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: begun("shop.csv"), range(2)))
    assert [each.recipe for each in made] == [Path("shop.yaml")] * 2
    assert sorted(len(each.files) > 0 for each in made) == [False, True]


def test_what_is_not_recognised_is_to_be_named_by_the_options_of_the_command() -> None:
    Path("codes.csv").write_text("a,b\n1,2.5\n3,4.5\n")
    with pytest.raises(DataError, match="Name it: --label COLUMN, and for texts --text COLUMN"):
        begun("codes.csv")
    with pytest.raises(
        DataError, match=r"Name it: snugfit init FILE data\.label=COLUMN, and for texts data\.text"
    ):
        door.begin("codes.csv")


def infer(data: str, *overrides: str, **options: str) -> Recipe:
    """Return the recipe of the run that is begun."""
    made = begun(data, *overrides, **options)
    return load_recipe(made.recipe, made.of_run)


def table(columns: tuple[str, ...], name: str = "shop.csv", rows: int = 60) -> None:
    kinds = {
        "score": lambda place: f"{place / 7:.2f}",
        "stars": lambda place: str(place % 5),
        "label": lambda place: "ab"[place % 2],
        "size": lambda place: str(place % 7),
        "price": lambda place: str(place * 1.5),
    }
    lines = [
        ",".join(kinds.get(name, lambda place: f"some text of row {place}")(place) for name in columns)
        for place in range(rows)
    ]
    Path(name).write_text("\n".join([",".join(columns), *lines]) + "\n")


def test_columns_that_are_named_count(tmp_path: Path) -> None:
    table(("title", "text", "label"), "my rows.csv")
    recipe = infer("my rows.csv", "train.epochs=1", text="title,text", label="label")
    assert (recipe.name, recipe.task, recipe.data.text) == (
        "my-rows",
        "text-classification",
        ("title", "text"),
    )
    assert recipe.data.train == str(tmp_path / "my rows.csv")
    assert (recipe.train.epochs, recipe.folder) == (1, tmp_path)


@pytest.mark.parametrize(
    ("columns", "task", "data"),
    [
        (("text", "label"), "text-classification", {"text": ("text",), "label": "label"}),
        (("text", "score"), "text-regression", {"text": ("text",), "label": "score"}),
        (
            ("sentence1", "sentence2", "score"),
            "text-regression",
            {"text": ("sentence1",), "pair": "sentence2", "label": "score"},
        ),
        (
            ("premise", "hypothesis", "label"),
            "text-classification",
            {"text": ("premise",), "pair": "hypothesis", "label": "label"},
        ),
        (("review", "stars"), "text-classification", {"text": ("review",), "label": "stars"}),
        (
            ("prompt", "chosen", "rejected"),
            "preference",
            {"text": ("prompt",), "answers": ("chosen", "rejected")},
        ),
        (("prompt", "response"), "instruction", {"text": ("prompt",), "completion": "response"}),
        (("size", "stars", "price"), "tabular-regression", {"label": "price"}),
    ],
)
def test_data_alone_are_enough(columns: tuple[str, ...], task: str, data: dict[str, Any]) -> None:
    table(columns)
    recipe = infer("shop.csv", *(["data.label=price"] if "price" in columns else []))
    assert (recipe.task, {name: getattr(recipe.data, name) for name in data}) == (task, data)


def test_answers_that_are_numbers_are_answers_where_the_columns_say_so() -> None:
    rows = [f"What is {number} plus {number % 7}?,{number + number % 7}" for number in range(40)]
    Path("sums.csv").write_text("\n".join(["prompt,completion", *rows]) + "\n")
    recipe = infer("sums.csv")
    assert (recipe.task, recipe.data.text, recipe.data.completion) == (
        "instruction",
        ("prompt",),
        "completion",
    )
    Path("sums.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    assert infer("sums.csv").task != "instruction"


def test_a_folder_of_pictures_is_enough(tmp_path: Path) -> None:
    for kind in ("cats", "dogs"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / f"photos/{kind}/{number}.png")
    made = begin_here("photos")
    assert (made.task, made.model) == ("image-classification", "./photos-model")
    assert Path("photos-model/config.json").exists()
    assert load_recipe(made.recipe).data.bad_rows == "skip"  # what cannot be read is not known before the run


def test_a_folder_of_shards_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, rows in (("train-0", range(6)), ("train-1", range(6, 12)), ("val-0", range(12, 15))):
        members = {
            f"{row}.{kind}": png(row) if kind == "png" else str(row % 2)
            for row in rows
            for kind in ("png", "cls")
        }
        write_shard(tmp_path / "shards" / f"{name}.tar", members)
    made = begin_here("shards")
    assert (made.task, made.model) == ("image-classification", "./shards-model")
    data = load_recipe(made.recipe).data
    assert [Path(name).name for name in (*data.train_sources, str(data.validation))] == [
        "train-[0-9]*.tar",
        "val-[0-9]*.tar",
    ]
    assert (data.image, data.label) == ("image", "label")
    with pytest.raises(DataError, match=r"shards has no column 'breed'.*Its columns are image, label"):
        infer("shards", label="breed")
    assert infer("shards", label="label").data.label == "label"


@pytest.mark.parametrize(
    ("names", "train", "validation"),
    [
        (("train-00000-of-00002", "train-00001-of-00002", "val-00000-of-00001"), {0, 1}, {2}),
        (("cats-0", "dogs-0", "dogs-1", "dev"), {0, 1, 2}, {3}),
        (("2024-train-0", "2025-train-0", "2025-valid-0", "2025-test-0"), {0, 1}, {2}),
        (("v1.0-train-0", "v1.0-val-0"), {0}, {1}),
        (("part-0", "part-1"), {0, 1}, set()),
    ],
)
def test_all_shards_of_a_part_are_taken_for_it_and_no_others(
    names: tuple[str, ...],
    train: set[int],
    validation: set[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, name in enumerate(names):
        members = {
            f"{number}{row}.{kind}": text
            for row in range(6)
            for kind, text in (("txt", f"a film, {row}"), ("cls", f"{row % 2}"))
        }
        write_shard(tmp_path / "shards" / f"{name}.tar", members)
    data = infer("shards").data

    def numbers(source: object) -> set[int]:
        return {names.index(path.stem) for path in shard_files(str(source), "data")}

    assert numbers(data.rows) == train
    assert (numbers(data.validation) if isinstance(data.validation, str) else set()) == validation


def test_masks_in_a_folder_of_shards_are_named_by_their_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    members = {f"{row}.{kind}": png(row) for row in range(6) for kind in ("jpg", "rough.png", "seg.png")}
    write_shard(tmp_path / "city" / "train-0.tar", members)
    write_shard(tmp_path / "city" / "train-1.tar", {f"1{name}": png(7) for name in members})
    recipe = infer("city")
    assert (recipe.task, recipe.data.image, recipe.data.label) == ("segmentation", "image", "seg.png")
    assert infer("city", "data.label=rough.png", "task=segmentation").data.label == "rough.png"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "text\tlabel\nOne more\ta\nTwo more\tb\n"),
        ("a.jsonl", '{"text": "One", "label": "b"}\n\n{"text": "Two", "label": "a"}\n'),
        ("b.csv", "\ufefftext,label\nOne more,a\nTwo more,b\n"),
    ],
)
def test_files_of_each_kind_are_read(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    recipe = infer(name)
    assert (recipe.data.text, recipe.data.label) == (("text",), "label")


def test_the_task_decides_what_is_made_of_rows_that_could_be_several(tmp_path: Path) -> None:
    table(("review", "stars", "price"))
    assert (infer("shop.csv").task, infer("shop.csv").data.label) == ("text-classification", "stars")
    assert "tabular-regression" in begin_here("shop.csv").others
    priced = infer("shop.csv", label="price")
    assert (priced.task, priced.data.text) == ("text-regression", ("review",))
    classes = infer("shop.csv", "task=text-classification", label="price")
    assert (classes.task, classes.data.label) == ("text-classification", "price")
    with pytest.raises(SettingError, match=r"^--task: there is no task 'text-regresion'. Did you mean"):
        infer("shop.csv", task="text-regresion")
    with pytest.raises(DataError, match=r"^--task: shop.csv was not recognised as rows for forecasting"):
        infer("shop.csv", task="forecasting")


def test_columns_that_a_task_does_not_read_speak_against_it() -> None:
    table(("size", "stars", "label"))
    made = begun("shop.csv", text="size", label="label")
    assert made.task == "text-classification" and not any("tabular" in task for task in made.others)
    with pytest.raises(SettingError, match=r"--text: is not used by task tabular-classification\. Remove it"):
        begun("shop.csv", task="tabular-classification", text="size")
    with pytest.raises(DataError, match=r"or name its columns, such as data\.target=COLUMN\.$"):
        begun("shop.csv", task="seq2seq", text="size")


@pytest.mark.parametrize(
    ("files", "validation", "test"),
    [
        (
            {"news_validation.csv": "size label", "news_test.csv": "size label"},
            "news_validation.csv",
            "news_test.csv",
        ),
        ({"dev.csv": "size label", "test.csv": "size label extra"}, "dev.csv", "test.csv"),
        ({"dev.csv": "size label", "News-dev.csv": "size label"}, "News-dev.csv", None),
        ({"shop_validation.csv": "size label", "shop_test.csv": "size label"}, None, None),
        ({"news_validation.csv": "size", "news_test.csv": "size"}, None, None),
    ],
)
def test_rows_are_held_out_in_files_of_their_name_and_columns(
    files: dict[str, str], validation: str | None, test: str | None, tmp_path: Path
) -> None:
    table(("size", "label"), "news.csv")
    for name, columns in files.items():
        table(tuple(columns.split()), name)
    made = begin_here("news.csv")
    data = load_recipe(made.recipe).data
    assert data.validation == (0.1 if validation is None else str(tmp_path / validation))
    assert [note.partition(" is left for")[0] for note in made.notes] == ([] if test is None else [test])


def test_rows_that_are_trained_on_are_not_left_for_a_test() -> None:
    table(("size", "label"), "news_test.csv")
    table(("size", "label"), "news.csv")
    assert not begin_here("news_test.csv").notes


def test_the_model_decides_among_the_tasks_that_can_have_it() -> None:
    table(("review", "stars", "price"))
    recipe = infer("shop.csv", "model=mlp", label="price")
    assert (recipe.task, recipe.model) == ("tabular-regression", "mlp")
    assert infer("shop.csv", "model=enc", label="price").task == "text-regression"
    with pytest.raises(DataError, match=r"can have the model 'unet' \(segmentation\)"):
        infer("shop.csv", "model=unet")


def test_plain_text_has_no_columns() -> None:
    Path("book.txt").write_text("Once upon a time there was a fox. " * 400)
    assert infer("book.txt").task == "causal-lm"
    with pytest.raises(DataError, match="--label: book.txt is plain text, so it has no columns"):
        infer("book.txt", label="label")


def test_a_column_whose_name_has_a_comma_can_be_asked_for() -> None:
    rows = "\n".join(f"some text of row {place},{'ab'[place % 2]}" for place in range(20))
    Path("a.csv").write_text(f'"title,text",label\n{rows}\n')
    assert infer("a.csv", text="title,text").data.text == ("title,text",)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (
            {"text": "titel"},
            r"--text: shop\.csv has no column 'titel'\. Did you mean 'title'\? Its columns are title, label",
        ),
        (
            {"text": "title", "label": "labl"},
            r"--label: shop\.csv has no column 'labl'\. Did you mean 'label'\?",
        ),
    ],
)
def test_a_missing_column_is_said_with_its_option_and_the_nearest(
    columns: dict[str, str], words: str
) -> None:
    table(("title", "label"))
    with pytest.raises(DataError, match=words):
        infer("shop.csv", **columns)
    assert not Path("shop.yaml").exists()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.epochs=many", "override 'train.epochs=many': train.epochs: must be a positive number"),
        ("train.epoch=1", "override 'train.epoch=1': train.epoch: there is no such setting"),
    ],
)
def test_an_impossible_setting_is_said_as_it_was_given(override: str, words: str) -> None:
    table(("size", "label"))
    with pytest.raises(SettingError, match=words):
        infer("shop.csv", override)
    assert not Path("shop.yaml").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.csv", None),
        ("a.csv", b""),
        ("a.csv", b"\x89PNG\r\n\x1a\n\x00\x00"),
        ("a.xls", b"a,b"),
        ("a.jsonl", b"[1]"),
        ("a.jsonl", b"5\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_said_by_its_name(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        infer(name)


def test_a_recipe_that_says_the_same_is_taken_and_no_other_is_overwritten() -> None:
    table(("size", "label"))
    first = begin_here("shop.csv")
    assert first.recipe == Path("shop.yaml") and first.recipe in first.files
    again = begin_here("shop.csv")
    assert again.recipe == first.recipe and not again.files and not again.notes
    other = begun("shop.csv", label="size")
    assert other.recipe == Path("shop-2.yaml") and load_recipe(other.recipe).data.label == "size"
    assert other.notes[0].startswith("shop.yaml is there for something else")
    assert load_recipe(first.recipe).data.label == "label"


def test_settings_of_a_run_leave_the_recipe_its_model_and_its_name_as_they_are() -> None:
    table(("size", "label"))
    first = begin_here("shop.csv")
    text = first.recipe.read_text()
    settings = ("train.epochs=1", "optimizer.adamw.learning_rate=0.1", "evaluate.every=5")
    made = begun("shop.csv", *settings)
    assert (made.recipe, made.files, made.of_run) == (first.recipe, (), settings)
    assert first.recipe.read_text() == text
    recipe = load_recipe(made.recipe, made.of_run)
    assert (recipe.name, recipe.train.epochs, recipe.evaluate.every) == ("shop", 1, 5)


def test_a_model_from_scratch_is_made_once(tmp_path: Path) -> None:
    (tmp_path / "enc/model.safetensors").unlink()
    (tmp_path / "enc").rename(tmp_path / "cache")
    table(("text", "label"))
    assert begin_here("shop.csv").model == "./shop-model"
    learned = Path("shop-model/tokenizer.json").stat().st_mtime_ns
    assert begin_here("shop.csv").recipe == Path("shop.yaml")
    assert Path("shop-model/tokenizer.json").stat().st_mtime_ns == learned
    Path("shop.yaml").unlink()  # and the model stays: it may be used
    made = begin_here("shop.csv")
    assert made.recipe == Path("shop-2.yaml")
    assert "shop-model is there for something else, and is left as it is" in made.notes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"task": "image-clasification"},
            r"^--task: there is no task .* Did you mean 'image-classification'",
        ),
        (
            {"task": "tabular-regression"},
            r"^--task: photos was not recognised .* Take image-classification or contrastive-pretraining or masked-pictures\.$",
        ),
        ({"label": "kind"}, r"^--label: photos is a folder of files by their classes, so it has no columns"),
        ({"model": "mlp"}, r"^--model: photos was not recognised .* Leave the model out\.$"),
    ],
)
def test_errors_about_a_folder_name_the_option_and_no_columns(
    options: dict[str, str], words: str, tmp_path: Path
) -> None:
    for kind in ("cats", "dogs"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / f"photos/{kind}/0.png")
    with pytest.raises((DataError, SettingError), match=words):
        begun("photos", **options)
    assert not list(tmp_path.glob("*.yaml"))


def test_a_misspelled_network_is_said_with_the_nearest() -> None:
    table(("size", "stars", "label"))
    with pytest.raises(SettingError, match=r"^--model: there is no network 'tabmm'. Did you mean 'tabm'\?"):
        begun("shop.csv", model="tabmm")


def test_a_label_that_no_task_can_learn_is_said_as_that() -> None:
    table(("text", "label"))
    with pytest.raises(DataError, match=r"^--label: column 'text' of shop.csv has 60 different values in 60"):
        infer("shop.csv", label="text")


def test_rows_without_any_of_several_texts_are_counted_once() -> None:
    rows = Rows(Path("a.csv"), ("title", "text"), [{"title": "", "text": ""}, {"title": "a", "text": ""}])
    assert (
        door._missing(rows, {"text": ("title", "text")}, any_number=False)
        == "1 row without 'title' or 'text'"
    )


def test_rows_without_a_label_or_a_text_are_left_out_and_said() -> None:
    rows = [f"some text of row {place}" if place % 10 else "" for place in range(40)]
    labels = ["" if place % 4 == 1 else "ab"[place % 2] for place in range(40)]
    Path("a.csv").write_text(
        "text,label\n" + "".join(f"{row},{label}\n" for row, label in zip(rows, labels, strict=True))
    )
    made = begin_here("a.csv")
    assert load_recipe(made.recipe).data.bad_rows == "skip"
    assert "10 rows without 'label' to learn, 4 rows without 'text': those rows are left out" in made.notes


def test_rows_of_a_function_are_recognised_too(tmp_path: Path) -> None:
    (tmp_path / "drawn_rows.py").write_text(
        "def rows():\n    return [{'size': n % 7, 'label': 'ab'[n % 2]} for n in range(30)]\n"
    )
    recipe = infer("drawn_rows:rows")
    assert (recipe.task, recipe.data.train) == ("tabular-classification", "drawn_rows:rows")


def test_a_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table(("size", "label"))
    reads: list[Any] = []
    monkeypatch.setattr(
        "snugfit.tools.init.surroundings.read_table", lambda *a, **k: reads.append(a) or read_table(*a, **k)
    )
    infer("shop.csv")
    assert len(reads) == 1


def test_answers_that_are_called_good_or_bad_have_the_loss_of_such() -> None:
    row = {"prompt": "say it", "completion": "it", "label": True}
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(9)))
    recipe = infer("rows.jsonl")
    assert (recipe.task, recipe.loss) == ("preference", "kto")


def test_prompts_that_are_too_long_are_cut_where_there_are_some() -> None:
    rows = [{"prompt": f"say {text}", "completion": text} for text in TEXTS]
    for name, more in (("few.jsonl", []), ("long.jsonl", [{"prompt": "say it " * 500, "completion": "it"}])):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
    assert infer("few.jsonl").data.too_long == "cut_end"
    assert infer("long.jsonl").data.too_long == "cut_prompt"
