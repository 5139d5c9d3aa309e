"""The memory of an update as one self-contained page: over time by kind, its spikes, and the pieces at its highest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snugfit.planner.answers.plan_figures import KINDS, peak_place, printable, share
from snugfit.planner.trace.memory_breakdown import MemoryUse, Piece
from snugfit.report.html import breakable, figures, table
from snugfit.report.page import document, replace_page
from snugfit.report.stack import STACK_STYLE, TONES, layered
from snugfit.report.svg import escape
from snugfit.units import counted, format_bytes

NAME = "memory.html"
MEMORY_STYLE = (
    STACK_STYLE
    + """
.bars small{display:block}
section h3{margin:28px 0 10px}
figcaption h3{margin:0}
.pieces th{max-width:none;width:44%}.pieces .bar{width:34%}
@media (max-width:600px){.pieces tr{display:grid;grid-template-columns:1fr auto 3em;align-items:center;
border-top:1px solid var(--rule);padding:6px 0}
.pieces th,.pieces td{width:auto;border:0;padding:0 0 0 12px}.pieces th{grid-column:1/-1}.pieces th,.pieces .bar{padding:0}}
"""
)


def write_memory_page(name: str, use: MemoryUse, path: Path, *, again: str = "") -> Path:
    """Write the page to `path`, replacing an older one at once, and return it.

    Args:
        again: of what ran out of memory, what was run once more for this page, in words.
    Raises:
        RunFolderError: it cannot be written.
    """
    heading, status = ("Out of memory", "failed") if again else (f"Memory of {use.of}", "finished")
    sentences = [piece_words(use)]
    if use.ran_out is not None:
        sentences.append(f"The allocator said: {use.ran_out}.")
    elif again:
        sentences.append(f"Run once more, {again} did not run out of memory.")
    paragraphs = "".join(f"<p>{breakable(sentence)}</p>" for sentence in sentences)
    header = (
        f"<header><p class=about>{escape(printable(name))}</p><h1>{heading}</h1>"
        f'<p class=identity><span class="status {status}">{escape(use.basis.capitalize())}</span></p>{paragraphs}</header>'
    )
    return replace_page(
        path, document(f"{heading} · {name} · Snugfit", [header, *memory_sections((use,))], MEMORY_STYLE)
    )


def piece_words(use: MemoryUse) -> str:
    """Return the largest piece, in a sentence.

    >>> from snugfit.planner.answers.answer import Timeline
    >>> piece = Piece("activations", "head", 3 * 2**20, 2, "aten.mm.default")
    >>> at = {"segment": "forward 1", "module": "head", "operator": "aten.mm.default"}
    >>> piece_words(MemoryUse("measured", 2**22, 2**22, {}, at, (piece,), (), Timeline((), (), {})))
    'Most of it, 3.00 MiB of 4.00 MiB (75%), is activations of head; the moment is forward 1, head, aten.mm.default.'
    """
    piece = use.culprit
    if piece is None:
        return "Nothing of it is in tensors that were seen."
    fraction = piece.bytes / max(1, use.at_bytes)
    part, most = share(fraction), "Most of it" if fraction > 0.5 else "The largest part of it"
    return (
        f"{most}, {format_bytes(piece.bytes)} of {format_bytes(use.at_bytes)} ({part}), is {_owned(piece)}; the moment is "
        f"{peak_place(use.at)}."
    )


def memory_sections(uses: Sequence[MemoryUse]) -> list[str]:
    """Return the sections of a page: of the first use its picture, pieces and spikes; of others the picture."""
    sections = []
    for number, use in enumerate(uses):
        where = "where memory ran out" if use.ran_out is not None else "at the peak"
        picture = layered(use.timeline, _highest(use), use.of) if use.timeline.segments else ""
        body = f"<div class=charts>{picture}</div>" if picture else ""
        if number == 0:
            body += _kinds(use) + f"<h3>What is there {where}</h3>{_pieces(use)}<h3>Spikes</h3>{_spikes(use)}"
        sections.append(f"<section><h2>Memory, {escape(use.basis)}</h2>{body}</section>")
    return sections


def _highest(use: MemoryUse) -> str:
    if use.ran_out is None:
        return peak_place(use.at)
    top = max(use.spikes, key=lambda spike: spike.bytes, default=None)
    return peak_place(use.at) if top is None else f"{top.segment}, {top.module or 'the model itself'}"


def _kinds(use: MemoryUse) -> str:
    order = {kind: number for number, kind in enumerate(KINDS)}
    return figures(
        (kind, format_bytes(use.by_kind[kind]), share(use.by_kind[kind] / max(1, use.at_bytes)))
        for kind in sorted(use.by_kind, key=lambda kind: order.get(kind, len(order)))
    )


def _pieces(use: MemoryUse) -> str:
    largest = max((piece.bytes for piece in use.pieces), default=1)
    rows = "".join(
        f"<tr><th scope=row>{breakable(_owned(piece))}<small>{breakable(_made(piece))}</small></th>"
        f'<td class=bar><span class=fill{TONES.get(piece.kind, 8)} style="width:{piece.bytes / largest:.1%}"></span></td>'
        f"<td class=number>{format_bytes(piece.bytes)}</td>"
        f"<td class=number>{share(piece.bytes / max(1, use.at_bytes))}</td></tr>"
        for piece in use.pieces
    )
    return f'<table class="bars pieces"><tbody>{rows}</tbody></table>'


def _owned(piece: Piece) -> str:
    kind = "optimizer state" if piece.kind == "optimizer" else piece.kind
    return f"{kind} of {printable(piece.module)}" if piece.module else f"{kind} of no single module"


def _made(piece: Piece) -> str:
    tensors = counted(piece.count, "tensor")
    return f" {tensors}, most of it by {piece.operator}" if piece.operator else f" {tensors}"


def _spikes(use: MemoryUse) -> str:
    rows = [
        (
            format_bytes(spike.bytes),
            spike.segment,
            printable(spike.module) or "the model itself",
            spike.operator,
            spike.kind,
        )
        for spike in use.spikes
    ]
    return table(("memory", "phase", "module", "operator", "made of"), rows, 1)
