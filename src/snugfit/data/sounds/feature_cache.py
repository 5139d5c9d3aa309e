"""Features of sounds in the user's cache: a sound is decoded, resampled and made into features once, and by every later epoch and run read as it is."""

from __future__ import annotations

import functools
import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.files.file_cache import FileCache, code_digest
from snugfit.data.sounds.sound_files import sound_library
from snugfit.data.sounds.waveforms import draw_start, heard_part

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.data.sounds.sound_format import SoundFormat

_LIBRARIES = ("numpy", "scipy", "soundfile", "torch", "torchaudio", "transformers")
"""All that have a part in features: transformers takes torchaudio's where it is."""

_WHOLE, _BEGINNING = "whole", "beginning"


class FeatureCache:
    """Features of sounds on the disk, up to so many bytes in all; what has no room is made each time, and so are parts of longer sounds that are drawn.

    Args:
        limit: bytes of all entries together, of this and other data sets.
    """

    def __init__(self, sound_format: SoundFormat, limit: int) -> None:
        self._format = sound_format
        self._files = FileCache("features", limit, ("Features of sounds", "they are made in each epoch"))
        self._decided_by = json.dumps(sound_format.as_dict(), sort_keys=True), *_versions()

    def __call__(self, source: Any, *, drawn: bool) -> dict[str, Tensor]:
        """Return the features of a sound as `features_of` does."""
        from safetensors.torch import load, save

        if not isinstance(source, str):  # samples, of which no file tells whether they have changed
            return self._made(source, drawn)[0]
        whole, beginning = (
            self._files.entry(source, part, *self._decided_by) for part in (_WHOLE, _BEGINNING)
        )
        held = self._files.read(whole)
        if held is not None and drawn:
            draw_start(0)  # as who reads the sound draws one of its starts
        if held is None and not drawn:
            held = self._files.read(beginning)
        if held is not None:
            return load(bytes(held))
        features, not_heard = self._made(source, drawn)
        if not (drawn and not_heard):
            self._files.keep(beginning if not_heard else whole, save(features))
        return features

    def _made(self, source: Any, drawn: bool) -> tuple[dict[str, Tensor], int]:
        wave, not_heard = heard_part(source, self._format.rate, self._format.samples, drawn=drawn)
        return self._format.features(wave), not_heard


@functools.cache
def _versions() -> tuple[str, ...]:
    """Return the versions of all code that features hang on."""
    # soundfile takes the system's libsndfile where it has none of its own
    decoder = sound_library().__libsndfile_version__
    versions = [code_digest(Path(__file__).parent), f"libsndfile {decoder}"]
    for name in _LIBRARIES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"no {name}")
    return tuple(versions)
