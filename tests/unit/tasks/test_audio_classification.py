"""The laws of every task, for classes of sounds: a plain loop, split, resume in the middle of an epoch, predictions after reload, commands."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    ResNetConfig,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
)

from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import DataError, ModelError, SettingError
from snugfit.models.huggingface import SOUNDS, load_classifier
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.cross_validation.fold_rows import fold_rows
from snugfit.tools.init.door import begin_here
from snugfit.tools.setup import recipe_setup
from tests.unit.tasks.devices import planned_for_a_gpu, without_float64
from tests.unit.tasks.drawn_sounds import RATE, write_tones
from tests.unit.tasks.trained_runs import check_parts

RECIPE = """\
name: tones
task: audio-classification
model: ast
from_scratch: true
data: {train: sounds, validation: 0.25}
train: {epochs: 3, global_batch: 8, seed: 3}
optimizer: {adamw: {learning_rate: 1.0e-2}}
evaluate: {every: 2}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
PLAIN = "optimizer={sgd: {learning_rate: 0.1}}"
EXTRACTOR = ASTFeatureExtractor(sampling_rate=RATE, num_mel_bins=16, max_length=12)
CONFIG = ASTConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    patch_size=4,
    frequency_stride=4,
    time_stride=4,
    num_mel_bins=16,
    max_length=12,
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tones(tmp_path / "sounds")
    CONFIG.save_pretrained("ast")
    EXTRACTOR.save_pretrained("ast")
    Path("tones.yaml").write_text(RECIPE)
    return tmp_path


def train(*overrides: str, options: RunOptions | None = None) -> Any:
    return train_recipe(load_recipe(Path("tones.yaml"), overrides), options or RunOptions())


def whisper() -> None:
    """Write the configuration of a model of Whisper's shape, which hears a second."""
    WhisperConfig(
        d_model=16,
        encoder_layers=1,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=16,
        vocab_size=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        num_mel_bins=16,
        max_source_positions=50,
        classifier_proj_size=8,
        architectures=["WhisperForAudioClassification"],
    ).save_pretrained("whisper")
    WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained("whisper")


def wav2vec2() -> None:
    """Write the configuration of a model of wav2vec 2.0's shape, which takes waveforms."""
    Wav2Vec2Config(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(40, 4),
        conv_kernel=(80, 4),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
        architectures=["Wav2Vec2ForSequenceClassification"],
    ).save_pretrained("wav2vec2")
    Wav2Vec2FeatureExtractor(sampling_rate=RATE).save_pretrained("wav2vec2")


@pytest.mark.slow
def test_sounds_are_learned_and_predicted_alike_after_a_reload(project: Path) -> None:
    result = train(
        "train.epochs=12", "data.augment_audio=[crop]", "optimizer={adamw: {learning_rate: 3.0e-3}}"
    )
    assert result.best["metrics"]["accuracy"] == 1.0
    paths = sorted(project.glob("sounds/*/0*.wav"))
    here, again = (
        each.predict([{"audio": str(path)} for path in paths]) for each in (result, load(result.run_dir))
    )
    assert here == again and [each["prediction"] for each in here] == [path.parent.name for path in paths]
    values, rate = soundfile.read(paths[0])
    held = load(result.run_dir).predict([{"audio": {"array": values, "sampling_rate": rate}}])
    assert held == here[:1]


def test_transformers_reads_the_bundle_and_its_feature_extractor(project: Path) -> None:
    run = Path(train().run_dir)
    model = ASTForAudioClassification.from_pretrained(run / "best")
    extractor = ASTFeatureExtractor.from_pretrained(run / "best")
    wave, rate = soundfile.read("sounds/high/01.wav", dtype="float32")
    assert rate == RATE == extractor.sampling_rate
    inputs = extractor(wave, sampling_rate=rate, return_tensors="pt")
    probabilities = model(inputs["input_values"].float()).logits.detach().softmax(-1)
    (ours,) = load(run).predict([{"audio": "sounds/high/01.wav"}])
    assert model.config.id2label[int(probabilities.argmax())] == ours["prediction"]
    assert float(probabilities.max()) == pytest.approx(ours["probability"], abs=1e-6)


