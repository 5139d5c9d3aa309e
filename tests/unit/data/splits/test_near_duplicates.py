"""Searches for nearly equal inputs find what a comparison of every input with every other one finds."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from snugfit.data.splits import near_duplicates
from snugfit.data.splits.near_duplicates import SHARED, near_pictures, near_rows, near_texts, normalised
from snugfit.errors import DataError


def pieces(text: str) -> set[str]:
    plain = normalised(text)
    return {plain[place : place + 9] for place in range(max(1, len(plain) - 8))}


def resemblance(first: str, second: str) -> float:
    """The part of the pieces of either text that both have (Broder 1997)."""
    own, other = pieces(first), pieces(second)
    return len(own & other) / len(own | other)


@pytest.mark.parametrize("room", [near_duplicates._SHINGLES_BYTES, 5000], ids=["in memory", "made again"])
def test_texts_are_those_of_a_comparison_with_every_other_one(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_duplicates, "_SHINGLES_BYTES", room)
    draw = random.Random(0)
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in ("st", "nd", "l", "m")]
    texts = [" ".join(draw.choices(words, k=draw.randint(3, 40))) for _ in range(120)]
    changed = []
    for text in draw.sample(texts, 80):
        parts = text.split()
        for _ in range(draw.randint(0, 4)):
            parts[draw.randrange(len(parts))] = draw.choice(words)
        changed.append(", ".join(parts).title())
    expected = {
        (at, other)
        for other, text in enumerate(changed)
        for at, known in enumerate(texts)
        if resemblance(known, text) >= SHARED
    }
    assert 20 < len(expected) < 80
    assert set(near_texts(texts, changed)) == expected


@pytest.mark.parametrize(
    ("first", "second", "near"),
    [
        ("Ａ cat sat on the mat.", "a cat  sat on THE mat", True),
        ("short", "Short!", True),
        ("short", "shorts", False),
        ("", "", False),
        ("!?", "!?", True),
        ("今天天气很好我们去公园玩吧", "今天天气很好,我们去公园玩吧!", True),
        ("the film is good and the book is bad", "the film is bad and the book is good", False),
    ],
)
def test_case_marks_and_widths_make_no_difference_and_words_do(first: str, second: str, near: bool) -> None:
    assert [*near_texts([first], [second])] == ([(0, 0)] if near else [])


def scene(seed: int) -> Image.Image:
    """Return a picture with smooth patches, as photographs have."""
    values = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    return Image.fromarray(values).resize((160, 120), Image.Resampling.BICUBIC)


def test_other_sizes_formats_and_qualities_of_a_picture_are_alike_and_other_pictures_are_not(
    tmp_path: Path,
) -> None:
    known = []
    for seed in range(40):
        known.append(str(tmp_path / f"{seed}.png"))
        scene(seed).save(known[-1])
    changed = []
    for seed, change in enumerate(
        (
            lambda picture: picture.resize((80, 60)),
            lambda picture: picture.resize((320, 240)),
            lambda picture: picture.convert("L"),
            lambda picture: ImageEnhance.Brightness(picture).enhance(1.01),
            lambda picture: picture,
        )
    ):
        changed.append(str(tmp_path / f"again{seed}.jpg"))
        change(scene(seed)).save(changed[-1], quality=70)
    for seed in range(100, 120):
        changed.append(str(tmp_path / f"other{seed}.jpg"))
        scene(seed).save(changed[-1])
    assert set(near_pictures(known, changed)) == {(seed, seed) for seed in range(5)}


def test_plain_pictures_of_other_grey_are_not_alike(tmp_path: Path) -> None:
    for grey in (0, 128, 255):
        Image.new("RGB", (16, 16), (grey,) * 3).save(tmp_path / f"{grey}.png")
    paths = [str(tmp_path / f"{grey}.png") for grey in (0, 128, 255)]
    assert [*near_pictures(paths[:2], paths[1:])] == [(1, 0)]


def test_a_book_is_hashed_in_little_memory() -> None:
    draw = random.Random(1)
    book = "".join(draw.choices("abcdefghijklmnopqrst", k=150_000))
    tracemalloc.start()
    try:
        assert [*near_texts([book], [book[:-1000]])] == [(0, 0)]
        assert (
            tracemalloc.get_traced_memory()[1] < 60 * 2**20
        )  # at once, sixty hashes of each piece take 370 MiB
    finally:
        tracemalloc.stop()


def test_a_picture_that_is_damaged_in_its_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scan.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), np.uint8)).save(path)
    content = bytearray(path.read_bytes())
    content[60_000:60_400] = bytes(400)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.near_duplicates: .*scan\.png cannot be decoded"):
        [*near_pictures([str(path)], [str(path)])]


def test_rows_are_equal_in_three_digits_with_gaps_and_texts_apart_from_case() -> None:
    first = [(1.2341, "Rome", None), (1000.4, "a", ""), (-0.0, "x", 1)]
    second = [("1.2339", "rome ", "NA"), (1000.6, "A", None), (0, "X", "1.0"), (1.25, "Rome", None)]
    assert set(near_rows(first, second)) == {(0, 0), (1, 1), (2, 2)}
