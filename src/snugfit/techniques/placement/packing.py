"""Several examples in one row, without padding and without attention across them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, MutableSet
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from snugfit.core.batch import IGNORE_INDEX, LABELS, Batch
from snugfit.core.random import preserved_randomness
from snugfit.core.scalar_reads import is_fake, read
from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.core.tree import leaves
from snugfit.errors import SettingError
from snugfit.kit.packing.example_attention import by_example
from snugfit.kit.packing.packed_bodies import BodyCall, attends_by_example, bodies, call_of
from snugfit.kit.packing.packed_rows import Packed, computing_rows
from snugfit.kit.patched_forward import replaced_forward
from snugfit.kit.precision.autocast import casting_anew
from snugfit.system.rounding import allowed_rounding, in_float64
from snugfit.system.user_objects import describe

_PASSES = 3
"""Forwards of a comparison: of padded rows, of packed ones, and of packed ones with other neighbours."""

LEAKS = 1e-3
"""What part of the rounding between packed and padded outputs may be between packed ones, of the same kernels and shapes."""


@contextmanager
def packed(
    body: nn.Module,
    lengths: tuple[int, ...] | None = None,
    checked: MutableSet[nn.Module] | None = None,
    any_rank: Callable[[bool], bool] = bool,
    mask: Tensor | None = None,
) -> Iterator[None]:
    """Temporarily let `body` compute the examples of a padded batch packed into rows, and return them padded with zeros.

    It waits for the device once a call, to read how long the examples are, unless it gets `mask`.

    Args:
        body: one of `bodies(model)`.
        lengths: what to assume of the lengths where tensors have no numbers; all full, if None.
        checked: bodies that need no check; `body` is added after its first packed call, on which packed and padded outputs
            were compared.
        any_rank: whether one of the ranks says so that gather the weights of the body together. All of them make the passes of a
            comparison, also one whose own examples leave nothing to pack.
        mask: the attention mask whose rows are as long as `lengths` says, and padded on the right.
    Raises:
        SettingError: what it gets cannot be packed, or packed outputs are not those of the padded batch.
    """
    known: MutableSet[nn.Module] = set() if checked is None else checked
    forward = body.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        given = call_of(body, forward, args, kwargs)
        layout = given.layout(lengths, mask)
        if body not in known:
            here = layout is not None and not is_fake(layout.positions)
            if any_rank(here) and any_rank(_checked(given, layout) if here and layout else _passed(given)):
                known.add(body)
        if layout is None:
            return forward(*args, **kwargs)
        with computing_rows(len(layout.rows)):
            return given.run(layout, given.inputs(layout.examples, layout.tokens))

    with replaced_forward(body, run), by_example() if attends_by_example(body) else nullcontext():
        yield


@dataclass(frozen=True)
class Packing(Technique):
    """Compute the examples of a micro-batch packed into rows, so that no time and memory goes to padding."""

    card: ClassVar[Card] = Card(
        name="packing",
        summary="Packs several examples into one row, without padding and without attention across examples.",
        aliases=("sample packing", "sequence packing", "multipack", "padding-free training"),
        family=Family.PLACEMENT,
        source="Krell et al. 2021, arXiv:2107.02027; transformers' packed sequences by position ids",
        seams=("modules",),
        stages=(Stage.COMPUTE,),
        kind=Kind.TOKENS,
        refuses={
            Stage.DRAW: "what is drawn for each row acts inside the model, where packing makes other rows. Remove one."
        },
        conflicts={
            "hidden_mixup": "rows are mixed inside the model, where several examples stand in one row. Remove one.",
            "compile": "each micro-batch is laid out by its own lengths, and would be compiled anew. Remove one, or "
            "use length_grouping with compile.",
        },
        cost="an attention mask of packed rows, and one wait for the device a micro-batch where batches come from there; layers draw other "
        "dropout",
        use_when="texts of different length, where length_grouping leaves much padding",
    )

    @property
    def reads_weights(self) -> bool:
        return False

    def prepare(self, model: nn.Module) -> nn.Module:
        if not bodies(model):
            raise SettingError(
                "packing",
                f"{type(model).__name__} holds nothing that can be packed: no model of transformers that takes "
                "position_ids, and no nn.TransformerEncoder",
                "Use length_grouping.",
            )
        return model

    def seams(self, context: Context) -> Seams:
        model_bodies = bodies(context.model).values()
        checked: set[nn.Module] = set()

        @contextmanager
        def packing(batch: Batch) -> Iterator[None]:
            _refuse_scored_padding(batch)
            mask = batch.data["attention_mask"] if batch.gapless else None
            with ExitStack() as stack:
                for body in model_bodies:
                    stack.enter_context(packed(body, batch.lengths, checked, context.any_rank, mask))
                yield

        return Seams(modules=packing)


def _refuse_scored_padding(batch: Batch) -> None:
    """Refuse labels at padding.

    Raises:
        SettingError: labels at padding count. Waits for the device where the batch does not know that none does.
    """
    data = batch.data
    if batch.padded or not isinstance(data, Mapping):
        return
    labels, mask = data.get(LABELS), data.get("attention_mask")
    if not isinstance(labels, Tensor) or not isinstance(mask, Tensor) or labels.is_floating_point():
        return
    if labels.ndim == 2 and labels.shape == mask.shape:
        counted = read(((labels != IGNORE_INDEX) & (mask == 0)).sum(), assume=0)
        if counted:
            raise SettingError(
                "packing",
                f"{counted} labels at padding count, and packed outputs are zeros there",
                f"Set labels to {IGNORE_INDEX} where attention_mask is 0, as labels.masked_fill(attention_mask == 0, "
                "-100) does, or remove packing.",
            )


@torch.no_grad()
def _checked(call: BodyCall, layout: Packed) -> bool:
    """Compare packed with padded outputs, and see that no example looks at its neighbour; without dropout.

    Returns:
        Whether it could be seen: not where the padded outputs are not finite.
    Raises:
        SettingError: with the numbers.
    """
    body = call.body
    given = call.inputs(layout.examples, layout.tokens)
    firsts = [row[0] for row in layout.rows]
    others = [example for row in layout.rows for example in row[1:]]
    turned = {name: _turned(value, firsts) for name, value in given.items()}
    with _looked_at(body):
        padded = call.forward(**call.given)
        with _naming_packing(body):
            packed, turned_outputs = call.run(layout, given), call.run(layout, turned)
    real = layout.unpack(torch.ones_like(layout.segments)).bool()
    padded, packed, turned_outputs = map(call.examples_first, (padded, packed, turned_outputs))
    _require_unpacked(body, padded, packed)
    agrees = allowed_rounding(body, layout.positions.device)
    if not math.isfinite(_apart(padded, padded, real, range(layout.examples))):
        return False
    apart = _apart(padded, packed, real, range(layout.examples))
    leaked = _apart(packed, turned_outputs, real, others)
    if not apart <= agrees:
        raise SettingError(
            "packing",
            f"packed outputs of {type(body).__name__} are {apart:.2g} away from padded ones, relative to a token's, "
            f"and rounding accounts for {agrees:.2g}. Something in it does not go by the positions it is given",
            "Use length_grouping.",
        )
    if not leaked <= agrees * LEAKS:
        raise SettingError(
            "packing",
            f"in {type(body).__name__} an example in a packed row changes by {leaked:.2g} with its neighbour, "
            f"relative to a token's, and rounding accounts for {agrees * LEAKS:.2g}. Something in it looks across "
            "examples",
            "Use length_grouping.",
        )
    return True


@torch.no_grad()
def _passed(call: BodyCall) -> bool:
    """Make as many passes as a comparison does, on padded rows; nothing could be seen."""
    with _looked_at(call.body):
        for _ in range(_PASSES):
            call.forward(**call.given)
    return False


@contextmanager
def _looked_at(body: nn.Module) -> Iterator[None]:
    """Temporarily run `body` without dropout, leaving randomness and autocast's copies as they were."""
    device = next(body.parameters()).device
    modes = [(module, module.training) for module in body.modules()]
    try:
        body.eval()
        with preserved_randomness(device), casting_anew():
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _naming_packing(body: nn.Module) -> Iterator[None]:
    """Temporarily say that what fails on packed rows, where padded ones were computed, is due to packing."""
    try:
        yield
    except (SettingError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise SettingError(
            "packing",
            f"{type(body).__name__} computes padded rows and fails on packed ones: {describe(error)}. Something in "
            "it takes another mask or other positions than packed rows need",
            "Use length_grouping.",
        ) from error


def _require_unpacked(body: nn.Module, padded: Any, packed: Any) -> None:
    """Check that packed rows give outputs of the shape that padded ones give.

    Raises:
        SettingError: an output has not the shape that it has of padded rows.
    """
    shapes = [[tuple(tensor.shape) for tensor in leaves(outputs)] for outputs in (padded, packed)]
    if shapes[0] != shapes[1]:
        one, other = next(
            pair for pair in itertools.zip_longest(*shapes, fillvalue="none") if pair[0] != pair[1]
        )
        raise SettingError(
            "packing",
            f"{type(body).__name__} gives an output of shape {one} for padded rows and {other} for packed ones, "
            "which cannot be told apart by example",
            "Turn that output off, as by output_router_logits=False, or use length_grouping.",
        )


def _turned(values: Tensor, examples: list[int]) -> Tensor:
    """Other values in these examples, of the same range: what was the largest of all becomes the smallest."""
    turned = values.clone()
    turned[examples] = values.max() + values.min() - values[examples]
    return turned


def _apart(one: Any, other: Any, real: Tensor, examples: list[int] | range) -> float:
    """Largest distance of two outputs at a token, relative to the mean length of a token's; any other shape is left out."""
    rows = torch.tensor(list(examples), device=real.device)
    counts = real[rows]
    distances = []
    for a, b in zip(leaves(one), leaves(other), strict=True):
        if a.is_floating_point() and a.shape[:2] == real.shape and a.ndim > 2:
            reference = in_float64(a[rows][counts].flatten(1))
            apart = (reference - in_float64(b[rows][counts].flatten(1))).norm(dim=1).amax()
            distances.append(apart / reference.norm(dim=1).mean())
    distance: float = read(torch.stack(distances).amax(), assume=0.0)
    return distance
