"""Checkpoints: a folder of safetensors and JSON, whole or not there.

A checkpoint is written under a temporary name, each file is flushed to the disk, a manifest with the sha256 of
each file comes last, then the folder is renamed. Loading verifies the manifest and walks back to the newest
valid checkpoint. No pickle: reading one runs no code.

Writing needs nothing of the training but the tensors, so that it may go on beside it, of copies.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from snugfit.errors import RunFolderError, SnugfitWarning
from snugfit.kit.serialize import Packed, unpack
from snugfit.results.run_folder import checkpoints_in
from snugfit.run.checkpoint import sharded_files
from snugfit.strategies.base import Strategy
from snugfit.system.disk_files import disk_problem, flush, is_full
from snugfit.system.json_text import parse_json

_FORMAT = 1
_MANIFEST = "manifest.json"
_TEMPORARY = ".saving-"
_DAMAGED = (OSError, ValueError, TypeError, LookupError, SafetensorError)
"""What reading a checkpoint that is not whole may raise."""


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was read: its folder, its parts, and what was wrong with the newer ones."""

    folder: Path
    parts: dict[str, Any]
    rejected: tuple[str, ...]


def write(
    final: Path,
    packed: Packed,
    keep: int,
    strategy: Strategy | None = None,
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Write the checkpoint `final`, then remove all but the newest `keep` beside it.

    Of several ranks the first one writes. Where tensors are spread over them all call it, and each writes its parts of those. If the
    disk is full, those that will be removed are removed first, and it is written once more.

    Args:
        final: a folder named `update-...`, such that a later checkpoint has the greater name. What has a greater name
            already was passed over when the run went on from an older one, and is removed.
        group: what ranks exchange in; None for that of the training, which must wait then.

    Raises:
        RunFolderError: the folder cannot be written; an older checkpoint is not harmed.
    """
    strategy = strategy or Strategy()
    if strategy.rank > 0 and not packed.sharded:
        return final
    agree: _Agree = partial(_agreed, strategy.rank, group) if packed.sharded else lambda act: [act()]
    leads = strategy.rank == 0
    try:
        try:
            _write_all(final, packed, leads, agree, group)
        except Exception as error:
            if not is_full(error) or not agree(lambda: leads and make_room(final.parent, keep))[0]:
                raise
            _write_all(final, packed, leads, agree, group)
    except Exception as error:
        if (problem := disk_problem(error)) is None:
            raise
        raise RunFolderError(
            final,
            f"the checkpoint cannot be written: {problem}",
            "Free space; earlier checkpoints are intact.",
        ) from error
    if leads:
        _remove_all_but(final, keep)
    return final


_Agree = Callable[[Callable[[], Any]], list[Any]]
"""Does something on each rank, and gives what came of it on all of them; an error of one is an error of all."""


def _write_all(
    final: Path, packed: Packed, leads: bool, agree: _Agree, group: dist.ProcessGroup | None
) -> None:
    """Write a checkpoint whole, or leave nothing of it."""
    temporary = final.parent / f"{_TEMPORARY}{final.name}"

    def complete() -> None:
        _write(temporary, packed, sharded)
        if final.exists():  # damaged, or this moment would not come again
            _remove(final)
        os.replace(temporary, final)
        flush(final.parent)

    try:
        agree(lambda: _begin(temporary) if leads else None)
        sharded: dict[str, str] = {}
        if packed.sharded:
            rank = dist.get_rank()
            own = agree(lambda: _write_shards(temporary, packed.sharded, rank, group))
            sharded = {name: digest for each in own for name, digest in each.items()}
        agree(lambda: complete() if leads else None)
    finally:
        if leads:
            shutil.rmtree(temporary, ignore_errors=True)  # it is there only after an error


def load_newest(root: Path) -> Loaded:
    """Return the newest checkpoint under `root` whose files are whole.

    Raises:
        RunFolderError: there is none.
    """
    rejected: list[str] = []
    for folder in checkpoints_in(root):
        try:
            return Loaded(folder, _read(folder), tuple(rejected))
        except _DAMAGED as error:
            rejected.append(f"{folder.name}: {error}")
    problems = f" Found: {'; '.join(rejected)}." if rejected else ""
    raise RunFolderError(
        root,
        f"no valid checkpoint to go on from.{problems}",
        "Put back whole ones, or start a new run with snugfit train.",
    )


def remove_all(root: Path) -> None:
    """Remove every checkpoint under `root`, and `root` if nothing else is in it."""
    for folder in checkpoints_in(root):
        _remove(folder)
    with suppress(OSError):  # something else is in it, or it is not there
        root.rmdir()


def any_whole(root: Path) -> bool:
    """Return whether there is a checkpoint under `root` to go on from."""
    return any(_is_whole(folder) for folder in checkpoints_in(root))


def make_room(root: Path, keep: int) -> bool:
    """Remove what the next checkpoint would let go: all but the newest `keep - 1` whole ones, and never the last whole one.

    Returns:
        Whether anything was removed.
    """
    left, removed = max(keep - 1, 1), False
    checkpoints = [(folder, _is_whole(folder)) for folder in checkpoints_in(root)]
    for folder, whole in checkpoints:
        if whole and left > 0:
            left -= 1
        elif any(whole for _, whole in checkpoints):
            _remove(folder)
            removed = True
    return removed


def _remove_all_but(final: Path, keep: int) -> None:
    others = [folder for folder in checkpoints_in(final.parent) if folder != final]
    older = [folder for folder in others if folder.name < final.name]
    for folder in others:
        if folder in older[: keep - 1]:
            continue
        try:
            _remove(folder)
        except OSError as error:  # the new one is whole all the same
            warnings.warn(
                f"{folder}: the older checkpoint cannot be removed: {disk_problem(error)}. Remove it by hand.",
                SnugfitWarning,
                stacklevel=2,
            )


def _remove(folder: Path) -> None:
    """Remove a checkpoint; where the user has linked it from another place, it stays there."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)


def _begin(temporary: Path) -> None:
    """Make an empty folder, beside which no other is left over; a run's folder that is gone is not made anew."""
    root = temporary.parent
    root.mkdir(exist_ok=True)
    flush(root.parent)
    for left_over in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(left_over)
    temporary.mkdir()


def _agreed(rank: int, group: dist.ProcessGroup | None, act: Callable[[], Any]) -> list[Any]:
    """Return what `act` gives on each rank; where it fails on one of them, all fail, and none waits for it.

    Raises:
        OSError: with what went wrong.
    """
    result = problem = None
    try:
        result = act()
    except Exception as error:  # noqa: BLE001 - whatever it is, the others wait to hear of it
        problem = error
    failure = problem and f"rank {rank}: {problem or type(problem).__name__}"
    results: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(results, (result, failure), group=group)
    for _, other in results:
        if other is not None:
            raise OSError(other) from problem
    return [result for result, _ in results]


def _write_shards(
    folder: Path, sharded: Mapping[str, Tensor], rank: int, group: dist.ProcessGroup | None
) -> dict[str, str]:
    """Write this rank's parts of what is spread over ranks; the sha256 of its files."""
    written = sharded_files.write(folder / sharded_files.FOLDER, sharded, rank, group)
    for path in written:
        flush(path)
    return {path.relative_to(folder).as_posix(): _sha256(path) for path in written}


def _write(folder: Path, packed: Packed, sharded: Mapping[str, str]) -> None:
    """Write all files: each is on the disk before the manifest, and the manifest when this returns."""
    written = [path for name in packed.values for path in _write_part(folder, name, packed)]
    sha256 = {path.relative_to(folder).as_posix(): _sha256(path) for path in written} | dict(sharded)
    for subfolder in {(folder / name).parent for name in sha256} - {folder}:
        flush(subfolder)
    _write_json(folder / _MANIFEST, {"format": _FORMAT, "sha256": sha256})
    flush(folder)


def _write_part(folder: Path, name: str, packed: Packed) -> list[Path]:
    path = folder / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    _write_json(path, packed.values[name])
    written = [path]
    if packed.tensors[name]:
        weights = folder / f"{name}.safetensors"
        save_file(_apart(packed.tensors[name]), weights)
        flush(weights)
        written.append(weights)
    return written


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors in host memory, each in memory of its own: safetensors refuses what overlaps."""
    storages: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        here = tensor.cpu()
        storage = here.untyped_storage()
        whole = here.is_contiguous() and storage.nbytes() == here.nbytes
        if not whole or storage.data_ptr() in storages:
            here = here.clone(memory_format=torch.contiguous_format)
        storages.add(here.untyped_storage().data_ptr())
        separate[name] = here
    return separate


def _read(folder: Path) -> dict[str, Any]:
    names = [name.removesuffix(".json") for name in _verified(folder) if name.endswith(".json")]
    return {name: _read_part(folder, name) for name in names}


def _is_whole(folder: Path) -> bool:
    try:
        _verified(folder)
    except _DAMAGED:
        return False
    return True


def _verified(folder: Path) -> list[str]:
    """Return the names of a checkpoint's files, once each is what was written."""
    manifest = parse_json((folder / _MANIFEST).read_text(encoding="utf-8"))
    if manifest["format"] != _FORMAT:
        raise ValueError(f"it has format {manifest['format']}, this version of Snugfit reads {_FORMAT}")
    for name, digest in manifest["sha256"].items():
        if _sha256(folder / name) != digest:
            raise ValueError(f"{name} is not what was written")
    return list(manifest["sha256"])


def _read_part(folder: Path, name: str) -> Any:
    weights = folder / f"{name}.safetensors"
    tensors = load_file(weights) if weights.exists() else {}
    return unpack(parse_json((folder / f"{name}.json").read_text(encoding="utf-8")), tensors, folder)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, allow_nan=False), encoding="utf-8")
    flush(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
