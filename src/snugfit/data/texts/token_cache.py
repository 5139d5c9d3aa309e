"""Tokens in the user's cache: what was tokenised once is mapped into memory from then on, by every process that reads the same.

An entry is one file, named by a digest of all that decides its tokens: the texts or rows, the settings, the tokenizer, the versions of its
libraries and this package's code. It begins with a digest of its content, and appears under its name when it is whole.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import shutil
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snugfit.data.files.file_cache import code_digest
from snugfit.data.texts.spooled_numbers import Numbers
from snugfit.data.texts.token_rows import TokenRows, mapped_array
from snugfit.errors import SnugfitWarning
from snugfit.system.disk_files import PARTIAL, SPARE_BYTES, cache_folder, disk_problem, whole_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEAST_TOKENS = 1 << 16
"""Fewer are made anew in less time than a plan takes, and are not kept."""

MOST_BYTES = 20 << 30
"""Of all entries together; what was used least recently goes first."""

_DAY = 86400
_MAGIC = b"SNUGTOK1"
_START = struct.Struct("<8s32sQ")
"""How a file begins: its format, the sha256 of all that follows the sha256, and the bytes of the description that comes next."""

_ALIGNED, _PAGE = 64, 4096
_SUFFIX = ".tokens"


@dataclass(frozen=True)
class TokenEntry:
    """Tokens, and what was learned on the way to them: arrays of numbers by their names, and plain values."""

    rows: TokenRows
    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def cached(
    kind: str,
    parts: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    make: Callable[[], TokenEntry],
) -> TokenEntry:
    """Return what `make` makes, from the cache where it was made before.

    Whatever keeps the cache from being used is a warning: an entry that is broken is made anew, and without room for one the tokens stay in
    memory.

    Args:
        kind: names the way of making; `parts` are all that it depends on beside the tokenizer.
    """
    own = tokenizer_digest(tokenizer)
    if own is None:
        return make()
    described = {"kind": kind, "parts": parts, "tokenizer": own, "versions": _versions(), "code": _code()}
    name = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:32]
    path = cache_folder() / "tokens" / f"{name}{_SUFFIX}"
    try:
        return _read(path)
    except (FileNotFoundError, NotADirectoryError):
        pass  # nothing was kept
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = disk_problem(error) or str(error)
        _warn_once(f"The tokens kept in {path} cannot be used ({reason}): the texts are tokenised anew.")
    entry = make()
    if sum(map(len, entry.rows.lists.values())) < LEAST_TOKENS:
        return entry
    try:
        _write(path, entry)
        _remove_oldest(path.parent)
        return _read(path)
    except (OSError, ValueError) as error:
        reason = disk_problem(error) or str(error)
        _warn_once(f"Tokens cannot be kept in {path.parent} ({reason}): each run tokenises its texts anew.")
        return entry


def texts_digest(*columns: Iterable[str]) -> str:
    """Return the sha256 of texts in their order.

    >>> texts_digest(["ab", "c"]) == texts_digest(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for column in columns:
        digest.update(b"column")
        for text in column:
            content = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(content) + content)
    return digest.hexdigest()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the sha256 of all by which a tokenizer makes tokens and conversations; None for one that does not show it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    try:
        text = str(backend.to_str())
    except Exception:  # noqa: BLE001 (a part that is written in Python has no content; the library raises no class of its own)
        return None
    # before its added tokens it tells how the last text was cut and padded, which the next one does not depend on
    _, mark, content = text.partition('"added_tokens"')
    own = {
        "content": hashlib.sha256((content if mark else text).encode()).hexdigest(),
        "class": type(tokenizer).__qualname__,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "ids": [
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
            tokenizer.unk_token_id,
            tokenizer.cls_token_id,
        ],
        "sides": [tokenizer.truncation_side, tokenizer.padding_side],
        "inputs": list(tokenizer.model_input_names),
        "splits_special": getattr(tokenizer, "split_special_tokens", None),
        "template": tokenizer.chat_template,
    }
    return hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()


