"""Messages on their way to a reader: Snugfit's warnings as sentences, in place of a line of its source, and none of libraries that nobody can act on."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from snugfit.errors import SnugfitWarning

_TORCHAO = ("torchao", "torch.utils._pytree")
"""On a machine without CUDA torchao 0.18 warns, when it is imported, of kernels for GPUs and of a deprecated call of its own."""

_LEVEL_OF_KINETO = "KINETO_LOG_LEVEL"
_ABOVE_ALL = "6"


@contextmanager
def own_warnings(tell: Callable[[str], None]) -> Iterator[None]:
    """Temporarily tell each `SnugfitWarning`, once; other warnings go where they went.

    >>> with own_warnings(print):
    ...     for _ in range(2):
    ...         warnings.warn("ema: comes too late.", SnugfitWarning)
    ema: comes too late.
    """
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if not issubclass(category, SnugfitWarning):
            before(message, category, *where, **more)
        elif str(message) not in shown:
            shown.add(str(message))
            tell(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", SnugfitWarning)
        before = warnings.showwarning
        warnings.showwarning = show
        yield


@contextmanager
def held_warnings(messages: list[str]) -> Iterator[None]:
    """Temporarily keep each `SnugfitWarning`, once, to be said later; of a block that fails they are said at once, as one may be the reason."""
    try:
        with own_warnings(messages.append):
            yield
    except BaseException:
        for message in messages:
            warnings.warn(message, SnugfitWarning, stacklevel=3)
        raise


@contextmanager
def loggers_above(level: int, *names: str) -> Iterator[None]:
    """Temporarily let loggers of libraries pass what is of this level or above it.

    >>> with loggers_above(logging.ERROR, "some.library"):
    ...     logging.getLogger("some.library").isEnabledFor(logging.WARNING)
    False
    """
    before = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in before:
        logger.setLevel(level)
    try:
        yield
    finally:
        for logger, own in before.items():
            logger.setLevel(own)


def importing_torchao() -> AbstractContextManager[None]:
    """Temporarily silence torchao's warnings about GPU kernels while it is imported, by whomever.

    >>> with importing_torchao():
    ...     logging.getLogger("torchao").isEnabledFor(logging.WARNING)
    False
    """
    return loggers_above(logging.ERROR, *_TORCHAO)


def silence_bitsandbytes() -> None:
    """Silence the line in which bitsandbytes, when it is imported by whomever, misses a kernel of the hub for inference on some processors."""
    logging.getLogger("bitsandbytes.backends.cpu.ops").disabled = True


def silence_profiler() -> None:
    """Silence the lines that torch's profiler writes each time it starts and stops, unless the environment asks for them.

    Kineto reads its level when a process profiles for the first time, and writes to the stream of errors itself, so that no logger of
    Python's is above it. Its problems reach the caller as exceptions.
    """
    os.environ.setdefault(_LEVEL_OF_KINETO, _ABOVE_ALL)
