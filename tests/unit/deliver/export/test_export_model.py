"""The way of an export, in processes that import nothing of ours: written whole and compared, or not there at all."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import snugfit as sf
from snugfit.cli.app import app, main
from snugfit.deliver.export import export_model, gguf, hf, read_back
from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.predict import evaluate_file
from snugfit.errors import MissingExtra, ModelError, RunFolderError, SettingError, SnugfitError
from snugfit.models.bundle import save_bundle
from tests.unit.data.shard_files import write_shard
from tests.unit.deliver.export.models import (
    of_bytes,
    picture_classifier,
    run_card,
    stored,
    text_classifier,
)

InferenceSession = pytest.importorskip("onnxruntime").InferenceSession


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return stored(tmp_path_factory.mktemp("chat"), "qwen2", of_bytes())


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def other_chats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return stored(tmp_path_factory.mktemp(request.param), request.param, of_bytes())


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return text_classifier(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return picture_classifier(tmp_path_factory.mktemp("pictures"))


@pytest.mark.slow
def test_the_command_writes_a_folder_that_transformers_loads_and_stops_by_in_a_process_without_ours(
    chat: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, rows = chat
    readings = []
    read = read_back.read
    monkeypatch.setattr(hf, "read", lambda *asked: readings.append(read(*asked)) or readings[-1])
    output = tmp_path / "out"
    result = CliRunner().invoke(
        app, ["export", str(bundle), "--to", "hf", "-o", str(output), "--rows", rows, "--json"]
    )
    assert result.exit_code == 0, result.output
    assert readings[0].values["modules"] == []
    values = json.loads(result.stdout.splitlines()[-1])
    (compared,) = values["compared"]
    assert compared["difference"] < 1e-6 and compared["answers"] == "4 of 4 equal"
    assert compared["equal"] == ["tokens", "chat template", "stop tokens"]
    tokenizer = sf.load(bundle).processing.tokenizer
    generation = json.loads((output / "generation_config.json").read_text())
    end = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert generation["eos_token_id"] == [end, tokenizer.eos_token_id]
    assert generation["bos_token_id"] == tokenizer.bos_token_id
    assert "4 of 4 greedy answers are equal" in (output / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the draft is gone"


@pytest.mark.slow
def test_weights_are_halved_and_labels_and_tokens_stay(
    texts: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    result = export_source(texts[0], "hf", tmp_path / "out", numbers="bf16", rows=texts[1])
    (compared,) = result["compared"]
    assert compared["equal"] == ["tokens", "label names"]
    assert 1e-4 < compared["difference"] == pytest.approx(compared["rounding"], rel=0.01)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "A text is what stands in `title` and `text`, in that order, joined by a line break." in card
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert {each.dtype for each in weights.values()} == {torch.bfloat16}


@pytest.mark.slow
def test_a_graph_of_a_llama_and_of_a_qwen_gives_the_scored_logits_at_any_size(
    other_chats: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    bundle, rows = other_chats
    (compared,) = export_source(bundle, "onnx", tmp_path / "out", rows=rows)["compared"]
    assert compared["difference"] < 1e-5
    session = InferenceSession(tmp_path / "out" / "model.onnx")
    shapes = {each.name: each.shape for each in session.get_inputs()}
    assert shapes.keys() == {"input_ids", "attention_mask"}
    model = sf.load(bundle).model
    for size in ((1, 3), (4, 11)):
        args = {name: torch.ones(size, dtype=torch.long) for name in shapes}
        given = session.run(None, {name: each.numpy() for name, each in args.items()})[0]
        assert torch.allclose(torch.from_numpy(given), model(**args).logits, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "to"),
    [("chat", "onnx"), ("chat", "torch-export"), ("texts", "onnx"), ("pictures", "onnx")],
)
def test_a_graph_takes_any_batch_and_length_and_gives_the_scored_logits(
    kind: str,
    to: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    reading_here: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle, rows = request.getfixturevalue(kind)
    result = export_source(bundle, to, tmp_path / "out", rows=rows)
    assert result["compared"][0]["difference"] < 1e-5
    card = (tmp_path / "out" / "README.md").read_text()
    assert ("There is no cache" in card) == (kind == "chat")
    if kind == "pictures":
        shutil.copy(Path(rows) / "0.png", tmp_path / "picture.png")
    monkeypatch.chdir(tmp_path)
    assert run_card(tmp_path / "out")["logits"].shape[0] == 1
    if to == "torch-export":
        model = sf.load(bundle)
        args = {name: torch.ones(3, 7, dtype=torch.long) for name in ("input_ids", "attention_mask")}
        program = torch.export.load(tmp_path / "out" / "model.pt2").module()
        assert torch.allclose(program(**args), model.model(**args).logits, atol=1e-5)


@pytest.mark.slow
def test_a_classifier_of_pictures_comes_with_a_processor_that_makes_the_same_pixels(
    pictures: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    result = export_source(pictures[0], "hf", tmp_path / "out", rows=pictures[1])
    assert result["compared"][0]["equal"] == ["label names", "pixels"]


@pytest.mark.slow
def test_pictures_in_shards_are_compared_as_those_in_files_are(
    pictures: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    members = {f"{number}.png": (Path(pictures[1]) / f"{number}.png").read_bytes() for number in range(3)}
    shard = write_shard(tmp_path / "s.tar", members)
    result = export_source(pictures[0], "hf", tmp_path / "out", rows=str(shard))
    assert result["compared"][0]["rows"] == 3 and result["compared"][0]["equal"] == ["label names", "pixels"]


@pytest.mark.slow
@pytest.mark.parametrize("numbers", ["fp32", "bf16"])
def test_plain_weights_load_strictly_under_all_their_names(
    numbers: str, tmp_path: Path, reading_here: None
) -> None:
    bundle, rows = stored(tmp_path, "qwen3", of_bytes())
    export_source(bundle, "state-dict", tmp_path / "out", numbers=numbers, rows=rows)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    model = sf.load(bundle).model
    assert weights.keys() == model.state_dict().keys(), "tied ones too"
    model.load_state_dict(weights, strict=True)
    made = run_card(tmp_path / "out")["model"]
    ids = torch.tensor([[4, 5, 6]])
    with torch.no_grad():
        assert torch.equal(made(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_model_of_ones_own_has_its_weights_exported(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    save_bundle(tmp_path / "best", model, {"task": "python"})
    trained = sf.load(
        tmp_path / "best", model=torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    )
    result = trained.export("state-dict", tmp_path / "out", rows=[torch.ones(3)])
    assert result["compared"][0]["equal"] == ["all 7 tensors"] and result["compared"][0]["difference"] == 0
    assert trained.export("state-dict", tmp_path / "bf16", numbers="bf16")["compared"][0]["rows"] == 0
    with pytest.raises(
        ModelError, match="hf holds models of transformers alone, and this one is a Sequential"
    ):
        trained.export("hf", tmp_path / "hf")
    for to, output, numbers, named in (
        ("hff", "new", None, "to"),
        ("hf", "new", "f16", "numbers"),
        ("hf", "out", None, "output"),
    ):
        with pytest.raises(SnugfitError, match=f"^{named}: "):  # not --to, which Python does not have
            trained.export(to, tmp_path / output, numbers=numbers)
    with pytest.raises(ModelError, match="onnx needs the form of a model's inputs"):
        trained.export("onnx", tmp_path / "onnx")


def test_what_is_read_back_otherwise_is_not_delivered(
    texts: tuple[Path, str], tmp_path: Path, reading_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = hf.FORMAT.write

    def spoilt(subject: Any, folder: Path, choice: Any, scored: Any) -> Any:
        written = write(subject, folder, choice, scored)
        path = folder / "model.safetensors"
        weights = load_file(path)
        weights["classifier.bias"] += 0.1 * torch.arange(3)
        save_file(weights, path, metadata={"format": "pt"})
        return written

    spoiled = dataclasses.replace(hf.FORMAT, write=spoilt)
    monkeypatch.setattr(export_model, "find_format", lambda _: spoiled)
    with pytest.raises(ModelError, match=r"out: was not delivered: .*differ by 0\.\d+ of their spread"):
        export_source(texts[0], "hf", tmp_path / "out", rows=texts[1])
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_exported_is_refused_before_a_model_is_loaded(
    texts: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for changes, error, says in [
        ({"to": "ggufs"}, SettingError, "no format 'ggufs'. Did you mean 'gguf'"),
        ({"numbers": "fp8"}, SettingError, "got 'fp8', and hf has fp32, bf16"),
        ({"to": "onnx", "numbers": "fp32"}, SettingError, "onnx has but one form of weights"),
        (
            {"to": "gguf", "quantize": "nf4"},
            SettingError,
            "the format is gguf. Leave it out. gguf has --numbers q8_0",
        ),
        ({"quantize": "q4"}, SettingError, "quantize: got 'q4'. Give nf4 or int8"),
        (
            {"quantize": "nf4", "numbers": "bf16"},
            SettingError,
            "numbers: weights are to be bf16 and nf4 at once",
        ),
        ({"output": tmp_path / "full"}, RunFolderError, "holds something already"),
        (
            {"output": tmp_path / "full" / "file" / "out"},
            RunFolderError,
            "out cannot be written: Not a directory. Free space, or name a folder that can be written",
        ),
    ]:
        asked = {"source": "nowhere", "to": "hf", "output": tmp_path / "out", **changes}
        with pytest.raises(error, match=says):
            export_source(**asked)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(MissingExtra, match=r"accelerate is not installed. .* 'snugfit\[quantization\]'"):
        export_source("nowhere", "hf", tmp_path / "out", quantize="nf4")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtra, match=r"onnx is not installed. Install it with: pip install 'snugfit\[export\]'"
    ):
        export_source("nowhere", "onnx", tmp_path / "out")
    monkeypatch.undo()
    assert main(["export", str(tmp_path / "none"), "--to", "hf", "-o", str(tmp_path / "out")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["full"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "file", "key", "other", "says"),
    [
        (
            "texts",
            "config.json",
            "id2label",
            lambda old: dict(zip(old, [*old.values()][1:] + [*old.values()][:1], strict=True)),
            "it names row 1",
        ),
        ("chat", "generation_config.json", "eos_token_id", lambda old: old[:1], "its stop tokens are"),
    ],
)
def test_an_export_with_other_label_names_or_stop_tokens_is_not_delivered(
    kind: str,
    file: str,
    key: str,
    other: Callable[[Any], Any],
    says: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reading_here: None,
) -> None:
    write = hf.FORMAT.write

    def mistaken(subject: Any, folder: Path, choice: Any, scored: Any) -> Any:
        written = write(subject, folder, choice, scored)
        values = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps({**values, key: other(values[key])}))
        return written

    wrong = dataclasses.replace(hf.FORMAT, write=mistaken)
    monkeypatch.setattr(export_model, "find_format", lambda _: wrong)
    source, rows = request.getfixturevalue(kind)
    with pytest.raises(ModelError, match=f"was not delivered: .*{says}"):
        export_source(source, "hf", tmp_path / "out", rows=rows)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_in_bf16_is_quantised_without_another_word(
    texts: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    pytest.importorskip("bitsandbytes")
    trained = sf.load(texts[0])
    trained.model.bfloat16()
    (compared,) = trained.export("hf", tmp_path / "out", quantize="int8", rows=texts[1])["compared"]
    assert compared["lost_nats"] < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("quantize", ["int8", "nf4"])
def test_the_metrics_before_and_after_quantising_are_those_of_evaluate_and_of_the_quantised_model(
    tmp_path: Path, reading_here: None, quantize: str
) -> None:
    pytest.importorskip("bitsandbytes")
    texts = text_classifier(tmp_path / "texts", width=64)
    labelled = tmp_path / "labelled.csv"
    labelled.write_text("title,text,label\n" + "a,good book,pos\nb,a bad one,neg\n" * 3)
    whole = evaluate_file(texts[0], str(labelled))["metrics"]

    result = export_source(texts[0], "hf", tmp_path / "out", quantize=quantize, rows=str(labelled))
    changes = result["changes"]
    assert changes["rows"] == 6 and changes["source"] == "labelled.csv"
    before = {name: each["before"] for name, each in changes["metrics"].items()}
    after = {name: each["after"] for name, each in changes["metrics"].items()}
    assert before == pytest.approx(whole)
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    losses, right = [], []
    with torch.no_grad():
        for text, name in (("a good book", "pos"), ("b a bad one", "neg")):
            (logits,) = model(**tokenizer(text, return_tensors="pt")).logits.float()
            place = model.config.label2id[name]
            losses.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(place))))
            right.append(int(logits.argmax()) == place)
    assert after["loss"] == pytest.approx(sum(losses) / 2, rel=1e-2) and after["loss"] != before["loss"]
    assert after["accuracy"] == sum(right) / 2
    assert changes["weights_bytes"]["after"] < changes["weights_bytes"]["before"]
    assert result["sentences"][-1] in (tmp_path / "out" / "README.md").read_text()

    unlabelled = export_source(texts[0], "hf", tmp_path / "other", quantize=quantize, rows=texts[1])
    assert "changes" not in unlabelled and "column" in unlabelled["sentences"][-1]
    assert "of the weights before they were quantised" in (tmp_path / "other" / "README.md").read_text()


def test_layers_that_this_processors_kernel_cannot_have_in_four_bits_are_refused(
    texts: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    monkeypatch.setattr(functional, "has_avx512bf16", lambda: True)
    with pytest.raises(
        ModelError, match=r"blocks of 32 outputs and 64 inputs, and bert\..* has 16 and 16. Quantise to int8"
    ):
        export_source(texts[0], "hf", tmp_path / "out", quantize="nf4", rows=texts[1])
    assert not (tmp_path / "out").exists()


def test_a_format_refuses_a_model_that_it_does_not_hold(texts: tuple[Path, str], tmp_path: Path) -> None:
    for to, says in {
        "gguf": "gguf holds language models, and this one is for the task 'text-classification'",
        "adapter": "adapter needs a model that was trained with adapters",
    }.items():
        with pytest.raises(ModelError, match=says):
            export_source(texts[0], to, tmp_path / "out", rows=texts[1])
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_registered_model_is_compared_on_the_rows_that_it_was_stored_with(
    texts: tuple[Path, str], tmp_path: Path, reading_here: None
) -> None:
    pyfunc = pytest.importorskip("mlflow.pyfunc")
    import pandas

    from snugfit.deliver import model_registry

    pyfunc.save_model(
        path=str(tmp_path / "stored"),
        python_model=str(Path(model_registry.__file__).with_name("pyfunc_model.py")),
        artifacts={"bundle": str(texts[0])},
        input_example=pandas.DataFrame([{"title": "a", "text": "good book"}] * 3),
        pip_requirements=[],
    )
    (bundle,) = (path.parent for path in (tmp_path / "stored").rglob("snugfit.json"))
    assert export_source(bundle, "state-dict", tmp_path / "out")["compared_on"] == "3 rows"
    alone = export_source(texts[0], "state-dict", tmp_path / "drawn")
    assert alone["compared_on"] == "8 inputs drawn at random, as no rows of the training are known here"


def test_what_llama_cpp_has_not_read_is_said_where_it_is_not_installed(
    chat: tuple[Path, str], tmp_path: Path, reading_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf, "_has_llama_cpp", lambda: False)
    result = export_source(chat[0], "gguf", tmp_path / "out", rows=chat[1])
    assert [each["reader"].split()[0] for each in result["compared"]] == ["transformers"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "It was not read by llama.cpp itself, as xllamacpp was not installed" in card
    assert "llama-quantize model-f16.gguf model-Q4_K_M.gguf Q4_K_M" in card


def test_a_model_that_cannot_be_traced_is_refused_with_the_reason(
    texts: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_value(self: Any, **inputs: Any) -> Any:
        return forward(self, **inputs) if inputs["input_ids"].sum().item() else None

    model = type(sf.load(texts[0]).model)
    forward = model.forward
    monkeypatch.setattr(model, "forward", by_value)
    with pytest.raises(
        ModelError, match=r"torch.export cannot trace the BertForSequenceClassification: .*Take hf"
    ):
        export_source(texts[0], "torch-export", tmp_path / "out", rows=texts[1])
    assert os.listdir(tmp_path) == []
