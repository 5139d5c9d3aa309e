"""A certificate as one self-contained page, and as a section of a run's report."""

from __future__ import annotations

from pathlib import Path

from snugfit.report.html import facts, table
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
    rows = [
        ("" if place else law.title, f"{trial.error:.1e}", trial.what, trial.worst)
        for law in certificate.laws
        for place, trial in enumerate(law.trials)
    ]
    body = table(("law", "error", "tried with", "furthest off"), rows, 1, named=True)
    return f"<section><h2>What was compared</h2>{body}</section>" if rows else ""


def _conditions(certificate: Certificate) -> str:
    return "".join(
        f"<p class=note>{escape(each[:1].upper() + each[1:])}.</p>" for each in certificate.conditions
    )
