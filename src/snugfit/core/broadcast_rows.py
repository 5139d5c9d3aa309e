"""A watch over the first call of a loss: a column of one number a row and a plain row of them, which torch broadcasts to a table of all pairs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from snugfit.core.tree import leaves
from snugfit.errors import SettingError


def may_meet(outputs: Any, data: Any, rows: int) -> bool:
    """Return whether outputs have one number a row in a column and the data in a plain row, or the other way round.

    >>> may_meet(torch.zeros(3, 1), (torch.zeros(3, 5), torch.zeros(3)), 3), may_meet(torch.zeros(3), torch.zeros(3), 3)
    (True, False)
    """
    column, plain = torch.Size((rows, 1)), torch.Size((rows,))
    if rows < 2:
        return False
    given, shapes = [{each.shape for each in leaves(tree)} for tree in (outputs, data)]
    return (column in given and plain in shapes) or (plain in given and column in shapes)


class BroadcastRows(TorchFunctionMode):
    """Refuses, within it, what makes each row of one tensor meet all rows of another because only one of them is a column.

    A tensor that meets itself is meant to: its pairs are compared.

    Raises:
        SettingError: it happened.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call the function, then look at what it was given, where a table came of it."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.shape == (self.rows, self.rows):
            self._check(
                func, [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, Tensor)]
            )
        return result

    def _check(self, func: Callable[..., Any], tensors: list[Tensor]) -> None:
        for one, other in self._pairs(tensors):
            if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
                continue
            rows = self.rows
            raise SettingError(
                "loss",
                f"{getattr(func, '__name__', 'a function')} gets shapes {tuple(one.shape)} and {tuple(other.shape)}, which torch "
                f"broadcasts to ({rows}, {rows}): each row is compared with all rows",
                "Give both one shape, as by outputs.squeeze(-1); or, if all pairs are meant, set couples_rows = True on the loss.",
            )

    def _pairs(self, tensors: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for one, other in itertools.permutations(tensors, 2):
            if one.shape == (self.rows, 1) and other.shape == (self.rows,):
                yield one, other
