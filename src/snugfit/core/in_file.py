"""Tensors whose memory is a file, which the system reads again where memory is short."""

from __future__ import annotations

from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor

from snugfit.errors import RunFolderError


def in_file(tensor: Tensor, folder: Path) -> Tensor:
    """A copy of a tensor, on the host, in a file of `folder` without a name: it is gone once nobody refers to the copy.

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
            f"The weights of {folder.name} cannot be gathered in {folder}: {error.strerror or error}."
        ) from error
    return torch.empty(0, dtype=source.dtype).set_(storage).view(source.shape)
