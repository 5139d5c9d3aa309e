"""Small nets of other people's kinds, each with examples and a loss of its own where it has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, spectral_norm

from snugfit.core.loss_terms import LossTerms
from tests.unit.run.training.ordinary import CLASSES, ROWS, WIDTH, Case, named_points, nan_point

TOKENS, VOCABULARY = 6, 12


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tagged_texts() -> list[dict[str, Tensor]]:
    source = torch.Generator().manual_seed(2)
    found = []
    for number in range(ROWS):
        ids = torch.randint(1, VOCABULARY, (TOKENS,), generator=source)
        found.append({"ids": ids, "labels": (ids + number) % CLASSES})
    return found


def pictures() -> list[dict[str, Tensor]]:
    return [
        {"inputs": drawn(number, 3, 8, 8), "labels": (drawn(number, 8, 8) > 0).long()}
        for number in range(ROWS)
    ]


def graphs() -> list[dict[str, Tensor]]:
    """Five nodes each, and edges from node to node."""
    source = torch.Generator().manual_seed(4)
    return [
        {
            "inputs": drawn(number, 5, WIDTH),
            "edges": torch.randint(0, 5, (7, 2), generator=source),
            "labels": torch.tensor(number % CLASSES),
        }
        for number in range(ROWS)
    ]


def scored_points() -> list[dict[str, Tensor]]:
    return [{"inputs": drawn(number, WIDTH), "labels": drawn(number + 50, 1)[0]} for number in range(ROWS)]


def noisy_points() -> list[dict[str, Tensor]]:
    """Points with the noise that a code is drawn by, so that the same is drawn however the window is cut."""
    return [
        {"inputs": drawn(number, WIDTH), "noise": drawn(number + 90, 2), "labels": torch.tensor(0)}
        for number in range(ROWS)
    ]


class Tagger(nn.Module):
    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.layer = layer(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(ids))[0])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.norm, self.head = nn.GroupNorm(2, 8), nn.Conv2d(8, 2, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        wide = F.relu(self.down(inputs), inplace=True)
        deep = self.up(F.relu(self.deep(wide), inplace=True))
        return self.head(self.norm(torch.cat([wide, deep], dim=1)))


class GraphNet(nn.Module):
    """Adds up what comes along the edges by `index_add`, over all graphs of a batch at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor, edges: Tensor) -> Tensor:
        rows, nodes, width = inputs.shape
        flat = inputs.reshape(-1, width)
        source, target = (edges + nodes * torch.arange(rows)[:, None, None]).reshape(-1, 2).unbind(1)
        added = torch.zeros_like(flat).index_add(0, target, self.message(flat[source]))
        return self.head((flat + torch.tanh(added)).view(rows, nodes, width).mean(dim=1))


@dataclass
class Coded:
    """What a variational autoencoder returns."""

    rebuilt: Tensor
    mean: Tensor
    spread: Tensor


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(WIDTH, 4), nn.Linear(2, WIDTH)

    def forward(self, inputs: Tensor, noise: Tensor) -> Coded:
        mean, spread = self.encoder(inputs).chunk(2, dim=1)
        return Coded(self.decoder(mean + noise * spread.exp()), mean, spread)


def evidence(outputs: Coded, data: Any) -> Tensor:
    rebuilt = (outputs.rebuilt - data["inputs"]).square().sum(dim=1)
    return rebuilt + 0.5 * (outputs.mean.square() + (2 * outputs.spread).exp() - 2 * outputs.spread).sum(
        dim=1
    )


