"""The doctor's report on one training: what was looked at and what was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snugfit.doctor.findings import Certainty, Finding, in_order, is_ill
from snugfit.results.shown import Shown

if TYPE_CHECKING:  # imports torch, which the report on a script does without
    from snugfit.doctor.check_tokens import TokenView

_ORDER = tuple(Certainty)


@dataclass(frozen=True, repr=False)
class Examination(Shown):
    """Findings, the surest first.

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
        return cls(name, in_order(findings), tuple(checked), tuple(left_out), tuple(tokens))

    @property
    def ill(self) -> bool:
        """Return whether something is wrong for certain or likely."""
        return is_ill(self.findings)

    @property
    def certain(self) -> bool:
        """Return whether something is wrong for certain."""
        return any(each.certainty is Certainty.CERTAIN for each in self.findings)

    def counted(self) -> dict[str, int]:
        """Return how many findings there are of each certainty, the surest first."""
        return {str(each): sum(finding.certainty is each for finding in self.findings) for each in _ORDER}

    @property
    def summary(self) -> str:
        """Return how many findings there are of each certainty, in words."""
        return ", ".join(f"{count} {grade}" for grade, count in self.counted().items())

    def summary_lines(self) -> list[str]:
        """Return the counts, and a line for each finding."""
        lines = [f"Doctor: {self.name}: {self.summary}"]
        for finding in self.findings:
            where = f" ({finding.where})" if finding.where else ""
            lines.append(f"  {finding.certainty:<12} {finding.pitfall}: {finding.what}{where}")
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
