"""An encoder of pictures under a projection, which is learned with it from pairs of views and not delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import ModelError
from snugfit.models.own_networks import drawn

FEATURES = ("features",)
"""The one label of a classifier whose head is not learned."""


class PairEncoder(nn.Module):
    """Views of pictures (rows, views, channels, height, width) to projections (rows, views, width).

    `backbone` is a classifier of transformers whose last linear layer is taken out, so that it puts out what that layer would see; `projection` is an MLP of
    one hidden layer as wide as that.

    Source: Chen et al. 2020, arXiv:2002.05709, section 2.1: the loss is of the projection, and what is used afterwards is what is before it.
    """

    def __init__(
        self, classifier: nn.Module, source: str, width: int, seed: int, *, empty: bool = False
    ) -> None:
        super().__init__()
        name = head_of(classifier, source)
        features = classifier.get_submodule(name).in_features
        assert isinstance(features, int)
        self.backbone = classifier
        self.backbone.set_submodule(name, nn.Identity())

        def make() -> nn.Module:
            return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width))

        self.projection = drawn(make, seed, empty=empty)
        self.train(classifier.training)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Return projections, as the class says."""
        rows, views = pixel_values.shape[:2]
        features = self.backbone(pixel_values=pixel_values.flatten(0, 1)).logits
        projections: Tensor = self.projection(features).unflatten(0, (rows, views))
        return projections

    def seen_by_head(self, pixel_values: Tensor) -> Tensor:
        """Return what a head would see of pictures (rows, channels, height, width): shape (rows, features)."""
        features: Tensor = self.backbone(pixel_values=pixel_values).logits
        return features

    @property
    def encoder(self) -> nn.Module:
        """The backbone as a classifier of transformers again, with the same weights and a head of zeros for one label."""
        return without_head(type(self.backbone), self.backbone.config, self.backbone.state_dict())


def without_head(kind: Callable[[Any], nn.Module], config: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a classifier of transformers with these weights of its body, and a head of zeros for one label.

    Raises:
        ModelError: the weights are not those of its body.
    """
    made: nn.Module
    with torch.device("meta"):
        made = kind(config)
    name = head_of(made, type(made).__name__)
    state, some = dict(weights), next(iter(weights.values()))
    for key, weight in made.get_submodule(name).state_dict().items():
        state[f"{name}.{key}"] = torch.zeros(weight.shape, dtype=some.dtype, device=some.device)
    try:
        made.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ModelError(
            "model",
            f"techniques have changed the modules of {type(made).__name__}, which is delivered as transformers has it",
            "Leave out those that add or replace modules.",
        ) from error
    return made.eval()


def head_of(classifier: nn.Module, source: str) -> str:
    """Return the name of the linear layer that a classifier ends with.

    Raises:
        ModelError: it has none, or several.
    """
    names = [str(name) for name, module in classifier.named_modules() if isinstance(module, nn.Linear)]
    body = f"{getattr(classifier, 'base_model_prefix', '')}."
    own = getattr(getattr(classifier, "base_model", None), "pretrained_cfg", None) or {}
    if isinstance(in_body := own.get("classifier"), str):  # timm's models have it inside
        return next(name for name in names if name.endswith(f".{in_body}"))
    heads = [name for name in names if not name.startswith(body)]
    if len(heads) != 1:
        raise ModelError(
            "model",
            f"{source} ({type(classifier).__name__}) has {len(heads)} linear layers beside its body, of which one would be the head",
            "Take a classifier with one, such as a ResNet, ConvNeXt or ViT.",
        )
    return heads[0]


def features_of(model: nn.Module, pixel_values: Tensor) -> Tensor:
    """Return what the head of a classifier sees of pictures (rows, channels, height, width): shape (rows, features)."""
    own = getattr(model, "seen_by_head", None)
    if own is not None:
        features: Tensor = own(pixel_values)
        return features
    with _seen_by(model.get_submodule(head_of(model, type(model).__name__))) as seen:
        model(pixel_values=pixel_values)
    return seen[-1]


@contextmanager
def _seen_by(module: nn.Module) -> Iterator[list[Tensor]]:
    """Temporarily collect the inputs of a module."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen.append(inputs[0])

    handle = module.register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()