def test_weights_are_those_of_a_plain_loop(project: Path) -> None:
    settings = [
        "optimizer={sgd: {learning_rate: 0.1, momentum: 0.0}}",
        "schedule=null",
        "techniques=[]",
        "data.augment_audio=[]",
        "train.epochs=1",
        "evaluate.every=epoch",
    ]
    setup, _ = recipe_setup(load_recipe(Path("tones.yaml"), settings))
    windows = [*setup.loader().windows(0, 2)]
    model = load_classifier("ast", ("high", "low"), of=SOUNDS, seed=3, from_scratch=True).model.train()
    for window in windows:
        paths = [Path(origin.partition(" (")[0]) for origin in setup.loader().origins(window.ids)]
        waves = [soundfile.read(path, dtype="float32", always_2d=True) for path in paths]
        rows = []
        for values, rate in waves:
            wave = values.mean(axis=1)
            if rate != RATE:
                from scipy.signal import resample_poly

                wave = resample_poly(wave, RATE, rate)
            rows.append(EXTRACTOR(wave, sampling_rate=RATE, return_tensors="pt")["input_values"][0].float())
        # up to the filter's edge: what is cut out is resampled alone
        torch.testing.assert_close(window.data["input_values"], torch.stack(rows), atol=0.05, rtol=0)
        labels = torch.tensor([int(path.parent.name == "low") for path in paths])
        loss = torch.nn.functional.cross_entropy(model(window.data["input_values"]).logits, labels)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.1 * weight.grad
    step = setup.step()
    for window in windows:
        assert step(window).applied
    for (name, ours), (_, theirs) in zip(
        step.model.named_parameters(), model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.slow
def test_a_window_in_parts_is_the_window(project: Path) -> None:
    check_parts(*(train(PLAIN, f"plan.micro_batch={size}") for size in (8, 3)))


@pytest.mark.slow
def test_files_are_predicted_and_evaluated_and_views_are_averaged(project: Path) -> None:
    run = train().run_dir
    counts = predict_file(run, "sounds", Path("out.csv"), proba=True)
    assert counts["rows"] == 24 and sum(counts["predictions"].values()) == 24
    with Path("out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["audio"] == "high/00.wav" and "probability of low" in rows[0]
    right = sum(row["audio"].startswith(row["prediction"]) for row in rows)
    assert evaluate_file(run, "sounds")["metrics"]["accuracy"] == pytest.approx(right / 24)
    predict_file(run, "sounds", Path("views.csv"), views=2, proba=True)
    with Path("views.csv").open() as file:
        views = list(csv.DictReader(file))
    assert [row["probability of low"] for row in views] != [row["probability of low"] for row in rows]
    with pytest.raises(ModelError, match="was trained on rows as they are"):
        predict_file(train("data.augment_audio=[]").run_dir, "sounds", Path("none.csv"), views=2)


def test_a_table_of_paths_is_learned_from_and_a_folder_needs_no_recipe(project: Path) -> None:
    paths = sorted(Path("sounds").glob("*/*.wav"))
    lines = [f"{path},{path.parent.name}" for path in paths]
    Path("rows.csv").write_text("\n".join(["clip,pitch", *lines]))
    assert train("data.train=rows.csv", "data.audio=clip", "data.label=pitch", "train.epochs=1").updates == 3
    assert load_recipe(begin_here("sounds", ["model=ast"]).recipe).task == "audio-classification"
    assert load_recipe(begin_here("rows.csv", ["model=ast"]).recipe).data.audio == "clip"


@pytest.mark.parametrize("name", ["whisper", "wav2vec2"])
def test_models_of_other_shapes_learn_and_keep_their_features(project: Path, name: str) -> None:
    {"whisper": whisper, "wav2vec2": wav2vec2}[name]()
    run = train(f"model={name}", "data.seconds=0.25", "train.epochs=1").run_dir
    here, again = (load(run).predict([{"audio": "sounds/low/01.wav"}]) for _ in range(2))
    assert here == again and set(here[0]) == {"prediction", "probability"}
    inputs = load(run).processing.encode([{"audio": "sounds/low/01.wav"}])[0]
    wave, _ = soundfile.read("sounds/low/01.wav", dtype="float32")
    if name == "whisper":
        from scipy.signal import resample_poly

        wave = resample_poly(wave[: RATE // 4], 2, 1)
        expected = WhisperFeatureExtractor.from_pretrained(name)(
            wave, sampling_rate=2 * RATE, return_tensors="pt"
        )
        assert torch.equal(inputs["input_features"], expected["input_features"][0])
    else:
        expected = Wav2Vec2FeatureExtractor.from_pretrained(name)(
            wave[: RATE // 4],
            sampling_rate=RATE,
            padding="max_length",
            max_length=RATE // 4,
            return_tensors="pt",
        )
        assert torch.equal(inputs["input_values"], expected["input_values"][0])


def test_a_resumed_model_of_waveforms_draws_no_masks_of_its_own(project: Path) -> None:
    wav2vec2()
    loaded = load_classifier("wav2vec2", ("a", "b"), of=SOUNDS, from_scratch=True)
    assert loaded.model.config.apply_spec_augment is False


def test_a_head_of_whisper_for_other_classes_is_drawn_anew(project: Path) -> None:
    whisper()
    WhisperForAudioClassification(WhisperConfig.from_pretrained("whisper")).save_pretrained("trained")
    loaded = load_classifier("trained", ["a", "b", "c"], of=SOUNDS)
    assert loaded.model.classifier.out_features == 3
    assert any("head" in message for message in loaded.messages)


def test_a_model_of_pictures_sees_spectrograms_of_any_length(project: Path) -> None:
    ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        architectures=["ResNetForImageClassification"],
    ).save_pretrained("resnet")
    run = train("model=./resnet", "data.seconds=0.5", "train.epochs=1").run_dir
    inputs = load(run).processing.encode([{"audio": "sounds/low/01.wav"}])[0]
    assert inputs["pixel_values"].shape == (3, 48, 64)
    assert torch.equal(inputs["pixel_values"][0], inputs["pixel_values"][2])


def test_lengths_and_masks_that_a_model_cannot_have_are_refused(project: Path) -> None:
    with pytest.raises(SettingError, match=r"data.seconds: got 3, and .*ast hears 0.27 seconds"):
        train("data.seconds=3")
    with pytest.raises(SettingError, match=r"data.seconds: got 0.001, and a frame of .*ast is 0.05 seconds"):
        train("data.seconds=0.001")
    wav2vec2()
    with pytest.raises(
        SettingError, match="frequency_mask covers frequencies, and the model takes waveforms"
    ):
        train("model=wav2vec2", "data.augment_audio=[frequency_mask]")
    with pytest.raises(SettingError, match="data.augment_audio: 'flip' is no augmentation"):
        train("data.augment_audio=[flip]")
    ASTFeatureExtractor(sampling_rate=RATE, num_mel_bins=8, max_length=12).save_pretrained("ast")
    with pytest.raises(ModelError, match=r"ast does not take features of shape \(12, 8\)"):
        train()


def test_faulty_sounds_are_named_all_at_once_or_left_out(project: Path) -> None:
    good = Path("sounds/high/00.wav").read_bytes()
    Path("sounds/high/cut.wav").write_bytes(good[: len(good) // 2])
    Path("sounds/high/text.wav").write_text("no sound")
    with pytest.raises(
        DataError, match=r"(?s)2 rows cannot be used.*cut.wav: ends in the middle.*text.wav: is no sound"
    ):
        train()
    assert not list(Path("runs").glob("*/*/best"))
    result = train("data.bad_rows=skip", "train.epochs=1")
    assert (
        result.status == "finished" and evaluate_file(result.run_dir, "sounds", bad_rows="skip")["rows"] == 24
    )


@pytest.mark.slow
def test_an_export_has_the_feature_extractor_and_shows_the_call(project: Path) -> None:
    load(train("train.epochs=1").run_dir).export("hf", "exported")
    assert ASTFeatureExtractor.from_pretrained("exported").to_dict() == EXTRACTOR.to_dict()
    card = Path("exported/README.md").read_text()
    assert "AutoModelForAudioClassification.from_pretrained" in card and "sampling_rate=8000" in card


def test_folds_hold_out_sounds_of_each_class(project: Path) -> None:
    rows = fold_rows(load_recipe(Path("tones.yaml")))
    assert rows.count == 24 and rows.labels is not None and set(rows.labels) == {"high", "low"}
    assert rows.records is not None and Path(rows.records[0]["audio"]).is_absolute()


def test_an_update_and_its_evaluation_make_no_float64_on_the_device(project: Path) -> None:
    scores = without_float64(load_recipe(Path("tones.yaml"), ["evaluate.metrics=[accuracy, auroc]"]))
    assert all(map(math.isfinite, scores.values()))


@pytest.mark.slow
def test_an_update_runs_on_a_gpu_that_is_pretended(project: Path) -> None:
    answer = planned_for_a_gpu(load_recipe(Path("tones.yaml"), ["plan.device=auto"]))
    assert answer.fits and answer.prediction.peak_bytes > 0
