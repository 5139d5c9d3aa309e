"""Labels and tokens: what the loss and the model are given."""

from __future__ import annotations

import itertools
from collections import Counter

from snugfit.doctor.findings import LEAST_ENDS, Certainty, Finding
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import trained_models, training_loaders
from snugfit.doctor.observe.events.run_events import EndSeen, OneClassPredicted, PlaceLabels
from snugfit.doctor.observe.events.script_events import Forward, Loss, OutsideDomain, ScoresAsLogits
from snugfit.doctor.observe.events.text_events import HeadTokens, Labels, MaskedTokens, Tokenized
from snugfit.doctor.observe.source.cut_labels import cut_behind_division
from snugfit.doctor.observe.source.trails import Trails, place_of

NEARLY_ALL = 0.99
MANY_CUT = 0.5
MANY_BARE = 0.25
"""Share of the texts without a label, for which a few long questions that were cut do not account."""
LEAST_LABELS = 100
LARGE_RATIO = 20
FEW_PADDING = 0.05
LEAST_SORTED, LEAST_OF_TWO = 6, 3
NOTABLE_RATIO = 10
LEAST_CLASSES, LEAST_OF_CLASS = 3, 20
LEAST_TAUGHT, AT_THE_END, MOST_PLACES = 50, 0.8, 0.9


def softmax_twice(log: Log) -> list[Finding]:
    """Probabilities go into a loss, or a distribution, that applies the softmax (or sigmoid) itself."""
    for drawn in log.of(ScoresAsLogits):
        return [
            Finding(
                "softmax_twice",
                Certainty.CERTAIN,
                f"{drawn.function} gets probabilities as its logits: it applies a softmax or sigmoid to them once more.",
                drawn.at,
                ("the logits are made by a softmax or sigmoid",),
                f"{drawn.function}(scores)   # as the last layer gives them"
                if drawn.function.islower()
                else f"{drawn.function}(probs=probabilities)   # or {drawn.function}(logits=scores)",
            )
        ]
    for loss in log.of(Loss):
        if loss.given == "probabilities" and loss.function != "binary_cross_entropy":
            wants = "log-probabilities" if loss.function == "nll_loss" else "raw scores"
            return [
                Finding(
                    "softmax_twice",
                    Certainty.CERTAIN,
                    f"{loss.function} gets probabilities; it wants {wants}.",
                    loss.squashed_at or loss.at,
                    (f"seen at {loss.at}",) * bool(loss.squashed_at)
                    + ("the scores of each row lie between 0 and 1, or come from a softmax or sigmoid",),
                    "loss = F.cross_entropy(logits, labels)   # logits as the last layer gives them",
                )
            ]
        if loss.given == "log probabilities" and loss.function == "cross_entropy" and loss.grad:
            return [
                Finding(
                    "softmax_twice",
                    Certainty.WORTH_A_LOOK,
                    "cross_entropy gets log-probabilities: the second log-softmax changes nothing and costs time.",
                    loss.at,
                    (),
                    "F.cross_entropy(logits, labels), or F.nll_loss(log_probabilities, labels)",
                )
            ]
    return []


def ignored_labels(log: Log) -> list[Finding]:
    """No label, or hardly any, counts."""
    losses = [loss for loss in log.of(Loss) if loss.counted + loss.ignored]
    empty = [loss for loss in losses if not loss.counted]
    counted, ignored = sum(loss.counted for loss in losses), sum(loss.ignored for loss in losses)
    if not empty and (not ignored or ignored < NEARLY_ALL * (counted + ignored)):
        return _bare_rows(log)
    first = empty[0] if empty else losses[0]
    return [
        Finding(
            "ignored_labels",
            Certainty.CERTAIN if empty else Certainty.LIKELY,
            f"{ignored} of {counted + ignored} labels have the ignored value"
            + (f"; {len(empty)} batches have no other, and their mean loss is nan." if empty else "."),
            first.at,
            (),
            "Check how labels are masked: only padding and the prompt should be -100.",
        )
    ]


