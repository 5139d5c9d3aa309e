"""Sizes and durations as people write them, and back."""

from __future__ import annotations

import re

from snugfit.errors import SettingError

_BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _parse(text: str | float, units: dict[str, float], setting: str, example: str) -> float:
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", str(text))
    if match is None or match[2].lower() not in units or float(match[1]) <= 0:
        raise SettingError(
            setting,
            f"'{text}' cannot be read",
            f"Write a positive number, alone or with a unit, like {example}.",
        )
    return float(match[1]) * units[match[2].lower()]


def parse_bytes(text: str | float, setting: str = "size") -> int:
    """Return bytes from '24GiB', '500MB' or a plain number.

    >>> parse_bytes("24GiB")
    25769803776
    """
    return int(_parse(text, {name: float(value) for name, value in _BYTES.items()}, setting, "24GiB"))


def parse_seconds(text: str | float, setting: str = "duration") -> float:
    """Return seconds from '30s', '90m', '2h' or a plain number of seconds.

    >>> parse_seconds("2h")
    7200.0
    """
    return _parse(text, _SECONDS, setting, "30s or 2h")


def format_bytes(count: float) -> str:
    """Return bytes with a binary unit.

    >>> format_bytes(3 * 2**30)
    '3.00 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} TiB"


def format_seconds(seconds: float) -> str:
    """Return a duration in its two largest units.

    >>> format_seconds(3725)
    '1h 02m'
    """
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def counted(count: float, noun: str) -> str:
    """Return a count with its noun in the right number.

    >>> counted(1, "row"), counted(1200, "row"), counted(0, "class"), counted(2, "micro-batch"), counted(2, "epoch")
    ('1 row', '1,200 rows', '0 classes', '2 micro-batches', '2 epochs')
    >>> counted(0.5, "epoch"), counted(1000.0, "epoch")
    ('0.5 epochs', '1,000 epochs')
    """
    text = f"{count:,}" if isinstance(count, int) else f"{count:,.0f}" if count >= 100 else f"{count:.3g}"
    plural = "es" if noun.endswith(("s", "x", "tch", "sh")) else "s"
    return f"{text} {noun}{'' if text == '1' else plural}"
