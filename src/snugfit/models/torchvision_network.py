"""Networks of torchvision by name: classes of pictures, or of their pixels, with torchvision's weights or from scratch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import MissingExtra, ModelError, nearest
from snugfit.kit.losses.auxiliary_loss import AUXILIARY
from snugfit.models.folders import CONFIG_PREFIX
from snugfit.models.hub import first_line
from snugfit.models.own_networks import drawn
from snugfit.system.torchvision_operators import declare_torchvision_operators

TORCHVISION = "torchvision/"
"""Beginning of the names of these models in a recipe, such as torchvision/resnet18."""
_MANY_HEADED = ("googlenet", "inception_v3")
"""Networks that put out more than logits while they are trained."""
_AUXILIARY_WEIGHT = 0.5
"""Of the loss of the auxiliary head, as torchvision's own training of segmentation has it."""


@dataclass(frozen=True, kw_only=True)
class TorchvisionNetwork:
    """A network of torchvision for so many classes, as JSON holds it.

    Args:
        name: of the network, such as resnet18.
        pixels: the classes are of each pixel, as those of deeplabv3_resnet50.
    """

    name: str
    classes: int
    pixels: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TorchvisionNetwork:
        """Return what `as_dict` gave."""
        return cls(**values)

    def make(self, seed: int = 0, *, empty: bool = False) -> nn.Module:
        """Return the network, with weights drawn from a seed, or none: on the meta device.

        Raises:
            MissingExtra: torchvision is not installed.
        """
        models = _models()
        options: dict[str, Any] = {"weights": None, "num_classes": self.classes}
        if self.pixels:
            options |= {"weights_backbone": None, **({"aux_loss": True} if _has_auxiliary(self.name) else {})}

        def make() -> nn.Module:
            network = models.get_model(self.name, **options)
            return Pixels(network, self) if self.pixels else Pictures(network, self)

        return drawn(make, seed, empty=empty)

    @property
    def auxiliary_weight(self) -> float:
        """The weight of the auxiliary head's loss; 0 where it has no such head."""
        return _AUXILIARY_WEIGHT if self.pixels and _has_auxiliary(self.name) else 0.0


class Pictures(nn.Module):
    """Pictures (rows, 3, height, width) to logits (rows, classes), by a `network` of torchvision."""

    def __init__(self, network: nn.Module, made_of: TorchvisionNetwork) -> None:
        super().__init__()
        self.network, self.made_of = network, made_of

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return logits, as the class says."""
        logits: Tensor = self.network(pixel_values)
        return logits


class Pixels(nn.Module):
    """Pictures (rows, 3, height, width) to logits of each pixel: `logits` (rows, height, width, classes), and `auxiliary` alike where there is such a head.

    `network` is one of torchvision, whose parts are named `backbone`, `classifier` and `aux_classifier`, so that rates can differ by these names.
    """

    def __init__(self, network: nn.Module, made_of: TorchvisionNetwork) -> None:
        super().__init__()
        self.network, self.made_of = network, made_of

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits, as the class says."""
        names = {"out": "logits", "aux": AUXILIARY}
        outputs = self.network(pixel_values)
        return {names[name]: logits.permute(0, 2, 3, 1) for name, logits in outputs.items()}


def is_of_torchvision(model: str) -> bool:
    """Return whether a recipe names a model of torchvision.

    >>> is_of_torchvision("config:torchvision/resnet18"), is_of_torchvision("microsoft/resnet-18")
    (True, False)
    """
    return model.removeprefix(CONFIG_PREFIX).startswith(TORCHVISION)