def _bare_rows(log: Log) -> list[Finding]:
    """Return texts of which no token is learned, beside others of which some are: what marks the answer is not found in them, or was cut.

    They are beside those that are learned at the same line: a phase before, in which all tokens count, says nothing of them.
    """
    seen = [each for each in log.of(Labels) if each.bare]
    lines = {each.at for each in seen}
    rows, bare = (
        sum(each.rows for each in log.of(Labels) if each.at in lines),
        sum(each.bare for each in seen),
    )
    if len(seen) < 2 or bare < MANY_BARE * rows:
        return []
    return [
        Finding(
            "ignored_labels",
            Certainty.LIKELY,
            f"{bare} of {rows} texts have no label that counts: they are computed, and nothing is learned of them.",
            seen[0].at,
            (f"in {len(seen)} batches; others have labels",),
            "Check that what marks the answer is found in each text, as tokens, and is not cut off.",
        )
    ]


def unknown_label(log: Log) -> list[Finding]:
    """Detect that a label is no class of the model."""
    for loss in log.of(Loss):
        if loss.unknown is not None:
            return [
                Finding(
                    "unknown_label",
                    Certainty.CERTAIN,
                    f"Label {loss.unknown} is outside of the model's {loss.classes} classes (0 to {loss.classes - 1}).",
                    loss.at,
                    (),
                    "labels = {name: index for index, name in enumerate(sorted(names))}; the last layer needs len(labels) outputs",
                )
            ]
    return []


def unused_class(log: Log) -> list[Finding]:
    """Detect that the first class is never a label, and each of the others often: they are counted from 1.

    Where rows have many labels, in one line too, these are tokens or pixels, whose first class may be padding, or the rest, that no row here has.
    """
    calls: dict[tuple[str, int], list[Loss]] = {}
    rows = 0
    for loss in log.events:
        if isinstance(loss, Forward) and loss.grad:
            rows = loss.rows
        if not isinstance(loss, Loss) or (rows and loss.counted + loss.ignored > rows):
            continue
        if loss.grad and loss.labels and loss.classes >= LEAST_CLASSES and not loss.tokens:
            calls.setdefault((loss.at, loss.classes), []).append(loss)
    for (at, classes), losses in calls.items():
        counts = sum((Counter(loss.labels) for loss in losses), Counter[str]())
        others = [counts[str(each)] for each in range(1, classes)]
        if (
            counts["0"]
            or any(loss.ignored or loss.ignores_first for loss in losses)
            or min(others) < LEAST_OF_CLASS
        ):
            continue
        return [
            Finding(
                "unused_class",
                Certainty.LIKELY,
                f"No label is class 0, and each of the other {classes - 1} is one: labels seem to be counted from 1.",
                at,
                (f"{sum(others):,} labels, the rarest class {min(others)} times",),
                f"loss = F.cross_entropy(scores, labels - 1)   # and {classes - 1} scores",
            )
        ]
    return []


def outside_domain(log: Log) -> list[Finding]:
    """Detect targets that a loss does not take, and that torch does not refuse."""
    for event in log.of(OutsideDomain):
        far = (
            event.function.startswith("binary") and event.value > 1
        )  # as a mask of 0 and 255 has, not a label of -1
        return [
            Finding(
                "unreachable_targets" if far else "unknown_label",
                Certainty.CERTAIN,
                f"{event.function} takes {event.wanted}, and gets {event.value:g}.",
                event.at,
                (),
                event.fix,
            )
        ]
    return []


def _of_whole_rows(log: Log) -> list[Loss]:
    """Losses with one label for each row of the batch: not for proposals, pixels or pairs."""
    losses, rows = [], 0
    for event in log.events:
        if isinstance(event, Forward):
            rows = event.rows
        elif isinstance(event, Loss) and event.counted + event.ignored == rows:
            losses.append(event)
    return losses


def imbalance(log: Log) -> list[Finding]:
    """Detect that one class has many more labels than another."""
    losses = [loss for loss in _of_whole_rows(log) if loss.grad and loss.labels and not loss.tokens]
    counts = sum((Counter(loss.labels) for loss in losses), Counter[str]())
    if len(counts) < 2 or counts.total() < LEAST_LABELS:
        return []
    (most, large), (least, small) = counts.most_common()[0], counts.most_common()[-1]
    if large < NOTABLE_RATIO * small:
        return []
    answered = any(loss.weighted for loss in losses)
    return [
        Finding(
            "imbalance",
            Certainty.LIKELY if large >= LARGE_RATIO * small and not answered else Certainty.WORTH_A_LOOK,
            f"Class {most} has {large} labels, class {least} {small}: {large / small:.0f} to 1.",
            losses[0].at,
            (f"{len(counts)} classes, {counts.total()} labels seen",),
            "F.cross_entropy(logits, labels, weight=class_weights), or a WeightedRandomSampler; score with a balanced metric",
        )
    ]


