"""The models that see pictures, by the name in a recipe: of transformers, of timm by transformers, or of torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from snugfit.errors import ModelError, SettingError

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.pictures.picture_format import PictureFormat
    from snugfit.models.huggingface import LoadedModel
    from snugfit.models.torchvision_network import TorchvisionNetwork
    from snugfit.tasks.task_recipe import TaskRecipe


def picture_format_of(recipe: TaskRecipe, *, pixels: bool = False) -> PictureFormat:
    """Return the form in which the recipe's model sees pictures, of the side that the recipe asks for.

    Args:
        pixels: the model tells the class of each pixel.
    Raises:
        ModelError, SettingError: the model has none, or does not take that side.
    """
    from snugfit.data.pictures.picture_format import PictureFormat, format_of
    from snugfit.models.huggingface import input_settings
    from snugfit.models.torchvision_network import is_of_torchvision, torchvision_format

    side = recipe.data.size
    if is_of_torchvision(recipe.model):
        own = PictureFormat.of(torchvision_format(recipe.model, pixels=pixels))
        asked, own_side = own.with_side(side), None
    else:
        config, processor = input_settings(
            recipe.model, from_scratch=recipe.from_scratch, folder=recipe.folder
        )
        asked = format_of(config, processor, recipe.model).with_side(side)
        own_side = config.get("image_size")
    if side is not None and own_side not in (side, [side] * 2):
        _check_size(recipe, asked, pixels=pixels)
    return asked


def load_pictures_model(
    source: str, labels: Sequence[str], *, problem: str | None = None, pixels: bool = False, **options: Any
) -> LoadedModel:
    """Load a model that tells one of these classes of each picture, or of each pixel.

    Args:
        problem: as of `load_classifier`.
        options: of loading, as `LoadOptions`.
    Raises:
        ModelError, MissingExtra: it cannot be loaded.
    """
    from snugfit.models import huggingface
    from snugfit.models.torchvision_network import is_of_torchvision, load_torchvision

    if is_of_torchvision(source):
        own = {name: options[name] for name in ("seed", "from_scratch", "empty") if name in options}
        model: Any
        model, messages = load_torchvision(source, labels, pixels=pixels, **own)
        return huggingface.LoadedModel(model, messages)
    if pixels:
        return huggingface.load_segmenter(source, labels, **options)
    return huggingface.load_classifier(source, labels, of=huggingface.PICTURES, problem=problem, **options)


def check_of_transformers(recipe: TaskRecipe) -> None:
    """Refuse a model of torchvision.

    Raises:
        ModelError: it is one.
    """
    from snugfit.models.torchvision_network import is_of_torchvision

    if is_of_torchvision(recipe.model):
        raise ModelError(
            "model",
            f"no task that delivers an encoder takes a model of torchvision, as {recipe.model} is",
            "Take one of transformers or timm, such as timm/resnet18.a1_in1k.",
        )


def network_of(model: nn.Module) -> TorchvisionNetwork | None:
    """Return the network of torchvision that a model is; None for one of transformers, which its own configuration describes."""
    from snugfit.models.torchvision_network import Pictures, Pixels

    return model.made_of if isinstance(model, Pictures | Pixels) else None


def meta_of(network: TorchvisionNetwork | None) -> dict[str, Any]:
    """Return what a bundle has to remember, so that the network is made again."""
    from snugfit.models.bundle import TORCHVISION_NETWORK

    return {} if network is None else {TORCHVISION_NETWORK: network.as_dict()}


def _check_size(recipe: TaskRecipe, picture_format: PictureFormat, *, pixels: bool) -> None:
    """See that the model takes pictures of another size than its configuration names, as convolutions do of all but the smallest.

    Raises:
        SettingError: it does not.
    """
    import torch

    loaded = load_pictures_model(
        recipe.model,
        ("0", "1"),
        pixels=pixels,
        from_scratch=recipe.from_scratch,
        folder=recipe.folder,
        empty=True,
    )
    try:
        loaded.model(pixel_values=torch.zeros(1, *picture_format.shape, device="meta"))
    except (AssertionError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise SettingError(
            "data.size",
            f"{recipe.data.size} is no size that {recipe.model} takes: {str(error).partition(chr(10))[0]}",
            "Leave it out; from scratch, write image_size into the model's config.json.",
        ) from error
