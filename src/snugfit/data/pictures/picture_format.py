"""The form in which a model sees pictures: size, crop, interpolation, mean and deviation, as its own configuration says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from snugfit.errors import ModelError

INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""In the order of Pillow's numbers, by which configurations name them."""

_SIDE = 224
_STRETCHED_FROM = 384
"""ConvNeXt's processor cuts nothing off pictures of this side or more."""


@dataclass(frozen=True)
class PictureFormat:
    """A picture as a model sees it: float32, shape (channels, height, width), with each channel less its mean, by its deviation.

    Args:
        resize: length of the shorter side before the middle is cut out; None: stretched to height and width.
        mean, std: of each channel, of values from 0 to 1.
    """

    height: int
    width: int
    resize: int | None
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bilinear"

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    def with_side(self, side: int | None) -> PictureFormat:
        """Return the format for a square of another side; as much is cut off around it as before.

        >>> PictureFormat(224, 224, 256).with_side(112).resize
        128
        """
        if side is None:
            return self
        resize = None if self.resize is None else round(self.resize * side / min(self.height, self.width))
        return PictureFormat(side, side, resize, self.mean, self.std, self.interpolation)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PictureFormat:
        """Return the format of plain values."""
        plain: dict[str, Any] = {
            key: tuple(each) if isinstance(each, list) else each for key, each in values.items()
        }
        return cls(**plain)

    def processor(self) -> dict[str, Any]:
        """Return the same as a `preprocessor_config.json`, by which transformers makes pictures for the model."""
        size = {"height": self.height, "width": self.width}
        return {
            "image_processor_type": "ViTImageProcessor" if self.resize is None else "CLIPImageProcessor",
            "do_resize": True,
            "size": size if self.resize is None else {"shortest_edge": self.resize},
            "resample": INTERPOLATIONS.index(self.interpolation),
            "do_center_crop": self.resize is not None,
            **({} if self.resize is None else {"crop_size": size}),
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
            "do_convert_rgb": self.channels == 3,
        }


def format_of(config: Mapping[str, Any], processor: Mapping[str, Any] | None, source: str) -> PictureFormat:
    """Return the format that a model's files ask for.

    Args:
        config: of `config.json`; timm's has its format in `pretrained_cfg`.
        processor: of `preprocessor_config.json`, where there is one.
        source: the model, for messages.
    Raises:
        ModelError: it is in a form that is not known.
    """
    of_timm = config.get("pretrained_cfg")
    if isinstance(of_timm, Mapping):
        return _of_timm(of_timm)
    if processor is None:
        height, width = _sides(config.get("image_size", _SIDE), source)
        channels = int(config.get("num_channels", 3))
        return PictureFormat(height, width, None, (0.5,) * channels, (0.5,) * channels)
    return _of_processor(processor, int(config.get("num_channels", 3)), source)


def _of_timm(values: Mapping[str, Any]) -> PictureFormat:
    channels, height, width = values.get("input_size", (3, _SIDE, _SIDE))
    fraction = values.get("crop_pct") or 0.875
    stretched = values.get("crop_mode") == "squash"
    return PictureFormat(
        height,
        width,
        None if stretched else math.floor(min(height, width) / fraction),
        _of_channels(values.get("mean"), channels),
        _of_channels(values.get("std"), channels),
        values.get("interpolation") or "bicubic",
    )


def _of_processor(values: Mapping[str, Any], channels: int, source: str) -> PictureFormat:
    size = values.get("size", _SIDE)
    resample = values.get("resample", 2)
    if not isinstance(resample, int) or not 0 <= resample < len(INTERPOLATIONS):
        raise _unknown(source, "resample", resample)
    normalised = values.get("do_normalize", True)
    shortest = size.get("shortest_edge") if isinstance(size, Mapping) else None
    resize: int | None = None
    if values.get("do_center_crop") and values.get("crop_size") is not None:
        height, width = _sides(values["crop_size"], source)
        resize = int(shortest if shortest is not None else min(_sides(size, source)))
    elif shortest is not None:
        height = width = int(shortest)
        if shortest < _STRETCHED_FROM:
            resize = int(shortest / (values.get("crop_pct") or 1))
    else:
        height, width = _sides(size, source)
    return PictureFormat(
        height,
        width,
        resize,
        _of_channels(values.get("image_mean") if normalised else 0.0, channels),
        _of_channels(values.get("image_std") if normalised else 1.0, channels),
        INTERPOLATIONS[resample],
    )


def _sides(value: Any, source: str) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    if isinstance(value, Mapping) and {"height", "width"} <= set(value):
        return int(value["height"]), int(value["width"])
    if isinstance(value, Mapping) and "shortest_edge" in value:
        return int(value["shortest_edge"]), int(value["shortest_edge"])
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return value[0], value[1]
    raise _unknown(source, "size", value)


def _of_channels(values: Any, channels: int) -> tuple[float, ...]:
    if values is None:
        return (0.5,) * channels
    by_channel = [float(values)] if isinstance(values, (int, float)) else [float(each) for each in values]
    return tuple(by_channel * channels if len(by_channel) == 1 else by_channel)


def _unknown(source: str, key: str, value: Any) -> ModelError:
    return ModelError(
        "model",
        f"the preprocessor_config.json of {source} has {key} {value!r}, which is no form of pictures that is known",
        "Correct it: a size is a number, height and width, or shortest_edge; resample is Pillow's number.",
    )
