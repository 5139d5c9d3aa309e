"""Read the script's own source, before the training, for what it does that no function of torch sees."""

from __future__ import annotations

import os

from snugfit.doctor.observe.events.run_events import (
    CopyUnmoved,
    DrawnApart,
    Fault,
    FittedToAll,
    GraphOfAllEdges,
    LossLost,
    RateUnused,
    ScoreSum,
)
from snugfit.doctor.observe.recording.own_source import line_that_draws_apart, own_files, sets_rate_of_zero
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import shown
from snugfit.doctor.observe.source.idle_lines import (
    copies_under_a_count,
    rate_that_is_only_shown,
    reference_that_learns,
)
from snugfit.doctor.observe.source.late_splits import fitted_before_split, graph_of_all_edges, refitted
from snugfit.doctor.observe.source.lost_terms import lost_terms
from snugfit.doctor.observe.source.score_sums import wrong_sums
from snugfit.doctor.observe.source.unread_flags import flags_left_out


def look_at_source(recorder: Recorder) -> None:
    """Note, before the training, what the script's source does that no function of torch sees, once: arrays that it shuffles or splits apart, or too late, and losses that it throws away."""
    if recorder.source_read:
        return
    recorder.source_read = True
    # when the script has ended it is no module any more
    recorder.log.sources = {str(shown(file)): os.path.abspath(file) for file in own_files()}
    update = recorder.log.updates
    recorder.log.zero_rate = sets_rate_of_zero()
    apart = line_that_draws_apart()
    if apart is not None:
        recorder.add(DrawnApart(apart[0], update, apart[1], apart[2]))
    for file in own_files():
        for lost in lost_terms(file):
            recorder.add(LossLost(f"{shown(file)}:{lost.line}", update, lost.name, lost.each_pass))
        rate = rate_that_is_only_shown(file)
        if rate is not None:
            recorder.add(RateUnused(f"{shown(file)}:{rate.line}", update, rate.name))
        for each in wrong_sums(file):
            at = f"{shown(file)}:{each.line}"
            recorder.add(ScoreSum(at, update, each.name, each.first, each.last, each.way))
        flags = flags_left_out(file)
        if flags is not None:
            what = (
                f"The value of the next state is added to the reward of each step, also of the last one of an episode: `{flags.name}` is set and never read, "
                "and values grow by what comes after an end."
            )
            fix = f"targets = rewards + gamma * next_values * (1 - {flags.name}.float())"
            recorder.add(Fault(f"{shown(file)}:{flags.line}", update, "ends_left_out", what, fix))
        reference = reference_that_learns(file)
        if reference is not None:
            what = f"`{reference.name}` is one model under two names: it is compared with itself, and moves as it learns."
            fix = f"{reference.name.partition(' = ')[0]} = copy.deepcopy({reference.name.rpartition(' ')[2]}).eval().requires_grad_(False)"
            at = f"{shown(file)}:{reference.line}"
            recorder.add(Fault(at, update, "best_not_copied", what, fix))
        for copy in copies_under_a_count(file):
            recorder.add(CopyUnmoved(f"{shown(file)}:{copy.line}", update, copy.name))
        fitted, graph = fitted_before_split(file), graph_of_all_edges(file)
        again = refitted(file)
        if again is not None:
            what = f"`{again.made_by}` is fitted anew to rows that are scored: they are scaled by their own statistics, not by those of the training."
            fix = f"test = {again.made_by}.transform(test)"
            recorder.add(Fault(f"{shown(file)}:{again.line}", update, "other_statistics", what, fix))
        if fitted is not None:
            split_at = f"{shown(file)}:{fitted.split}"
            recorder.add(FittedToAll(f"{shown(file)}:{fitted.line}", update, fitted.made_by, split_at))
        if graph is not None:
            split_at = f"{shown(file)}:{graph.split}"
            recorder.add(GraphOfAllEdges(f"{shown(file)}:{graph.line}", update, graph.made_by, split_at))
