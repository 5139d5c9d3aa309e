"""The memory of a GPU's sum over rows beside its result: partial sums of many thread blocks, as backward has for each bias.

Source: <https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/Reduce.cuh>, `setReduceConfig` and
`global_memory_size`. Measured on an H100: 142,613,820 bytes for 4,096 rows of 16,384 numbers, of which this says 142,606,336.
"""

from __future__ import annotations

import math

from torch import Tensor

PROCESSORS = 132
"""Of an H100; a card with fewer divides its sums among fewer thread blocks, and takes less."""

_THREADS_OF_A_PROCESSOR = 2048
_THREADS_OF_A_BLOCK = 512
_WARP = 32
_FEW, _MANY = 16, 256
"""Numbers that a thread adds up at least, where a sum is divided, and at most."""


def staged_sums(given: Tensor, out: Tensor) -> int:
    """Return the bytes of partial sums where the first dimensions of a contiguous tensor are added up; 0 for other sums, whose buffers are small."""
    columns = out.numel()
    if not given.numel() or not given.is_contiguous() or given.numel() == columns:
        return 0
    if not _is_over_first(given, out):
        return 0
    vector = math.gcd(columns, 4)
    threads = _THREADS_OF_A_BLOCK // vector
    width, height = _block(columns // vector, given.numel() // columns, threads)
    each = given.numel() // columns  # numbers of a thread
    if each < min(16 * height, _MANY):
        return 0
    each = -(-each // height)
    grid = -(-(columns // vector) // width)
    most = PROCESSORS * (_THREADS_OF_A_PROCESSOR // (width * height))
    if each < _MANY or grid > most:
        return 0
    blocks = max(min(-(-most // grid), -(-each // _FEW)), -(-each // _MANY))
    number = 8 if out.element_size() == 8 else 4  # half precision is summed in float32
    return number * columns * blocks * width * vector if blocks > 1 else 0


def _is_over_first(given: Tensor, out: Tensor) -> bool:
    """Return whether the last dimensions are those of the result, and all before are added up."""
    columns = tuple(size for size in out.shape if size != 1)
    return bool(columns) and tuple(given.shape[-len(columns) :]) == columns


def _block(columns: int, rows: int, threads: int) -> tuple[int, int]:
    """Return the width and the height of a block of threads."""
    across, down = (1 << (min(size, threads).bit_length() - 1) for size in (columns, rows))
    height = min(down, threads // min(across, _WARP))
    return min(across, threads // height), height
