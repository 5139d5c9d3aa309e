"""Nested values as JSON and tensors beside it: no pickle, so that reading them runs no code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from snugfit.core.sharded import is_sharded
from snugfit.errors import SettingError
from snugfit.training import shards


class Packer:
    """Turns nested values into JSON, and moves their tensors to `tensors`, and those that are spread over ranks to `sharded`; one that
    occurs twice is kept once."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.sharded: dict[str, torch.Tensor] = {}
        self._tensors = tensors
        self._names: dict[Any, str] = {}
        self._storages: set[int] = set()

    def pack(self, value: Any, path: str) -> Any:
        """What stands for a value in JSON.

        Args:
            path: its name, and the beginning of those of its tensors.
        Raises:
            SettingError: it cannot be held without a pickle.
        """
        if is_sharded(value):
            self.sharded[path] = value.detach()
            return {"shards": shards.describe(path, value)}
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
            name = path if path not in self._tensors else f"{path} {len(self._tensors)}"
            self._names[known] = name
            self._tensors[name] = self._in_memory_of_its_own(value.detach().cpu())
        return self._names[known]

    def _in_memory_of_its_own(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
        if whole and storage.data_ptr() not in self._storages:
            self._storages.add(storage.data_ptr())
            return tensor
        return tensor.clone(memory_format=torch.contiguous_format)  # safetensors refuses what overlaps


def _unsuitable(value: Any, path: str) -> SettingError:
    return SettingError(
        f"checkpoint: {path} is a {type(value).__name__}, which cannot be saved without a pickle. Let state_dict() return "
        "tensors, numbers, strings, None, and lists, tuples and dicts of them."
    )


def unpack(value: Any, tensors: Mapping[str, torch.Tensor], folder: Path) -> Any:
    """What was packed, from JSON and its tensors. `folder`: of the checkpoint, where tensors lie that were spread over ranks."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "shards":
        return shards.Kept.read(folder, content)
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {key: unpack(entry, tensors, folder) for key, entry in content}
    entries = [unpack(entry, tensors, folder) for entry in content]
    return entries if kind == "list" else tuple(entries)
