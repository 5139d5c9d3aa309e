"""The doctor's findings as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from snugfit.doctor.check_tokens import TokenView
from snugfit.doctor.examination import Examination
from snugfit.doctor.findings import PITFALLS, Certainty, Finding
from snugfit.report.html import breakable
from snugfit.report.page import document, make_folder_of, replace_page
from snugfit.report.svg import escape
from snugfit.units import counted

PAGE = "doctor.html"

DOCTOR_STYLE = """
.finding{border-top:1px solid var(--rule);padding:18px 0;display:grid;grid-template-columns:96px 1fr;gap:0 20px}
.finding .grade{font-weight:620}.finding .certain{color:var(--bad)}.finding .likely{color:var(--fair)}.finding .worth_a_look{color:var(--muted)}
.finding p{max-width:80ch}.finding .about{margin:2px 0 8px}.finding ul{margin:8px 0 0 18px;color:var(--muted);font-size:14px}
.finding pre{margin-top:12px;padding:10px 14px;white-space:pre-wrap}
.decoded{margin-top:16px}.decoded pre{white-space:pre-wrap}
@media (max-width:600px){.finding{grid-template-columns:1fr}}
"""


def write_examination(examination: Examination, folder: Path) -> Path:
    """Write the page into `folder`, which is made where it is missing, replacing an older one at once, and return its path.

    Raises:
        RunFolderError: it cannot be written.
    """
    make_folder_of(folder / PAGE)
    return replace_page(folder / PAGE, examination_page(examination))


def examination_page(examination: Examination) -> str:
    """Return the page as text."""
    name, findings = examination.name, examination.findings
    verdict, status = _verdict(findings)
    header = (
        f"<header><p class=about>Doctor</p><h1>{escape(name)}</h1>"
        f'<p class=identity><span class="status {status}">{escape(verdict)}</span>'
        f"<span>{escape(', '.join(examination.checked))}</span></p></header>"
    )
    body = (
        header,
        _section(
            "What was found", "".join(map(_finding, findings)) or "<p>Nothing that is known to go wrong.</p>"
        ),
        _section("What the model reads", "".join(map(_decoded, examination.tokens))),
        _section(
            "What was not looked at", "".join(f"<p>{escape(each)}</p>" for each in examination.left_out)
        ),
        f"<footer>Made by Snugfit, which knows {len(PITFALLS)} pitfalls.</footer>",
    )
    return document(f"{name} · {verdict} · Snugfit", body, DOCTOR_STYLE)


def _verdict(findings: Sequence[Finding]) -> tuple[str, str]:
    grades = [sum(each.certainty is grade for each in findings) for grade in Certainty]
    counts = [f"{count} {grade}" for count, grade in zip(grades, Certainty, strict=True) if count]
    status = "failed" if grades[0] else "stopped" if grades[1] else "finished"
    return ", ".join(counts) or "Healthy", status


def _finding(finding: Finding) -> str:
    evidence = "".join(f"<li>{breakable(each)}</li>" for each in finding.details)
    where = f"<code>{breakable(finding.where)}</code> · " if finding.where else ""
    return (
        f'<div class=finding><div class="grade {finding.certainty.name.lower()}">{finding.certainty}</div><div>'
        f"<p>{escape(finding.what[:1].upper() + finding.what[1:].rstrip('.'))}.</p>"
        f"<p class=about>{where}{escape(PITFALLS[finding.pitfall])}</p>"
        f"{f'<ul>{evidence}</ul>' if evidence else ''}"
        f"{f'<pre>{escape(finding.fix)}</pre>' if finding.fix else ''}</div></div>"
    )


def _decoded(view: TokenView) -> str:
    special = ", ".join(f"{name} {count}" for name, count in view.special.items()) or "no special token"
    facts = [counted(view.tokens, "token"), special]
    if view.scored is not None:
        facts.append(f"{view.scored:,} scored")
    if view.cut:
        facts.append("fills the length")
    return f"<div class=decoded><p class=about>{escape(' · '.join(facts))}</p><pre>{escape(view.text)}</pre></div>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""