class TwoInputs(nn.Module):
    """Numbers and a category, through parts that stand in dictionaries of modules and parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"numbers": nn.Linear(WIDTH, 4), "kind": nn.Embedding(CLASSES, 4)})
        self.scales = nn.ParameterDict({"numbers": torch.ones(4), "kind": torch.ones(4)})
        self.register_buffer("mean", torch.full((WIDTH,), 0.1, dtype=torch.float64), persistent=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor, kind: Tensor) -> dict[str, Tensor]:
        given = {"numbers": inputs - self.mean, "kind": kind}
        found = [self.parts[name](value) * self.scales[name] for name, value in given.items()]
        return {"logits": self.head(torch.cat(found, dim=1)), "features": found[0]}


def kinds() -> list[dict[str, Tensor]]:
    return [{**row, "kind": (row["labels"] + 1) % CLASSES} for row in named_points()]


class Experts(nn.Module):
    """Each row goes to the expert that its router likes best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, CLASSES) for _ in range(3)])

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        shares = self.router(inputs).softmax(dim=1)
        share, chosen = shares.max(dim=1)
        outputs = torch.zeros(len(inputs), CLASSES, dtype=inputs.dtype)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            outputs = outputs.index_add(0, rows, expert(inputs[rows]) * share[rows].unsqueeze(1))
        return outputs, shares


class Tied(nn.Module):
    """Scores words by the weights that embed them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.tokens(ids))))


def pinball(outputs: Tensor, data: Any) -> LossTerms:
    """The loss of the quantiles 0.1, 0.5 and 0.9."""
    error = data["labels"].unsqueeze(1) - outputs
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=outputs.dtype)
    return LossTerms(torch.maximum(levels * error, (levels - 1) * error))


def real_or_made(outputs: Tensor, data: Any) -> Tensor:
    """The loss of a discriminator."""
    return F.binary_cross_entropy_with_logits(
        outputs.squeeze(1), (data["labels"] > 0).to(outputs.dtype), reduction="none"
    )


def row_of(*layers: nn.Module) -> nn.Module:
    return ByName(nn.Sequential(*layers))


class ByName(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs)


def pixelwise(outputs: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(outputs, data["labels"], reduction="none")


def low_rank(layer: nn.Linear) -> nn.Module:
    """A layer whose weight is made of others, symmetric and orthogonal in turn."""

    class Symmetric(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.triu() + weight.triu(1).T

    nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def of_points(make: Callable[[], nn.Module], loss: Any = "cross_entropy", **settings: Any) -> Case:
    return Case(make, named_points, nan_point, loss=loss, **settings)


ARCHITECTURES: dict[str, Case] = {
    "lstm_tagger": Case(lambda: Tagger(nn.LSTM), tagged_texts, nan_point),
    "gru_tagger": Case(lambda: Tagger(nn.GRU), tagged_texts, nan_point),
    "unet": Case(UNet, pictures, nan_point, loss=pixelwise),
    "graph_net": Case(GraphNet, graphs, nan_point),
    "vae": Case(VAE, noisy_points, nan_point, loss=evidence),
    "two_inputs": Case(TwoInputs, kinds, nan_point),
    "experts": of_points(Experts),
    "tied": Case(Tied, lambda: [{"ids": r["ids"], "labels": r["ids"]} for r in tagged_texts()], nan_point),
    "quantiles": Case(lambda: row_of(nn.Linear(WIDTH, 3)), scored_points, nan_point, loss=pinball),
    "discriminator": of_points(
        lambda: row_of(nn.Linear(WIDTH, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1)), real_or_made
    ),
    "weight_norm": of_points(lambda: row_of(parametrizations.weight_norm(nn.Linear(WIDTH, CLASSES)))),
    "orthogonal": of_points(
        lambda: row_of(parametrizations.orthogonal(nn.Linear(WIDTH, WIDTH)), nn.Linear(WIDTH, CLASSES))
    ),
    "parametrized": of_points(
        lambda: row_of(low_rank(nn.Linear(WIDTH, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
    ),
    # each forward of the training moves the vectors that they estimate the norm by
    "spectral_norm": of_points(lambda: row_of(spectral_norm(nn.Linear(WIDTH, CLASSES))), splits=False),
    "spectral_parametrization": of_points(
        lambda: row_of(parametrizations.spectral_norm(nn.Linear(WIDTH, CLASSES))), splits=False
    ),
    "batch_norm": of_points(
        lambda: row_of(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)), splits=False
    ),
}
