"""The doctor on recipes and runs: those that ship are healthy, and planted faults are found by their settings."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from snugfit.cli import main
from snugfit.data.stream import Stream, examples_of
from snugfit.doctor.check_recipe import evaluation
from snugfit.doctor.check_tokens import TokenView
from snugfit.doctor.examination import Examination
from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe import Observation
from snugfit.doctor.page import write_examination
from snugfit.models.small import write_small_model, write_small_sound_model
from snugfit.tracking.spool import Spool
from tests.unit.tasks.drawn_sounds import write_tones

if TYPE_CHECKING:
    from snugfit.doctor.subject import Subject

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [*SPECIAL, *(f"word{number}" for number in range(40))]


def write_model(folder: Path, decoder: bool, length: int = 512) -> Path:
    made = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if not decoder:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=length, **special).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    sizes |= {"vocab_size": len(WORDS), "max_position_embeddings": length}
    if decoder:
        LlamaForCausalLM(LlamaConfig(**sizes)).save_pretrained(folder)
    else:
        BertModel(BertConfig(**sizes)).save_pretrained(folder)
    return folder


def texts(count: int, length: int = 12) -> list[str]:
    source = random.Random(0)
    return [" ".join(source.choices(WORDS[4:], k=length)) for _ in range(count)]


def write_rows(file: Path, rows: list[str]) -> Path:
    file.write_text(
        "\n".join(
            ["label,text", *(f"{'good' if place % 2 else 'bad'},{row}" for place, row in enumerate(rows))]
        )
    )
    return file


def doctor(capsys, *arguments: str) -> tuple[int, dict]:
    code = main(["doctor", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def grades(printed: dict) -> dict[str, str]:
    return {finding["pitfall"]: finding["certainty"] for finding in printed["findings"]}


def write_picture_model(folder: Path) -> Path:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", image_size=32
    )
    ResNetForImageClassification(config).save_pretrained(folder)
    return folder


def write_transformer(folder: Path) -> Path:
    from transformers import ViTConfig

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    ViTConfig(**sizes, image_size=16, patch_size=4).save_pretrained(folder)
    return folder


def write_pictures(folder: Path) -> Path:
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for name, channel in (("red", 0), ("green", 1)):
        (folder / name).mkdir(parents=True)
        for number in range(150):
            values = draw.integers(0, 120, (32, 32, 3), dtype=np.uint8)
            values[..., channel] += 130
            Image.fromarray(values).save(folder / name / f"{number}.png")
    return folder


def write_masks(folder):
    import numpy as np
    from PIL import Image

    drawn = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(40):
        values = drawn.integers(0, 255, (16, 16, 3)).astype(np.uint8)
        Image.fromarray(values).save(folder / "images" / f"{number}.png")
        Image.fromarray((values[..., 0] > 127).astype(np.uint8)).save(folder / "masks" / f"{number}.png")
    return folder


def write_table(file):
    rows = [f"{number},{number % 7},{'ab'[number % 2]},{number % 2}" for number in range(400)]
    file.write_text("\n".join(["x,y,kind,label", *rows]))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", sorted(file.relative_to(EXAMPLES).as_posix() for file in EXAMPLES.rglob("*.yaml"))
)
def test_nothing_certain_or_likely_is_found_in_a_recipe_that_ships(recipe, tmp_path, capsys):
    given = []
    if recipe.startswith("text_classification"):
        rows = write_rows(tmp_path / "rows.csv", texts(400))
        given = [f"model={write_model(tmp_path / 'encoder', decoder=False)}", f"data.train={rows}"]
    elif recipe.startswith("text_regression"):
        rows = [f"{text},{len(text) / 7}" for text in texts(400)]
        (tmp_path / "rows.csv").write_text("\n".join(["text,label", *rows]))
        encoder = write_model(tmp_path / "encoder", decoder=False)
        given = [f"model={encoder}", f"data.train={tmp_path / 'rows.csv'}"]
    elif recipe.startswith("token_classification"):
        rows = [
            json.dumps({"words": text.split(), "tags": ["B-x", *["O"] * (len(text.split()) - 1)]})
            for text in texts(400)
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))
        encoder = write_model(tmp_path / "encoder", decoder=False)
        given = [f"model={encoder}", f"data.train={tmp_path / 'rows.jsonl'}"]
    elif recipe.startswith("audio_classification"):
        write_small_sound_model(tmp_path / "small", 0.5)
        write_tones(tmp_path / "sounds", 60)
        given = [f"model={tmp_path / 'small'}", f"data.train={tmp_path / 'sounds'}", "data.seconds=null"]
    elif recipe.startswith(("contrastive_pretraining", "masked_pictures", "image_from_scratch")):
        write = write_picture_model if recipe.startswith("contrastive") else write_transformer
        model, photos = write(tmp_path / "network"), write_pictures(tmp_path / "photos")
        given = [f"model={model}", f"data.train={photos}", "data.size=16"]
    elif recipe.startswith("multi_label_image"):
        photos = write_pictures(tmp_path / "photos")
        lines = [
            f"{path},{'red;' * (number % 2)}{path.parent.name}"
            for number, path in enumerate(sorted(photos.rglob("*.png")))
        ]
        (tmp_path / "rows.csv").write_text("\n".join(["image,labels", *lines]))
        given = [f"model={write_picture_model(tmp_path / 'resnet')}", f"data.train={tmp_path / 'rows.csv'}"]
    elif recipe.startswith(("multi_label", "sentence_embedding")):
        rows = [
            json.dumps({"text": text, "labels": ["ab"[number % 2], *["c"] * (number % 3 == 0)]})
            if recipe.startswith("multi_label")
            else json.dumps({"anchor": text, "positive": f"{text} {number}"})
            for number, text in enumerate(texts(400))
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))
        encoder = write_model(tmp_path / "encoder", decoder=False)
        given = [f"model={encoder}", f"data.train={tmp_path / 'rows.jsonl'}", "data.max_length=32"]
    elif recipe.startswith("seq2seq"):
        rows = [
            json.dumps({"source": text, "target": " ".join(reversed(text.split()))}) for text in texts(400)
        ]
        (tmp_path / "rows.jsonl").write_text("\n".join(rows))
        write_small_model(
            tmp_path / "t5", texts(400), kind="encoder-decoder", vocabulary=300, width=64, layers=1
        )
        data = [f"data.train={tmp_path / 'rows.jsonl'}", "data.max_length=64"]
        given = [f"model=config:{tmp_path / 't5'}", *data]
    elif recipe.startswith("masked_lm"):
        (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts(400)))
        write_small_model(tmp_path / "bert", texts(400), kind="encoder", vocabulary=300, width=64, layers=1)
        data = [f"data.train={tmp_path / 'rows.jsonl'}", "data.max_length=64", "train.epochs=2"]
        given = [f"model={tmp_path / 'bert'}", *data]
    elif recipe.startswith("preference"):
        rows = [
            json.dumps({"prompt": text, "chosen": "yes", "rejected": f"no {number}"})
            for number, text in enumerate(texts(400))
        ]
        (tmp_path / "prefs.jsonl").write_text("\n".join(rows))
        decoder = write_model(tmp_path / "decoder", decoder=True)
        given = [f"model={decoder}", f"data.train={tmp_path / 'prefs.jsonl'}", "data.max_length=64"]
    elif recipe.startswith(("image_classification", "image_shards")):
        given = [
            f"model={write_picture_model(tmp_path / 'resnet')}",
            f"data.train={write_pictures(tmp_path / 'photos')}",
        ]
    elif recipe.startswith("tabular"):
        given = [f"data.train={write_table(tmp_path / 'rows.csv')}", "train.epochs=2"]
    elif recipe.startswith("segmentation"):
        given = [f"data.train={write_masks(tmp_path / 'shapes')}", "data.size=16", "train.epochs=2"]
    elif recipe.startswith("forecasting"):
        rows = [f"{time},{time % 7 + time * time % 101 / 100}" for time in range(200)]
        (tmp_path / "rows.csv").write_text("\n".join(["time,label", *rows]))
        given = [f"data.train={tmp_path / 'rows.csv'}", "data.horizon=7", "train.epochs=2"]
    elif recipe != "mlp/mlp.yaml":
        (tmp_path / "corpus.txt").write_text("\n".join(texts(2000)))
        pairs = [
            {"prompt": " ".join(text.split()[:-1]), "completion": text.split()[-1]} for text in texts(200)
        ]
        (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
        name = "pairs.jsonl" if "instruct" in recipe else "corpus.txt"
        given = [
            f"model={write_model(tmp_path / 'decoder', decoder=True)}",
            f"data.train={tmp_path / name}",
            "data.max_length=64",
        ]
    code, printed = doctor(
        capsys, str(EXAMPLES / recipe), "--allow-code", f"output={tmp_path / 'runs'}", *given
    )
    assert code in (0, 1), printed
    severe = {each["pitfall"] for each in printed["findings"] if each["certainty"] != "worth a look"}
    assert severe <= {"starving"}, (
        printed
    )  # which is measured, and whatever else runs on the machine is measured with it
    assert {"examples", "model and optimizer", "settings"} <= set(printed["checked"])


RECIPE = """\
name: mine
task: python
model: parts:build
data: {train: parts:rows, validation: 0.25}
train: {updates: 40, global_batch: 8}
optimizer: {adamw: {learning_rate: 0.001}}
"""
PARTS = """\
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

