"""The tokenizer's work on the texts: a few examples decoded, and their special tokens counted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from snugfit.core.batch import IGNORE_INDEX
from snugfit.data.texts.chat_template import ChatTemplate
from snugfit.data.texts.tokens import sequences_in, special_frame
from snugfit.doctor.findings import LEAST_ENDS, Certainty, Finding
from snugfit.errors import DataError, SettingError
from snugfit.kit.language_models.generation import stops_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SHOWN = 4
LOOKED = 2000


@dataclass(frozen=True)
class TokenView:
    """An example as the model gets it.

    Args:
        text: decoded, with special tokens.
        tokens: how many, without padding.
        special: how often each special token stands in it.
        scored: labels that count; None where the example has one for the whole text.
        cut: whether it fills `max_length`.
    """

    text: str
    tokens: int
    special: Mapping[str, int]
    scored: int | None
    cut: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def views(
    examples: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[TokenView, ...]:
    """Return the first few examples, decoded."""
    shown = []
    for place in range(min(SHOWN, len(examples))):
        example = sequences_in(examples[place])[0]
        ids = [int(each) for each in example["input_ids"]]
        special = Counter(each for each in ids if each in tokenizer.all_special_ids)
        names = {str(tokenizer.convert_ids_to_tokens(each)): count for each, count in special.items()}
        labels = example.get("labels")
        scored = None
        if isinstance(labels, (list, tuple)):
            scored = sum(int(label) != IGNORE_INDEX for label in labels)
        text = str(tokenizer.decode(ids, skip_special_tokens=False))
        shown.append(TokenView(text, len(ids), names, scored, len(ids) >= max_length))
    return tuple(shown)


def examine_tokens(
    examples: Sequence[Mapping[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    framed: bool,
    writes: bool = True,
) -> Iterator[Finding]:
    """Yield special tokens that stand twice where they stand once, or are missing.

    Args:
        framed: whether each example is a text with the special tokens that the tokenizer puts around one.
        writes: whether texts are learned to be written, and so to be ended.
    """
    sequences = [
        each for place in range(min(LOOKED, len(examples))) for each in sequences_in(examples[place])
    ]
    ids = [list(map(int, each["input_ids"])) for each in sequences]
    once = {each for each in (tokenizer.bos_token_id, tokenizer.cls_token_id) if each is not None}
    doubled = [each for each in ids if any(a == b and a in once for a, b in itertools.pairwise(each))]
    if doubled:
        first = next(a for a, b in itertools.pairwise(doubled[0]) if a == b and a in once)
        name = tokenizer.convert_ids_to_tokens(first)
        yield Finding(
            "special_tokens",
            Certainty.LIKELY,
            f"in {len(doubled):,} of {len(ids):,} examples '{name}' stands twice in a row: it is in the texts, and the tokenizer adds one",
            evidence=(f"begins with {' '.join(map(str, tokenizer.convert_ids_to_tokens(doubled[0][:6])))}",),
            fix=f"remove '{name}' from the texts, or tokenizer(text, add_special_tokens=False)",
        )
    if framed:
        yield from _frames(ids, tokenizer)
    if writes:
        yield from end_never_scored(sequences, tokenizer)


def end_never_scored(
    examples: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> Iterator[Finding]:
    """Detect that tokens end the texts or their turns, other labels count, and none of these tokens is ever a label."""
    ends = _ends(tokenizer)
    labelled = [each for each in examples if isinstance(each.get("labels"), (list, tuple))]
    counts = Counter(int(token) for each in labelled for token in each["input_ids"][1:] if int(token) in ends)
    scored = sum(int(label) in ends for each in labelled for label in each["labels"])
    learns = any(int(label) != IGNORE_INDEX for each in labelled for label in each["labels"])
    if not learns or scored or counts.total() < LEAST_ENDS:
        return
    names = ", ".join(map(str, tokenizer.convert_ids_to_tokens(sorted(counts))))
    yield Finding(
        "end_never_scored",
        Certainty.LIKELY,
        f"none of {counts.total():,} tokens that end a text or a turn ({names}) is scored: the model does not learn to stop",
        where="data.train",
        fix="let the end of an answer count: its label is the token itself, not -100",
    )


def _ends(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the tokens that end a turn or a text, as a generation stops by them."""
    own: tuple[int, ...] = ()
    if tokenizer.chat_template:
        with suppress(SettingError):  # a template that cannot be used is an error of the recipe itself
            own = ChatTemplate(tokenizer).end_ids
    begins = {tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.cls_token_id}
    return {*stops_of(tokenizer, own)} - begins


def _frames(ids: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    try:
        frame = special_frame(tokenizer)
    except DataError as error:
        yield Finding(
            "special_tokens",
            Certainty.CERTAIN,
            str(error),
            where="tokenizer",
            fix='"add_bos_token": false   # in tokenizer_config.json',
        )
        return
    prefix, suffix = list(frame.prefix), list(frame.suffix)
    bare = [
        each
        for each in ids
        if (prefix and list(each[: len(prefix)]) != prefix)
        or (suffix and list(each[-len(suffix) :]) != suffix)
    ]
    if bare:
        names = " ".join(map(str, tokenizer.convert_ids_to_tokens([*prefix, *suffix])))
        yield Finding(
            "special_tokens",
            Certainty.LIKELY,
            f"{len(bare):,} of {len(ids):,} examples lack special tokens that the model was trained with ({names})",
            evidence=(
                f"begins with {' '.join(map(str, tokenizer.convert_ids_to_tokens(list(bare[0][:6]))))}",
            ),
            fix="tokenizer(text)  # with add_special_tokens left on",
        )
