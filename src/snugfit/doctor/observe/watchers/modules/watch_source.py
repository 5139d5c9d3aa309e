"""Read the script's own source, before the training, for what it does that no function of torch sees."""

from __future__ import annotations

import os
from collections.abc import Iterator

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
from snugfit.doctor.observe.source.batch_means import quotients_of_batches
from snugfit.doctor.observe.source.copies_once import target_copied_once
from snugfit.doctor.observe.source.epochs_twice import epochs_twice
from snugfit.doctor.observe.source.idle_lines import (
    copies_under_a_count,
    movers_never_called,
    rate_that_is_only_shown,
    reference_that_learns,
)
from snugfit.doctor.observe.source.late_splits import fitted_before_split, graph_of_all_edges, refitted
from snugfit.doctor.observe.source.lost_terms import lost_terms
from snugfit.doctor.observe.source.one_place import one_place_for_all
from snugfit.doctor.observe.source.own_numbers import numbered_anew
from snugfit.doctor.observe.source.own_statistics import scaled_by_their_own
from snugfit.doctor.observe.source.score_sums import wrong_sums
from snugfit.doctor.observe.source.selection_by_test import Choice, selection_by_test
from snugfit.doctor.observe.source.unread_flags import flags_left_out, masked_in_part, returns_over_ends


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
    idle = movers_never_called(tuple(own_files()))
    if idle is not None:
        file, mover = idle
        what = f"`{mover.name}` moves the weights of a copy after those of the model, and nothing calls it: the copy stays as it began."
        fix = f"{mover.name}()   # after each optimizer.step()"
        recorder.add(Fault(f"{shown(file)}:{mover.line}", update, "average_stands_still", what, fix))
    target = target_copied_once(tuple(own_files()))
    if target is not None:
        recorder.add(CopyUnmoved(f"{shown(target.file)}:{target.line}", update, target.name, once=True))
    for file in own_files():
        _look_at_file(recorder, file)
        for line, pitfall, what, fix in _faults_of(file):
            recorder.add(Fault(f"{shown(file)}:{line}", update, pitfall, what, fix))


def _look_at_file(recorder: Recorder, file: str) -> None:
    """Note what a file does that is a fault only by what is seen of the training too."""
    update = recorder.log.updates
    for lost in lost_terms(file):
        recorder.add(LossLost(f"{shown(file)}:{lost.line}", update, lost.name, lost.each_pass))
    rate = rate_that_is_only_shown(file)
    if rate is not None:
        recorder.add(RateUnused(f"{shown(file)}:{rate.line}", update, rate.name))
    for each in wrong_sums(file):
        at = f"{shown(file)}:{each.line}"
        recorder.add(ScoreSum(at, update, each.name, each.first, each.last, each.way))
    for copy in copies_under_a_count(file):
        recorder.add(CopyUnmoved(f"{shown(file)}:{copy.line}", update, copy.name))
    for split, event in (
        (fitted_before_split(file), FittedToAll),
        (graph_of_all_edges(file), GraphOfAllEdges),
    ):
        if split is not None:
            at, split_at = (f"{shown(file)}:{line}" for line in (split.line, split.split))
            recorder.add(event(at, update, split.made_by, split_at))


