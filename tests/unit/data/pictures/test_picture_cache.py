"""Decoded pictures in the cache: the same pixels as decoded anew, once decoded, never of another picture, never beyond the limit."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
import torch
from PIL import Image

from snugfit.cli import main
from snugfit.data.bad_rows import BadRow
from snugfit.data.examples import FILE, Examples
from snugfit.data.files.file_cache import FileCache
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.pictures import picture_cache
from snugfit.data.pictures.labelled_pictures import Pictures
from snugfit.data.pictures.masks import MaskSource, load_masks
from snugfit.data.pictures.picture_cache import PictureCache
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.pixels import opened
from snugfit.errors import SnugfitWarning

FORMAT = PictureFormat(8, 8, None)
LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drawn(name: str, seed: int = 0, side: int = 20) -> str:
    values = np.random.default_rng(seed).integers(0, 256, (side, side - 6, 4), dtype=np.uint8)
    Image.fromarray(values).save(name)  # with transparency, which is put on white
    return name


def kept() -> list[Path]:
    return sorted(path for path in Path("cache/snugfit/pictures").rglob("*") if path.is_file())


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("decoded again")

    for decoder in ("opened", "opened_mask"):
        monkeypatch.setattr(picture_cache, decoder, fail)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_kept_has_the_pixels_of_what_is_decoded(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drawn("a.png")
    first = PictureCache(LIMIT).opened(path, channels)
    forbid(monkeypatch)
    # another run, and a worker that gets a copy
    again = pickle.loads(pickle.dumps(PictureCache(LIMIT))).opened(path, channels)
    expected = opened(path, channels)
    assert first.tobytes() == again.tobytes() == expected.tobytes()
    assert (again.mode, again.size) == (expected.mode, expected.size)


def test_another_picture_under_the_name_is_decoded_anew() -> None:
    path = drawn("a.png")
    cache = PictureCache(LIMIT)
    before = cache.opened(path).tobytes()
    drawn("a.png", seed=1)
    os.utime(path, ns=(1, time.time_ns() + 5))
    assert cache.opened(path).tobytes() == opened(path).tobytes() != before


def test_what_another_version_of_pillow_has_decoded_is_decoded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    path = drawn("a.png")
    PictureCache(LIMIT).opened(path)
    monkeypatch.setattr(PIL, "__version__", "1.0")
    PictureCache(LIMIT).opened(path)
    assert len(kept()) == 2


def test_another_picture_of_the_same_size_and_time_is_decoded_anew(folder: Path) -> None:
    (first, second) = (drawn(f"{seed}.bmp", seed) for seed in (0, 1))
    cache = PictureCache(LIMIT)
    for path in (first, second):
        os.utime(path, (5, 5))
    before = cache.opened(first).tobytes()
    assert Path(first).stat().st_size == Path(second).stat().st_size
    shutil.copy2(second, first)  # as archives do, with its time
    assert Path(first).stat().st_mtime == 5
    assert cache.opened(first).tobytes() == opened(second).tobytes() != before


def test_an_entry_that_another_process_has_made_and_mapped_is_as_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, own = drawn("a.png"), PictureCache(LIMIT)
    other, read = PictureCache(LIMIT), FileCache.read

    def late(self: FileCache, entry: Path) -> Any:
        monkeypatch.setattr(FileCache, "read", read)
        other.opened(path)
        monkeypatch.setattr(os, "replace", refused)
        return None

    def refused(*_: object) -> None:  # as Windows does
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(FileCache, "read", late)
    assert own.opened(path).tobytes() == opened(path).tobytes()
    assert not own._files._closed and len(kept()) == 1


def test_a_broken_entry_is_made_anew() -> None:
    path = drawn("a.png")
    cache = PictureCache(LIMIT)
    cache.opened(path)
    (entry,) = kept()
    content = bytearray(entry.read_bytes())
    for broken in (content[:-3], content[:10], b"", content[:-1] + bytes([content[-1] ^ 1])):
        entry.write_bytes(broken)
        assert cache.opened(path).tobytes() == opened(path).tobytes()
        assert entry.read_bytes() == bytes(content)


def test_no_more_is_kept_than_may_be_and_what_was_used_least_recently_goes_first() -> None:
    size = 20 * 14 * 3 + 28
    cache = PictureCache(int(2.5 * size))
    for number in range(4):
        cache.opened(drawn(f"{number}.png", seed=number))
    assert len(kept()) == 2
    for place, path in enumerate(kept()):
        os.utime(path, (place, place))
    oldest, newest = kept()
    PictureCache(2 * size)  # full: down to a half
    assert kept() == [newest] != [oldest]


def test_what_cannot_be_written_is_a_warning_and_the_picture_is_decoded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = drawn("a.png")
    (folder / "cache").mkdir()
    (folder / "cache/snugfit").write_text("a file")
    cache = PictureCache(LIMIT)
    with pytest.warns(SnugfitWarning, match="Decoded pictures cannot be kept in .*pictures"):
        assert cache.opened(path).tobytes() == opened(path).tobytes()
    assert cache.opened(path).size == (14, 20)


def test_workers_give_the_windows_of_one_without_a_cache() -> None:
    rows = [{FILE: drawn(f"{number}.png", seed=number), "labels": number} for number in range(6)]
    examples = Examples(rows, "rows", range(6), unit=FILE)
    order = Order(6, 2, seed=3)
    plain = Pictures(examples, FORMAT, ("crop", "flip"))
    kept_ones = Pictures(examples, FORMAT, ("crop", "flip"), decode=PictureCache(LIMIT).opened)
    expected = [window.data["pixel_values"] for window in Loader(plain, order).windows(0, 6)]
    for workers in (0, 1):
        own = [
            window.data["pixel_values"]
            for window in Loader(kept_ones, order, num_workers=workers).windows(0, 6)
        ]
        assert all(map(torch.equal, own, expected))
    assert len(kept()) == 6


def test_masks_are_kept_too_with_every_number_and_not_decoded_to_be_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in ("images", "masks"):
        Path("shapes", place).mkdir(parents=True)
    for number in range(4):
        numbers = np.random.default_rng(number).integers(0, 4, (20, 14), dtype=np.uint8)
        numbers[:3] = 255  # unknown
        mask = Image.fromarray(numbers)
        if number % 2:
            mask = mask.convert("P")
            mask.putpalette([3, 2, 1] * 256)  # whose colours are no numbers
        mask.save(f"shapes/masks/{number}.png")
        drawn(f"shapes/images/{number}.png", seed=number)

    def examples(**decoders: Any) -> list[Any]:
        data = load_masks(MaskSource("shapes", validation=None, **decoders), FORMAT)
        torch.manual_seed(0)
        return [data.train[place] for place in range(4)]

    def cached() -> list[Any]:
        cache = PictureCache(LIMIT)
        return examples(decode=cache.opened, decode_mask=cache.opened_mask)

    expected, first = examples(), cached()
    forbid(monkeypatch)
    for one, other, again in zip(expected, first, cached(), strict=True):
        for name in ("pixel_values", "labels"):
            assert torch.equal(one[name], other[name]) and torch.equal(one[name], again[name])
    assert len(kept()) == 8


def test_a_mask_that_is_missing_or_none_is_said_as_without_a_cache() -> None:
    cache = PictureCache(LIMIT)
    with pytest.raises(BadRow, match="is not there"):
        cache.opened_mask("nowhere.png")
    with pytest.raises(BadRow, match="is in colour"):
        cache.opened_mask(drawn("a.png"))
    assert not kept()


def test_a_size_that_is_none_is_refused_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c").mkdir()
    drawn("c/a.png")
    Path("recipe.yaml").write_text(
        "name: a\ntask: image-classification\nmodel: b\ndata:\n  train: c\n  picture_cache: 0\n"
    )
    assert main(["train", "recipe.yaml"]) == 2
    assert "data.picture_cache" in capsys.readouterr().err
