"""Calls into transformers: quiet, from the cache first, with errors in our words."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch

from snugfit.errors import MissingExtra, ModelError
from snugfit.models.folders import CONFIG, CONFIG_PREFIX, WEIGHTS, check_hub_reachable, find_folder
from snugfit.models.transformers_import import import_transformers
from snugfit.system.messages import importing_torchao

_T = TypeVar("_T")

_IN_ONE_FILE = (WEIGHTS, "pytorch_model.bin")
"""Names of a file that holds all weights of a model."""


def resolve(source: str | Path, from_scratch: bool, folder: Path | None) -> tuple[bool, str, Path | None]:
    """Return whether from scratch, the name for transformers, and the folder if it is one."""
    if isinstance(source, str) and source.startswith(CONFIG_PREFIX):
        from_scratch, source = True, source.removeprefix(CONFIG_PREFIX)
    local = find_folder(source, folder)
    return from_scratch, str(local or source), local


def bytes_here(source: str, folder: Path | None) -> int | None:
    """Return the bytes of a model's files; None where its folder, or the hub's cache, does not have all its weights in one file.

    A plan has no more of a model of the hub brought than its configuration.
    """
    if source.startswith(CONFIG_PREFIX):
        return None
    place = find_folder(source, folder) or _cached(source)
    if place is None or not any((place / name).is_file() for name in _IN_ONE_FILE):
        return None
    return sum(path.stat().st_size for path in place.iterdir() if path.is_file())


def _cached(name: str) -> Path | None:
    """Return the folder of the hub's cache with the files of a model that were brought; None where there is none."""
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(name, CONFIG)
    except ValueError:  # no name of the hub
        return None
    return Path(config).parent if isinstance(config, str) else None


def call(name: str, local: Path | None, load: Callable[..., _T]) -> _T:
    """Run a loader of transformers: from the cache first, then from the hub; errors in our words."""
    from safetensors import SafetensorError

    # RuntimeError without its subclass for a full memory, which is no fault of the model's files
    load_errors = (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, SafetensorError)
    try:
        if local is None:
            try:
                return load(local_files_only=True)
            except OSError:
                check_hub_reachable(name)
        return load()
    except (ModelError, torch.OutOfMemoryError):
        raise
    except ImportError as error:
        raise ModelError(
            "model", f"{name} needs a package that is not installed: {first_line(error)}", "Install it."
        ) from error
    except load_errors as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                "model",
                f"{name} brings its own Python code, and Snugfit runs no code from a model's files",
                "Import the model yourself, and give it as package.module:function.",
            ) from error
        if "gated repo" in str(error):
            raise ModelError(
                "model",
                f"{name} is gated: the hub gives it to those who have accepted its terms",
                "Accept them on its page and log in (hf auth login, or HF_TOKEN); for a machine without the hub copy its folder there and name that.",
            ) from error
        if "is not a valid model identifier" in str(error):
            raise ModelError(
                "model",
                f"the hub has no model '{name}', or one that is private",
                "Correct the name, log in for a private one (hf auth login, or HF_TOKEN), or name a folder.",
            ) from error
        raise ModelError(
            "model",
            f"{name} cannot be loaded: {type(error).__name__}: {first_line(error)}",
            "Check its name, or name a folder.",
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the logs and progress bars of transformers (not of downloads) inside the block.

    Raises:
        MissingExtra: it is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtra("transformers", "text")
    import_transformers()
    from transformers.utils import logging as hf_logging

    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.CRITICAL)
    hf_logging.disable_progress_bar()
    try:
        with importing_torchao():  # as transformers does when it loads a model
            yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
