"""Inputs that are nearly equal: texts by their shared characters, pictures by how they look, rows of a table by rounded cells."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from snugfit.data.tables.table_cells import parsed_cell
from snugfit.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

Pairs = Iterator[tuple[int, int]]
"""Places, on the first side and on the second, of inputs that are nearly equal."""

NEAR_DUPLICATES = "data.near_duplicates"
SHARED = 0.8
"""Part of the shingles of two texts that both have, from which they are nearly equal."""
_SHINGLE = 9
"""Characters of a shingle."""
_PIECE = 4096
"""Shingles that are hashed at once: a text may be a whole book, and each of them has sixty hashes."""
_SHINGLES_BYTES = 1 << 28
"""Bytes of shingles that are kept; those of further texts are made again where they are compared."""
_BANDS, _BAND = 20, 3
"""Bands of hashes, of which one has to be equal: texts of which 80% is shared are compared with a chance of 0.9999999."""
_SIDE = 8
_BITS = 4
"""Bits of 64 in which the hashes of nearly equal pictures differ at most."""
_THUMBNAIL = 32
_GREY = 6.0
"""Mean difference of the grey values of nearly equal pictures, of 255."""
_DIGITS = 3
"""Significant digits of a number in a rounded row."""


def near_texts(first: Sequence[str], second: Sequence[str]) -> Pairs:
    """Yield the texts that share 80% of what they have: without case, punctuation and spaces, in pieces of nine characters.

    Those that may are found by MinHash, so that not every text is compared with every other one.

    Source: Broder 1997, On the resemblance and containment of documents; bands as in Leskovec, Rajaraman & Ullman, Mining of Massive Datasets, 3.4.

    >>> list(near_texts(["It was a very long day in the city."], ["it was a very long day -- in the City!", "It rains."]))
    [(0, 0)]
    """
    known: dict[Hashable, list[int]] = {}
    shingles: list[Hashes | None] = []
    room = _SHINGLES_BYTES
    for place, text in enumerate(first):
        made = _shingles(text)
        room -= made.nbytes
        shingles.append(made if room >= 0 else None)
        for band in _signature(made):
            known.setdefault(band, []).append(place)
    for place, text in enumerate(second):
        if not text.strip():
            continue
        own = _shingles(text)
        for other in _candidates(known, _signature(own)):
            theirs = shingles[other]
            if theirs is None:
                theirs = _shingles(first[other])
            if _share_enough(own, theirs):
                yield other, place


def _share_enough(first: Hashes, second: Hashes) -> bool:
    """Return whether two texts share so much that they are nearly equal, by their sorted shingles."""
    fewer, more = sorted((first, second), key=len)
    if len(fewer) < SHARED * len(more):
        return False
    places = np.minimum(np.searchsorted(more, fewer), len(more) - 1)
    both = int(np.count_nonzero(more[places] == fewer))
    return both >= SHARED * (len(fewer) + len(more) - both)


def normalised(text: str) -> str:
    """Return a text without case, punctuation and spaces.

    >>> normalised("Ａ  day, in the CITY!")
    'adayinthecity'
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"[\W_]+", "", plain) or "".join(plain.split())


def near_pictures(first: Sequence[str], second: Sequence[str]) -> Pairs:
    """Yield the files of pictures that look alike: other sizes, formats and qualities of one, by difference hashes and thumbnails.

    Raises:
        DataError: a picture is damaged in its middle, which only its decoding shows.

    Source: Krawetz 2013, Kind of like that (dHash).
    """
    hashes = [_difference_hash(path) for path in first]
    known = _by_band(map(_hash_bands, hashes))
    thumbnail = functools.lru_cache(maxsize=4096)(_thumbnail)
    for place, path in enumerate(second):
        own = _difference_hash(path)
        for other in _candidates(known, _hash_bands(own)):
            if (own != hashes[other]).sum() > _BITS:
                continue
            if np.abs(thumbnail(first[other]) - thumbnail(path)).mean() <= _GREY:
                yield other, place


