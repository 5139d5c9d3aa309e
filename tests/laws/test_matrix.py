"""The matrix: every two techniques that are not refused keep the laws together.

One short run a pair, in float64 where both can be tried in it: its windows whole against its windows split, with the two listed the other way
round; a window in between that is not finite; and the split run stopped behind that window and gone on with.
"""

from __future__ import annotations

import math

import pytest

from snugfit.core.technique import Technique
from tests.laws import problems
from tests.laws.problems import besides_scale, differences, make_step, poisoned, relative_error, saved

BAD = 1


@pytest.mark.slow  # thousands, each of some hundredths of a second
@pytest.mark.parametrize("pair", problems.legal_pairs(), ids=problems.name_of)
def test_two_techniques_keep_the_laws_together(pair: tuple[Technique, ...]) -> None:
    problem = problems.main(pair)
    first, second, third = problem.windows()
    windows = [first, poisoned(second, math.nan), second, third]
    whole = make_step(problem, pair)
    split = make_step(problem, pair[::-1], micro_batch=3)
    states = []
    for number, window in enumerate(windows):
        before = saved(split)
        one, other = whole(window), split(window)
        states.append(saved(split))
        assert one.applied == other.applied == (number != BAD), f"window {number}"
        if number == BAD:  # law 5: it changes nothing
            assert besides_scale(split, changed(before, states[-1])) <= {
                "/progress/windows",
                "/progress/skipped",
                "/progress/examples",
            }
            continue
        if any(technique.card.couples_examples for technique in pair):
            continue
        # law 1: any split gives the same update, and the order of the list does not matter
        assert other.loss == pytest.approx(one.loss, rel=problem.tolerance)
        assert (
            relative_error(problems.traces(split), problems.traces(whole), floor=problem.floor)
            <= problem.tolerance
        )
        assert (
            relative_error(problems.weights(split), problems.weights(whole), floor=problem.floor)
            <= problem.tolerance
        )
        assert (
            relative_error(*map(problems.evaluated_weights, (split, whole)), floor=problem.floor)
            <= problem.tolerance
        )

    # law 4: stopped and gone on with, bit for bit
    resumed = make_step(problem, pair, micro_batch=3, model_seed=2)
    resumed.load_state_dict(states[BAD])
    for number in range(BAD + 1, len(windows)):
        resumed(windows[number])
        assert not differences(states[number], saved(resumed)), f"window {number} after the stop"


def changed(before: object, after: object) -> set[str]:
    """Paths that differ; the rate and the momentum of the next update may already be set."""
    return {
        path for path in differences(before, after) if not path.endswith(("/lr", "/momentum", "/betas/0"))
    }


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
