"""Checkpoints: a folder of safetensors and JSON, whole or not there.

A checkpoint is written under a temporary name, each file is flushed to the disk, a manifest with the sha256 of
each file comes last, then the folder is renamed. Loading verifies the manifest and walks back to the newest
valid checkpoint. No pickle: reading one runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from snugfit.errors import RunFolderError

_MANIFEST = "manifest.json"
_TEMPORARY = ".saving-"
_PREFIX = "update-"


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read: its folder, its parts, and what was wrong with the newer ones."""

    folder: Path
    parts: dict[str, Any]
    rejected: tuple[str, ...]


def save(final: Path, parts: Mapping[str, Any], keep: int) -> Path:
    """Write the checkpoint `final`, then remove all but the newest `keep` beside it.

    Args:
        final: a folder named `update-...`, such that a later checkpoint has the greater name.
        parts: by file name without ending ('techniques/ema' makes a folder), nested dicts, lists and tuples of tensors,
            numbers, strings and None.

    Raises:
        RunFolderError: the folder cannot be written; an older checkpoint is not harmed.
    """
    root = final.parent
    temporary = root / f"{_TEMPORARY}{final.name}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left_over in root.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(left_over)
        temporary.mkdir()
        manifest = {}
        for name, part in parts.items():
            for path in _write_part(temporary, name, part):
                manifest[path.relative_to(temporary).as_posix()] = _sha256(path)
        _write_json(temporary / _MANIFEST, {"format": 1, "sha256": manifest})
        _flush_folder(temporary)
        if final.exists():  # the same moment again, after a resume from an older one
            shutil.rmtree(final)
        os.replace(temporary, final)
        _flush_folder(root)
    except OSError as error:
        raise RunFolderError(
            f"{final}: the checkpoint cannot be written: {error.strerror}. Free space or choose another `output`; "
            "earlier checkpoints are intact."
        ) from error
    for old in _newest_first(root)[keep:]:
        shutil.rmtree(old)
    return final


def load_newest(root: Path) -> Loaded:
    """The newest checkpoint under `root` whose files are whole.

    Raises:
        RunFolderError: there is none.
    """
    rejected: list[str] = []
    for folder in _newest_first(root):
        try:
            return Loaded(folder, _read(folder), tuple(rejected))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            rejected.append(f"{folder.name}: {error}")
    found = f" Found: {'; '.join(rejected)}." if rejected else ""
    raise RunFolderError(f"{root}: no valid checkpoint to go on from.{found} Start again with snugfit train.")


def _newest_first(root: Path) -> list[Path]:
    return sorted(root.glob(f"{_PREFIX}*"), key=lambda path: path.name, reverse=True)


def _read(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / _MANIFEST).read_text())
    for name, digest in manifest["sha256"].items():
        if _sha256(folder / name) != digest:
            raise ValueError(f"{name} is not what was written")
    names = [name.removesuffix(".json") for name in manifest["sha256"] if name.endswith(".json")]
    return {name: _read_part(folder, name) for name in names}


def _write_part(folder: Path, name: str, part: Any) -> list[Path]:
    tensors: dict[str, torch.Tensor] = {}
    skeleton = _pack(part, "", tensors, {})
    path = folder / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    _write_json(path, skeleton)
    written = [path]
    if tensors:
        weights = folder / f"{name}.safetensors"
        save_file(tensors, weights)
        _flush(weights)
        written.append(weights)
    return written


def _read_part(folder: Path, name: str) -> Any:
    weights = folder / f"{name}.safetensors"
    tensors = load_file(weights) if weights.exists() else {}
    return _unpack(json.loads((folder / f"{name}.json").read_text()), tensors)


def _pack(value: Any, path: str, tensors: dict[str, torch.Tensor], seen: dict[Any, str]) -> Any:
    """JSON of `value` with its tensors moved to `tensors`; a tensor that occurs twice is kept once."""
    if isinstance(value, torch.Tensor):
        identity = (value.data_ptr(), value.shape, value.stride(), value.dtype) if value.numel() else path
        if identity not in seen:
            seen[identity] = path
            # safetensors refuses views that overlap: each entry gets memory of its own
            tensors[path] = value.detach().cpu().contiguous().clone()
        return {"tensor": seen[identity]}
    if isinstance(value, Mapping):
        return {"dict": [[key, _pack(entry, f"{path}/{key}", tensors, seen)] for key, entry in value.items()]}
    if isinstance(value, (list, tuple)):
        entries = [_pack(entry, f"{path}/{place}", tensors, seen) for place, entry in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": entries}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at {path or 'its top'}")


def _unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unpack(entry, tensors) for key, entry in content}
    entries = [_unpack(entry, tensors) for entry in content]
    return entries if kind == "list" else tuple(entries)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))
    _flush(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
