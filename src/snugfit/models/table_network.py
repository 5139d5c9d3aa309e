"""Networks for tables: a multilayer perceptron, and TabM, many of them that share their weights; and the losses of both, of each member by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.core.batch import labels_of
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import cross_entropy, logits_of, mse
from snugfit.models.own_networks import drawn, number, one_of, read_settings, whole_number

KINDS = ("tabm", "mlp")


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """A network for tables, without what its rows decide.

    Args:
        network: 'tabm' or 'mlp'.
        width, blocks: of the layers, and how many of them there are.
        dropout: part of a layer's outputs that is dropped.
        members: networks that share their weights in TabM.
        embedding: numbers that each column becomes.
        bins: of each column of numbers, 0 for none.
    """

    network: str = "tabm"
    width: int = 256
    blocks: int = 2
    dropout: float = 0.1
    members: int = 32
    embedding: int = 16
    bins: int = 16


def network_settings(model: str, folder: Path | None = None) -> NetworkSettings:
    """Return the settings of a network: of 'tabm' or 'mlp', or those in a JSON file.

    Raises:
        ModelError: it is neither, or the file cannot be used.
    """
    named = {kind: NetworkSettings(network=kind) for kind in KINDS}
    return read_settings(model, folder, NetworkSettings, named=named, rules=_RULES, purpose="tables")


_RULES = {
    "network": one_of(*KINDS),
    **dict.fromkeys(("width", "blocks"), whole_number()),
    "dropout": number(below=1),
    **dict.fromkeys(("members", "embedding"), whole_number()),
    "bins": whole_number(0),
}


@dataclass(frozen=True, kw_only=True)
class TableNetwork:
    """A network for rows of one form, as JSON holds it.

    Args:
        edges: of the bins of each column of numbers; none where it has no bins.
        sizes: codes of each column of categories.
        classes: logits that it puts out; 0 for one number.
        middle, spread: mean and deviation of that number, so that the network learns one of about 1.
    """

    settings: NetworkSettings
    edges: Sequence[Sequence[float]]
    sizes: Sequence[int]
    classes: int
    middle: float = 0.0
    spread: float = 1.0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TableNetwork:
        """Return what `as_dict` gave."""
        return cls(**{**values, "settings": NetworkSettings(**values["settings"])})

    def make(self, seed: int = 0, *, empty: bool = False) -> nn.Module:
        """Return the network, with weights drawn from a seed, or none: on the meta device."""
        return drawn(lambda: _Network(self), seed, empty=empty)


class _Network(nn.Module):
    """Numbers (rows, columns) and categories (rows, columns) to logits (rows, classes), or to one number a row.

    TabM gives those of each member while it trains, (rows, members, classes) or (rows, members), and then their mean: of
    probabilities, as their logarithms, or of numbers.
    """

    middle: Tensor
    spread: Tensor

    def __init__(self, shape: TableNetwork) -> None:
        super().__init__()
        settings = shape.settings
        members = settings.members if settings.network == "tabm" else None
        self.numbers = _Bins(shape.edges, settings.embedding)
        self.categories = _Codes(shape.sizes, settings.embedding)
        width = settings.embedding * (len(shape.edges) + len(shape.sizes))
        layers: list[nn.Module] = []
        for block in range(settings.blocks):
            layers += [
                _layer(width, settings.width, members, first=block == 0),
                nn.ReLU(),
                nn.Dropout(settings.dropout),
            ]
            width = settings.width
        self.body = nn.Sequential(*layers)
        outputs = shape.classes or 1
        self.head: nn.Module = (
            nn.Linear(width, outputs) if members is None else _Heads(width, outputs, members)
        )
        self.members, self.classes = members, shape.classes
        self.register_buffer("middle", torch.tensor(shape.middle), persistent=False)
        self.register_buffer("spread", torch.tensor(shape.spread), persistent=False)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """Return logits or numbers, as the class says."""
        embedded = torch.cat([self.numbers(numbers), self.categories(categories)], dim=1)
        if self.members is not None:
            embedded = embedded.unsqueeze(1).expand(-1, self.members, -1)
        outputs: Tensor = self.head(self.body(embedded))
        if self.classes:
            if self.members is None or self.training:
                return outputs
            return torch.logsumexp(outputs.log_softmax(dim=-1), dim=1) - math.log(self.members)
        outputs = outputs.squeeze(-1) * self.spread + self.middle
        return outputs if self.members is None or self.training else outputs.mean(dim=1)


class _Bins(nn.Module):
    """Each column of numbers as a vector: linear in the number, and in how far it has come through each of its bins.

    Source: Gorishniy et al. 2022, arXiv:2203.05556, equation 1, and 2024, arXiv:2410.24210, appendix (version B).
    """

    starts: Tensor
    widths: Tensor

    def __init__(self, edges: Sequence[Sequence[float]], embedding: int) -> None:
        super().__init__()
        columns, bins = len(edges), max((len(each) - 1 for each in edges), default=0)
        bins = max(0, bins)
        starts, widths = (
            torch.zeros(columns, bins, device="cpu"),
            torch.full((columns, bins), math.inf, device="cpu"),
        )
        for column, each in enumerate(edges):
            if each:
                places = torch.tensor(each, device="cpu")
                starts[column, : len(each) - 1] = places[:-1]
                widths[column, : len(each) - 1] = places.diff()
        on = torch.empty(0).device
        self.register_buffer("starts", starts.to(on), persistent=False)
        self.register_buffer("widths", widths.to(on), persistent=False)
        self.linear = nn.Parameter(torch.empty(columns, embedding).uniform_(-1, 1))
        self.bias = nn.Parameter(torch.empty(columns, embedding).uniform_(-1, 1))
        self.bins = nn.Parameter(torch.zeros(columns, bins, embedding))

    def forward(self, numbers: Tensor) -> Tensor:
        """Return (rows, columns times embedding)."""
        parts = ((numbers.unsqueeze(-1) - self.starts) / self.widths).clamp(0, 1)
        linear = numbers.unsqueeze(-1) * self.linear + self.bias
        return (linear + torch.einsum("rcb,cbe->rce", parts, self.bins)).relu().flatten(1)


class _Codes(nn.Module):
    """Each column of categories as a vector, one for each code."""

    first: Tensor

    def __init__(self, sizes: Sequence[int], embedding: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(max(1, sum(sizes)), embedding)
        first = [sum(sizes[:place]) for place in range(len(sizes))]
        self.register_buffer("first", torch.tensor(first, dtype=torch.int64), persistent=False)
        with torch.no_grad():  # that of what no row to train on had stays nothing
            self.vectors.weight[first] = 0.0

    def forward(self, codes: Tensor) -> Tensor:
        """Return (rows, columns times embedding)."""
        vectors: Tensor = self.vectors(codes + self.first)
        return vectors.flatten(1)


def _layer(inputs: int, outputs: int, members: int | None, *, first: bool) -> nn.Module:
    return nn.Linear(inputs, outputs) if members is None else _Shared(inputs, outputs, members, signs=first)


class _Shared(nn.Module):
    """A linear layer that all members share; each scales its inputs and outputs, and has a bias of its own.

    Args:
        signs: whether members begin apart, by random signs of their inputs.
    Source: Gorishniy et al. 2024, arXiv:2410.24210, section 3.3 (TabM); Wen et al. 2020, arXiv:2002.06715.
    """

    def __init__(self, inputs: int, outputs: int, members: int, *, signs: bool) -> None:
        super().__init__()
        self.shared = nn.Linear(inputs, outputs, bias=False)
        self.scale_in = nn.Parameter(torch.ones(members, inputs))
        self.scale_out = nn.Parameter(torch.ones(members, outputs))
        bound = 1 / math.sqrt(inputs)
        self.bias = nn.Parameter(torch.empty(members, outputs).uniform_(-bound, bound))
        if signs:
            with torch.no_grad():
                self.scale_in.copy_(torch.randint(0, 2, (members, inputs)).float() * 2 - 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (rows, members, outputs)."""
        outputs: Tensor = self.shared(inputs * self.scale_in) * self.scale_out + self.bias
        return outputs


