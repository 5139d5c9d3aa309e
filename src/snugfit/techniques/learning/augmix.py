"""AugMix: each picture is a mixture of itself and of chains of changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Technique
from snugfit.kit.pictures.picture_operations import (
    SIGNED,
    UNSIGNED,
    Operation,
    changed,
    drawn_name,
    drawn_number,
    drawn_part,
    translations,
)

if TYPE_CHECKING:
    from PIL.Image import Image

STRONGEST = 10
_LONGEST = 3
"""The longest chain that is drawn."""
_MOVED = 1 / 3
_ENHANCING = ("brightness", "color", "contrast", "sharpness")


ALL: Mapping[str, Operation] = {
    **SIGNED,
    **translations(_MOVED),
    **UNSIGNED,
}
OF_PAPER: Mapping[str, Operation] = {name: each for name, each in ALL.items() if name not in _ENHANCING}
"""Without those that ImageNet-C tests for."""


def augmixed(
    picture: Image,
    severity: float = 3.0,
    width: int = 3,
    depth: int | None = None,
    alpha: float = 1.0,
    all_operations: bool = False,
) -> Image:
    """Return `m` of a picture and `1 - m` of a mixture of chains of operations on it, drawn from torch's global generator.

    `m` is from Beta(alpha, alpha), the chains' shares from Dirichlet(alpha, …, alpha).

    Args:
        picture: gray or in colour, of 8 bits.
        severity: the largest strength, in (0, 10]; each operation draws one between 0.1 and it.
        width: the number of chains.
        depth: the operations of a chain; None draws 1, 2 or 3 for each.
    """
    from PIL import Image as images

    operations = ALL if all_operations else OF_PAPER
    shares = _dirichlet(alpha, width)
    own = _dirichlet(alpha, 2)[0]
    mixed = own * np.asarray(picture, dtype=np.float64)
    for share in shares:
        chained = picture
        for _ in range(depth or 1 + drawn_number(_LONGEST)):
            name = drawn_name(operations)
            strength = 0.1 + (severity - 0.1) * drawn_part()
            chained = changed(chained, operations, name, strength / STRONGEST)
        mixed += (1 - own) * share * np.asarray(chained, dtype=np.float64)
    # rounded, and not cut off as in torchvision, which would darken every picture by half a step
    return images.fromarray(np.rint(mixed).astype(np.uint8))


def _dirichlet(alpha: float, parts: int) -> list[float]:
    # numpy draws where small alphas would underflow in torch's float32
    source = np.random.default_rng(drawn_number(2**31))
    return [*source.dirichlet([alpha] * parts)]


@dataclass(frozen=True)
class AugMix(Technique):
    """Train on mixtures of each picture and of chains of changes of it, which look alike and are of one class."""

    severity: float = 3.0
    width: int = 3
    depth: int | None = None
    alpha: float = 1.0
    all_operations: bool = False

    card: ClassVar[Card] = Card(
        name="augmix",
        summary="Mixes each picture with chains of changes of it, for models that hold under noise and blur.",
        family=Family.LEARNING,
        source="Hendrycks et al. 2019, arXiv:1912.02781, without its loss of consistency",
        seams=("picture",),
        kind=Kind.IMAGES,
        cost="several times the decoding of small pictures, on the host: give plan.num_workers",
        use_when="pictures that will be noisier or otherwise lit than those that are trained on",
    )

    def __post_init__(self) -> None:
        self.require("severity", 0.1 <= self.severity <= STRONGEST, f"in [0.1, {STRONGEST}]")
        self.require("width", self.width >= 1, "at least 1")
        self.require("depth", self.depth is None or self.depth >= 1, "at least 1, or null to draw it")
        self.require_positive("alpha")

    def picture(self) -> Callable[[Any], Any]:
        return partial(
            augmixed,
            severity=self.severity,
            width=self.width,
            depth=self.depth,
            alpha=self.alpha,
            all_operations=self.all_operations,
        )

    def seams(self, context: Context) -> Seams:
        return Seams()