def rows():
    return [(torch.randn(4), number % 3) for number in range(64)]
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.delitem(sys.modules, "parts", raising=False)
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return [str(tmp_path / "mine.yaml"), f"output={tmp_path / 'runs'}"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], {}),
        (["optimizer.adamw.learning_rate=5.0"], {"learning_rate": "likely"}),
        (["optimizer.adamw.learning_rate=1e-10"], {"learning_rate": "likely"}),
        (["evaluate.every=1000"], {"never_evaluated": "likely"}),
        (["data.validation=null"], {"never_evaluated": "worth a look"}),
        (["techniques=[{swa: {}}]", "early_stopping.patience=2"], {"average_and_best": "likely"}),
        (["techniques=[{ema: {}}]", "early_stopping.patience=2"], {}),
        (["techniques=[{swa: {}}]"], {}),
    ],
)
def test_settings_are_judged_and_what_is_likely_leaves_the_exit_code_at_0(recipe, changes, expected, capsys):
    code, printed = doctor(capsys, *recipe, *changes)
    assert grades(printed) == expected
    assert code == 0


def test_what_was_found_is_kept_beside_the_runs_with_its_page(recipe, tmp_path, capsys):
    code, printed = doctor(capsys, *recipe, "evaluate.every=1000")
    (folder,) = (tmp_path / "runs/mine/tools/doctor").iterdir()
    result = json.loads((folder / "found.json").read_text())
    assert code == 0 and result["findings"] == printed["findings"]
    assert printed["page"] == str(folder / "doctor.html")
    assert "only its end is evaluated" in Path(printed["page"]).read_text()


