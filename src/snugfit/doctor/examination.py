"""The doctor's report on one training: what was looked at and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snugfit.doctor.findings import Finding, Severity, is_ill
from snugfit.results.shown import Shown
from snugfit.units import counted

if TYPE_CHECKING:  # imports torch, which the report on a script does without
    from snugfit.doctor.check_tokens import TokenView

_ORDER = (Severity.ERROR, Severity.WARNING, Severity.NOTE)


@dataclass(frozen=True, repr=False)
class Examination(Shown):
    """Findings, the worst first.

    Args:
        checked: what was looked at, in words.
        left_out: what could not be looked at, and why.
        tokens: examples as the model gets them, where they are texts.
    """

    name: str
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    tokens: tuple[TokenView, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        findings: Sequence[Finding],
        checked: Sequence[str],
        left_out: Sequence[str] = (),
        tokens: Sequence[TokenView] = (),
    ) -> Examination:
        """Sorted; what was found twice is there once."""
        once = list(dict.fromkeys(findings))
        ordered = sorted(once, key=lambda finding: _ORDER.index(finding.severity))
        return cls(name, tuple(ordered), tuple(checked), tuple(left_out), tuple(tokens))

    @property
    def ill(self) -> bool:
        """Return whether there is an error or a warning."""
        return is_ill(self.findings)

    @property
    def certain(self) -> bool:
        """Return whether there is an error, which nothing but the fault explains."""
        return any(each.severity is Severity.ERROR for each in self.findings)

    def counted(self) -> dict[str, int]:
        """Return how many findings there are of each severity, the worst first."""
        return {str(each): sum(finding.severity is each for finding in self.findings) for each in _ORDER}

    @property
    def summary(self) -> str:
        """Return how many findings there are of each severity, in words."""
        return ", ".join(counted(count, grade) for grade, count in self.counted().items())

    def summary_lines(self) -> list[str]:
        """Return the counts, and a line for each finding."""
        lines = [f"Doctor: {self.name}: {self.summary}"]
        for finding in self.findings:
            where = f" ({finding.where})" if finding.where else ""
            lines.append(f"  {finding.severity:<8} {finding.pitfall}: {finding.what}{where}")
        return lines + [f"  not looked at: {sentence}" for sentence in self.left_out]

    def page(self) -> str:
        """Return the page that the command writes."""
        from snugfit.doctor.page import examination_page

        return examination_page(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "name": self.name,
            "ill": self.ill,
            "findings": [finding.as_dict() for finding in self.findings],
            "checked": list(self.checked),
            "left_out": list(self.left_out),
            "tokens": [view.as_dict() for view in self.tokens],
        }
