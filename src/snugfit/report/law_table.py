"""The laws of a certificate as a table, for its own page and for a run's report."""

from __future__ import annotations

import math
from collections.abc import Sequence

from snugfit.report.html import breakable
from snugfit.report.svg import escape
from snugfit.results.verdicts import Law, Verdict

_LOWEST = -17
"""Errors are drawn from 1e-17, below which float64 has no digit, to 1."""

LAWS_STYLE = """
.laws td,.laws th{vertical-align:top}.laws th{color:inherit;font-weight:560}
.laws small{display:block;font-weight:400}
.laws .verdict{font-weight:620;white-space:nowrap}
.laws .held{color:var(--good)}.laws .broken{color:var(--bad)}.laws .exempt{color:var(--muted)}
.scale{width:100%;min-width:140px;height:22px;display:block}
.scale .bound{stroke:var(--ink);stroke-width:1.5px}
.scale .held{fill:var(--good)}.scale .broken{fill:var(--bad)}.scale .exempt{fill:var(--tone8)}
@media (max-width:600px){.laws .drawn{display:none}
.laws tr{display:grid;grid-template-columns:auto 1fr;border-top:1px solid var(--rule);padding:6px 0}
.laws th,.laws td{border:0;padding:0 14px 0 0}.laws th{grid-column:1/-1}}
"""


def laws_table(laws: Sequence[Law]) -> str:
    """Return each law with its verdict, its error on a scale, and what there is to say."""
    rows = "".join(
        f"<tr><th scope=row>{escape(law.title)}<small>{breakable(_explanation(law))}</small></th>"
        f'<td class="verdict {law.verdict}">{law.verdict}</td><td class=drawn>{_scale(law)}</td>'
        f"<td>{escape(law.figures)}</td></tr>"
        for law in laws
    )
    note = "Bars are relative errors on a logarithmic scale from 1e-17 to 1; the line is the bound."
    return f"<table class=laws><tbody>{rows}</tbody></table><p class=note>{note}</p>"


def _explanation(law: Law) -> str:
    sentences = list(law.reasons)
    if law.verdict is not Verdict.HELD and law.module:
        sentences.append(f"module: {law.module}")
    if law.worst and law.verdict is not Verdict.EXEMPT:
        sentences.append(f"furthest off: {law.worst}")
    return " · ".join(sentences)


def _scale(law: Law) -> str:
    """Return the error as a bar on a logarithmic scale, and the bound as a line."""
    if law.error is None:
        return ""
    end, bound = _place(law.error), _place(law.bound)
    line = f'<line class=bound x1="{bound:.1%}" x2="{bound:.1%}" y1="2" y2="20"/>' if law.bound else ""
    return (
        f'<svg class=scale role=img aria-label="{escape(law.figures)}"><title>{escape(law.figures)}</title>'
        f'<rect class="{law.verdict}" x="0" y="7" height="8" width="{max(end, 0.005):.1%}" rx="2"/>{line}</svg>'
    )


def _place(error: float) -> float:
    """Return where an error stands between 1e-17 and 1.

    >>> _place(0.0), _place(1.0), _place(math.inf)
    (0.0, 1.0, 1.0)
    """
    exponent = _LOWEST if error <= 0 else math.log10(error) if error < 1 else 0.0
    return max(0.0, 1 - exponent / _LOWEST)