class _Heads(nn.Module):
    """A linear layer for each member."""

    def __init__(self, inputs: int, outputs: int, members: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, outputs).uniform_(-bound, bound))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (rows, members, outputs)."""
        return torch.einsum("rmi,mio->rmo", inputs, self.weight) + self.bias


@dataclass(frozen=True)
class MemberCrossEntropy:
    """Cross-entropy of logits (rows, classes), or of those of each member, (rows, members, classes), with labels (rows,).

    Each member learns the label by itself: the loss of their mean would let one lean on another.

    Source: Gorishniy et al. 2024, arXiv:2410.24210, section 3.1.
    """

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        logits = logits_of(outputs)
        return cross_entropy(logits, {"labels": _of_members(labels_of(data), logits, 2)})


@dataclass(frozen=True)
class MemberSquaredError:
    """Squared error of numbers (rows,), or of those of each member, (rows, members), in units of `spread`."""

    spread: float

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        numbers = logits_of(outputs)
        labels = _of_members(labels_of(data), numbers, 1)
        return mse(numbers.float() / self.spread, {"labels": labels.float() / self.spread})


def _of_members(labels: Tensor, outputs: Tensor, dimensions: int) -> Tensor:
    """Return the labels, for each member where the outputs have some."""
    return labels if outputs.ndim == dimensions else labels.unsqueeze(1).expand(outputs.shape[:2])
