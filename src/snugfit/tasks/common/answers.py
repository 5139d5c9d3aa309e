"""The use of a language model: prompts to answers, which are generated up to the token that ends them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.tasks.inference import Inference, Prediction, ReadRows, Row, decoder_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase

    from snugfit.data.files.file_rows import FileRows, MapStyle
    from snugfit.data.texts.instruct import ConversationOf, InstructSettings
    from snugfit.kit.language_models.generation import Generation

ANSWER = "answer"


def answering(
    tokenizer: PreTrainedTokenizerBase,
    encode: Callable[[Sequence[Row]], MapStyle],
    stops: Sequence[int],
    generation: Generation | None = None,
    read: ReadRows | None = None,
    streamer: Any = None,
    *,
    scored: bool = False,
) -> Inference:
    """Return the use of a causal language model.

    Args:
        encode: tokens of the prompts of rows.
        stops: tokens that end an answer.
        generation: how answers are chosen; the most likely tokens by default.
        streamer: of transformers, is told each token of a single row.
        scored: whether rows may have answers to compare its own with.
    """
    from snugfit.core.losses import causal_lm
    from snugfit.kit.language_models.generation import Generation, generate, padded_left
    from snugfit.step.metrics.byte_perplexity import PerByte
    from snugfit.step.metrics.text_metrics import text_metrics

    padding = tokenizer.pad_token_id
    settings = generation or Generation()

    def run(model: nn.Module, batch: Any, places: Sequence[int]) -> list[list[int]]:
        return generate(model, batch, places, stops, settings, streamer)

    text = decoder_of(tokenizer)

    def decode(answers: list[list[int]], _examples: Sequence[Any]) -> list[Prediction]:
        return [{ANSWER: text(answer).strip()} for answer in answers]

    return Inference(
        encode=encode,
        collate=partial(padded_left, padding=0 if padding is None else int(padding)),
        decode=decode,
        columns=(ANSWER,),
        length=len,
        run=run,
        generation=settings,
        with_generation=lambda settings, streamer: answering(
            tokenizer, encode, stops, settings, read, streamer, scored=scored
        ),
        stops=tuple(stops),
        read=read,
        loss=causal_lm,
        metrics=("perplexity", "perplexity_per_byte"),
        own_metrics={
            "perplexity_per_byte": PerByte(text),
            **(text_metrics(lambda tokens: text(tokens).strip()) if scored else {}),
        },
    )


def of_conversations(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    """Return the use of a model that answers in conversations: rows in the form that it was trained on, or `messages`."""
    from snugfit.data.texts.conversations import PAIRS, conversation_of

    settings = _settings(meta, meta.get("conversations"))

    def conversation(row: Row, answered: bool) -> Any:
        form = settings.format or PAIRS
        text, completion = settings.text, settings.completion
        return conversation_of(row, form, text=text, completion=completion, answered=answered)

    return _conversing(tokenizer, settings, conversation, checked=True)


def of_preferences(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    """Return the use of a model that has learned preferences: it answers rows with a prompt or `messages`, and is scored by good answers."""
    from snugfit.data.texts.preferences import conversation_with

    settings = _settings(meta)

    def conversation(row: Row, answered: bool) -> Any:
        return conversation_with(row, settings.text, settings.completion if answered else None)

    return _conversing(tokenizer, settings, conversation, checked=False)


def _conversing(
    tokenizer: Any, settings: InstructSettings, conversation: ConversationOf, *, checked: bool
) -> Inference:
    """Return the use of a model that answers conversations, which rows hold as `messages` or as `conversation` makes them.

    Args:
        checked: files are to have the columns that the settings name.
    """
    from snugfit.data.texts.conversation_tokens import Coder
    from snugfit.data.texts.conversations import MESSAGES, conversation_of
    from snugfit.data.texts.instruct import read_conversations

    coder = Coder(tokenizer, settings)

    def prompts(rows: Sequence[Row]) -> list[list[int]]:
        return [coder.prompt(asked(row)) for row in rows]

    def asked(row: Row) -> Any:
        if MESSAGES not in row:
            return conversation(row, False)
        return conversation_of(
            row, MESSAGES, text=settings.text, completion=settings.completion, answered=False
        )

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return read_conversations(
            source,
            settings,
            coder,
            answered=labelled,
            bad_rows=bad_rows,
            folder=Path.cwd(),
            conversation=None if checked else conversation,
        )

    return answering(tokenizer, prompts, coder.stops, read=read, scored=True)


def of_texts(meta: Mapping[str, Any], tokenizer: Any) -> Inference:
    """Return the use of a model that goes on with texts; a file is scored in blocks as those that it was trained on."""
    from snugfit.data.bad_rows import text_of
    from snugfit.data.examples import Examples
    from snugfit.data.texts.causal import JOINED, Prompts, read_causal_rows
    from snugfit.data.texts.tokens import special_frame
    from snugfit.kit.language_models.generation import stops_of

    columns = tuple(meta.get("text_columns") or ("text",))

    def prompts(rows: Sequence[Row]) -> Prompts:
        texts = [text_of(row, columns) for row in rows]
        return Prompts(Examples(texts, "the rows", range(len(texts))), tokenizer)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return read_causal_rows(
            source,
            columns,
            meta["max_length"],
            tokenizer,
            scored=labelled,
            bad_rows=bad_rows,
            folder=Path.cwd(),
            documents=meta.get("documents", JOINED),
            separator=meta.get("document_separator"),
        )

    return answering(tokenizer, prompts, stops_of(tokenizer, special_frame(tokenizer).suffix), read=read)


def _settings(meta: Mapping[str, Any], form: str | None = None) -> InstructSettings:
    from snugfit.data.texts.instruct import InstructSettings

    return InstructSettings(
        train="",
        text=tuple(meta.get("text_columns") or ("text",)),
        completion=meta.get("completion_column") or "completion",
        format=form,
        scored=meta.get("scored") or InstructSettings.scored,
        too_long=meta.get("too_long") or InstructSettings.too_long,
        max_length=meta["max_length"],
        validation=None,
    )
