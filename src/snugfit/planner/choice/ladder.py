"""The plans that an expert would try, in the order in which they would: where a search begins.

A format is how numbers are kept and computed: precisions, states of few bits, adapters, bases of few bits. Placements say what is
kept, and where. What a device cannot do, or a recipe has already, is left out of them.

Sources: bf16 autocast and adapters as TRL, Axolotl and Unsloth have them by default; pure bf16 with chunked loss, recomputation,
8-bit states, in pages too, and the optimizer in backward as torchtune's recipes for one device; nf4 with adapters from QLoRA (Dettmers et al. 2023);
16-bit weights with masters and moments on the host from ZeRO-Offload (Ren et al. 2021); selective recomputation from Korthikanti
et al. 2022; frozen weights that are streamed from FlexGen's and DeepSpeed's ZeRO-Infinity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from snugfit.core.technique import Technique
from snugfit.errors import PlanConflict
from snugfit.planner.choice.rungs import Techniques, freezes, is_for_frozen, label, together

Names = tuple[str, ...]

_PAGES = "adamw_8bit(paged=True)"
_SPARSE = "recompute(keep=('attention', 'matmul'))"

FORMATS: tuple[Names, ...] = (
    ("bf16",),
    ("fp16",),
    ("tf32",),
    ("master_weights",),
    ("fp16_master_weights",),
    ("pure_bf16",),
    ("bf16", "adamw_8bit"),
    ("bf16", _PAGES),
    ("fp16", "adamw_8bit"),
    ("fp16", _PAGES),
    ("pure_bf16", "adamw_8bit"),
    ("pure_bf16", _PAGES),
    ("lora", "bf16"),
    ("lora", "fp16"),
    ("lora", "master_weights"),
    ("lora", "fp16_master_weights"),
    ("lora", "pure_bf16"),
    ("lora",),
    ("lora", "nf4", "bf16"),
    ("lora", "nf4", "fp16"),
    ("lora", "nf4", "master_weights"),
    ("lora", "nf4", "fp16_master_weights"),
    ("lora", "nf4", "pure_bf16"),
    ("lora", "nf4"),
)
"""By level of fidelity, and within it as they would be tried."""

PLACEMENTS: tuple[Names, ...] = (
    (),
    ("chunked_loss",),
    ("chunked_loss", _SPARSE),
    ("chunked_loss", "recompute"),
    ("chunked_loss", "optimizer_offload"),
    ("chunked_loss", "recompute", "optimizer_in_backward"),
    ("chunked_loss", "recompute", "optimizer_in_backward", "activation_offload"),
    ("chunked_loss", "recompute", "activation_offload"),
    ("chunked_loss", "recompute", "activation_offload", "tiled_linear"),
    ("chunked_loss", "recompute", "optimizer_offload"),
    ("chunked_loss", "recompute", "optimizer_offload", "activation_offload"),
    ("chunked_loss", "recompute", "optimizer_offload", "gradient_offload"),
    ("chunked_loss", "recompute", "weight_streaming"),
    ("chunked_loss", "recompute", "weight_streaming", "activation_offload"),
)
"""From the fastest to the smallest, about."""

TURN = 3
"""The place among placements that is tried after the first: where it fits, what lies between is tried, else what comes after."""


def formats(own: Sequence[Technique], rungs: Sequence[Technique]) -> list[Techniques]:
    """Return what is added to a recipe for each format, with those of these rungs that go beside its own techniques; none of it twice."""
    return _resolved(FORMATS, own, (), rungs)


def placed(own: Sequence[Technique], format: Techniques, rungs: Sequence[Technique]) -> list[Techniques]:
    """Return a format with each placement."""
    return _resolved(PLACEMENTS, own, format, rungs)


def _resolved(
    entries: Sequence[Names], own: Sequence[Technique], companions: Techniques, rungs: Sequence[Technique]
) -> list[Techniques]:
    by_name: Mapping[str, Technique] = {label(each): each for each in rungs}
    formats: list[Techniques] = []
    for names in entries:
        added = companions
        for name in names:
            rung = by_name.get(name)
            if rung is not None and goes(own, added, rung):
                added = (*added, rung)
        if added not in formats:
            formats.append(added)
    return formats


def goes(own: Sequence[Technique], added: Techniques, rung: Technique) -> bool:
    """Return whether a rung goes with the recipe's own techniques and those that were added; what is for frozen weights, where some are."""
    try:
        techniques = together(own, (*added, rung))
    except PlanConflict:
        return False
    return freezes(techniques) or not is_for_frozen(rung)
