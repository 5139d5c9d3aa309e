"""Learning rates that fall from the head of a model down to its embeddings."""

from __future__ import annotations

import itertools
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import nn

from snugfit.core.parameters import ParameterGroup, divided
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.errors import SettingError


def depths(names: Iterable[str], embeddings: Iterable[str] = ()) -> dict[str, int]:
    """Return the depth of each parameter: 0 before the layers, then a layer after the other, and one more behind the last.

    Layers are the entries of the longest numbered list (the outermost of equals) and of all lists at its level: the
    blocks of an encoder and of a decoder, of each stage of a residual net. Where those are blocks of several parts, a list of single
    parts, such as the norm and the convolution before a stage, is no list of layers. What stands between two layers belongs to the one
    with which it shares more of its path, such as the stage; else a list of single parts to the next one, the rest to the one before.

    Args:
        names: in the order in which the model has them.
        embeddings: names that have depth 0 wherever they stand, unless they are within a layer.

    >>> depths(["embed.weight", "layers.0.weight", "layers.1.weight", "head.weight"])
    {'embed.weight': 0, 'layers.0.weight': 1, 'layers.1.weight': 2, 'head.weight': 3}
    """
    names = list(names)
    layers, single = _layers(names)
    order = {layer: place for place, layer in enumerate(dict.fromkeys(layers.values()), 1)}
    places = [place for place, name in enumerate(names) if name in layers]
    embedded, depth_of = set(embeddings), {}
    for place, name in enumerate(names):
        at = bisect(places, place)
        if name in layers:
            depth_of[name] = order[layers[name]]
        elif name in embedded or 0 == at < len(places):
            depth_of[name] = 0
        elif at == len(places):
            depth_of[name] = len(order) + 1
        else:
            before, behind = names[places[at - 1]], names[places[at]]
            nearer = _shared(name, behind) - _shared(name, before)
            to_next = nearer > 0 or (nearer == 0 and name in single)
            depth_of[name] = order[layers[behind if to_next else before]]
    return depth_of


def _layers(names: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Return the layer of each parameter that is in one, and the parameters of lists of single parts."""
    level = _level(names)
    entries = {name: _numbered(name)[level] for name in names if len(_numbered(name)) > level}
    deep = {
        entry.rpartition(".")[0] for name, entry in entries.items() if name.count(".") > entry.count(".") + 1
    }
    if _longest(entries.values()) not in deep:
        return entries, set()
    single = {name for name, entry in entries.items() if entry.rpartition(".")[0] not in deep}
    return {name: entry for name, entry in entries.items() if name not in single}, single


def _shared(one: str, other: str) -> int:
    """Return how many words two names begin with in common."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _longest(entries: Iterable[str]) -> str:
    """Return the list of most entries, the first of equals."""
    counts = Counter(entry.rpartition(".")[0] for entry in dict.fromkeys(entries))
    return max(counts, key=lambda name: counts[name], default="")


def _numbered(name: str) -> list[str]:
    """Return the name up to each of its numbers: `a.0.b.1.weight` gives `a.0` and `a.0.b.1`."""
    words = name.split(".")
    return [".".join(words[: place + 1]) for place, word in enumerate(words) if word.isdecimal()]


def _level(names: Iterable[str]) -> int:
    """Return how many numbers stand before the number of the longest list's entries."""
    lists: dict[tuple[int, str], set[str]] = {}
    for name in names:
        for level, entry in enumerate(_numbered(name)):
            lists.setdefault((level, entry.rpartition(".")[0]), set()).add(entry)
    return max(lists, key=lambda key: (len(lists[key]), -key[0]), default=(0, ""))[0]


@dataclass(frozen=True)
class LayerRates(Technique):
    """Multiply the learning rate by `decay` for each layer between a parameter and the head, which has the whole rate."""

    decay: float = 0.8

    card: ClassVar[Card] = Card(
        name="layer_rates",
        summary="Gives each layer a lower learning rate than the one above it, from the head down to the embeddings.",
        aliases=("layer-wise learning rate decay", "LLRD", "discriminative learning rates"),
        family=Family.LEARNING,
        source="Howard & Ruder 2018, arXiv:1801.06146; by layer as in Clark et al. 2020 (ELECTRA), arXiv:2003.10555",
        seams=("groups",),
        cost="one or two calls of the optimizer's kernel for each layer",
        use_when="fine-tuning a deep pretrained model; 0.65 to 0.9, the lower the larger the model",
    )

    def __post_init__(self) -> None:
        self.require("decay", 0 < self.decay <= 1, "in (0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(decay=0.5)

    def seams(self, context: Context) -> Seams:
        def groups(given: list[ParameterGroup]) -> list[ParameterGroup]:
            depth_of = depths(*_names(context.model, given))
            top = max(depth_of.values())
            if top == min(depth_of.values()):
                raise SettingError(
                    "layer_rates",
                    "finds no layers in this model, by the numbers or embeddings in its parameters' names "
                    f"({', '.join(list(depth_of)[:3])}, …)",
                    "Remove it, or name parts with pattern_rates.",
                )
            named = {depth: _name(depth, depth_of) for depth in depth_of.values()}
            cut = divided(given, lambda name, _parameter: named[depth_of[name]])
            factors = {name: self.decay ** (top - depth) for depth, name in named.items()}
            return [
                {**group, "lr_factor": group.get("lr_factor", 1.0) * factors[str(part)]}
                for part, group in cut
            ]

        return Seams(groups=groups)


def _names(model: nn.Module, groups: list[ParameterGroup]) -> tuple[list[str], list[str]]:
    """Return the names of the parameters in the model's order, and those of embeddings."""
    given = {name for group in groups for name, _ in group["params"]}
    embeddings = [
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    ]
    return [name for name, _ in model.named_parameters() if name in given], embeddings


def _name(depth: int, depth_of: Mapping[str, int]) -> str:
    if depth == 0:
        return "embeddings"
    layers, _ = _layers(list(depth_of))
    layered = any(at == depth and name in layers for name, at in depth_of.items())
    return f"layer {depth}" if layered else "head"
