"""The function by which transformers' models compute attention (`sdpa`), temporarily another one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

_SDPA = "sdpa"
_OTHER_SCORES = ("position_bias", "softcap", "s_aux", "cache")
"""Keywords of attention whose scores are no plain products of queries and keys, or come from elsewhere."""

Attend = Callable[..., tuple[Tensor, Tensor | None]]


@contextmanager
def replaced_sdpa(attend: Callable[..., tuple[Tensor, Tensor | None]]) -> Iterator[None]:
    """Temporarily let transformers' `sdpa` be a function that is given the one before it, and then its arguments."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as functions

    before = functions[_SDPA]
    functions[_SDPA] = functools.partial(attend, before)
    try:
        yield
    finally:
        del functions[_SDPA]
        if functions[_SDPA] is not before:
            functions[_SDPA] = before


def attention_has_other_scores(keywords: Mapping[str, Any]) -> bool:
    """Return whether keywords of attention ask for scores that are no plain products of queries and keys."""
    return any(keywords.get(name) is not None for name in _OTHER_SCORES)