def one_class_everywhere(log: Log) -> list[Finding]:
    """Detect that a model of pictures ends with one class for all places, nearly all of which have it, and was taught so without weights."""
    seen = list(log.of(OneClassPredicted))
    if not log.complete or log.updates < LEAST_TAUGHT or any(loss.weighted for loss in log.of(Loss)):
        return []
    for model in trained_models(log):
        last = max((each.update for each in seen if each.model == model), default=0)
        events = [each for each in seen if each.model == model and each.update == last]
        alike, whole = (sum(getattr(each, name) for each in events) for name in ("alike", "whole"))
        classes = {each.predicted for each in events}
        if last < AT_THE_END * log.updates or len(classes) != 1 or -1 in classes:
            continue
        if MOST_PLACES * whole <= alike < whole:
            return [
                Finding(
                    "imbalance",
                    Certainty.LIKELY,
                    f"At the end all places of the pictures are given class {classes.pop()}, which {alike / whole:.1%} of them have: the loss is low where no other is ever found.",
                    events[0].at,
                    (f"{whole:,} places after {last} updates, {whole - alike:,} of them of other classes",),
                    "F.cross_entropy(scores, masks, weight=class_weights)   # or pos_weight; a Dice loss beside it, not alone",
                )
            ]
    return []


def labels_cut_to_nothing(log: Log) -> list[Finding]:
    """Detect masks that are brought to 0 to 1, as pictures are, and then cut to whole numbers: all of them are class 0."""
    seen = list(log.of(PlaceLabels))
    at = place_of(seen[0].at, log.sources) if len(seen) >= LEAST_SORTED else None
    if at is None or not all(each.alike for each in seen):
        return []
    trails = Trails(log.sources.values())
    cut = cut_behind_division(trails, at)
    if cut is None:
        return []
    shown = next(name for name, file in log.sources.items() if file == cut[0])
    places = sum(each.places for each in seen)
    return [
        Finding(
            "imbalance",
            Certainty.CERTAIN,
            f"All {places:,} labels of the first {len(seen)} batches are class 0, of {seen[0].classes}: the masks are brought to 0 to 1 as pictures are, and cut to whole numbers.",
            f"{shown}:{cut[1]}",
            (f"the loss is computed at {seen[0].at}",),
            "mask = torch.as_tensor(np.array(mask), dtype=torch.long)   # neither ToTensor nor a division: its numbers are classes",
        )
    ]


def sorted_classes(log: Log) -> list[Finding]:
    """Detect rows that come class by class: each batch has one, and the next one is that or a later one."""
    losses = [loss for loss in _of_whole_rows(log) if loss.grad and loss.labels and not loss.tokens]
    losses = [loss for loss in losses if loss.counted > 1]
    classes = [sorted(map(int, loss.labels)) for loss in losses]
    pairs = list(itertools.pairwise(classes))
    in_order = sum(after[0] >= before[-1] for before, after in pairs)
    rises = sum(after[-1] > before[0] for before, after in pairs)
    falls = len(pairs) - in_order
    single = [each[0] for each in classes if len(each) == 1]
    two = len({number for each in classes for number in each}) == 2
    lines = {(loss.at, each[0]) for loss, each in zip(losses, classes, strict=True) if len(each) == 1}
    if len(lines) == len({at for at, _ in lines}):  # a line for each class, as for real and for made rows
        return []
    if len(single) < LEAST_SORTED or min(Counter(single).values(), default=0) < (LEAST_OF_TWO if two else 1):
        return []
    # an epoch begins anew with a fall; sets of real and of made rows fall again and again
    if (
        not rises
        or len(set(single)) < 2
        or falls > len(classes) / LEAST_SORTED
        or 2 * len(single) < len(classes)
    ):
        return []
    loaders = training_loaders(log)
    in_turn = (
        len({(each.at, each.sampler) for each in loaders}) == 1 and loaders[0].sampler == "SequentialSampler"
    )
    return [
        Finding(
            "sorted_classes",
            Certainty.LIKELY,
            f"{len(single)} of {len(losses)} batches have rows of one class alone, and the classes come in order.",
            loaders[0].at if in_turn else losses[0].at,
            (f"classes of the first batches, at {losses[0].at}: {', '.join(map(str, single[:8]))}",),
            "DataLoader(rows, batch_size, shuffle=True)",
        )
    ]


