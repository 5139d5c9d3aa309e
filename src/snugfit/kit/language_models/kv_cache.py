"""Caches of keys and values, which models of transformers fill as they go.

Training reads none of them, and what is computed twice would fill them twice. A cache also changes how keys and values lie in memory, and
with that the order in which some processors add the products of attention: training without them, with recompute or not, gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import nn

from snugfit.system.nothing import NOTHING


def caching_configs(model: nn.Module) -> list[Any]:
    """Return the configs in a model that say whether a cache is filled, each once."""
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    return [config for config in configs.values() if hasattr(config, "use_cache")]


def without_caches(configs: Sequence[Any]) -> AbstractContextManager[None]:
    """Temporarily let models of transformers with these configs fill no cache of keys and values."""
    using = [config for config in configs if config.use_cache]
    return _switched_off(using) if using else NOTHING


@contextmanager
def _switched_off(using: Sequence[Any]) -> Iterator[None]:
    for config in using:
        config.use_cache = False
    try:
        yield
    finally:
        for config in using:
            config.use_cache = True


def caches_among(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the caches among the arguments of a call."""
    return (value for value in values if hasattr(value, "get_seq_length"))
