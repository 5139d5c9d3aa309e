"""Nested values as JSON and tensors beside it: no pickle, so that reading them runs no code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import SettingError
from snugfit.kit.sharded_tensors import is_sharded

FOLDER = "shards"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that lies in parts in a checkpoint's files."""

    folder: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> StoredTensor:
        """Return the tensor that `describe` has written about."""
        return cls(
            folder / FOLDER, described["name"], tuple(described["shape"]), getattr(torch, described["dtype"])
        )


def describe(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    """Return what is written in the tensor's place."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"name": name, "shape": list(tensor.shape), "dtype": dtype}


@dataclass(frozen=True)
class Packed:
    """The parts of a checkpoint.

    Args:
        values: by file name without ending, what stands for a part in JSON.
        tensors: by file name, and by their names in it; live, wherever they lie.
        sharded: those that are spread over ranks, of all parts.
    """

    values: Mapping[str, Any]
    tensors: Mapping[str, Mapping[str, torch.Tensor]]
    sharded: Mapping[str, torch.Tensor]

    def copied(self, copy: Callable[[str, torch.Tensor], torch.Tensor]) -> Packed:
        """Return the same of what `copy` gives for each tensor and a name that no other one has."""
        tensors = {
            file: {name: copy(f"{file}:{name}", tensor) for name, tensor in own.items()}
            for file, own in self.tensors.items()
        }
        sharded = {name: copy(f"{FOLDER}:{name}", tensor) for name, tensor in self.sharded.items()}
        return Packed(self.values, tensors, sharded)


def pack(parts: Mapping[str, Any]) -> Packed:
    """Return what stands for nested values, and their tensors; of these none is copied, and one that a part has twice is there once.

    Args:
        parts: by file name without ending ('techniques/ema' makes a folder), nested dicts, lists and tuples of tensors,
            numbers, strings and None.
    Raises:
        SettingError: something cannot be held without a pickle.
    """
    values, tensors = {}, {}
    sharded: dict[str, torch.Tensor] = {}
    for name, part in parts.items():
        packer = _Packer()
        values[name] = packer.pack(part, name)
        tensors[name] = packer.tensors
        sharded |= packer.sharded
    return Packed(values, tensors, sharded)


class _Packer:
    """Turns nested values into JSON, and keeps their tensors beside it."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.sharded: dict[str, torch.Tensor] = {}
        self._names: dict[Any, str] = {}

    def pack(self, value: Any, path: str) -> Any:
        """Return what stands for a value in JSON; `path` is its name, and the beginning of those of its tensors."""
        if is_sharded(value):
            self.sharded[path] = value.detach()
            return {"shards": describe(path, value)}
        if isinstance(value, torch.Tensor):
            return {"tensor": self._pack_tensor(value, path)}
        if isinstance(value, Mapping):
            return {"dict": [self._pack_entry(key, entry, path) for key, entry in value.items()]}
        if isinstance(value, (list, tuple)):
            entries = [self.pack(entry, f"{path}/{place}") for place, entry in enumerate(value)]
            return {"list" if isinstance(value, list) else "tuple": entries}
        if isinstance(value, float) and not math.isfinite(value):  # JSON has no word for it
            return {"float": repr(float(value))}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise _unsuitable(value, path)

    def _pack_entry(self, key: Any, entry: Any, path: str) -> list[Any]:
        if not isinstance(key, (str, int)):
            raise _unsuitable(key, f"the keys of {path}")
        return [key, self.pack(entry, f"{path}/{key}")]

    def _pack_tensor(self, value: torch.Tensor, path: str) -> str:
        memory = value.data_ptr() if value.numel() else id(value)  # an empty tensor has none
        known = (value.device, memory, value.shape, value.stride(), value.dtype)
        if known not in self._names:
            # the keys 1 and "1" have one path
            name = path if path not in self.tensors else f"{path} {len(self.tensors)}"
            self._names[known] = name
            self.tensors[name] = value.detach()
        return self._names[known]


def _unsuitable(value: Any, path: str) -> SettingError:
    return SettingError(
        "checkpoint",
        f"{path} is a {type(value).__name__}, which cannot be saved without a pickle",
        "Let state_dict() return tensors, numbers, strings, None, and lists, tuples and dicts of them.",
    )


def unpack(value: Any, tensors: Mapping[str, torch.Tensor], folder: Path) -> Any:
    """Return what was packed, from JSON and its tensors. `folder`: of the checkpoint, where tensors lie that were spread over ranks."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "shards":
        return StoredTensor.read(folder, content)
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {key: unpack(entry, tensors, folder) for key, entry in content}
    entries = [unpack(entry, tensors, folder) for entry in content]
    return entries if kind == "list" else tuple(entries)
