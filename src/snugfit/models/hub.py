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
from snugfit.models.folders import CONFIG_PREFIX, check_hub_reachable, find_folder
from snugfit.system.log_filters import importing_torchao
from snugfit.system.torchvision_operators import declare_torchvision_operators

_T = TypeVar("_T")


def resolve(source: str | Path, from_scratch: bool, folder: Path | None) -> tuple[bool, str, Path | None]:
    """Return whether from scratch, the name for transformers, and the folder if it is one."""
    if isinstance(source, str) and source.startswith(CONFIG_PREFIX):
        from_scratch, source = True, source.removeprefix(CONFIG_PREFIX)
    local = find_folder(source, folder)
    return from_scratch, str(local or source), local


def bytes_here(source: str, folder: Path | None) -> int | None:
    """Return the bytes of a model's files, in its folder or in the hub's cache; None where it is in neither, or has no weights of its own."""
    if source.startswith(CONFIG_PREFIX):
        return None
    place = find_folder(source, folder)
    if place is None:
        from huggingface_hub import constants

        place = Path(constants.HF_HUB_CACHE) / f"models--{source.replace('/', '--')}" / "blobs"
    sizes = [path.stat().st_size for path in place.glob("*") if path.is_file()]
    return sum(sizes) if sizes else None


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
    declare_torchvision_operators()
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