def sorted_rows(log: Log) -> list[Finding]:
    """Detect a loader that hands out the rows that are trained on class by class, whatever the loss takes of them."""
    for loader in training_loaders(log):
        if loader.classes_in_order and not sorted_classes(log):
            return [
                Finding(
                    "sorted_classes",
                    Certainty.LIKELY,
                    f"The rows of a whole pass come in the order of their {loader.classes_in_order} classes: each batch has few of them, the same in each epoch.",
                    loader.at,
                    (f"data: {loader.dataset}",),
                    "DataLoader(rows, batch_size, shuffle=True)",
                )
            ]
    return []


def shifted_labels(log: Log) -> list[Finding]:
    """Detect that labels of a language model are shifted by the script and again by the model, or by nobody."""
    seen = list(log.of(Labels))
    twice = [each for each in seen if each.shifted >= NEARLY_ALL > each.same]
    if twice and len(twice) == len(seen):
        return [
            Finding(
                "shifted_labels",
                Certainty.CERTAIN,
                "The labels are the next tokens already, and the model shifts them again: it learns the token after the next.",
                twice[0].at,
                (f"{twice[0].shifted:.0%} of the labels equal the next input",),
                "model(input_ids=ids, labels=ids)   # the model shifts",
            )
        ]
    shown = [loss for loss in log.of(Loss) if loss.grad and loss.counted and loss.copies >= 0]
    before = [loss for loss in shown if loss.ahead == -1]
    if len(before) > 1 and len(before) == sum(loss.tokens for loss in shown):
        return [
            Finding(
                "shifted_labels",
                Certainty.CERTAIN,
                "Each label is the token before the one that was read: the labels are shifted the other way round.",
                before[0].at,
                (f"in {len(before)} of the first losses",),
                "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())",
            )
        ]
    later = [loss for loss in shown if loss.ahead > 0]
    # heads that guess further tokens too, over the same classes, are meant to
    alike = [loss for loss in shown if later and loss.classes == later[0].classes]
    if len(later) > 1 and all(loss.ahead == 2 for loss in (*later, *alike)):
        return [
            Finding(
                "shifted_labels",
                Certainty.CERTAIN,
                "Each label is the token after the next: the labels are shifted already, and shifted again before the loss.",
                later[0].at,
                (f"in {len(later)} of the first losses; no loss has the next token as its label",),
                "loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())   # targets are ids[1:] already",
            )
        ]
    losses = [
        loss for loss in log.of(Loss) if loss.tokens and loss.grad and loss.counted and loss.copies >= 0
    ]
    copies = [loss for loss in losses if loss.copies >= NEARLY_ALL]
    if copies and len(copies) == len(losses) and not seen:
        return [
            Finding(
                "shifted_labels",
                Certainty.LIKELY,
                "Each label is the input token at the same place: the model learns to copy, not to predict the next token.",
                copies[0].at,
                (f"{copies[0].copies:.0%} of the labels equal the input",),
                "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())",
            )
        ]
    return []


def special_tokens(log: Log) -> list[Finding]:
    """Detect that rows begin with the same special token twice, or without the one that the tokenizer has for it."""
    seen = list(log.of(HeadTokens))
    doubled = [each for each in seen if each.times == 2]
    if len(seen) >= 2 and len(doubled) == len(seen) and len({each.token for each in seen}) == 1:
        name = doubled[0].special.upper() or "same"
        return [
            Finding(
                "special_tokens",
                Certainty.LIKELY,
                f"Every row begins with the {name} token ({doubled[0].token}) twice.",
                doubled[0].at,
                (f"{len(seen)} batches",),
                "tokenizer(text, add_special_tokens=False)   # where the text has them already, as after a chat template",
            )
        ]
    missing = [each for each in seen if each.correct == "cls" and each.special != "cls"]
    if len(seen) >= 2 and len(missing) == len(seen):
        return [
            Finding(
                "special_tokens",
                Certainty.LIKELY,
                "No row begins with the CLS token that the tokenizer has.",
                missing[0].at,
                (f"{len(seen)} batches begin with other tokens",),
                "tokenizer(text)   # without add_special_tokens=False",
            )
        ]
    return []


