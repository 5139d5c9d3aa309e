"""Models the laws are tested on beside those that a technique of any origin is tried on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from snugfit.tools.certify.technique_models import FEATURES as FEATURES
from snugfit.tools.certify.technique_models import IMAGE as IMAGE
from snugfit.tools.certify.technique_models import LONGEST as LONGEST
from snugfit.tools.certify.technique_models import VOCABULARY as VOCABULARY
from snugfit.tools.certify.technique_models import WIDTH as WIDTH
from snugfit.tools.certify.technique_models import Reader as Reader
from snugfit.tools.certify.technique_models import Viewer as Viewer
from snugfit.tools.certify.technique_models import contrastive as contrastive


class Normed(nn.Module):
    """An MLP with batch norm: its examples depend on each other by nature."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
        )

    def forward(self, numbers: Tensor) -> Tensor:
        logits: Tensor = self.body(numbers)
        return logits


class Recomputing(Viewer):
    """The same net, which keeps no activations of its blocks and its head and computes them again in backward."""

    def __init__(self, dropout: float = 0.0, use_reentrant: bool = False, layers: Sequence[str] = ()) -> None:
        super().__init__(dropout, layers)
        self.use_reentrant = use_reentrant

    def run(self, module: nn.Module, inputs: Tensor) -> Tensor:
        outputs: Tensor = checkpoint(module, inputs, use_reentrant=self.use_reentrant)
        return outputs


class NormedViewer(nn.Module):
    """A convolutional net with batch norm."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(4, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(pixels).mean(dim=(2, 3)))
        return logits
