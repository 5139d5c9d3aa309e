"""An encoder of pictures that sees some squares of them alone, and a layer that draws the others, which is learned with it and not delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from snugfit.errors import ModelError
from snugfit.models.pair_encoder import FEATURES, without_head


class MaskedEncoder(nn.Module):
    """Pictures (rows, channels, height, width) and masks (rows, patches down, patches across) to pictures of the same shape.

    `backbone` is a model of transformers that has a token in place of hidden patches, and a linear layer from each patch's state to its pixels.

    Source: Xie et al. 2022 (SimMIM), arXiv:2111.09886, section 3.
    """

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.train(backbone.training)

    def forward(self, pixel_values: Tensor, mask: Tensor) -> Tensor:
        """Return the pictures as they are drawn."""
        down, across = mask.shape[1:]
        states = self._body(pixel_values=pixel_values, bool_masked_pos=mask.flatten(1)).last_hidden_state
        patches = states[:, -down * across :].mT.unflatten(
            2, (down, across)
        )  # behind tokens of the whole picture
        drawn: Tensor = self.backbone.decoder(patches)  # type: ignore[operator]
        return drawn

    def seen_by_head(self, pixel_values: Tensor) -> Tensor:
        """Return what a head would see of whole pictures: shape (rows, features)."""
        states: Tensor = self._body(pixel_values=pixel_values).last_hidden_state
        return states[:, 0]

    @property
    def encoder(self) -> nn.Module:
        """The backbone as a classifier of transformers, with the same weights and a head of zeros for one label."""
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

        config: Any = self.backbone.config
        prefix = str(self.backbone.base_model_prefix)
        weights = {
            name: weight
            for name, weight in self.backbone.state_dict().items()
            if name.startswith(f"{prefix}.") and name != f"{prefix}.embeddings.mask_token"
        }
        kinds = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
        kind = kinds[0] if isinstance(kinds, tuple) else kinds  # behind it is one that learns from a teacher
        return without_head(kind, config, weights)

    @property
    def _body(self) -> Any:
        return self.backbone.base_model


def prepare_config(config: Any, source: object, kinds: Sequence[str]) -> None:
    """Make a configuration one of an encoder that draws hidden patches, and whose classifier has no labels yet.

    Args:
        kinds: types of models that take a token in place of a patch, and whose classifiers read the first token.
    Raises:
        ModelError: it is of another kind.
    """
    if config.model_type not in kinds:
        raise ModelError(
            "model",
            f"{source} ({config.model_type}) takes no token in place of a hidden patch",
            f"Take a model of the kind {' or '.join(kinds)}, such as google/vit-base-patch16-224-in21k; others learn by contrastive-pretraining.",
        )
    side = patch_side(config)
    names = {"id2label": dict(enumerate(FEATURES)), "label2id": {FEATURES[0]: 0}, "num_labels": 1}
    config.update({**names, "problem_type": None, "encoder_stride": side})


def patch_side(config: Any) -> int:
    """Return the pixels of a patch on each side.

    Raises:
        ModelError: it is no square.
    """
    size = config.patch_size if hasattr(config, "patch_size") else config["patch_size"]
    sides = {*size} if isinstance(size, (list, tuple)) else {size}
    if len(sides) != 1:
        raise ModelError("model", f"has patches of {size} pixels", "Take one with square patches.")
    return int(sides.pop())