def _read(path: Path) -> TokenEntry:
    """Return an entry, its arrays mapped.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError, KeyError, TypeError: it is broken.
    """
    with path.open("rb") as file:
        magic, digest, size = _start(file)
        if magic != _MAGIC or _digest_of_rest(file) != digest:
            raise ValueError("it is broken or cut off")
        file.seek(_START.size)
        described = json.loads(file.read(size))
        first = _aligned(file.tell())
    arrays = {name: _array(path, first, own) for name, own in described["arrays"].items()}

    def named(prefix: str) -> dict[str, Numbers]:
        return {name[len(prefix) :]: arrays[name] for name in described["names"] if name.startswith(prefix)}

    with suppress(OSError):  # it was used: others go before it
        os.utime(path)
    rows = TokenRows(named("list "), arrays["ends"], named("value "), sequences=described["sequences"])
    return TokenEntry(rows, named("number "), described["facts"])


def _start(file: BufferedReader) -> tuple[bytes, bytes, int]:
    start = file.read(_START.size)
    if len(start) < _START.size:
        raise ValueError("it is cut off")
    magic, digest, size = _START.unpack(start)
    return magic, digest, size


def _digest_of_rest(file: BufferedReader | BufferedRandom) -> bytes:
    file.seek(_START.size - 8)
    return hashlib.file_digest(file, "sha256").digest()


def _array(path: Path, first: int, described: Mapping[str, Any]) -> Numbers:
    kind, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    if "value" in described:
        return np.broadcast_to(np.array(described["value"], kind), shape)
    if not all(shape):
        return np.empty(shape, kind)
    array = mapped_array(str(path), kind.str, first + int(described["offset"]), shape)
    # a page counts as memory of this process once it is looked at: now, where a plan sees what a process takes before it trains
    array.reshape(-1).view(np.uint8)[::_PAGE].max()
    return array


def _write(path: Path, entry: TokenEntry) -> None:
    """Write an entry.

    Raises:
        OSError: there is no room for it, or the folder cannot be written.
    """
    arrays = {
        "ends": entry.rows.ends,
        **{f"list {name}": array for name, array in entry.rows.lists.items()},
        **{f"value {name}": array for name, array in entry.rows.values.items()},
        **{f"number {name}": array for name, array in entry.numbers.items()},
    }
    offset, described, content = 0, {}, []
    for name, array in arrays.items():
        own: dict[str, Any] = {"dtype": array.dtype.str, "shape": list(array.shape)}
        if array.size and not any(array.strides):
            own["value"] = array.flat[0].item()
        else:
            own["offset"] = offset
            content.append((offset, np.ascontiguousarray(array)))
            offset = _aligned(offset + array.nbytes)
        described[name] = own
    header = json.dumps(
        {
            "arrays": described,
            "names": list(arrays),
            "sequences": entry.rows.sequences,
            "facts": dict(entry.facts),
        }
    ).encode()
    first = _aligned(_START.size + len(header))
    path.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(path.parent).free < first + offset + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with whole_file(path, private=True) as draft, draft.open("w+b") as file:
        file.write(_START.pack(_MAGIC, bytes(32), len(header)) + header)
        for place, array in content:
            file.seek(first + place)
            file.write(array.data)
        file.truncate(first + offset)
        digest = _digest_of_rest(file)
        file.seek(0)
        file.write(_START.pack(_MAGIC, digest, len(header)))


def _remove_oldest(folder: Path) -> None:
    """Remove what was used least recently where entries take more than `MOST_BYTES`, but for the newest, and what a killed process left behind."""
    entries = []
    for path in folder.iterdir():
        with suppress(
            OSError
        ):  # another process removes too, or still reads where what is read cannot be removed
            status = path.stat()
            if path.suffix == _SUFFIX:
                entries.append((status.st_mtime, status.st_size, path))
            elif path.suffix == PARTIAL and status.st_mtime < time.time() - _DAY:
                path.unlink()
    together = 0
    for place, (_, size, path) in enumerate(sorted(entries, reverse=True)):
        together += size
        if place and together > MOST_BYTES:
            with suppress(OSError):
                path.unlink()


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, SnugfitWarning, stacklevel=3)


@functools.cache
def _versions() -> tuple[str, ...]:
    return tuple(f"{name} {version(name)}" for name in ("tokenizers", "transformers", "jinja2", "numpy"))


@functools.cache
def _code() -> str:
    return code_digest(Path(__file__).parent)
