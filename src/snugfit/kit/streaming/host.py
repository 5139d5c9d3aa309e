"""Host memory for the weights of a block: ordinary, pinned where a CUDA device reads it, or a file mapped into memory."""

from __future__ import annotations

import json
import shutil
import struct
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from snugfit.core.scalar_reads import is_fake
from snugfit.errors import SettingError
from snugfit.kit.streaming.layout import Weight, aligned, lay_out, set_tensors_, tensors_of
from snugfit.system.device_copies import pin_memory
from snugfit.system.memory import available_bytes
from snugfit.units import format_bytes

# names in the header of safetensors
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


_in_files: weakref.WeakSet[Packed] = weakref.WeakSet()


class Packed:
    """The frozen weights of a block, moved to one piece of host memory in which its parameters lie from now on.

    Args:
        weights: not empty; those of one block. Fake ones are neither pinned nor written.
        pin: whether a CUDA device will read it.
        file: is written, and mapped into memory: pages are read when they are used. Without, ordinary memory.
    """

    def __init__(self, weights: list[Weight], pin: bool, file: Path | None = None) -> None:
        self.weights = weights
        nbytes = lay_out(weights)
        fake = any(is_fake(weight.parameter) for weight in weights)
        self.memory = (
            _mapped(file, weights, nbytes)
            if file is not None and not fake
            else torch.empty(nbytes, dtype=torch.uint8)
        )
        if file is not None:
            _in_files.add(self)
        for weight in weights:
            held = tensors_of(weight.parameter)
            inside = {part: place.within(self.memory) for part, place in weight.places.items()}
            for part, tensor in held.items():
                inside[part].copy_(tensor)
            set_tensors_(weight.parameter, inside)
        if pin and file is None and not fake:
            pin_memory(
                self.memory,
                self,
                "weight_streaming",
                "keep more blocks on the device (weight_streaming.resident)",
            )

    @property
    def nbytes(self) -> int:
        return self.memory.numel()


def in_files() -> list[Tensor]:
    """Return the memory of all blocks whose weights are in files, or in a dry run would be: the host has no need of it."""
    return [packed.memory for packed in _in_files]


def check_host_memory(needed: int) -> None:
    """Check that the host has room.

    Raises:
        SettingError: so many bytes are not free.
    """
    free = available_bytes(torch.device("cpu"))
    if free is not None and needed > free:
        raise SettingError(
            "weight_streaming",
            f"host memory is too small: the streamed weights take {format_bytes(needed)}, and {format_bytes(free)} "
            "are free",
            "Keep more blocks on the device (weight_streaming.resident), put them on a disk "
            "(weight_streaming.folder), or take a smaller format, such as nf4.",
        )


def check_disk(folder: Path, needed: int) -> None:
    """Make the folder.

    Raises:
        SettingError: it cannot be made, or so many bytes are not free there: a mapped file that cannot grow kills the process.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            "weight_streaming.folder",
            f"'{folder}' cannot be made: {error}",
            "Name a folder that can be written.",
        ) from error
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SettingError(
            "weight_streaming.folder",
            f"the disk of '{folder}' is too small: the streamed weights take {format_bytes(needed)}, and "
            f"{format_bytes(free)} are free",
            "Choose another disk, or keep more blocks on the device (weight_streaming.resident).",
        )


def _mapped(file: Path, weights: list[Weight], nbytes: int) -> Tensor:
    """Memory of a new file of safetensors, which has the tensors by their names and the gaps between them as `gap.N`."""
    header = json.dumps(_header(weights)).encode()
    header = header.ljust(aligned(8 + len(header)) - 8)  # the format allows spaces behind
    if file.exists() and not _is_ours(file):
        raise SettingError(
            "weight_streaming.folder",
            f"'{file}' is there already, and was not written by weight_streaming",
            "Give an empty folder.",
        )
    file.unlink(missing_ok=True)  # an older one may still be mapped, and lives until it is not
    start = 8 + len(header)
    whole = torch.from_file(str(file), shared=True, size=start + nbytes, dtype=torch.uint8)
    whole[:start] = torch.frombuffer(bytearray(struct.pack("<Q", len(header)) + header), dtype=torch.uint8)
    return whole[start:]


_METADATA = {"written_by": "snugfit weight_streaming"}


def _is_ours(file: Path) -> bool:
    """Return whether an earlier run has written the file for the same purpose."""
    with file.open("rb") as opened:
        return json.dumps(_METADATA).encode() in opened.read(8 + 4 * len(json.dumps(_METADATA)))


def _header(weights: list[Weight]) -> Mapping[str, Any]:
    header: dict[str, Any] = {"__metadata__": _METADATA}
    for weight in weights:
        for part, place in weight.places.items():
            end = place.offset + place.nbytes
            gap = aligned(place.nbytes) - place.nbytes
            transposed = place.stride != torch.empty(place.shape, device="meta").stride()
            header[f"{weight.name}.{part}".rstrip(".")] = {
                "dtype": "U8" if transposed else _DTYPES[place.dtype],
                "shape": [place.nbytes] if transposed else list(place.shape),
                "data_offsets": [place.offset, end],
            }
            if gap:
                header[f"gap.{len(header)}"] = {
                    "dtype": "U8",
                    "shape": [gap],
                    "data_offsets": [end, end + gap],
                }
    return header
