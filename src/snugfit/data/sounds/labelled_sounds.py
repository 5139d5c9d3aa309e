"""Classes of sounds: rows with a path and a label to examples for a model, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from snugfit.data.bad_rows import check_policy
from snugfit.data.examples import FILE, Examples, FromRows
from snugfit.data.files.file_kinds import SOUND_AUGMENTATIONS, check_augmentations
from snugfit.data.files.labelled_files import load_files
from snugfit.data.report import DataReport
from snugfit.data.sounds.sound_files import SOUND_FILES, sound_library
from snugfit.data.sounds.sound_format import SoundFormat
from snugfit.data.sounds.waveforms import resampler, waveform
from snugfit.data.sources import RowSource
from snugfit.data.splits.leaks import LeakSettings
from snugfit.data.splits.sides import Validation, check_validation
from snugfit.errors import SettingError

if TYPE_CHECKING:
    from torch import Tensor

_MASKS = 2
_WIDEST_MASK = 0.2
"""Part of a sound, or of its frequencies, that a mask covers at most."""


class MakeFeatures(Protocol):
    """Makes the features of sounds, as `features_of` does or from a cache."""

    def __call__(self, source: Any, /, *, drawn: bool) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class SoundSettings:
    """The `data` part of a recipe for classes of sounds; a fraction to validate on is stratified by label.

    Args:
        augment: None for all that the model's features have.
    """

    train: RowSource
    validation: Validation = 0.1
    audio: str = "audio"
    label: str = "label"
    augment: tuple[str, ...] | None = None
    bad_rows: str = "fail"
    seed: int = 0
    leaks: LeakSettings = field(default_factory=LeakSettings)

    def __post_init__(self) -> None:
        check_policy(self.bad_rows)
        check_augmentations(self.augment or (), SOUND_AUGMENTATIONS, "data.augment_audio")
        check_validation(self.validation)

    def drawn_for(self, sound_format: SoundFormat) -> tuple[str, ...]:
        """Return the changes that are drawn for sounds of a format.

        Raises:
            SettingError: frequencies are to be masked, and the model hears waves.
        """
        if self.augment is None:
            waves = sound_format.hears_waves
            return tuple(name for name in SOUND_AUGMENTATIONS if not waves or name != "frequency_mask")
        if sound_format.hears_waves and "frequency_mask" in self.augment:
            raise SettingError(
                "data.augment_audio",
                "frequency_mask covers frequencies, and the model takes waveforms",
                "Leave it out.",
            )
        return self.augment


class Sounds(FromRows):
    """Sounds on disk as examples: the inputs of the model, float32, and `labels` where they have one.

    Args:
        rows: each with the path of its file, or with what `waveform` takes beside one, and the number of its class.
        sound_format: of the examples.
        augment: names of what is done to each sound that is trained on, drawn from torch's global generator.
        features: makes their features.
    """

    def __init__(
        self,
        rows: Examples,
        sound_format: SoundFormat,
        augment: Sequence[str] = (),
        *,
        features: MakeFeatures | None = None,
    ) -> None:
        super().__init__(rows, alike=True)
        self.format, self.augment = sound_format, tuple(augment)
        self._features = features or partial(features_of, sound_format)

    def __getitem__(self, place: int) -> dict[str, Any]:
        row = self.rows[place]
        label = {"labels": row["labels"]} if "labels" in row else {}
        features = self._features(row[FILE], drawn="crop" in self.augment)
        return {**self.format.inputs_of(features, partial(masked, augment=self.augment)), **label}


@dataclass(frozen=True)
class SoundData:
    """Examples to train and validate on; label i of an example is the name `labels[i]`, `augment` what is drawn for those to train on."""

    train: Sounds
    validation: Sounds | None
    labels: tuple[str, ...]
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]
    augment: tuple[str, ...]


def load_sounds(
    settings: SoundSettings,
    sound_format: SoundFormat,
    *,
    folder: Path | None = None,
    features: MakeFeatures | None = None,
) -> SoundData:
    """Read, validate and split.

    Args:
        features: makes the features of sounds; None for anew each time.
    Raises:
        DataError: a source cannot be used, sounds are faulty and the policy is 'fail', or too little is left.
        SettingError: what is to be drawn does not go with the format.
        MissingExtra: a library that reads sounds is not installed.
    """
    sound_library()
    resampler()
    augment = settings.drawn_for(sound_format)
    files = load_files(
        SOUND_FILES,
        train=settings.train,
        validation=settings.validation,
        column=settings.audio,
        label=settings.label,
        bad_rows=settings.bad_rows,
        seed=settings.seed,
        leaks=settings.leaks,
        folder=folder,
    )
    return SoundData(
        train=Sounds(files.train, sound_format, augment, features=features),
        validation=Sounds(files.validation, sound_format, features=features) if files.validation else None,
        labels=files.labels,
        report=files.report,
        fingerprints=files.fingerprints,
        example_rows=files.example_rows,
        augment=augment,
    )


def features_of(sound_format: SoundFormat, source: Any, /, *, drawn: bool) -> dict[str, Tensor]:
    """Return the features of a sound, or of the part of a longer one that is heard, which may be drawn.

    Args:
        source: as `waveform` takes it.
    """
    return sound_format.features(waveform(source, sound_format.rate, sound_format.samples, drawn=drawn))


def masked(features: Tensor, time_axis: int, augment: Sequence[str]) -> Tensor:
    """Return features with two stretches of time, and two of frequencies, put to their mean; widths and places come from torch's global generator.

    Args:
        time_axis: of the features; the other one, where there is one, is that of frequencies.
        augment: `time_mask`, `frequency_mask`, both or none.
    Source: Park et al. 2019, arXiv:1904.08779, without its warp of time. A mask is a fifth of the axis wide at most.
    """
    axes = [time_axis] * ("time_mask" in augment) + [1 - time_axis] * ("frequency_mask" in augment)
    if not axes:
        return features
    mean, hidden = features.mean(), torch.zeros(features.shape, dtype=torch.bool)
    for axis in axes:
        length = features.shape[axis]
        for _ in range(_MASKS):
            width = _below(int(_WIDEST_MASK * length) + 1)
            hidden.narrow(axis, _below(length - width + 1), width).fill_(True)
    return torch.where(hidden, mean, features)


def _below(limit: int) -> int:
    return int(torch.randint(limit, ()))
