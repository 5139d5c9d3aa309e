"""Dataclasses that each update makes some of: frozen by their types, and not at run time.

Python sets each field of a frozen dataclass by a call of `object.__setattr__`, which makes a window of nine fields cost a microsecond. So mypy
holds that nobody writes to one, and the interpreter does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as update_value
else:
    from dataclasses import dataclass

    def update_value(*, frozen: bool, slots: bool) -> Any:
        """Return a decorator as `dataclass` does; what it makes has slots, and may be written to.

        >>> @update_value(frozen=True, slots=True)
        ... class Pair:
        ...     first: int
        ...     second: int = 0
        >>> Pair(1)
        Pair(first=1, second=0)
        """
        assert frozen
        return dataclass(slots=slots)


__all__ = ["update_value"]