def _faults_of(file: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield the lines of a file that are faults as they stand: each with the pitfall, what it does, and the fix."""
    flags, ends = flags_left_out(file), returns_over_ends(file)
    if flags is not None:
        what = (
            f"The value of the next state is added to the reward of each step, also of the last one of an episode: `{flags.name}` is set and never read, "
            "and values grow by what comes after an end."
        )
        fix = f"targets = rewards + gamma * next_values * (1 - {flags.name}.float())"
        yield flags.line, "ends_left_out", what, fix
    part = masked_in_part(file)
    if part is not None:
        what = (
            f"The value of the next state is added to each reward, also to the last one of an episode: the sum of what comes behind it is masked by `{part.name}`, "
            "and this value is not."
        )
        fix = "delta = reward + gamma * next_value * (1 - done) - value"
        yield part.line, "ends_left_out", what, fix
    if ends is not None:
        what = (
            f"Each reward is given the discounted sum of all behind it, also of those of the episodes after its own: `{ends.name}` is kept and "
            "never read."
        )
        fix = "total = reward + gamma * total * (1 - done)   # nothing of what comes after an end"
        yield ends.line, "ends_left_out", what, fix
    twice = epochs_twice(file)
    if twice is not None:
        what = f"`{twice.name}` is a product with `{twice.epochs}`, and the call is given these beside it: it counts as many times too many steps as there are epochs."
        yield twice.line, "schedule_length", what, f"{twice.name}=len(loader), epochs={twice.epochs}"
    one = one_place_for_all(file)
    if one is not None:
        what = f"`{one.table}` is indexed by the number of places, `{one.length}`, and not cut there: all places get one vector, and none is told from the others."
        yield (
            one.line,
            "wrong_axis",
            what,
            f"x = x + {one.table}[:, :{one.length}]   # the front, a vector for each place",
        )
    quotient, choice = quotients_of_batches(file), selection_by_test(file)
    if quotient is not None:
        what = (
            f"`{quotient.name}` of each batch, at line {quotient.line}, is averaged: it is a quotient over all rows, and the mean of such quotients "
            "is another number."
        )
        fix = "predictions.append(predicted); targets.append(target)   # or the counts, summed up\nscore = f(torch.cat(predictions), torch.cat(targets))"
        yield quotient.averaged, "batch_mean_scores", what, fix
    if choice is not None:
        yield choice.line, "leakage", *_words_of(choice)
    numbers = numbered_anew(file)
    if numbers is not None:
        what = (
            f"What comes by in `{numbers.rows}` is numbered anew, in the order in which it comes there: the numbers are not those of the training, "
            f"of the table at line {numbers.first}."
        )
        fix = "table = numbers_of(train_labels)   # once, and for all rows"
        yield numbers.line, "mismatched_rows", what, fix
    reference, again = reference_that_learns(file), refitted(file)
    if reference is not None:
        what = f"`{reference.name}` is one model under two names: it is compared with itself, and moves as it learns."
        fix = f"{reference.name.partition(' = ')[0]} = copy.deepcopy({reference.name.rpartition(' ')[2]}).eval().requires_grad_(False)"
        yield reference.line, "best_not_copied", what, fix
    own = scaled_by_their_own(file)
    if own is not None:
        what = f"`{own.name}`, which is scored, is scaled by its own mean and deviation, and what is trained on by its own, at line {own.trained}: each has a scale of its own."
        fix = (
            "mean, std = train.mean(0), train.std(0)\ntrain, test = (train - mean) / std, (test - mean) / std"
        )
        yield own.line, "other_statistics", what, fix
    if again is not None:
        what = f"`{again.made_by}` is fitted anew to rows that are scored: they are scaled by their own statistics, not by those of the training."
        fix = f"test = {again.made_by}.transform(test)"
        yield again.line, "other_statistics", what, fix


def _words_of(choice: Choice) -> tuple[str, str]:
    """Return what is wrong with a choice by rows that are to choose nothing, and the fix."""
    if not choice.other:
        what = f"`{choice.name}`, by which something is kept, or waited for, is a score of the rows of the training: it says what was learned by heart."
        return what, f"{choice.name} = evaluate(model, val_loader)"
    fix = f"if val_score > best:   # as scored at line {choice.other}\n    best, best_test = val_score, {choice.name}"
    if choice.unread:
        what = (
            f"What is kept, or waited for, is chosen by `{choice.name}`, the score of the test that is told in the end; the validation that is set aside "
            f"at line {choice.other} is never read."
        )
        return what, "val_score = evaluate(model, val_rows)\nif val_score > best:\n    best = val_score"
    what = (
        f"What is kept, or waited for, is chosen by `{choice.name}`, while a validation is scored beside it: that score says how well the choice "
        "suits the test."
    )
    return what, fix
