"""Features of sounds in the cache: those that are made anew bit for bit, made once, and anew where the sound, a setting or a version is another."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from snugfit.data.examples import FILE, Examples
from snugfit.data.files.labelled_files import collate
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.sounds import feature_cache, labelled_sounds
from snugfit.data.sounds.feature_cache import FeatureCache
from snugfit.data.sounds.labelled_sounds import Sounds, features_of
from snugfit.data.sounds.sound_format import SoundFormat, sound_format_of

LIMIT = 1 << 24
FORMATS = {
    "spectrograms": sound_format_of(
        {"num_mel_bins": 16, "max_length": 40, "patch_size": 4}, None, "ast", None, of_sounds=True
    ),
    "spectrograms with gaps": sound_format_of(
        {"num_mel_bins": 16, "max_source_positions": 50}, None, "whisper", None, of_sounds=True
    ),
    "waves": sound_format_of(
        {},
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "return_attention_mask": True},
        "wav2vec2",
        0.4,
        of_sounds=True,
    ),
    "pictures": sound_format_of({"num_channels": 3}, None, "resnet", 0.4, of_sounds=False),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def noise(name: str, seconds: float, seed: int = 0, rate: int = 11_025) -> str:
    values = np.random.default_rng(seed).normal(0, 0.1, (int(seconds * rate), 2))
    soundfile.write(name, values, rate)
    return name


def kept() -> int:
    return sum(path.is_file() for path in Path("cache/snugfit/features").rglob("*"))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(one[name], other[name]) and one[name].dtype is other[name].dtype for name in one
    )


@pytest.mark.parametrize("form", FORMATS)
def test_windows_of_long_and_short_sounds_are_those_without_a_cache(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound_format = FORMATS[form]
    rows = [{FILE: noise(f"{at}.wav", 0.2 if at % 2 else 1.3, at), "labels": at % 2} for at in range(4)]
    examples = Examples(rows, "rows", range(4), unit=FILE)
    augment = ("crop", "time_mask")
    order = Order(4, 2, seed=3)
    for drawn in (augment, ()):
        plain = [*Loader(Sounds(examples, sound_format, drawn), order, collate).windows(0, 4)]
        for workers in (0, 1):
            own = Sounds(examples, sound_format, drawn, features=FeatureCache(sound_format, LIMIT))
            again = [*Loader(own, order, collate, num_workers=workers).windows(0, 4)]
            assert all(same(one.data, other.data) for one, other in zip(plain, again, strict=True))
        assert kept() == (2 if drawn else 4)  # of long sounds another part is drawn in each epoch
    monkeypatch.setattr(feature_cache, "heard_part", None)
    monkeypatch.setattr(labelled_sounds, "waveform", None)
    cache = FeatureCache(sound_format, LIMIT)
    assert all(cache(row[FILE], drawn=False) for row in rows)  # nothing is decoded any more
    assert cache(rows[1][FILE], drawn=True)


def test_another_sound_setting_or_version_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    sound_format = FORMATS["spectrograms"]
    path, other = noise("a.wav", 0.3), noise("b.wav", 0.3, seed=1)
    for each in (path, other):
        os.utime(each, (5, 5))
    first = FeatureCache(sound_format, LIMIT)(path, drawn=False)
    shutil.copy2(other, path)  # as archives do, with its time, and it is as large
    assert not same(FeatureCache(sound_format, LIMIT)(path, drawn=False), first)
    assert same(
        FeatureCache(sound_format, LIMIT)(path, drawn=False), features_of(sound_format, path, drawn=False)
    )
    count = kept()
    louder = SoundFormat({**sound_format.extractor, "mean": 1.0}, sound_format.samples)
    for changed in (louder, SoundFormat(sound_format.extractor, sound_format.samples // 2)):
        own = FeatureCache(changed, LIMIT)(path, drawn=False)
        assert same(own, features_of(changed, path, drawn=False))
    assert kept() == count + 2
    feature_cache._versions.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(soundfile, "__libsndfile_version__", "0.9")
        FeatureCache(sound_format, LIMIT)(path, drawn=False)
    feature_cache._versions.cache_clear()
    assert kept() == count + 3
    monkeypatch.setattr(feature_cache, "_versions", lambda: ("transformers 1.0",))
    FeatureCache(sound_format, LIMIT)(path, drawn=False)
    assert kept() == count + 4


def test_samples_without_a_file_are_made_into_features_each_time() -> None:
    sound_format = FORMATS["spectrograms"]
    held = {"array": np.random.default_rng(0).normal(0, 0.1, 5000), "sampling_rate": 16_000}
    own = FeatureCache(sound_format, LIMIT)(held, drawn=False)
    assert same(own, features_of(sound_format, held, drawn=False)) and kept() == 0
