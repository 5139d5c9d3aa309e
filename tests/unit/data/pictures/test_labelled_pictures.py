"""Pictures against transformers' own processors and Pillow, and every picture that cannot be used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from snugfit.data.files.file_kinds import pictures_in
from snugfit.data.files.labelled_files import collate
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.pictures.labelled_pictures import Pictures, PictureSettings, load_pictures
from snugfit.data.pictures.picture_files import read_pictures
from snugfit.data.pictures.picture_format import PictureFormat, format_of
from snugfit.data.pictures.pixels import opened, pixels
from snugfit.errors import DataError, MissingExtra, ModelError, SettingError

FORMAT = PictureFormat(8, 8, None)
CONFIG: dict[str, Any] = {"num_channels": 3}


def noise(width: int = 20, height: int = 14, seed: int = 0) -> Image.Image:
    drawn = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(drawn)


def write(folder: Path, classes: dict[str, int], suffix: str = ".png") -> Path:
    seed = 0
    for name, count in classes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            noise(seed=(seed := seed + 1)).save(folder / name / f"{number}{suffix}")
    return folder


PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViTImageProcessorPil", {"size": {"height": 16, "width": 24}, "resample": 2}),
    "clip": (
        "CLIPImageProcessorPil",
        {
            "size": {"shortest_edge": 18},
            "crop_size": {"height": 16, "width": 16},
            "resample": 3,
            "do_center_crop": True,
            "image_mean": [0.48, 0.46, 0.41],
            "image_std": [0.27, 0.26, 0.28],
        },
    ),
    "larger than the picture": (
        "CLIPImageProcessorPil",
        {
            "size": {"shortest_edge": 12},
            "crop_size": {"height": 16, "width": 16},
            "resample": 3,
            "do_center_crop": True,
        },
    ),
    "convnext": (
        "ConvNextImageProcessorPil",
        {"size": {"shortest_edge": 28}, "crop_pct": 0.875, "resample": 3},
    ),
    "convnext of many pixels": ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}, "resample": 3}),
}


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", [(40, 31), (31, 40), (33, 33)])
def test_a_picture_is_what_transformers_makes_of_it(name: str, size: tuple[int, int]) -> None:
    import transformers

    kind, settings = PROCESSORS[name]
    processor = getattr(transformers, kind)(**settings)
    picture = noise(*size)
    reference = processor(picture, return_tensors="pt")["pixel_values"][0]
    values = {**settings, "image_mean": processor.image_mean, "image_std": processor.image_std}
    made = pixels(picture, format_of(CONFIG, values, "the model"))
    assert made.shape == reference.shape
    torch.testing.assert_close(made, reference, atol=1e-5, rtol=0)


@pytest.mark.parametrize("resize", [None, 20])
def test_the_processor_that_a_bundle_carries_makes_the_same_pictures(resize: int | None) -> None:
    import transformers

    wanted = PictureFormat(16, 16, resize, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bicubic")
    values = wanted.processor()
    kind = getattr(transformers, f"{values.pop('image_processor_type')}Pil")
    reference = kind(**values)(noise(40, 31), return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(pixels(noise(40, 31), wanted), reference, atol=1e-5, rtol=0)
    assert format_of(CONFIG, wanted.processor(), "it") == wanted
    assert PictureFormat.of(wanted.as_dict()) == wanted


def test_timm_says_its_format_in_the_configuration() -> None:
    of_timm = {
        "input_size": [3, 224, 224],
        "crop_pct": 0.95,
        "mean": [0.5, 0.4, 0.3],
        "std": [1, 1, 1],
        "interpolation": "bicubic",
    }
    assert format_of({"pretrained_cfg": of_timm}, None, "timm/it") == PictureFormat(
        224, 224, 235, (0.5, 0.4, 0.3), (1.0, 1.0, 1.0), "bicubic"
    )


def test_gray_models_see_one_channel() -> None:
    gray = format_of({"num_channels": 1, "image_size": 28}, None, "it")
    assert gray.shape == (1, 28, 28)
    assert pixels(opened(noise(), 1), gray).shape == (1, 28, 28)


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(ModelError, match="preprocessor_config.json of it has size 'big'"):
        format_of(CONFIG, {"size": "big"}, "it")


def test_a_picture_is_upright_and_what_is_transparent_is_white(tmp_path: Path) -> None:
    wide = Image.new("RGB", (6, 2), "red")
    exif = Image.Exif()
    exif[0x0112] = 6  # taken with the camera on its side
    wide.save(tmp_path / "turned.jpg", exif=exif)
    assert opened(tmp_path / "turned.jpg").size == (2, 6)
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert opened(tmp_path / "clear.png").getpixel((0, 0)) == (255, 255, 255)


def test_sixteen_bits_become_eight(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 65535], [32768, 257]], dtype=np.uint16)).save(tmp_path / "deep.png")
    assert np.asarray(opened(tmp_path / "deep.png", 1)).tolist() == [[0, 255], [128, 1]]


def test_what_is_drawn_depends_on_epoch_and_example_alone(tmp_path: Path) -> None:
    pictures = load_pictures(
        PictureSettings(
            write(tmp_path / "p", {"a": 4, "b": 4}),
            None,
            augment=("crop", "flip", "rotate", "color", "erase"),
        ),
        FORMAT,
    ).train

    def drawn(global_batch: int, workers: int = 0) -> dict[tuple[int, int], torch.Tensor]:
        loader = Loader(pictures, Order(len(pictures), global_batch), collate, num_workers=workers)
        seen = {}
        windows = loader.windows(0, 2 * loader.order.windows_per_pass)
        for number, window in enumerate(windows):
            assert window.ids is not None
            for place, index in enumerate(window.ids):
                seen[number // loader.order.windows_per_pass, index] = window.data["pixel_values"][place]
        return seen

    whole = drawn(8)
    for other in (drawn(3), drawn(4, workers=1)):
        assert other.keys() == whole.keys()
        assert all(torch.equal(other[key], whole[key]) for key in whole)
    assert not torch.equal(whole[0, 0], whole[1, 0])


def test_held_out_pictures_are_not_changed(tmp_path: Path) -> None:
    data = load_pictures(PictureSettings(write(tmp_path / "p", {"a": 5, "b": 5}), 0.2), FORMAT)
    assert data.validation is not None and len(data.validation) == 2
    assert torch.equal(data.validation[0]["pixel_values"], data.validation[0]["pixel_values"])
    assert not torch.equal(data.train[0]["pixel_values"], data.train[0]["pixel_values"])


def test_crops_reach_every_part_and_keep_their_area() -> None:
    sides = [part.shape for part in (pixels(noise(30, 20), FORMAT, ("crop",)) for _ in range(20))]
    assert set(sides) == {(3, 8, 8)}
    left = Image.new("RGB", (30, 20), "black")
    left.paste("white", (0, 0, 15, 20))
    means = [float(pixels(left, FORMAT, ("crop",)).mean()) for _ in range(60)]
    assert min(means) < -0.4 and max(means) > 0.4


def test_a_table_names_pictures_beside_itself(tmp_path: Path) -> None:
    write(tmp_path / "p", {"a": 2, "b": 2})
    rows = "".join(f"p/{name}/{number}.png,{name}\n" for name in "ab" for number in (0, 1))
    (tmp_path / "rows.csv").write_text(f"file,kind\n{rows}")
    data = load_pictures(
        PictureSettings("rows.csv", None, image="file", label="kind"), FORMAT, folder=tmp_path
    )
    assert data.labels == ("a", "b") and len(data.train) == 4
    assert data.train.rows.origin(3) == str(tmp_path / "p/b/1.png")


def test_the_digest_of_a_folder_is_of_its_pictures(tmp_path: Path) -> None:
    def digest(folder: str) -> str:
        (only,) = load_pictures(PictureSettings(folder, None), FORMAT, folder=tmp_path).fingerprints.values()
        return only

    write(tmp_path / "p", {"a": 2, "b": 2})
    before = digest("p")
    (tmp_path / "p").rename(tmp_path / "q")
    assert digest("q") == before
    noise(seed=99).save(tmp_path / "q/a/0.png")
    assert digest("q") != before


def test_the_digest_of_a_table_is_of_its_pictures_too(tmp_path: Path) -> None:
    write(tmp_path / "p", {"a": 1, "b": 1})
    (tmp_path / "rows.csv").write_text("image,label\np/a/0.png,a\np/b/0.png,b\n")
    settings = PictureSettings("rows.csv", None)
    before = load_pictures(settings, FORMAT, folder=tmp_path).fingerprints
    assert load_pictures(settings, FORMAT, folder=tmp_path).fingerprints == before
    noise(seed=99).save(tmp_path / "p/a/0.png")
    assert load_pictures(settings, FORMAT, folder=tmp_path).fingerprints != before


def spoil(folder: Path, how: str) -> None:
    path = folder / "a/0.png"
    if how == "empty":
        path.write_bytes(b"")
    elif how == "no picture":
        path.write_text("<html>not found</html>")
    elif how == "truncated":
        noise(200, 200).save(path)
        path.write_bytes(path.read_bytes()[:-2000])
    elif how == "huge":
        path.write_bytes(claiming(path, 30_000))


def claiming(path: Path, side: int) -> bytes:
    """Return a PNG whose header says that it is larger than it is."""
    import zlib

    content = bytearray(path.read_bytes())
    content[16:24] = side.to_bytes(4) * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4)
    return bytes(content)


BAD = {
    "empty": r"a/0.png: is empty",
    "no picture": "is no picture that can be read",
    "truncated": "ends in the middle of the picture",
    "huge": "exceeds limit of .* pixels",
}


@pytest.mark.parametrize("how", BAD)
def test_a_picture_that_cannot_be_used_is_named_or_left_out(how: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a": 3, "b": 3})
    spoil(folder, how)
    with pytest.raises(DataError, match=BAD[how]) as error:
        load_pictures(PictureSettings(folder, None), FORMAT)
    assert str(error.value).count(str(folder / "a/0.png")) == 1
    data = load_pictures(PictureSettings(folder, None, bad_rows="skip"), FORMAT)
    assert len(data.train) == 5 and sum(data.report.skipped.values()) == 1


def test_damage_in_the_middle_is_named_when_it_is_met(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a": 2, "b": 2})
    path = folder / "a/0.png"
    noise(100, 100).save(path)
    content = bytearray(path.read_bytes())
    content[9000:20000] = bytes(11000)
    path.write_bytes(content)
    pictures = load_pictures(PictureSettings(folder, None), FORMAT).train
    with pytest.raises(DataError, match=r"a/0\.png"):
        list(Loader(pictures, Order(4, 4, shuffle=False), collate).windows(0, 1))


def test_a_folder_needs_pictures_and_classes(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="holds no picture"):
        load_pictures(PictureSettings("none"), FORMAT, folder=tmp_path)
    with pytest.raises(DataError, match="one class only in column 'label' .a."):
        load_pictures(PictureSettings(write(tmp_path / "one", {"a": 3})), FORMAT)
    loose = write(tmp_path / "loose", {"a": 3, "b": 3})
    noise().save(loose / "x.png")
    with pytest.raises(DataError, match=r"in no folder of a class, such as x.png \(1 of 7\)"):
        load_pictures(PictureSettings(loose), FORMAT)


def test_held_out_classes_come_from_training(tmp_path: Path) -> None:
    train, other = write(tmp_path / "p", {"cat": 3, "dog": 3}), write(tmp_path / "q", {"cat": 1, "dgo": 1})
    with pytest.raises(DataError, match=r"q/dgo/0\.png: the label 'dgo' was not trained. Did you mean 'dog'"):
        load_pictures(PictureSettings(train, other), FORMAT)


def test_pictures_on_both_sides_are_a_warning(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a": 3, "b": 3})
    warnings = load_pictures(PictureSettings(folder, folder), FORMAT).report.warnings
    assert any(
        "6 of 6 validation pictures are also trained on (p/a/0.png is p/a/0.png" in each for each in warnings
    )


def test_a_table_with_a_missing_file_names_its_line(tmp_path: Path) -> None:
    write(tmp_path / "p", {"a": 1, "b": 1})
    (tmp_path / "rows.csv").write_text("image,label\np/a/0.png,a\np/b/7.png,b\n")
    part, _ = read_pictures("rows.csv", "data.train", image="image", label="label", folder=tmp_path)
    (fault,) = part.faults
    assert fault.place.endswith("rows.csv:3") and fault.detail.endswith("p/b/7.png is not there")


def test_bytes_behind_a_whole_picture_are_no_fault(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a": 2, "b": 2}, ".jpg")
    with (folder / "a/0.jpg").open("ab") as file:
        file.write(b"a film of the moment before" * 1000)
    assert len(load_pictures(PictureSettings(folder, None), FORMAT).train) == 4


def test_folders_that_link_to_each_other_end(tmp_path: Path) -> None:
    folder = write(tmp_path / "p", {"a": 2, "b": 2})
    (folder / "b/up").symlink_to(folder)
    assert len(pictures_in(folder)) == 4


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "YCbCr", "RGBA", "I;16", "F"])
def test_every_mode_of_pillow_is_taken(mode: str, tmp_path: Path) -> None:
    made = opened(noise().convert("L").convert(mode) if mode in ("I;16", "F") else noise().convert(mode))
    assert made.mode == "RGB" and made.size == (20, 14)


def test_unknown_augmentations_are_refused() -> None:
    with pytest.raises(SettingError, match="'mosaic' is no augmentation"):
        PictureSettings("p", augment=("mosaic",))


def test_a_transform_of_torchvision_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    settings = PictureSettings(
        write(tmp_path / "p", {"a": 3, "b": 3}), None, augment=("crop", "v2.RandomSolarize(threshold=9)")
    )
    with pytest.raises(MissingExtra, match=r"pip install 'snugfit\[torchvision\]'"):
        load_pictures(settings, FORMAT)


def test_pictures_are_all_of_one_shape_for_the_largest_window(tmp_path: Path) -> None:
    pictures = load_pictures(PictureSettings(write(tmp_path / "p", {"a": 3, "b": 3}), None), FORMAT).train
    assert isinstance(pictures, Pictures)
    _, known = Loader(pictures, Order(6, 4), collate).worst_window()
    assert known
