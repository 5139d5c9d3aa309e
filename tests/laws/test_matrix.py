"""The matrix: every two techniques that are not refused keep the laws together.

One short run a pair, in float64 where both can be tried in it: its windows whole against its windows split, with the two listed the other way
round; a window in between that is not finite; and the split run stopped behind that window and gone on with.
"""

from __future__ import annotations

import pytest

from snugfit.core.technique import Technique
from snugfit.tools.certify import technique_laws
from tests.laws import problems


@pytest.mark.slow  # thousands, each of some hundredths of a second
@pytest.mark.parametrize("pair", problems.legal_pairs(), ids=problems.name_of)
def test_two_techniques_keep_the_laws_together(pair: tuple[Technique, ...]) -> None:
    law = technique_laws.pair(problems.main(pair), pair)
    assert law.verdict == "held", (law.figures, law.worst, law.reasons)


def test_a_sample_of_the_pairs_has_each_technique_meet_each_seam_that_it_meets_in_any_of_them() -> None:
    pairs = problems.legal_pairs()[::7]

    def meetings(given: list[tuple[Technique, ...]]) -> set[tuple[str, str]]:
        return {
            (one.card.name, seam)
            for pair in given
            for one, other in (pair, pair[::-1])
            for seam in other.card.seams
        }

    sample = problems.covering(pairs)
    assert meetings(sample) == meetings(pairs)
    assert len(sample) < 0.9 * len(pairs) and all(pair in pairs for pair in sample)
