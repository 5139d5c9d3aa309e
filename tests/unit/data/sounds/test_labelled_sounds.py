"""Sounds as examples: their part, rate and channels, their features, and what is drawn for them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from transformers import ASTFeatureExtractor

from snugfit.data.examples import DrawnView
from snugfit.data.files.labelled_files import collate
from snugfit.data.files.path_rows import read_files
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.sounds.labelled_sounds import Sounds, SoundSettings, load_sounds, masked
from snugfit.data.sounds.sound_files import SOUND_FILES
from snugfit.data.sounds.sound_format import sound_format_of
from snugfit.data.sounds.waveforms import waveform
from snugfit.errors import DataError, MissingExtra, ModelError
from tests.unit.tasks.drawn_sounds import write_tones

EXTRACTOR = ASTFeatureExtractor(sampling_rate=8000, num_mel_bins=16, max_length=40)
FORMAT = sound_format_of({}, EXTRACTOR.to_dict(), "ast", None, of_sounds=True)


def tone(rate: int, pitch: float = 440.0, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * pitch * np.arange(int(rate * seconds)) / rate)


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000])
def test_a_tone_is_the_same_tone_at_the_rate_of_the_model(rate: int, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "tone.flac", 0.5 * np.stack([tone(rate), tone(rate)], axis=1), rate)
    wave = waveform(tmp_path / "tone.flac", 16_000, 16_000)
    assert wave.shape == (16_000,) and wave.dtype == np.float32
    expected = 0.5 * tone(16_000)
    assert np.abs(wave - expected)[500:-500].max() < 0.01  # but for the edges of the filter


def test_channels_are_averaged_and_no_more_is_read_than_is_heard(tmp_path: Path) -> None:
    sides = np.stack([np.full(4000, 0.5), np.full(4000, -0.25)], axis=1)
    sides[1000:] = 0.75
    soundfile.write(tmp_path / "two.wav", sides, 8000, subtype="FLOAT")
    assert np.array_equal(waveform(tmp_path / "two.wav", 8000, 1000), np.full(1000, 0.125, np.float32))
    held = {"array": sides, "sampling_rate": 8000}
    assert np.array_equal(waveform(held, 8000, 1000), waveform(tmp_path / "two.wav", 8000, 1000))


def test_the_part_of_a_long_sound_is_drawn_and_short_ones_are_whole() -> None:
    long = {"array": np.arange(1000.0) / 1000, "sampling_rate": 8000}
    torch.manual_seed(0)
    begins = {round(1000 * float(waveform(long, 8000, 400, drawn=True)[0])) for _ in range(200)}
    assert min(begins) < 30 and 570 < max(begins) <= 600 and len(begins) > 100
    assert len(waveform(long, 8000, 4000, drawn=True)) == 1000


def test_features_are_those_of_transformers(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "tone.wav", 0.5 * tone(8000, seconds=0.5), 8000)
    wave, _ = soundfile.read(tmp_path / "tone.wav", dtype="float32")
    expected = EXTRACTOR(wave, sampling_rate=8000, return_tensors="pt")["input_values"][0]
    assert torch.equal(FORMAT.features(wave)["input_values"], expected.float())
    assert FORMAT.of(FORMAT.as_dict()) == FORMAT
    assert FORMAT.features(wave[:9])["input_values"].shape == (40, 16)


def test_masks_cover_a_fifth_of_time_and_of_frequencies_at_most_each() -> None:
    features = torch.randn(100, 50)
    hidden = []
    for seed in range(50):
        torch.manual_seed(seed)
        changed = masked(features, 0, ("time_mask", "frequency_mask"))
        covered = changed != features
        assert torch.all(changed[covered] == features.mean())
        rows, columns = covered.all(dim=1), covered.all(dim=0)
        assert torch.equal(covered, rows[:, None] | columns[None])
        assert rows.sum() <= 40 and columns.sum() <= 20
        hidden.append((int(rows.sum()), int(columns.sum())))
    assert max(rows for rows, _ in hidden) > 20 and max(columns for _, columns in hidden) > 10
    assert masked(features, 0, ("crop",)) is features


def test_draws_hang_on_the_generator_alone_and_held_out_sounds_are_not_changed(tmp_path: Path) -> None:
    write_tones(tmp_path / "sounds", 8)
    data = load_sounds(SoundSettings(tmp_path / "sounds", 0.25, seed=1), FORMAT)
    assert data.validation is not None and data.augment == ("crop", "time_mask", "frequency_mask")
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(data.train[0]["input_values"])
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    torch.manual_seed(1)
    held_out = data.validation[0]["input_values"]
    torch.manual_seed(2)
    assert torch.equal(data.validation[0]["input_values"], held_out)
    view = DrawnView(Sounds(data.validation.rows, FORMAT, data.augment), 3)
    assert torch.equal(view[0]["input_values"], view[0]["input_values"])
    assert not torch.equal(view[0]["input_values"], held_out)


def test_a_wav_file_whose_writer_did_not_know_its_end_is_whole(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "whole.wav", tone(8000), 8000)
    bytes_ = bytearray((tmp_path / "whole.wav").read_bytes())
    at = bytes_.index(b"data") + 4
    bytes_[at : at + 4] = b"\xff\xff\xff\xff"
    (tmp_path / "whole.wav").write_bytes(bytes_)
    part, _ = read_files(str(tmp_path), "data.train", SOUND_FILES, column="audio", label=None)
    assert len(part.texts) == 1 and not part.faults


def test_each_fault_has_its_reason(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 9000)
    soundfile.write(tmp_path / "whole.wav", noise, 8000)
    soundfile.write(tmp_path / "whole.flac", noise, 8000)
    for suffix in ("wav", "flac"):
        whole = (tmp_path / f"whole.{suffix}").read_bytes()
        (tmp_path / f"cut.{suffix}").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no sound")
    soundfile.write(tmp_path / "none.wav", np.zeros(0), 8000)
    soundfile.write(tmp_path / "slow.wav", np.zeros(90), 90)
    soundfile.write(tmp_path / "nan.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    part, digests = read_files(str(tmp_path), "data.train", SOUND_FILES, column="audio", label=None)
    assert {Path(fault.source).name: fault.reason for fault in part.faults} == {
        "cut.wav": "truncated sound",
        "cut.flac": "truncated sound",
        "empty.wav": "empty sound",
        "text.wav": "unreadable sound",
        "none.wav": "empty sound",
        "slow.wav": "absurd rate",
        "nan.wav": "not a number",
    }
    assert [Path(path).name for path in part.texts] == ["whole.flac", "whole.wav"] and len(set(digests)) == 2


def test_sounds_that_are_read_in_a_table_are_named_by_its_lines(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", tone(8000), 8000)
    (tmp_path / "rows.csv").write_text("audio,label\na.wav,x\nb.wav,y\n")
    part, _ = read_files(
        "rows.csv", "data.train", SOUND_FILES, column="audio", label="label", folder=tmp_path
    )
    assert [Path(path).name for path in part.texts] == ["a.wav"]
    assert [(fault.line, fault.reason) for fault in part.faults] == [(3, "missing sound")]


def test_a_sound_that_breaks_after_it_was_looked_at_is_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        soundfile.write(tmp_path / name / "0.flac", np.random.default_rng(0).normal(0, 0.1, 9000), 8000)
    data = load_sounds(SoundSettings(tmp_path, None), sound_format_of({}, None, "w", 2.0, of_sounds=True))
    path = tmp_path / "a" / "0.flac"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match="a/0.flac .*cannot be loaded: .*Mend it"):
        [*Loader(data.train, Order(2, 2), collate).windows(0, 1)]


def test_a_feature_extractor_of_another_kind_is_refused() -> None:
    with pytest.raises(ModelError, match="takes the features of ClapFeatureExtractor"):
        sound_format_of({}, {"feature_extractor_type": "ClapFeatureExtractor"}, "clap", None, of_sounds=True)


def test_a_model_without_a_feature_extractor_has_that_of_its_configuration() -> None:
    ast = sound_format_of(
        {"num_mel_bins": 16, "max_length": 40, "patch_size": 4}, None, "ast", None, of_sounds=True
    )
    assert ast.features(np.zeros(100, np.float32))["input_values"].shape == (40, 16)
    whisper = sound_format_of(
        {"num_mel_bins": 16, "max_source_positions": 100}, None, "w", None, of_sounds=True
    )
    assert whisper.features(np.zeros(100, np.float32))["input_features"].shape == (16, 200)
    waves = sound_format_of({}, None, "wav2vec2", 0.5, of_sounds=True)
    assert waves.features(np.zeros(100, np.float32))["input_values"].shape == (8000,) and waves.hears_waves


def test_without_soundfile_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tones(tmp_path / "sounds", 2)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtra, match=r"soundfile is not installed.*pip install 'snugfit\[audio\]'"):
        load_sounds(SoundSettings(tmp_path / "sounds"), FORMAT)
