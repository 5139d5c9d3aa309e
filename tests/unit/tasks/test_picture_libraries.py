"""Models of timm and torchvision by their names: trained, resumed, loaded again, and used outside of Snugfit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from snugfit.core.losses import IGNORE_INDEX
from snugfit.data.pictures.picture_format import PictureFormat
from snugfit.data.pictures.pixels import pixels, pixels_with_mask
from snugfit.data.pictures.torchvision_transforms import UNKNOWN, _transform
from snugfit.deliver.predict import evaluate_file, predict_file
from snugfit.errors import MissingExtra, ModelError, SettingError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.trained_model import load
from snugfit.tools.setup import recipe_setup
from tests.unit.tasks.coloured_pictures import write_pictures
from tests.unit.tasks.masked_shapes import write_shapes
from tests.unit.tasks.trained_runs import AfterWindows, weights

RECIPE = """\
name: pictures
task: image-classification
model: %s
data: {train: pictures, validation: 0.25, size: %d, augment: [crop]}
train: {epochs: 2, global_batch: 6, seed: 3}
optimizer: {adamw: {learning_rate: 3.0e-3}}
schedule: null
techniques: []
evaluate: {every: 2, metrics: [accuracy]}
plan: {micro_batch: null, device: cpu, numerics: fp32}
track: {mlflow: false}
"""
MODELS = {"timm": ("config:timm/test_vit", 160), "torchvision": ("config:torchvision/shufflenet_v2_x0_5", 32)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_pictures()
    return tmp_path


def written(model: str, side: int, *overrides: str) -> Any:
    Path("pictures.yaml").write_text(RECIPE % (model, side))
    return load_recipe(Path("pictures.yaml"), overrides)


@pytest.mark.slow
@pytest.mark.parametrize("library", MODELS)
def test_a_classifier_is_resumed_in_an_epoch_and_predicts_alike_after_a_reload(
    folder: Path, library: str
) -> None:
    pytest.importorskip(library)
    drawn = {"torchvision": ["data.augment=[crop, v2.TrivialAugmentWide]", "plan.num_workers=1"]}
    recipe = written(*MODELS[library], *drawn.get(library, []))
    whole = train_recipe(recipe, RunOptions())
    stopped = train_recipe(recipe, RunOptions(stop=AfterWindows(2)))
    assert stopped.updates == 2
    again = resume_run(stopped.run_dir)
    learned, after = weights(whole.run_dir), weights(again.run_dir)
    assert all(torch.equal(after[name], learned[name]) for name in learned)
    rows = [{"image": str(path)} for path in sorted(Path("pictures").glob("*/*.png"))]
    assert whole.predict(rows) == load(whole.run_dir).predict(rows)
    assert predict_file(whole.run_dir, "pictures", Path("out.csv"))["rows"] == 24
    assert set(evaluate_file(whole.run_dir, "pictures")["metrics"]) == {"loss", "accuracy", "macro_f1"}


@pytest.mark.slow
def test_torchvision_loads_the_weights_and_sees_the_same_pictures(folder: Path) -> None:
    torchvision = pytest.importorskip("torchvision")
    result = train_recipe(written(*MODELS["torchvision"], "data.size=null", "train.epochs=1"), RunOptions())
    state = load_file(Path(result.run_dir) / "best/model.safetensors")
    theirs = torchvision.models.shufflenet_v2_x0_5(num_classes=2)
    theirs.load_state_dict({name.removeprefix("network."): value for name, value in state.items()})
    ours, path = load(result.run_dir), "pictures/red/00.png"
    pixels = ours.processing.encode([path])[0]["pixel_values"]
    transforms = torchvision.models.get_model_weights("shufflenet_v2_x0_5").DEFAULT.transforms()
    torch.testing.assert_close(pixels, transforms(Image.open(path)), atol=0.03, rtol=0)
    probabilities = theirs.eval()(pixels[None]).softmax(-1)[0]
    said = ours.predict([{"image": path}])[0]
    assert said["probability"] == pytest.approx(probabilities.max().item(), abs=1e-6)


def test_weights_of_torchvision_come_from_the_cache_of_torch_without_their_head(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision = pytest.importorskip("torchvision")
    monkeypatch.setenv("TORCH_HOME", str(folder / "cache"))
    name = "shufflenet_v2_x0_5"
    recipe = written(f"torchvision/{name}", 32)
    with pytest.raises(ModelError, match=rf"begin from scratch: model: config:torchvision/{name}"):
        recipe_setup(recipe)
    given = torchvision.models.get_model(name, weights=None).state_dict()
    file = torchvision.models.get_model_weights(name).DEFAULT.url.rpartition("/")[2]
    (folder / "cache/hub/checkpoints").mkdir(parents=True, exist_ok=True)
    torch.save(given, folder / "cache/hub/checkpoints" / file)
    setup, task = recipe_setup(recipe)
    assert task.messages == ("the head is newly initialised (network.fc.weight, network.fc.bias)",)
    made = setup.material.model.state_dict()
    same = {key for key, value in given.items() if torch.equal(made[f"network.{key}"], value)}
    assert {*given} - same == {"fc.weight", "fc.bias"}


def test_an_update_of_deeplab_is_that_of_the_loss_of_torchvision(folder: Path) -> None:
    pytest.importorskip("torchvision")
    write_shapes(folder / "shapes")
    recipe = load_recipe(
        written("config:torchvision/deeplabv3_mobilenet_v3_large", 32).folder / "pictures.yaml",
        ["task=segmentation", "data.train=shapes", "evaluate.metrics=[mean_iou]"],
    )
    setup, _ = recipe_setup(recipe)
    step = setup.step()
    window = next(setup.loader().windows(0, 1))
    step.model.eval()  # its batch normalisation, and its dropout
    network, labels = step.model.network, window.data["labels"]
    outputs = network(window.data["pixel_values"])
    main, auxiliary = (
        torch.nn.functional.cross_entropy(outputs[name], labels, ignore_index=IGNORE_INDEX).item()
        for name in ("out", "aux")
    )
    terms = setup.material.loss(step.model(**{"pixel_values": window.data["pixel_values"]}), window.data)
    # as its own training of segmentation: references/segmentation/train.py
    assert float(terms.weighted_sum() / terms.weight()) == pytest.approx(main + 0.5 * auxiliary, rel=1e-5)


@pytest.mark.slow
def test_masks_are_learned_by_deeplab_and_predicted_alike_after_a_reload(folder: Path) -> None:
    pytest.importorskip("torchvision")
    write_shapes(folder / "shapes")
    written("config:torchvision/deeplabv3_mobilenet_v3_large", 32)
    overrides = ["task=segmentation", "data.train=shapes", "evaluate.metrics=[mean_iou, auxiliary_loss]"]
    result = train_recipe(load_recipe(Path("pictures.yaml"), overrides), RunOptions())
    paths = sorted(map(str, Path("shapes/images").iterdir()))
    here = result.predict([{"image": path} for path in paths])
    again = load(result.run_dir).predict(paths)
    for one, other in zip(here, again, strict=True):
        assert (one["predicted_mask"] == other["predicted_mask"]).all()
    assert "mean_iou" in evaluate_file(result.run_dir, "shapes")["metrics"]


def test_names_that_a_library_does_not_have_are_told_with_the_nearest(folder: Path) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("timm")
    for model, words in (
        ("config:timm/resnet188", "timm has no model 'resnet188'. Did you mean 'resnet18'"),
        (
            "config:timm/resnet18.a1_in2k",
            "has no weights 'resnet18.a1_in2k'. Did you mean 'resnet18.a1_in1k'",
        ),
        ("torchvision/resnet188", "no network 'resnet188' for classes of pictures. Did you mean 'resnet18'"),
    ):
        with pytest.raises(ModelError, match=words):
            recipe_setup(written(model, 32))
    with pytest.raises(
        SettingError, match=r"data\.size: 32 is no size that config:torchvision/vit_b_32 takes"
    ):
        recipe_setup(written("config:torchvision/vit_b_32", 32))


@pytest.mark.parametrize("library", MODELS)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    folder: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"timm": "timm_config", "torchvision": "torchvision_network"}[library]
    monkeypatch.setattr(f"snugfit.models.{module}.find_spec", lambda _name: None)
    with pytest.raises(MissingExtra, match=rf"pip install 'snugfit\[{library}\]'"):
        recipe_setup(written(*MODELS[library]))


def test_a_mask_is_moved_with_its_picture_by_a_transform_of_torchvision() -> None:
    pytest.importorskip("torchvision")
    numbers = np.repeat(np.arange(1, 9, dtype=np.uint8), 8)[None].repeat(64, 0)
    mask = Image.fromarray(numbers)
    picture = Image.merge("RGB", [Image.fromarray(numbers * 20)] * 3)
    as_is = PictureFormat(64, 64, None, (0.0,) * 3, (1.0,) * 3)
    torch.manual_seed(0)
    names = ("flip", "v2.RandomAffine(degrees=40, translate=[0.2, 0.2])", "v2.RandomVerticalFlip(p=1)")
    for _ in range(5):
        seen, moved = pixels_with_mask(picture, mask, as_is, names)
        outside = moved == UNKNOWN
        assert outside.any() and not outside.all()
        assert not seen[:, outside].any()
        torch.testing.assert_close(seen[0][~outside] * 255, moved[~outside] * 20.0)
        assert not torch.equal(moved, torch.from_numpy(numbers))


def test_a_transform_is_that_of_torchvision_by_the_same_draws() -> None:
    pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    name = "v2.RandomApply([v2.ColorJitter(0.5, hue=0.2), v2.RandomPosterize(bits=3, p=1)], p=0.7)"
    theirs = v2.RandomApply([v2.ColorJitter(0.5, hue=0.2), v2.RandomPosterize(bits=3, p=1)], p=0.7)
    as_is = PictureFormat(32, 32, None, (0.0,) * 3, (1.0,) * 3)
    for seed in range(4):
        torch.manual_seed(seed)
        made = pixels(Image.fromarray(noise), as_is, (name,))
        torch.manual_seed(seed)
        expected = np.asarray(theirs(Image.fromarray(noise)))
        assert torch.equal((made * 255).round().permute(1, 2, 0), torch.from_numpy(expected.copy()).float())


def test_a_transform_takes_what_torchvision_names_by_an_enumeration() -> None:
    pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    policy = _transform("v2.AutoAugment(policy=v2.AutoAugmentPolicy.CIFAR10)")
    assert isinstance(policy, v2.AutoAugment) and policy.policy is v2.AutoAugmentPolicy.CIFAR10


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v2.TrivialAugment", r"torchvision has no v2\.TrivialAugment\. Did you mean 'TrivialAugmentWide'"),
        ("v2.RandomPosterize", "v2.RandomPosterize cannot be made: .*bits"),
        ("v2.RandomPosterize(bits=open('/etc/passwd'))", "cannot be made"),
        ("v2.RandomPosterize(bits=3", "cannot be made"),
        ("v2.Transform", "v2.Transform does not take a picture: NotImplementedError"),
        ("v2.RandomChoice([v2.Pad(0)], p=[0])", "cannot be made: .*division"),
        ("v2.InterpolationMode", r"torchvision has no v2\.InterpolationMode"),
        ("v2.AutoAugment(v2.AutoAugmentPolicy.MINE)", "cannot be made: 'MINE'"),
        (
            "v2.Resize(size=8)",
            "of a picture of 32 × 32 pixels, mode RGB v2.Resize.* makes one of 8 × 8 pixels",
        ),
        ("v2.ToImage", "v2.ToImage makes a Image of a picture of Pillow"),
        ("v2.GaussianNoise", "v2.GaussianNoise does not take a picture: "),
    ],
)
def test_a_transform_that_no_picture_comes_out_of_is_refused_before_the_run(
    folder: Path, name: str, words: str
) -> None:
    pytest.importorskip("torchvision")
    recipe = written(MODELS["torchvision"][0], 32, f'data.augment=["{name}"]')
    with pytest.raises(SettingError, match=rf"data\.augment: .*{words}"):
        recipe_setup(recipe)
