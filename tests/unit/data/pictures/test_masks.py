"""Pictures and their masks: placed alike, read in pairs, refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from snugfit.data.pictures.masks import MaskSource, collate, load_mask_rows, load_masks
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.pixels import UNKNOWN, opened, pixels_with_mask, upright_size
from snugfit.errors import DataError, SettingError
from tests.unit.data.pictures.test_labelled_pictures import claiming
from tests.unit.data.shard_files import write_shard

FORMAT = PictureFormat(16, 16, None, (0.0,) * 3, (1.0,) * 3, "nearest")
EVERY = ("rotate", "crop", "flip", "color", "erase")


def coloured(seed: int, width: int = 24, height: int = 18) -> tuple[Image.Image, Image.Image]:
    """Return a picture whose red is 60 times the class of its pixel, and the mask."""
    classes = np.random.default_rng(seed).integers(0, 4, (height // 6, width // 6)).repeat(6, 0).repeat(6, 1)
    picture = np.zeros((height, width, 3), np.uint8)
    picture[..., 0] = 60 * classes + 10
    return Image.fromarray(picture), Image.fromarray(classes.astype(np.uint8))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("images", "masks"):
        (tmp_path / "shapes" / name).mkdir(parents=True)
    for number in range(8):
        picture, mask = coloured(number)
        picture.save(tmp_path / f"shapes/images/{number}.png")
        mask.save(tmp_path / f"shapes/masks/{number}{'_mask' if number % 2 else ''}.png")
    return tmp_path / "shapes"


@pytest.mark.parametrize("augment", [(), ("crop",), ("flip",), ("rotate",), ("rotate", "crop", "flip")])
@pytest.mark.parametrize("seed", range(6))
def test_a_mask_lies_under_its_picture_whatever_is_drawn(augment: tuple[str, ...], seed: int) -> None:
    picture, mask = coloured(seed)
    torch.manual_seed(seed)
    values, labels = pixels_with_mask(picture, mask, FORMAT, augment)
    red = (values[0] * 255).round().long()
    known = labels != UNKNOWN
    assert known.float().mean() > 0.6 and set(labels.unique().tolist()) <= {0, 1, 2, 3, UNKNOWN}
    # a turn mixes neighbours in the picture, and not in the mask
    fits = red[known] == 60 * labels[known].long() + 10
    assert fits.float().mean() > (0.5 if "rotate" in augment else 0.999)
    if "rotate" not in augment:
        assert known.all()


def test_what_is_drawn_for_a_picture_is_the_same_with_a_mask_and_without() -> None:
    from snugfit.data.pictures.pixels import pixels

    picture, mask = coloured(0)
    torch.manual_seed(5)
    alone = pixels(picture, FORMAT, EVERY)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(pixels_with_mask(picture, mask, FORMAT, EVERY)[0], alone)
    assert torch.equal(torch.rand(1), after)


def test_pictures_and_masks_are_paired_by_name(folder: Path) -> None:
    unknown = np.array(coloured(0)[1])
    unknown[:6] = UNKNOWN
    Image.fromarray(unknown).save(folder / "masks/0.png")
    data = load_masks(MaskSource("shapes", validation=None, augment=()), FORMAT)
    assert (len(data.train), data.validation, data.classes) == (8, None, ("0", "1", "2", "3"))
    batch = collate([data.train[place] for place in range(8)])
    assert batch["pixel_values"].shape == (8, 3, 16, 16) and batch["labels"].dtype == torch.int64
    assert (batch["labels"][0] == -100).float().mean() > 0.2 and (batch["labels"][1:] >= 0).all()
    parted = load_masks(MaskSource("shapes", validation=0.25), FORMAT)
    assert parted.validation is not None and (len(parted.train), len(parted.validation)) == (6, 2)
    assert parted.validation.augment == ()


def test_masks_are_found_from_a_folder_beside_and_through_links_and_hidden_folders_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "images/.thumbs").mkdir()
    coloured(0)[0].save(folder / "images/.thumbs/0.png")
    for name in ("images", "masks"):
        (folder.parent / f"more_{name}").mkdir()
        (folder / name / "more").symlink_to(folder.parent / f"more_{name}")
    picture, mask = coloured(9)
    picture.save(folder.parent / "more_images/9.png")
    mask.save(folder.parent / "more_masks/9.png")
    monkeypatch.chdir(folder)
    data = load_masks(MaskSource("../shapes", validation=None, augment=()), FORMAT)
    assert len(data.train) == 9


def test_a_picture_is_as_large_as_its_camera_held_it_by_its_header_alone(folder: Path) -> None:
    picture, mask = coloured(0)
    turned = Image.Exif()
    turned[0x0112] = 6
    picture.save(folder / "images/0.png", exif=turned)
    mask.transpose(Image.Transpose.ROTATE_270).save(folder / "masks/0.png")
    assert upright_size(str(folder / "images/0.png")) == opened(str(folder / "images/0.png")).size == (18, 24)
    assert len(load_masks(MaskSource("shapes", validation=None, augment=()), FORMAT).train) == 8


def test_a_table_names_pictures_and_masks_beside_it(folder: Path) -> None:
    rows = [
        {"photo": f"images/{number}.png", "truth": f"masks/{number}{'_mask' if number % 2 else ''}.png"}
        for number in range(8)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = MaskSource("shapes/rows.jsonl", validation=None, image="photo", label="truth", augment=())
    table, whole = (
        load_masks(source, FORMAT),
        load_masks(MaskSource("shapes", validation=None, augment=()), FORMAT),
    )
    assert all(torch.equal(a["labels"], b["labels"]) for a, b in zip(table.train, whole.train, strict=True))


def in_shards(folder: Path, masks: Mapping[str, bytes | None] | None = None) -> Path:
    """Return a folder of two shards of the pictures and masks of a folder, of which some masks are others, or left out."""
    for shard in range(2):
        members: dict[str, bytes | str] = {}
        for number in range(4 * shard, 4 * shard + 4):
            (mask,) = folder.glob(f"masks/{number}*.png")
            content = (masks or {}).get(str(number), mask.read_bytes())
            members[f"{number}.png"] = (folder / f"images/{number}.png").read_bytes()
            if content is not None:
                members[f"{number}.mask.png"] = content
        write_shard(folder.parent / f"shards/s-{shard}.tar", members)
    return folder.parent / "shards"


@pytest.mark.parametrize("source", ["shards", "shards/s-{0..1}.tar", "shards/s-*.tar"])
def test_masks_in_shards_are_those_of_a_folder(folder: Path, source: str) -> None:
    in_shards(folder)
    of_shards, whole = (
        load_masks(MaskSource(name, validation=None, label="mask.png", augment=()), FORMAT)
        for name in (source, "shapes")
    )
    assert of_shards.classes == whole.classes and len(of_shards.train) == 8
    for ours, theirs in zip(of_shards.train, whole.train, strict=True):
        assert torch.equal(ours["labels"], theirs["labels"])
        assert torch.equal(ours["pixel_values"], theirs["pixel_values"])
    new = load_mask_rows(source, FORMAT, image="image", label=None, classes=4, bad_rows="fail")
    assert [each["sides"] for each in new.examples] == [(24, 18)] * 8


def test_masks_of_shards_that_cannot_be_used_are_named_by_shard_and_key(folder: Path) -> None:
    in_shards(folder, {"2": None, "5": b"no picture"})
    settings = MaskSource("shards", validation=None, label="mask.png")
    with pytest.raises(DataError) as error:
        load_masks(settings, FORMAT)
    for place, words in (
        ("s-0.tar/2: ", "mask.png is empty"),
        ("s-1.tar/5: ", "is no picture that can be read"),
    ):
        assert any(
            line.strip().startswith(place) and words in line for line in str(error.value).splitlines()
        ), place
    assert len(load_masks(replace(settings, bad_rows="skip"), FORMAT).train) == 6


def saved(values: Any, mode: str | None = None) -> Image.Image:
    picture = Image.fromarray(np.asarray(values, np.uint8))
    return picture if mode is None else picture.convert(mode)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (saved(np.zeros((9, 9))), r"mask of another size \(1\).*3_mask.png: is 9×9, its picture 24×18"),
        (
            saved(np.zeros((18, 24, 3))),
            r"unusable mask \(1\).*is in colour \(RGB\): write the number of its class",
        ),
        (
            Image.fromarray(np.full((18, 24), 700, np.uint16)),
            r"16 bits or more. Instance masks, which number objects, and boxes",
        ),
        (
            saved(np.full((18, 24), 255)),
            r"empty mask \(1\).*3_mask.png: is 255 everywhere, which is not scored",
        ),
    ],
)
def test_a_mask_that_cannot_be_used_is_named_or_left_out(folder: Path, mask: Image.Image, words: str) -> None:
    mask.save(folder / "masks/3_mask.png")
    with pytest.raises(DataError, match=f"(?s){words}"):
        load_masks(MaskSource("shapes"), FORMAT)
    assert len(load_masks(MaskSource("shapes", validation=None, bad_rows="skip"), FORMAT).train) == 7


def test_a_stray_number_that_makes_many_classes_is_said_with_its_mask(folder: Path) -> None:
    assert not [
        each for each in load_masks(MaskSource(train="shapes"), FORMAT).report.warnings if "classes" in each
    ]
    mask = np.asarray(Image.open(folder / "masks/2.png")).copy()
    mask[0, 0] = 77
    Image.fromarray(mask).save(folder / "masks/2.png")
    (said,) = load_masks(MaskSource(train="shapes"), FORMAT).report.warnings
    assert (
        said.startswith("the masks are of 78 classes, by the number 77 in ")
        and "2.png, and the others go to 3" in said
    )
    named = MaskSource(train="shapes", classes=tuple("abcd"), bad_rows="skip")
    assert load_masks(named, FORMAT).report.warnings == ()


def test_a_mask_of_nothing_and_unknown_pixels_is_one_where_others_have_classes(folder: Path) -> None:
    partly_unknown = saved(np.eye(18, 24) * 255)
    partly_unknown.save(folder / "masks/3_mask.png")
    data = load_masks(MaskSource("shapes", validation=None, augment=()), FORMAT)
    assert len(data.train) == 8
    assert set(data.train[3]["labels"].unique().tolist()) == {0, -100}
    for path in (folder / "masks").iterdir():
        partly_unknown.save(path)
    with pytest.raises(
        DataError, match=r"unusable mask \(8\).*\n.*has 0 and 255 alone, as others do, .*: write 1"
    ):
        load_masks(MaskSource("shapes"), FORMAT)


def test_held_out_masks_of_nothing_and_unknown_pixels_are_scored_by_the_classes_that_were_learned(
    folder: Path,
) -> None:
    other = folder.with_name("held-out")
    shutil.copytree(folder, other)
    for path in (other / "masks").iterdir():
        saved(np.eye(18, 24) * 255).save(path)
    data = load_masks(MaskSource("shapes", validation="held-out", augment=()), FORMAT)
    assert data.validation is not None and len(data.validation) == 8
    assert set(data.validation[0]["labels"].unique().tolist()) == {0, -100}
    shown: dict[str, Any] = {"image": "image", "label": "mask", "classes": 4, "bad_rows": "fail"}
    assert len(load_mask_rows("held-out", FORMAT, **shown).examples) == 8


def test_a_mask_that_would_fill_the_memory_is_named_or_left_out(folder: Path) -> None:
    path = folder / "masks/3_mask.png"
    path.write_bytes(claiming(path, 30_000))
    with pytest.raises(DataError, match=r"(?s)huge mask \(1\).*3_mask.png: is too large: .*exceeds limit"):
        load_masks(MaskSource("shapes"), FORMAT)
    assert len(load_masks(MaskSource("shapes", validation=None, bad_rows="skip"), FORMAT).train) == 7


def test_masks_that_a_lossy_format_has_changed_are_refused(folder: Path) -> None:
    Image.open(folder / "masks/2.png").save(folder / "masks/2.jpg")
    (folder / "masks/2.png").unlink()
    with pytest.raises(DataError, match=r"(?s)lossy mask \(1\).*2.jpg: is a JPEG.*as PNG"):
        load_masks(MaskSource("shapes"), FORMAT)


@pytest.mark.parametrize(
    ("copy", "words"),
    [
        ("images/4.jpg", "4.jpg and 4.png have one name"),
        ("masks/4_mask.png", "4.png and 4_mask.png have one name"),
    ],
)
def test_two_files_of_one_name_are_no_pair(folder: Path, copy: str, words: str) -> None:
    Image.open(folder / Path(copy).parent / "4.png").save(folder / copy)
    with pytest.raises(DataError, match=f"{words}.*Rename one of them"):
        load_masks(MaskSource("shapes"), FORMAT)


def test_a_class_has_one_name(folder: Path) -> None:
    with pytest.raises(SettingError, match="data.classes: names two classes 'road'"):
        MaskSource("shapes", classes=("sky", "road", "car", "road"))


def test_a_picture_without_a_mask_and_a_broken_mask_are_named(folder: Path) -> None:
    (folder / "masks/2.png").unlink()
    (folder / "masks/4.png").write_bytes((folder / "masks/4.png").read_bytes()[:60])
    with pytest.raises(
        DataError, match=r"(?s)missing mask \(1\), unreadable mask \(1\).*2.png: has no mask of its name"
    ):
        load_masks(MaskSource("shapes"), FORMAT)


def test_classes_that_have_no_name_are_faults(folder: Path) -> None:
    named = MaskSource("shapes", validation=None, classes=("a", "b", "c"))
    with pytest.raises(
        DataError, match=r"unknown class \(8\).*\n.*0.png: has class 3, and the classes are 0 to 2"
    ):
        load_masks(named, FORMAT)


def test_boxes_and_instances_are_refused_by_name(folder: Path) -> None:
    boxes = [{"image": f"images/{number}.png", "bbox": [1, 2, 3, 4]} for number in range(3)]
    (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, boxes)))
    with pytest.raises(
        DataError, match="no column 'label' of paths of masks, and 'bbox' holds boxes. Instance masks"
    ):
        load_masks(MaskSource("shapes/boxes.jsonl"), FORMAT)
    with pytest.raises(
        DataError,
        match=r"(?s)missing mask \(3\).*boxes.jsonl:1: bbox holds list. Instance masks.*boxes are not learned",
    ):
        load_masks(MaskSource("shapes/boxes.jsonl", label="bbox"), FORMAT)


def test_pictures_alone_are_read_to_predict_for(folder: Path) -> None:
    shared = {"image": "image", "classes": 4, "bad_rows": "fail"}
    for source in ("shapes", "shapes/images"):
        rows = load_mask_rows(source, FORMAT, label=None, **shared)
        assert (
            len(rows.examples) == 8
            and rows.examples[0]["sides"] == (24, 18)
            and "labels" not in rows.examples[0]
        )
    assert len(load_mask_rows("shapes", FORMAT, label="label", **shared).examples) == 8
