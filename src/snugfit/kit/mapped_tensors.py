"""Tensors whose memory is a file, whose pages the system gives up where memory is short and reads again as it likes."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.scalar_reads import is_fake
from snugfit.errors import RunFolderError

_MAPS = Path("/proc/self/maps")


def in_file(tensor: Tensor, folder: Path) -> Tensor:
    """Return a copy of a tensor, on the host, in a file of `folder` without a name: it is gone once nobody refers to the copy.

    Raises:
        RunFolderError: it cannot be written there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     in_file(torch.arange(3), Path(folder)), list(Path(folder).iterdir())
    (tensor([0, 1, 2]), [])
    """
    source = tensor.detach().contiguous().cpu()
    if not source.nbytes:
        return source
    try:
        with NamedTemporaryFile(prefix=".tensor-", dir=folder) as file:
            # written and not copied into the mapping, where a full disk would end the process
            file.write(source.flatten().view(torch.uint8).numpy().data)
            file.flush()
            storage: Any = torch.UntypedStorage.from_file(file.name, shared=False, nbytes=source.nbytes)
    except OSError as error:
        raise RunFolderError(
            folder,
            f"the weights of {folder.name} cannot be made there: {error.strerror or error}",
            "Free space, or name another folder.",
        ) from error
    return torch.empty(0, dtype=source.dtype).set_(storage).view(source.shape)


_SMALL = 2**20
"""Bytes up to which a weight stays in memory."""

_folder: ContextVar[Path | None] = ContextVar("folder", default=None)


@contextmanager
def making_in_files(folder: Path) -> Iterator[None]:
    """Temporarily lay weights that are made to be delivered in files of `folder`, one after the other as they are made."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def set_aside_(module: nn.Module) -> nn.Module:
    """Put the weights of a module that was just made where `making_in_files` says; in a dry run what is in a file takes no memory.

    Raises:
        RunFolderError: they cannot be written there.
    """
    folder = _folder.get()
    for name, weight in module._parameters.items():
        if folder is not None and weight is not None and weight.nbytes > _SMALL:
            data = torch.empty_like(weight, device="meta") if is_fake(weight) else in_file(weight, folder)
            module._parameters[name] = nn.Parameter(data, weight.requires_grad)
    return module


def bytes_in_files(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages that lie in mapped files; 0 where the system does not tell.

    >>> bytes_in_files([torch.zeros(8)])
    0
    """
    ranges = _file_ranges()
    starts = [start for start, _ in ranges]
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        place = bisect.bisect_right(starts, address) - 1
        if place >= 0 and address + size <= ranges[place][1]:
            sizes[address] = size
    return sum(sizes.values())


def _file_ranges() -> list[tuple[int, int]]:
    """Return the addresses at which this process has files mapped, in order."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    ranges = []
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/") and not fields[5].startswith("/dev/"):
            start, _, end = fields[0].partition("-")
            ranges.append((int(start, 16), int(end, 16)))
    return sorted(ranges)