def test_skipped_windows_of_a_run_are_told_from_its_events(recipe, tmp_path, capsys):
    run = tmp_path / "runs/mine/1"
    with Spool(run / "events.jsonl") as spool:
        spool.append("run", name="mine", id="1")
        for window in range(1, 41):
            spool.append("update", update=window, window=window, metrics={"loss": 1.0})
        spool.append("skipped", window=3, reason="the loss is not finite")
        spool.append("skipped", window=4, reason="the loss is not finite")
    (run / "recipe.yaml").write_text((tmp_path / "mine.yaml").read_text().replace("parts:", "parts:"))
    (run / "parts.py").write_text(PARTS)
    code, printed = doctor(capsys, str(run), recipe[1])
    assert code == 0
    (finding,) = [each for each in printed["findings"] if each["pitfall"] == "skipped_windows"]
    assert finding["certainty"] == "likely"
    assert finding["what"] == "2 of 40 windows were skipped"
    assert finding["evidence"] == ["2 times: the loss is not finite"]


@pytest.mark.slow
def test_rows_and_tokens_of_texts_are_looked_at_too(tmp_path, capsys):
    model = write_model(tmp_path / "encoder", decoder=False)
    rows = texts(80, length=30)
    train = write_rows(tmp_path / "train.csv", [*rows, f"[CLS] {rows[0]}"])
    held_out = write_rows(tmp_path / "test.csv", rows[:10])
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"task: text-classification\nmodel: {model}\ndata: {{train: {train}, validation: {held_out}, max_length: 16}}\n"
        f"output: {tmp_path / 'runs'}\n"
    )
    code, printed = doctor(capsys, str(recipe))
    assert code == 1
    found = grades(printed)
    assert (found["leakage"], found["truncation"], found["special_tokens"]) == ("certain", "likely", "likely")
    assert printed["tokens"][0]["special"] == {"[CLS]": 1, "[SEP]": 1} and printed["tokens"][0]["cut"]
    write_rows(train, [*rows, " "])
    code, printed = doctor(capsys, str(recipe))
    assert grades(printed)["empty_rows"] == "likely"
    assert printed["left_out"] == ["examples and model: a run would refuse these rows"]


