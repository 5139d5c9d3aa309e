"""Tokens that a decoder reads one place after the other, beside the labels of these places: the one that it is to write, or truths given in an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.events.run_events import Fault
from snugfit.doctor.observe.events.script_events import Forward
from snugfit.doctor.observe.graphs.dependence import is_noticed, sensitivity
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import line_in, own_frames, where
from snugfit.doctor.observe.source.overwritten_names import is_repeated

MOST_FRAMES, FEW = 4, 4
"""Entries of an embedding that are segments or types, not tokens."""
LEAST_ROWS, LEAST_PLACES, LEAST_SEEN, LEAST_EVALUATED = 4, 3, 3, 2


def look_at_step(recorder: Recorder, embedding: nn.Embedding, tokens: Tensor) -> None:
    """Note the tokens of one place of each row, which an embedding reads after those of the place before."""
    if (
        tokens.dim() in (1, 2)
        and tokens.numel() == len(tokens) >= LEAST_ROWS
        and embedding.num_embeddings > FEW
    ):
        recorder.tokens.note_step(embedding, tokens, _line_of_loop)


def look_at_steps(
    recorder: Recorder, scores: Tensor, target: Tensor, ignored: int, classes: int, *, hooked: bool
) -> None:
    """Note a loss of whose labels some are the very tokens that the decoder was given for their places, and none is the next one.

    What is read whole and then written, as by an autoencoder, is copied rightly: its scores come after the last token.

    Args:
        hooked: whether the script has hooks that would notice a look at its graph.
    """
    steps, scored = recorder.tokens.steps, recorder.tokens.scored
    of_tokens = classes == recorder.tokens.vocabulary_of_steps and not target.is_floating_point()
    if not steps or not of_tokens or not torch.is_grad_enabled():
        return
    if target.numel() == len(steps[0]):
        recorder.tokens.scored = len(steps)
    if len(steps) < LEAST_PLACES:
        return
    numbers = torch.arange(target.numel(), device=target.device).reshape(target.shape)
    for labels, places in zip(_by_places(target.detach(), steps), _by_places(numbers, steps), strict=True):
        afterwards = len(labels) > 1 or not scored  # by place, the first loss comes when all tokens were read
        read = steps[: len(labels)] if afterwards else steps[-1:]
        given, counts = torch.stack(read), labels != ignored
        same, following = _equal(given, labels, counts), _equal(given[1:], labels[:-1], counts[1:])
        if not any(same) or any(following) or any(map(torch.equal, steps, steps[1:])):
            continue
        if afterwards:
            written = not is_noticed(hooked=hooked) and _is_written_between(recorder, scores, places[0])
        else:  # a loss follows each token, before the next is read
            written = scored == len(steps) - 1
        if not written:
            continue
        what = (
            f"{sum(same)} of {len(same)} tokens that a decoder reads one after the other are the ones that it is to write at their places: "
            "it learns to copy, not to write the next token."
        )
        fix = "token = target[:, t - 1]   # and the token that begins a text at first; the loss has target[:, t]"
        recorder.add(
            Fault(recorder.tokens.steps_at, recorder.log.updates, "shifted_labels", what, fix, LEAST_SEEN)
        )
        return


def look_at_truths(recorder: Recorder, one: Any, other: Any) -> None:
    """Note an evaluation in which a decoder reads what it wrote itself at one place and the truth at a later one."""
    steps = recorder.tokens.steps
    given = isinstance(one, Tensor) and isinstance(other, Tensor) and recorder.active
    if not given or one.shape != other.shape:
        return
    last = next((each for each in reversed(recorder.log.events) if isinstance(each, Forward)), None)
    if last is None or last.grad:
        return
    pairs = zip(_by_places(one.detach(), steps), _by_places(other.detach(), steps), strict=True)
    if any(_are_mixed(steps, *pair) for pair in pairs):
        what = (
            "In the evaluation the decoder reads what it wrote itself at some places and the truth at others: its score is that of neither, "
            "and another one each time."
        )
        fix = "scores = model(source, target, teacher_forcing_ratio=0.0)   # in an evaluation"
        recorder.add(Fault(last.at, recorder.log.updates, "random_validation", what, fix, LEAST_EVALUATED))


def _is_written_between(recorder: Recorder, scores: Tensor, first: Tensor) -> bool:
    """Return whether the scores of the first place, by their numbers, depend on the first token that was read and not on the last."""
    tokens = recorder.tokens
    if tokens.first_read is None or tokens.last_read is None:
        return False
    of_first = scores.movedim(1, -1).reshape(-1, scores.shape[1])[first].square().sum()
    depends = [
        each.requires_grad and (gradient := sensitivity(of_first, each)) is not None and bool(gradient.any())
        for each in (tokens.first_read, tokens.last_read)
    ]
    return depends == [True, False]


def _line_of_loop() -> str:
    """Return the line that a loop of the script stands at, of the innermost one around this call; that of the call itself without."""
    for frame in own_frames(MOST_FRAMES):
        if is_repeated(frame.f_code.co_filename, frame.f_lineno):
            return line_in(frame, frame.f_lineno)
    return where()


def _by_places(labels: Tensor, steps: list[Tensor]) -> Iterator[Tensor]:
    """Yield labels as places by rows, in each way in which they may lie: one place alone, as many as were read, flat or not."""
    rows = len(steps[0])
    places = labels.numel() // rows
    if labels.device != steps[0].device:
        return
    if places * rows != labels.numel() or places not in (1, len(steps)):
        return
    if labels.dim() < 2 or labels.shape[:2] == (rows, places):
        yield labels.reshape(rows, places).t()
    if places > 1 and (labels.dim() < 2 or labels.shape[:2] == (places, rows)):
        yield labels.reshape(places, rows)


def _equal(given: Tensor, labels: Tensor, counts: Tensor) -> list[bool]:
    """Return of each place whether all rows that count have the same token on both sides, and not all of them one."""
    return [
        int(each.sum()) >= LEAST_ROWS
        and torch.equal(read[each], wanted[each])
        and bool((wanted[each] != wanted[each][0]).any())
        for read, wanted, each in zip(given, labels, counts, strict=True)
    ]


def _are_mixed(steps: list[Tensor], one: Tensor, other: Tensor) -> bool:
    """Return whether places read the one side of a comparison, then the other, and then the one again, each as it is at the place before.

    Which is the truth need not be known: a beginning that is given, and a text that is written behind it, change sides once.
    """
    sides: list[bool] = []
    for read, first, second in zip(steps[1:], one[:-1], other[:-1], strict=True):
        differ = first != second
        if int(differ.sum()) < LEAST_ROWS:
            continue
        for side, given in ((True, first), (False, second)):
            if torch.equal(read[differ], given[differ]) and sides[-1:] != [side]:
                sides.append(side)
    return len(sides) > 2
