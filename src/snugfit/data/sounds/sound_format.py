"""The form in which a model hears sounds: rate, length, and the features that its own feature extractor of transformers makes."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from snugfit.errors import ModelError, SettingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPE = "feature_extractor_type"
_AST, _WHISPER, _WAVES = "ASTFeatureExtractor", "WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor"
_INPUTS = {_AST: "input_values", _WHISPER: "input_features", _WAVES: "input_values"}
_SECONDS = 10.0
"""Length for models that take sounds of any."""

_AST_RATE, _AST_WINDOW, _AST_HOP = 16_000, 400, 160
"""Samples a second where nothing else is said, samples of a frame of AST's features, and from one frame to the next."""

_LEAST_SAMPLES = 400
_BANDS = 64
"""Frequencies of a spectrogram that a model of pictures sees, where its files say nothing of sounds."""


@dataclass(frozen=True)
class SoundFormat:
    """A sound as a model hears it: one channel at `rate` samples a second, cut to `samples` and filled up with silence.

    Args:
        extractor: that of transformers, as `preprocessor_config.json` has it.
        channels: of the picture that a model of pictures sees, frames by frequencies, all channels alike; 0 where the model is one of sounds.
    """

    extractor: Mapping[str, Any]
    samples: int
    channels: int = 0

    @property
    def rate(self) -> int:
        """Samples a second."""
        return int(self.extractor["sampling_rate"])

    @property
    def hears_waves(self) -> bool:
        """True where the model takes the samples themselves, not the strength of frequencies."""
        return bool(self.extractor[_TYPE] == _WAVES)

    @property
    def input_name(self) -> str:
        """The name of the features among the inputs of the model."""
        if self.channels:
            return "pixel_values"
        return _INPUTS[self.extractor[_TYPE]]

    @property
    def _time_axis(self) -> int:
        return 1 if self.extractor[_TYPE] == _WHISPER else 0

    def features(self, wave: NDArray[np.float32]) -> dict[str, Tensor]:
        """Return the features of a sound as transformers makes them, all of one shape; `attention_mask` is among them where the model wants it.

        Args:
            wave: one channel at `rate`, at most `samples` long.
        """
        extractor = _made(json.dumps(dict(self.extractor), sort_keys=True))
        how: dict[str, Any] = {}
        if self.hears_waves:
            how = {"padding": "max_length", "max_length": self.samples, "truncation": True}
        elif len(wave) < _LEAST_SAMPLES:  # less than one frame
            wave = np.pad(wave, (0, _LEAST_SAMPLES - len(wave)))
        made = extractor(wave, sampling_rate=self.rate, return_tensors="np", **how)
        return {name: torch.from_numpy(np.ascontiguousarray(made[name][0])) for name in made}

    def inputs_of(
        self,
        features: Mapping[str, Tensor],
        change: Callable[[Tensor, int], Tensor] = lambda features, _: features,
    ) -> dict[str, Tensor]:
        """Return features as inputs of the model, float32.

        Args:
            change: of the features, given their axis of time too; the other one, where there is one, is that of frequencies.
        """
        name = _INPUTS[self.extractor[_TYPE]]
        changed = change(features[name].to(torch.float32), self._time_axis)
        if self.channels:
            return {self.input_name: changed.expand(self.channels, *changed.shape)}
        return {name: changed, **{other: each for other, each in features.items() if other != name}}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SoundFormat:
        """Return what `as_dict` gave."""
        return cls(
            extractor=dict(values["extractor"]), samples=int(values["samples"]), channels=values["channels"]
        )


def sound_format_of(
    config: Mapping[str, Any],
    processor: Mapping[str, Any] | None,
    source: str,
    seconds: float | None,
    *,
    of_sounds: bool,
) -> SoundFormat:
    """Return the format that a model's files ask for.

    A model of pictures sees spectrograms of any length: those of its files, where they describe any, else those of AST with fewer bands.

    Args:
        config: of `config.json`.
        processor: of `preprocessor_config.json`; None where there is none: features are those of the configuration.
        source: the model, for messages.
        seconds: to cut sounds to; None for as much as the model hears.
        of_sounds: the model is one of sounds, not of pictures.
    Raises:
        ModelError: its features are of another kind.
        SettingError: the model does not hear so long a sound, or so short a one.
    """
    wanted = _by_config(config) if processor is None else dict(processor)
    if not of_sounds and wanted.get(_TYPE) != _AST:
        wanted = {_TYPE: _AST, "num_mel_bins": _BANDS, "max_length": _frames(_SECONDS, _AST_RATE)}
    if not of_sounds and seconds is not None:
        wanted["max_length"] = _frames(seconds, wanted.get("sampling_rate", _AST_RATE))
    if wanted.get(_TYPE) not in _INPUTS:
        raise ModelError(
            "model",
            f"{source} takes the features of {wanted.get(_TYPE, 'no feature extractor')}",
            f"Take a model with {', '.join(_INPUTS)}.",
        )
    # the whole of it, with what files leave out
    extractor = _made(json.dumps(wanted, sort_keys=True)).to_dict()
    plain = {key: value for key, value in extractor.items() if key not in ("mel_filters", "window")}
    plain = json.loads(json.dumps(plain, default=lambda value: np.asarray(value).tolist()))
    rate, most = int(plain["sampling_rate"]), _most_samples(plain)
    samples = (most or round(_SECONDS * rate)) if seconds is None else round(seconds * rate)
    if most is not None and samples > most and of_sounds:
        raise SettingError(
            "data.seconds",
            f"got {seconds:g}, and {source} hears {most / rate:.4g} seconds",
            "Give that or less, or leave it out.",
        )
    if samples < _LEAST_SAMPLES:
        raise SettingError(
            "data.seconds",
            f"got {seconds:g}, and a frame of {source} is {_LEAST_SAMPLES / rate:.4g} seconds long",
            "Give some frames.",
        )
    return SoundFormat(plain, samples, 0 if of_sounds else int(config.get("num_channels", 3)))


def _frames(seconds: float, rate: int) -> int:
    """Return how many whole frames of AST's are in so many seconds."""
    return max(1, 1 + (round(seconds * rate) - _AST_WINDOW) // _AST_HOP)


def _by_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the feature extractor that goes with a configuration, with transformers' own values for what this does not say."""
    bands = config.get("num_mel_bins")
    if bands is not None and "max_length" in config and "patch_size" in config:
        return {_TYPE: _AST, "num_mel_bins": bands, "max_length": config["max_length"]}
    if bands is not None and "max_source_positions" in config:
        # two frames of ten milliseconds for each position
        return {
            _TYPE: _WHISPER,
            "feature_size": bands,
            "chunk_length": max(1, config["max_source_positions"] // 50),
        }
    return {_TYPE: _WAVES}


def _most_samples(extractor: Mapping[str, Any]) -> int | None:
    """Return how many samples a model hears; None where that is not fixed."""
    if extractor[_TYPE] == _AST:
        return int((extractor["max_length"] - 1) * _AST_HOP + _AST_WINDOW)
    if extractor[_TYPE] == _WHISPER:
        return int(extractor["chunk_length"] * extractor["sampling_rate"])
    return None


@functools.cache
def _made(extractor: str) -> Any:
    """Return a feature extractor of transformers from its values as JSON."""
    import transformers

    values = json.loads(extractor)
    return getattr(transformers, values.pop(_TYPE))(**values)
