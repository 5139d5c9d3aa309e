"""Properties of operators that a dry run asks for again and again, looked up once: torch takes long to tell them, and longer to hash an operator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_aten: Any = torch.ops.aten
_NUMBERS = (_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default)
_DRAWS = (_aten.rand.default, _aten.uniform_.default)
_FINITE = (
    *(_aten.isnan.default, _aten.isinf.default),
    *(_aten.eq.Tensor, _aten.ne.Tensor, _aten.eq.Scalar, _aten.ne.Scalar),
)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of torch.

    Args:
        name: such as "aten.mm.default".
        is_number: whether it gives the number that a tensor holds.
        asks: whether what it gives may be for values to tell.
        computes: whether values of what it gives follow from those of what it takes.
        draws: whether it draws numbers between 0 and 1.
        asks_if_finite: whether it may be a question whether numbers are finite.
        written: the place and the name of each argument that it writes to.
    """

    name: str
    namespace: str
    is_number: bool
    asks: bool
    computes: bool
    draws: bool
    asks_if_finite: bool
    written: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, func: Any) -> Operator:
        """Return what is known of an operator as it is dispatched."""
        known = _known.get(id(func))
        if known is None or known[0] is not func:
            known = _known[id(func)] = func, _described(func)
        return known[1]


_known: dict[int, tuple[Any, Operator]] = {}


def _described(func: Any) -> Operator:
    number = func in _NUMBERS
    random, dynamic = torch.Tag.nondeterministic_seeded, torch.Tag.dynamic_output_shape
    return Operator(
        name=str(func),
        namespace=func.namespace,
        is_number=number,
        asks=number or func is _aten._pack_padded_sequence.default or dynamic in func.tags,
        computes=func.namespace == "aten" and random not in func.tags and "empty" not in func.name(),
        draws=func in _DRAWS,
        asks_if_finite=func in _FINITE,
        written=tuple(
            (place, argument.name)
            for place, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
    )
