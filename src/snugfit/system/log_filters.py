"""Messages of libraries that say nothing a user can do anything about."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

_TORCHAO = ("torchao", "torch.utils._pytree")
"""On a machine without CUDA torchao 0.18 warns, when it is imported, of kernels for GPUs and of a deprecated call of its own."""


@contextmanager
def importing_torchao() -> Iterator[None]:
    """Temporarily silence torchao's warnings about GPU kernels while it is imported, by whomever.

    >>> with importing_torchao():
    ...     logging.getLogger("torchao").isEnabledFor(logging.WARNING)
    False
    """
    loggers = [logging.getLogger(name) for name in _TORCHAO]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def silence_bitsandbytes() -> None:
    """Silence the line in which bitsandbytes, when it is imported by whomever, misses a kernel of the hub for inference on some processors."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").disabled = True


_LEVEL_OF_KINETO = "KINETO_LOG_LEVEL"
_ABOVE_ALL = "6"


def silence_profiler() -> None:
    """Silence the lines that torch's profiler writes each time it starts and stops, unless the environment asks for them.

    Kineto reads its level when a process profiles for the first time, and writes to the stream of errors itself, so that no logger of
    Python's is above it. Its problems reach the caller as exceptions.
    """
    os.environ.setdefault(_LEVEL_OF_KINETO, _ABOVE_ALL)
