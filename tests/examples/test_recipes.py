"""The recipes that ship, each run through the command line as `--fast-dev-run`, on tiny models made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
)

from snugfit.cli import main
from snugfit.models.small import write_small_picture_model, write_small_sound_model
from tests.unit.tasks.drawn_sounds import write_tones
from tests.unit.tasks.tiny_encoder import write_encoder
from tests.unit.tasks.tiny_writer import write_reversed, write_t5

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WORDS = ["[PAD]", "[UNK]", "the", "film", "was", "good", "bad"]


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=256
    ).save_pretrained(folder)


def run(capsys: pytest.CaptureFixture[str], recipe: str, *overrides: str) -> dict[str, object]:
    status = main(["train", str(EXAMPLES / recipe), *overrides, "--fast-dev-run", "--json", "--quiet"])
    printed = capsys.readouterr().out.splitlines()
    assert status == 0, printed
    found: dict[str, object] = json.loads(printed[-1])
    return found


@pytest.mark.parametrize("recipe", ["text_classification.yaml", "text_classification_lora.yaml"])
def test_text_classification(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(tmp_path / "encoder")
    BertModel(
        BertConfig(
            vocab_size=len(WORDS),
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            max_position_embeddings=128,
        )
    ).save_pretrained(tmp_path / "encoder")
    rows = [f"{label},the film was {label}" for label in ("good", "bad")] * 40
    (tmp_path / "rows.csv").write_text("\n".join(["label,text", *rows]))
    found = run(capsys, recipe, f"model={tmp_path / 'encoder'}", f"data.train={tmp_path / 'rows.csv'}")
    assert (found["status"], found["updates"]) == ("finished", 2)
    best = Path(str(found["run_dir"]), "best")
    assert (best / "model.safetensors").exists()
    assert (best / "adapter").exists() == ("lora" in recipe)


@pytest.mark.parametrize("second", [[], ["data.pair=label2"]])
def test_text_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str], second: list[str]) -> None:
    write_encoder(tmp_path / "encoder")
    lines = [f"the film was good,in Rome,{number / 7}" for number in range(80)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label2,label", *lines]))
    data = [f"data.train={tmp_path / 'rows.csv'}", "data.max_length=16", *second]
    run_of = run(capsys, "text_regression.yaml", f"model={tmp_path / 'encoder'}", *data)
    assert (run_of["status"], run_of["updates"]) == ("finished", 2)


@pytest.mark.parametrize("second", ["data.label=labels", "data.label_columns=[good, in_rome]"])
def test_multi_label_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str], second: str) -> None:
    write_encoder(tmp_path / "encoder")
    lines = ["good film,good,1,0", "bad film in rome,rome,0,1", "a film,,0,0", "good rome,good;rome,1,1"] * 20
    (tmp_path / "rows.csv").write_text("\n".join(["text,labels,good,in_rome", *lines]))
    data = [f"data.train={tmp_path / 'rows.csv'}", "data.max_length=16", second]
    run_of = run(capsys, "multi_label_classification.yaml", f"model={tmp_path / 'encoder'}", *data)
    assert (run_of["status"], run_of["updates"]) == ("finished", 2)


@pytest.mark.parametrize("third", ["data.negative=null", "data.negative=negative"])
def test_sentence_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str], third: str) -> None:
    write_encoder(tmp_path / "encoder")
    rows = [{"anchor": f"film {at}", "positive": f"good {at}", "negative": f"bad {at}"} for at in range(200)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"data.train={tmp_path / 'rows.jsonl'}", "data.max_length=16", third]
    run_of = run(capsys, "sentence_embedding.yaml", f"model={tmp_path / 'encoder'}", *data)
    assert (run_of["status"], run_of["updates"]) == ("finished", 2)


def test_seq2seq(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_t5(tmp_path / "t5")
    write_reversed(tmp_path / "rows.jsonl", 100)
    data = [f"data.train={tmp_path / 'rows.jsonl'}", "data.max_length=16", "data.target_length=16"]
    run_of = run(capsys, "seq2seq.yaml", f"model={tmp_path / 't5'}", *data)
    assert (run_of["status"], run_of["updates"]) == ("finished", 2)


@pytest.mark.parametrize("scratch", ["true", "false"])
def test_masked_lm(tmp_path: Path, capsys: pytest.CaptureFixture[str], scratch: str) -> None:
    write_encoder(tmp_path / "encoder", mask=True)
    rows = [{"text": f"{word} film in rome"} for word in ("good", "bad")] * 100
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = [f"data.train={tmp_path / 'rows.jsonl'}", "data.max_length=16", f"from_scratch={scratch}"]
    run_of = run(capsys, "masked_lm.yaml", f"model={tmp_path / 'encoder'}", *data)
    assert (run_of["status"], run_of["updates"]) == ("finished", 2)


def test_token_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_encoder(tmp_path / "encoder")
    rows = [{"words": [name, "met", "Bob"], "tags": ["B-p", "O", "B-p"]} for name in ("Ann", "Bob")] * 40
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"data.train={tmp_path / 'rows.jsonl'}"
    run_of = run(
        capsys, "token_classification.yaml", f"model={tmp_path / 'encoder'}", data, "data.max_length=16"
    )
    assert (run_of["status"], run_of["updates"]) == ("finished", 2)


def test_image_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetForImageClassification(config).save_pretrained(tmp_path / "resnet")
    for name, colour in (("red", (200, 0, 0)), ("green", (0, 200, 0)), ("blue", (0, 0, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (40 + number, 40), colour).save(tmp_path / f"photos/{name}/{number}.jpg")
    data = f"data.train={tmp_path / 'photos'}"
    found = run(capsys, "image_classification.yaml", f"model={tmp_path / 'resnet'}", data, "data.size=32")
    assert (found["status"], found["updates"]) == ("finished", 2)
    assert Path(str(found["run_dir"]), "best/preprocessor_config.json").exists()


def test_image_classification_from_scratch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_picture_model(tmp_path / "vit", 16, patches=True)
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(150):
            Image.new("RGB", (20, 20), colour).save(tmp_path / f"photos/{name}/{number}.png")
    data = [f"data.train={tmp_path / 'photos'}", f"model={tmp_path / 'vit'}"]
    found = run(capsys, "image_from_scratch.yaml", *data)
    assert (found["status"], found["updates"]) == ("finished", 2)


@pytest.mark.parametrize("second", ["data.label=labels", "data.label_columns=[red, dark]"])
def test_multi_label_image_classification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], second: str
) -> None:
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ResNetForImageClassification(config).save_pretrained(tmp_path / "resnet")
    colours = {"red;dark,1,1": (90, 0, 0), "red,1,0": (250, 0, 0), ",0,0": (250, 250, 250)}
    lines = ["image,labels,red,dark"]
    for number in range(72):
        labels, colour = [*colours.items()][number % 3]
        Image.new("RGB", (40, 40), colour).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{labels}")
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    data = [f"data.train={tmp_path / 'rows.csv'}", second, "data.size=32"]
    found = run(capsys, "multi_label_image_classification.yaml", f"model={tmp_path / 'resnet'}", *data)
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_contrastive_pretraining(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_picture_model(tmp_path / "small")
    drawn = np.random.default_rng(0)
    for number in range(140):
        Image.fromarray(drawn.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    data = [f"data.train={tmp_path}", "data.size=16", f"model={tmp_path / 'small'}"]
    found = run(capsys, "contrastive_pretraining.yaml", *data)
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_masked_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=4,
    ).save_pretrained(tmp_path / "vit")
    drawn = np.random.default_rng(0)
    for number in range(140):
        Image.fromarray(drawn.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    data = [f"data.train={tmp_path}", f"model={tmp_path / 'vit'}"]
    found = run(capsys, "masked_pictures.yaml", *data)
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_audio_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_sound_model(tmp_path / "small", 0.5)
    write_tones(tmp_path / "sounds", 36)
    data = [f"data.train={tmp_path / 'sounds'}", "data.seconds=null"]
    found = run(capsys, "audio_classification.yaml", f"model={tmp_path / 'small'}", *data)
    assert (found["status"], found["updates"]) == ("finished", 2)
    assert Path(str(found["run_dir"]), "best/preprocessor_config.json").exists()


def test_image_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_picture_model(tmp_path / "small")
    subprocess.run([sys.executable, EXAMPLES / "draw_shards.py", tmp_path / "shapes"], check=True)
    data = [f"data.train={tmp_path / 'shapes'}", f"model={tmp_path / 'small'}"]
    found = run(capsys, "image_shards.yaml", *data)
    assert (found["status"], found["updates"]) == ("finished", 2)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_tabular(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    lines = [f"{number},{'ab'[number % 2]},{number % 3}" for number in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["x,kind,label", *lines]))
    found = run(capsys, f"tabular_{kind}.yaml", f"data.train={tmp_path / 'rows.csv'}")
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_segmentation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, mode, colour in (("images", "RGB", (200, 0, 0)), ("masks", "L", 1)):
        (tmp_path / "shapes" / name).mkdir(parents=True)
        for number in range(40):
            picture = Image.new(mode, (32, 32))
            picture.paste(colour, (number % 16, 4, number % 16 + 12, 20))
            picture.save(tmp_path / f"shapes/{name}/{number}.png")
    found = run(capsys, "segmentation.yaml", f"data.train={tmp_path / 'shapes'}", "data.size=32")
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_forecasting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{shop},{time},{time % 7 + ord(shop)}" for shop in "ab" for time in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["shop,time,label", *lines]))
    found = run(capsys, "forecasting.yaml", f"data.train={tmp_path / 'rows.csv'}", "data.series=shop")
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_causal_lm_from_scratch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(tmp_path / "decoder")
    config = GPT2Config(vocab_size=len(WORDS), n_embd=8, n_layer=1, n_head=1, n_positions=256)
    config.save_pretrained(tmp_path / "decoder")
    (tmp_path / "corpus.txt").write_text("the film was good the film was bad " * 1500)
    found = run(
        capsys, "causal_lm.yaml", f"model={tmp_path / 'decoder'}", f"data.train={tmp_path / 'corpus.txt'}"
    )
    assert (found["status"], found["updates"]) == ("finished", 2)


def test_code_lm_from_scratch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare = [sys.executable, str(EXAMPLES / "code_lm" / "prepare.py"), str(tmp_path / "code")]
    small = ["--vocabulary", "300", "--width", "64", "--layers", "1", "--modules", "12"]
    subprocess.run([*prepare, *small], check=True, capture_output=True)
    data = f"data.train={tmp_path / 'code' / 'source.jsonl'}"
    found = run(capsys, "code_lm.yaml", f"model={tmp_path / 'code'}", data, "data.max_length=64")
    assert (found["status"], found["updates"]) == ("finished", 2)


def write_decoder(folder: Path) -> None:
    write_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def test_instruction_tuning_with_adapters_on_a_base_in_4_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_decoder(tmp_path / "decoder")
    pairs = [{"prompt": "the film was", "completion": word} for word in ("good", "bad")] * 40
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    found = run(
        capsys,
        "instruct_qlora.yaml",
        f"model={tmp_path / 'decoder'}",
        f"data.train={tmp_path / 'pairs.jsonl'}",
        "data.max_length=256",
    )
    assert (found["status"], found["updates"]) == ("finished", 2)
    best = Path(str(found["run_dir"]), "best")
    assert (best / "adapter" / "adapter_model.safetensors").exists()
    assert (best / "model.safetensors").exists()


def test_preferences_by_adapters_on_a_base_in_4_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_decoder(tmp_path / "decoder")
    pairs = [{"prompt": "the film was", "chosen": "good", "rejected": "bad"}] * 40
    (tmp_path / "prefs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    found = run(
        capsys,
        "preference_dpo.yaml",
        f"model={tmp_path / 'decoder'}",
        f"data.train={tmp_path / 'prefs.jsonl'}",
        "data.max_length=256",
    )
    assert (found["status"], found["updates"]) == ("finished", 2)
    assert (Path(str(found["run_dir"]), "best") / "adapter" / "adapter_model.safetensors").exists()


def test_a_module_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(capsys, "mlp/mlp.yaml", "--allow-code")
    assert (found["status"], found["updates"]) == ("finished", 2)