def test_a_model_is_named_as_a_function_with_or_without_data(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "loose", raising=False)
    (tmp_path / "loose.py").write_text(PARTS.replace("nn.Linear(8, 3))", "nn.Linear(8, 3), nn.Softmax(-1))"))
    assert grades(doctor(capsys, "loose:build")[1]) == {"softmax_twice": "worth a look"}
    code, printed = doctor(capsys, "loose:build", "--data", "loose:rows")
    assert code == 1 and grades(printed)["softmax_twice"] == "certain"


def test_a_command_behind_dashes_goes_to_the_observer(monkeypatch, capsys):
    asked = {}

    findings = (Finding("zero_grad", Certainty.CERTAIN, "gradients are never cleared", "train.py:7"),)

    def observe(command, **limits):
        asked.update(command=command, **limits)
        return Observation(findings, 0, 3, False, 1, 0, 0, 1.0)

    monkeypatch.setattr("snugfit.doctor.observe.observe", observe)
    code = main(["doctor", "--detailed-updates", "5", "--json", "--", "python", "train.py", "--updates", "7"])
    assert code == 1
    command = ["python", "train.py", "--updates", "7"]
    assert asked == {"command": command, "updates": 5, "stop_after": None, "seconds": 120.0}
    assert grades(json.loads(capsys.readouterr().out)) == {"zero_grad": "certain"}


@pytest.mark.parametrize(
    ("given", "sentences", "expected"),
    [
        (
            {"exit_code": 1, "error": "Traceback:\nKeyError: 'label'"},
            ["the command failed, exit code 1", "| KeyError: 'label'", "3 updates seen in 1 s, exit code 1"],
            4,
        ),
        ({"exit_code": 0, "failure": "Traceback:\nZeroDivisionError"}, ["a bug of it: ZeroDivisionError"], 3),
        ({"exit_code": 0}, [], 0),
    ],
    ids=["the script fails", "the observer fails", "nothing fails"],
)
def test_a_failure_of_the_script_or_of_the_observer_is_said_and_has_an_exit_code_of_its_own(
    monkeypatch, capsys, tmp_path, given, sentences, expected
):
    counts = {"updates_seen": 3, "stopped": False, "processes": 1, "evaluations_seen": 0, "saves_seen": 0}
    seen = Observation((), seconds=1.0, **{**counts, **given})
    monkeypatch.setattr("snugfit.doctor.observe.observe", lambda command, **_: seen)
    code = main(["doctor", "--html", str(tmp_path), "--", "python", "train.py"])
    printed = capsys.readouterr().out
    assert code == expected
    assert printed.endswith("\n0 certain, 0 likely, 0 worth a look\n")
    assert all(words in printed for words in sentences) and ("not looked at" in printed) is bool(sentences)
    assert ("What was not looked at" in (tmp_path / "doctor.html").read_text()) is bool(sentences)


def test_nothing_or_two_things_to_look_at_are_refused(capsys):
    assert main(["doctor"]) == 2
    assert "Name a recipe" in capsys.readouterr().err
    assert main(["doctor", "my.yaml", "--", "python", "train.py"]) == 2
    assert "Give one of them" in capsys.readouterr().err


def test_the_page_has_each_finding_with_its_fix_and_what_the_model_reads(tmp_path):
    finding = Finding(
        "leakage", Certainty.LIKELY, "3 of 9 rows leak", "data.validation", ("'a <b>'",), "split: by author"
    )
    view = TokenView("[CLS] a [SEP]", 3, {"[CLS]": 1}, 2, True)
    examination = Examination.of("mine", [finding], ["rows"], ["the model"], [view])
    page = write_examination(examination, tmp_path).read_text()
    assert (
        "1 likely" in page
        and "3 of 9 rows leak." in page
        and "&lt;b&gt;" in page
        and "split: by author" in page
    )
    assert "3 tokens · [CLS] 1 · 2 scored · fills the length" in page and "the model" in page
    assert "<script" not in page
    assert "Healthy" in write_examination(Examination.of("mine", [], []), tmp_path).read_text()


@pytest.mark.parametrize(("stream", "fix"), [(False, "validation: 0.1"), (True, "validation: FILE")])
def test_what_is_advised_to_hold_out_can_be_held_out(stream: bool, fix: str) -> None:
    data = examples_of(Stream(lambda: iter([1, 2])), updates=1, window=2, seed=0) if stream else [1, 2]
    evaluated = SimpleNamespace(every="epoch")
    subject = SimpleNamespace(train=data, validation=None, job=SimpleNamespace(evaluate=evaluated))
    (finding,) = evaluation(cast("Subject", subject))
    assert fix in finding.fix
