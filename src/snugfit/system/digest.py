"""A digest of any value's content, the same in every process and wherever files lie."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import numbers
import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE_BYTES = 1 << 20
"""Bytes up to which content is read whole; of more, pieces that are spread evenly over it."""
_PIECES, _PIECE_BYTES = 16, 1 << 14
_DEEPEST = 20
NO_DIGEST = "no digest"
"""Stands for the digest of what has no source, or has another content each time."""


def digest(value: Any) -> str:
    """Return the sha256 of what `value` holds, as 64 hexadecimal digits.

    Containers, tensors, arrays, images, dataclasses and objects with attributes are looked into; of a large tensor pieces are
    read. An absolute path counts by its last part. Of an object whose content cannot be seen the class counts.

    >>> digest({"a": 1, "b": [2.0]}) == digest({"b": [2.0], "a": 1}) != digest({"a": 1, "b": [2.5]})
    True
    """
    return _digest(value, 0).hex()


def text_in_json(value: Any) -> str:
    """Return what stands for a value that JSON has no form for: its text, or its digest where the text leaves out content or names an address.

    NumPy and torch write large arrays in part, and all of them rounded.

    >>> text_in_json(Path("a/b")), len(text_in_json(np.zeros(3)))
    ('a/b', 64)
    """
    if hasattr(value, "shape") and not isinstance(value, np.generic):
        return digest(value)
    text = str(value)
    return digest(value) if " at 0x" in text else text


def digest_of_settings(values: Any) -> str:
    """Return the sha256 of plain values, as recipes have named themselves by from the start."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the sha256 of a file's size, its first MiB, where safetensors has its header, and pieces of the rest.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    hasher = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        hasher.update(file.read(_WHOLE_BYTES))
        for start in _starts(size) if size > _WHOLE_BYTES else ():
            file.seek(start)
            hasher.update(file.read(_PIECE_BYTES))
    return hasher.hexdigest()


def _digest(value: Any, depth: int) -> bytes:
    kind, content = _content(value, depth)
    return hashlib.sha256(kind.encode("utf-8", "surrogatepass") + b"\0" + content).digest()


def _content(value: Any, depth: int) -> tuple[str, bytes]:
    """Return the kind of a value, and its content as bytes."""

    def inner(part: Any) -> bytes:
        return _digest(part, depth + 1)

    if depth > _DEEPEST:
        return "too deep", b""
    return _of_plain(value) or _of_container(value, inner) or _of_object(value, inner)


def _of_plain(value: Any) -> tuple[str, bytes] | None:
    """Return that of a value that holds no others; None for others."""
    from torch import Tensor  # files are known by their digests before torch is imported

    if value is None or isinstance(value, (bool, np.bool_)):
        return "plain", str(value).encode()
    if isinstance(value, numbers.Integral):
        return "integer", str(int(value)).encode()
    if isinstance(value, numbers.Real):
        return "real", repr(float(value)).encode()
    if isinstance(value, PurePath):
        return "path", os.fsencode(value.name if value.is_absolute() else value)
    if isinstance(value, str):
        text = os.path.basename(value) if _is_absolute(value) else value
        return "text", text.encode("utf-8", "surrogatepass")
    if isinstance(value, (bytes, bytearray)):
        return "bytes", _sampled(np.frombuffer(value, dtype=np.uint8))
    return _tensor(value) if isinstance(value, Tensor) else None


def _of_container(value: Any, inner: Callable[[Any], bytes]) -> tuple[str, bytes] | None:
    """Return that of a mapping, a sequence or a set, of digests of what it holds; None for others."""
    if isinstance(value, Mapping):
        return "mapping", b"".join(sorted(inner(key) + inner(entry) for key, entry in value.items()))
    if isinstance(value, (list, tuple)):
        return "sequence", b"".join(map(inner, value))
    return ("set", b"".join(sorted(map(inner, value)))) if isinstance(value, Set) else None


def _of_object(value: Any, inner: Callable[[Any], bytes]) -> tuple[str, bytes]:
    """Return that of anything else, as far as it can be seen."""
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype != object:
            kind = f"array {array.dtype.str} {array.shape}"
            return kind, _sampled(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return name, b"".join(inner(entry) for entry in array.flat)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return name, b"".join(inner(field) for field in fields)
    if callable(value):
        own = getattr(value, "__qualname__", None)
        return "callable", (f"{getattr(value, '__module__', '')}.{own}" if own else name).encode()
    if hasattr(value, "__dict__"):
        return name, inner(vars(value))
    shown = repr(value)
    return name, b"" if " at 0x" in shown else shown.encode("utf-8", "surrogatepass")


def _is_absolute(text: str) -> bool:
    return len(text) < 4096 and "\n" not in text and os.path.isabs(text)


def _tensor(tensor: Tensor) -> tuple[str, bytes]:
    import torch

    kind = f"tensor {tensor.dtype} {tuple(tensor.shape)}"
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
        return f"{kind} {tensor.layout}", b""
    if not tensor.numel():  # whose strides may be anything
        return kind, b""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # Tensor.numpy would mark the memory as one that NumPy may write to, of which no window is loaded ahead
    return kind, _sampled(np.from_dlpack(flat.view(torch.uint8)))


def _sampled(array: np.ndarray[Any, Any]) -> bytes:
    if array.nbytes <= _WHOLE_BYTES:
        return array.tobytes()
    return b"".join(array[start : start + _PIECE_BYTES].tobytes() for start in _starts(array.nbytes))


def _starts(size: int) -> list[int]:
    """Return where the pieces of so many bytes begin: the first at the beginning, the last so that it is the end."""
    return [place * (size - _PIECE_BYTES) // (_PIECES - 1) for place in range(_PIECES)]
