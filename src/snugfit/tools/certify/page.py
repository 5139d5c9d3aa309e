"""A certificate as one self-contained page, and as a section of a run's report."""

from __future__ import annotations

from pathlib import Path

from snugfit.report.html import facts
from snugfit.report.law_table import LAWS_STYLE, laws_table
from snugfit.report.page import document, replace_page
from snugfit.report.svg import escape
from snugfit.results.verdicts import Certificate
from snugfit.units import format_seconds

PAGE = "certify.html"


class ModelCertificate(Certificate):
    """A certificate with its page in a notebook."""

    def page(self) -> str:
        return render_certificate(self)


def write_certificate(certificate: Certificate, folder: Path) -> Path:
    """Write the page into `folder`, replacing an older one at once, and return its path.

    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(folder / PAGE, render_certificate(certificate))


def render_certificate(certificate: Certificate) -> str:
    """Return the page as text."""
    verdict = f"{len(certificate.broken)} broken" if certificate.broken else "all laws hold"
    status = "failed" if certificate.broken else "finished"
    about = [
        ("computed in", certificate.dtype),
        ("device", certificate.device),
        ("examples of a window", certificate.rows),
        ("micro-batch of the plan", certificate.micro_batch or "the window whole"),
    ]
    header = (
        f"<header><p class=about>Certificate</p><h1>{escape(certificate.name)}</h1>"
        f'<p class=identity><span class="status {status}">{escape(verdict.capitalize())}</span>'
        f"<span>{format_seconds(certificate.seconds)}</span></p></header>"
    )
    body = (
        header,
        f"<section><h2>The laws</h2>{laws_table(certificate.laws)}</section>",
        _trials(certificate),
        f"<section><h2>How it was tried</h2>{facts(about)}{_conditions(certificate)}</section>",
        "<footer>Made by Snugfit. Every error is measured on this model and its own data.</footer>",
    )
    return document(f"{certificate.name} · {verdict} · Snugfit", body, LAWS_STYLE)


def _trials(certificate: Certificate) -> str:
    rows = "".join(
        f"<tr><th scope=row>{'' if place else escape(law.title)}</th><td>{escape(trial.what)}</td>"
        f"<td class=number>{trial.error:.1e}</td><td>{escape(trial.worst)}</td></tr>"
        for law in certificate.laws
        for place, trial in enumerate(law.trials)
    )
    head = "<thead><tr><th>law</th><th>tried with</th><th class=number>error</th><th>furthest off</th></tr></thead>"
    return (
        f"<section><h2>What was compared</h2><table>{head}<tbody>{rows}</tbody></table></section>"
        if rows
        else ""
    )


def _conditions(certificate: Certificate) -> str:
    return "".join(
        f"<p class=note>{escape(each[:1].upper() + each[1:])}.</p>" for each in certificate.conditions
    )
