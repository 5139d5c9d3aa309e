from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import snugfit as sf
from snugfit.core.selection import check
from snugfit.data.files.labelled_files import collate
from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.pictures.labelled_pictures import PictureSettings, load_pictures
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.errors import PlanConflict, SettingError
from snugfit.recipe import load_recipe
from snugfit.tasks.prepare import prepare
from snugfit.techniques.learning.augmix import AugMix
from snugfit.techniques.learning.rand_augment import OPERATIONS, RandAugment, rand_augmented
from tests.unit.kit.pictures.picture_formulas import reference
from tests.unit.techniques.settings import refuses

NAMES = [
    "identity",
    "shear_x",
    "shear_y",
    "rotate",
    "brightness",
    "color",
    "contrast",
    "sharpness",
    "translate_x",
    "translate_y",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
]
"""Table 6 of AutoAugment as torchvision's RandAugment has it: inversion, cut-out and sample pairing are not among them."""


@pytest.mark.parametrize(("setting", "value"), [("operations", 0), ("magnitude", -1), ("magnitude", 31)])
def test_impossible_settings_are_refused(setting: str, value: float) -> None:
    refuses(RandAugment, **{setting: value})


def picture(seed: int = 0, size: tuple[int, int] = (11, 14)) -> np.ndarray:
    return np.random.default_rng(seed).normal(120, 40, (*size, 3)).clip(0, 255).astype(np.uint8)


def test_operations_are_drawn_one_by_one_with_one_strength() -> None:
    """Cubuk et al. 2019, figure 2: `[transform(x, M) for transform in choice(transforms, N)]`, with signs as AutoAugment draws them."""
    assert list(OPERATIONS) == NAMES
    for seed in range(30):
        torch.manual_seed(seed)
        result = np.asarray(rand_augmented(Image.fromarray(picture(seed)), operations=2, magnitude=12))
        torch.manual_seed(seed)
        expected = picture(seed)
        for _ in range(2):
            name = NAMES[int(torch.randint(14, ()))]
            signed = name not in ("posterize", "solarize", "autocontrast", "equalize")
            sign = (1 if int(torch.randint(2, ())) else -1) if signed else 1
            if name != "identity":
                expected = np.rint(reference(name, expected, sign * 12 / 30, longest=150 / 331)).astype(
                    np.uint8
                )
        # where an operation makes one step of rounding large, few pixels are apart
        assert np.mean(np.abs(result.astype(int) - expected) > 3) < 0.15, seed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place, name in enumerate(("cats", "dogs")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            Image.fromarray(picture(10 * place + number)).save(tmp_path / f"pictures/{name}/{number}.png")
    return tmp_path


def windows(
    folder: Path, technique: sf.Technique | None, size: int, workers: int = 0
) -> dict[tuple[int, int], torch.Tensor]:
    """The pictures of two epochs, by epoch and index, in windows of some size."""
    settings = PictureSettings(train=str(folder / "pictures"), validation=0.25, augment=("flip",))
    change = None if technique is None else technique.picture()
    data = load_pictures(settings, PictureFormat(8, 8, None), change=change)
    examples = len(data.train)
    order = Order(examples, size, seed=3)
    loader = Loader(data.train, order, collate, num_workers=workers)
    seen: dict[tuple[int, int], torch.Tensor] = {}
    for batch in loader.windows(0, 2 * -(-examples // size)):
        for index, pixels in zip(batch.ids, batch.data["pixel_values"], strict=True):
            seen[int((0, index) in seen), index] = pixels
    assert data.validation is not None
    return seen | {
        (-1, place): data.validation[place]["pixel_values"] for place in range(len(data.validation))
    }


@pytest.mark.parametrize("technique", [RandAugment(), AugMix(alpha=0.5)], ids=lambda each: each.card.name)
def test_what_is_drawn_for_a_picture_depends_on_the_epoch_and_the_picture_alone(
    folder: Path, technique: sf.Technique
) -> None:
    plain, changed = windows(folder, None, 3), windows(folder, technique, 3)
    assert plain.keys() == changed.keys()
    other = [not torch.equal(plain[key], changed[key]) for key in plain if key[0] >= 0]
    assert sum(other) > len(other) / 2, "most pictures are changed"
    assert all(torch.equal(plain[key], changed[key]) for key in plain if key[0] < 0), "held-out ones are not"
    again = windows(folder, technique, 9, workers=1)
    assert all(torch.equal(again[key], changed[key]) for key in changed)
    indices = {index for epoch, index in changed if epoch == 0}
    assert any(not torch.equal(changed[0, index], changed[1, index]) for index in indices)


RECIPE = """\
name: texts
task: text-classification
model: bert
data: {train: rows.csv}
techniques: [rand_augment]
"""


def test_a_task_without_pictures_refuses_it(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    with pytest.raises(
        SettingError,
        match=r"'rand_augment' changes the pictures .* and task text-classification changes none.* image-classification",
    ):
        prepare(load_recipe(tmp_path / "recipe.yaml"))


def test_a_data_set_of_ones_own_is_told_to_change_its_pictures_itself() -> None:
    data = [(torch.zeros(3, 4, 4), 0)] * 4
    with pytest.raises(
        SettingError, match="techniques: 'rand_augment' changes pictures as the task .* picture()"
    ):
        sf.train(torch.nn.Flatten(), data, techniques=[RandAugment()], output=None)


def test_a_run_has_one_that_changes_pictures() -> None:
    with pytest.raises(PlanConflict, match="both give the picture"):
        check([RandAugment(), AugMix()])