def own_end_never_scored(log: Log) -> list[Finding]:
    """Detect a vocabulary of the script's whose end of a text is no label, though the texts end at different places."""
    seen = list(log.of(EndSeen))
    counted = sum(each.counted for each in seen)
    if len(seen) < LEAST_OF_TWO or counted < LEAST_LABELS or any(each.ends for each in seen):
        return []
    if not any(each.ignored for each in seen):  # of a text without end
        return []
    return [
        Finding(
            "end_never_scored",
            Certainty.LIKELY,
            f"None of {counted} labels is {seen[0].name}, which the vocabulary has: the model never learns where a text ends.",
            seen[0].at,
            (f"{len(seen)} batches, whose rows end at different places",),
            'ids = [words["<sos>"], *tokens, words["<eos>"]]   # and the end is a label',
        )
    ]


def truncation(log: Log) -> list[Finding]:
    """Texts are cut at the tokenizer's limit."""
    seen = list(log.of(Tokenized))
    texts, cut = sum(each.texts for each in seen), sum(each.cut for each in seen)
    if not cut:
        return []
    first = next(each for each in seen if each.cut)
    return [
        Finding(
            "truncation",
            Certainty.LIKELY if cut >= MANY_CUT * texts and texts >= 10 else Certainty.WORTH_A_LOOK,
            f"{cut} of {texts} texts ({cut / texts:.0%}) are cut at {first.limit} tokens.",
            first.at,
            (),
            "A larger max_length, or overlapping pieces: tokenizer(..., stride=32, return_overflowing_tokens=True)",
        )
    ]


def scored_padding(log: Log) -> list[Finding]:
    """Detect labels that count where the attention mask says that there is only padding."""
    seen = [each for each in log.of(MaskedTokens) if each.scored_padding]
    scored, padding = sum(each.scored for each in seen), sum(each.scored_padding for each in seen)
    if len(seen) < 2 or padding < FEW_PADDING * scored:
        return []
    return [
        Finding(
            "scored_padding",
            Certainty.CERTAIN if seen[0].by_mask else Certainty.LIKELY,
            f"{padding} of {scored} labels that count ({padding / scored:.0%}) are those of padding"
            + (", where the attention mask is 0." if seen[0].by_mask else "."),
            seen[0].at,
            (
                f"{len(seen)} batches",
                *(
                    []
                    if seen[0].by_mask
                    else ["one token ends rows of different lengths, and stands nowhere else"]
                ),
            ),
            "labels = input_ids.masked_fill(attention_mask == 0, -100)"
            if seen[0].by_mask
            else "criterion = nn.CrossEntropyLoss(ignore_index=PAD)",
        )
    ]


def unmasked_padding(log: Log) -> list[Finding]:
    """Detect padding that a model which reads in both directions cannot tell from text."""
    seen = [each for each in log.of(MaskedTokens) if each.unmasked]
    padding, tokens = sum(each.unmasked for each in seen), sum(each.tokens for each in seen)
    if len(seen) < 2 or padding < FEW_PADDING * tokens:
        return []
    return [
        Finding(
            "unmasked_padding",
            Certainty.LIKELY,
            f"{padding} of {tokens} tokens are padding, and the model gets no attention mask, or one of ones alone: it reads them as text.",
            seen[0].at,
            (f"{len(seen)} batches",),
            'model(input_ids=ids, attention_mask=batch["attention_mask"])',
        )
    ]


def end_never_scored(log: Log) -> list[Finding]:
    """Detect that no token which ends a text or a turn is ever learned, though there are some and other labels count."""
    seen = [each for each in log.of(MaskedTokens) if each.scored]
    ends, scored_ends = sum(each.ends for each in seen), sum(each.scored_ends for each in seen)
    if ends < LEAST_ENDS or scored_ends or len(seen) < 2:
        return []
    return [
        Finding(
            "end_never_scored",
            Certainty.LIKELY,
            f"None of {ends} tokens that end a text is scored: the model does not learn to stop.",
            next(each.at for each in seen if each.ends),
            ("their labels have the ignored value, as where the padding token is the one that ends",),
            "labels = input_ids.masked_fill(attention_mask == 0, -100)   # by the mask, not by the padding token",
        )
    ]


DETECTORS = (
    sorted_classes,
    sorted_rows,
    scored_padding,
    unmasked_padding,
    end_never_scored,
    own_end_never_scored,
    softmax_twice,
    ignored_labels,
    unknown_label,
    unused_class,
    outside_domain,
    imbalance,
    labels_cut_to_nothing,
    one_class_everywhere,
    shifted_labels,
    special_tokens,
    truncation,
)