def near_rows(first: Sequence[Sequence[Any]], second: Sequence[Sequence[Any]]) -> Pairs:
    """Yield the rows that are equal once numbers have three digits, and texts no case and no spaces around them.

    >>> list(near_rows([(1.2341, "Rome")], [("1.2339", "rome "), (1.25, "Rome")]))
    [(0, 0)]
    """
    known: dict[Hashable, list[int]] = {}
    for place, row in enumerate(first):
        known.setdefault(_rounded(row), []).append(place)
    for place, row in enumerate(second):
        for other in known.get(_rounded(row), ()):
            yield other, place


def _rounded(row: Sequence[Any]) -> Hashable:
    return tuple(_rounded_cell(cell) for cell in row)


def _rounded_cell(cell: Any) -> Hashable:
    value = parsed_cell(cell)
    if isinstance(value, str):
        return value.strip().casefold()
    return value if value is None else f"{value + 0.0:.{_DIGITS}g}"


def _shingles(text: str) -> Hashes:
    """Return the hashes of all pieces of nine characters of a text, each once."""
    codes = np.frombuffer(normalised(text).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    if len(codes) < _SHINGLE:
        codes = np.concatenate([codes, np.zeros(_SHINGLE - len(codes), np.uint64)])
    count = len(codes) - _SHINGLE + 1
    hashes = np.zeros(count, np.uint64)
    for place in range(_SHINGLE):
        hashes = hashes * np.uint64(0x100000001B3) + codes[place : place + count]
    return np.unique(hashes ^ (hashes >> np.uint64(29)))


@functools.cache
def _multipliers() -> tuple[Hashes, Hashes]:
    draws = np.random.Generator(np.random.PCG64(0)).integers(
        0, 2**64, size=(2, _BANDS * _BAND), dtype=np.uint64
    )
    return draws[0] | np.uint64(1), draws[1]


def _signature(shingles: Hashes) -> list[Hashable]:
    """Return the bands of the least hashes of a text's shingles."""
    factors, offsets = _multipliers()
    pieces = (shingles[start : start + _PIECE, None] for start in range(0, len(shingles), _PIECE))
    least = np.minimum.reduce(
        [((piece * factors + offsets) >> np.uint64(20)).min(axis=0) for piece in pieces]
    )
    return [(band, least[band * _BAND : (band + 1) * _BAND].tobytes()) for band in range(_BANDS)]


def _by_band(signatures: Iterable[list[Hashable]]) -> Mapping[Hashable, list[int]]:
    known: dict[Hashable, list[int]] = {}
    for place, bands in enumerate(signatures):
        for band in bands:
            known.setdefault(band, []).append(place)
    return known


def _candidates(known: Mapping[Hashable, list[int]], bands: Sequence[Hashable]) -> list[int]:
    """Return the places that share a band."""
    return sorted({place for band in bands for place in known.get(band, ())})


def _grey(path: str, width: int, height: int) -> NDArray[np.float32]:
    from PIL.Image import Resampling

    from snugfit.data.pictures.pixels import opened

    try:
        picture = opened(path, 3)
    except (OSError, SyntaxError) as error:  # Pillow's word for a damaged PNG
        raise DataError(
            NEAR_DUPLICATES,
            f"compares pictures by how they look, and {path} cannot be decoded",
            "Copy it again, or remove it.",
        ) from error
    return np.asarray(picture.convert("L").resize((width, height), Resampling.BOX), np.float32)


def _thumbnail(path: str) -> NDArray[np.float32]:
    return _grey(path, _THUMBNAIL, _THUMBNAIL)


def _difference_hash(path: str) -> NDArray[np.bool_]:
    """Return, of 64 places of a picture, whether it grows brighter to the right."""
    grey = _grey(path, _SIDE + 1, _SIDE)
    brighter: NDArray[np.bool_] = (grey[:, 1:] > grey[:, :-1]).reshape(-1)
    return brighter


def _hash_bands(bits: NDArray[np.bool_]) -> list[Hashable]:
    """Return a hash in one part more than bits may differ, so that one of them is equal."""
    return [(band, part.tobytes()) for band, part in enumerate(np.array_split(bits, _BITS + 1))]


Near = Callable[[Sequence[Any], Sequence[Any]], Pairs]
"""The search for nearly equal inputs of one kind."""
