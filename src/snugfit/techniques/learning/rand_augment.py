"""RandAugment: each picture is changed by some operations that are drawn, all of one strength."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Technique
from snugfit.kit.pictures.picture_operations import (
    SIGNED,
    UNSIGNED,
    Operation,
    changed,
    drawn_name,
    translations,
)

if TYPE_CHECKING:
    from PIL.Image import Image

STRONGEST = 30
_MOVED = 150 / 331
"""The longest way that a picture is moved, as part of its side: AutoAugment's 150 pixels, of pictures of 331."""


def _identity(picture: Image, _strength: float) -> Image:
    return picture


OPERATIONS: Mapping[str, Operation] = {
    "identity": _identity,
    **SIGNED,
    **translations(_MOVED),
    **UNSIGNED,
}


def rand_augmented(picture: Image, operations: int = 2, magnitude: float = 9.0) -> Image:
    """Return a picture after that many operations, drawn one by one from torch's global generator.

    Args:
        picture: gray or in colour, of 8 bits.
        magnitude: the strength of all of them, between 0 and 30.
    """
    for _ in range(operations):
        picture = changed(picture, OPERATIONS, drawn_name(OPERATIONS), magnitude / STRONGEST)
    return picture


@dataclass(frozen=True)
class RandAugment(Technique):
    """Change each picture that is trained on by operations that are drawn for it, all of one strength."""

    operations: int = 2
    magnitude: float = 9.0

    card: ClassVar[Card] = Card(
        name="rand_augment",
        summary="Changes each picture by a few drawn operations of one strength, such as turns and other colours.",
        family=Family.LEARNING,
        source="Cubuk et al. 2019, arXiv:1909.13719; strengths as in torchvision's RandAugment",
        seams=("picture",),
        kind=Kind.IMAGES,
        cost="up to a few times the decoding of small pictures, on the host: give plan.num_workers",
        use_when="pictures of things, and the model overfits; a lower magnitude for small models and short runs",
    )

    def __post_init__(self) -> None:
        self.require("operations", self.operations >= 1, "at least 1")
        self.require("magnitude", 0 <= self.magnitude <= STRONGEST, f"in [0, {STRONGEST}]")

    def picture(self) -> Callable[[Any], Any]:
        return partial(rand_augmented, operations=self.operations, magnitude=self.magnitude)

    def seams(self, context: Context) -> Seams:
        return Seams()