def load_torchvision(
    source: str,
    labels: Sequence[str],
    *,
    pixels: bool = False,
    seed: int = 0,
    from_scratch: bool = False,
    empty: bool = False,
) -> tuple[nn.Module, tuple[str, ...]]:
    """Load a network of torchvision with a head for `labels`, in eval mode, with its best weights where it is not to begin from scratch; say how it was made.

    A head for other classes is not read, which is said.

    Args:
        source: `torchvision/NAME`, or `config:torchvision/NAME` for the architecture without weights.
        pixels: it tells the class of each pixel.
    Raises:
        MissingExtra: torchvision is not installed.
        ModelError: it has no such network, or its weights cannot be had.
    """
    name = _checked(source, pixels=pixels)
    network = TorchvisionNetwork(name=name, classes=len(labels), pixels=pixels)
    model = network.make(seed, empty=empty)
    if empty or from_scratch or source.startswith(CONFIG_PREFIX):
        return model, ()
    weights = _models().get_model_weights(name).DEFAULT
    state = {f"network.{key}": value for key, value in _fetched(name, weights).items()}
    messages: tuple[str, ...] = ()
    if list(labels) != list(weights.meta["categories"]):
        other = TorchvisionNetwork(name=name, classes=len(labels) + 1, pixels=pixels).make(empty=True)
        shapes = {key: tensor.shape for key, tensor in other.state_dict().items()}
        head = [key for key, own in model.state_dict().items() if shapes[key] != own.shape]
        state = {key: value for key, value in state.items() if key not in head}
        messages = (f"the head is newly initialised ({', '.join(head[:4])})",)
    model.load_state_dict({**model.state_dict(), **state})
    return model, messages


def torchvision_format(source: str, *, pixels: bool = False) -> dict[str, Any]:
    """Return the format of pictures that the weights of a network were trained with, as plain values.

    Raises:
        As `load_torchvision`.
    """
    given = _models().get_model_weights(_checked(source, pixels=pixels)).DEFAULT.transforms()
    shorter = int(given.resize_size[0])
    side = shorter if pixels else int(given.crop_size[0])
    return {
        "height": side,
        "width": side,
        "resize": None if pixels else shorter,
        "mean": list(given.mean),
        "std": list(given.std),
        "interpolation": given.interpolation.value,
    }


def _checked(source: str, *, pixels: bool) -> str:
    """Return the name of a network of torchvision.

    Raises:
        ModelError: there is none of that name, or not for this.
    """
    models = _models()
    name = source.removeprefix(CONFIG_PREFIX).removeprefix(TORCHVISION)
    listed = models.list_models(module=models.segmentation if pixels else models)
    known = [each for each in listed if each not in _MANY_HEADED]
    if name not in known:
        purpose = "classes of pixels" if pixels else "classes of pictures"
        raise ModelError("model", f"torchvision has no network '{name}' for {purpose}", nearest(name, known))
    return name


def _has_auxiliary(name: str) -> bool:
    return not name.startswith("lraspp")  # whose builder takes no such argument


def _fetched(name: str, weights: Any) -> dict[str, Tensor]:
    """Return weights from torch's cache, or from torchvision's servers.

    Raises:
        ModelError: they are not in the cache, and cannot be fetched.
    """
    from urllib.error import URLError

    try:
        with redirect_stdout(sys.stderr):  # where a command with --json says nothing else
            state: dict[str, Tensor] = weights.get_state_dict(
                progress=False, check_hash=True, weights_only=True
            )
    except (URLError, OSError, RuntimeError) as error:
        file = weights.url.rpartition("/")[2]
        raise ModelError(
            "model",
            f"the weights of {TORCHVISION}{name} ({file}) are not in {torch.hub.get_dir()}/checkpoints, and cannot be fetched: {first_line(error)}",
            f"Copy them there, or begin from scratch: model: {CONFIG_PREFIX}{TORCHVISION}{name}",
        ) from error
    return state


def _models() -> Any:
    """Return torchvision's networks.

    Raises:
        MissingExtra: it is not installed.
    """
    if find_spec("torchvision") is None:
        raise MissingExtra("torchvision", "torchvision")
    declare_torchvision_operators()
    import torchvision

    return torchvision.models
