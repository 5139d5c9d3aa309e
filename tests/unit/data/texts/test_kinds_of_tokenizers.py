"""Conversations in the tokenizers of published models: the assistant's turns are scored up to the token that ends them, in whatever pieces texts are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from snugfit.data.bad_rows import BadRow
from snugfit.data.texts.conversation_tokens import Coded, Coder
from snugfit.data.texts.conversations import conversation_of
from snugfit.data.texts.instruct import InstructSettings
from tests.unit.data.texts.test_chat_template import TEMPLATES

TEXTS = [
    "two and two are four",
    "What is it? Nothing, I think.\n\nOr is it?",
    "naïve café 東京 🙂 x  =  1\n\treturn x",
]
CHATML, PHI_3 = TEMPLATES["chatml"], TEMPLATES["phi 3: the end of the sequence after all"]


def _bytes() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        ),
    )
    return made


def _unigram(scheme: str) -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=120, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def _fallback() -> Tokenizer:
    """As Gemma's: spaces are marks within pieces, what is unknown is in bytes."""
    spaced = [text.replace(" ", "▁") for text in TEXTS]
    letters = sorted(set("".join(spaced)) - set("東京🙂"))
    vocabulary = {
        piece: place for place, piece in enumerate([*(f"<0x{byte:02X}>" for byte in range(256)), *letters])
    }
    made = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return made


def _words() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="<unk>"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=150, special_tokens=["<unk>"], show_progress=False)
    made.train_from_iterator(TEXTS, trainer)
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": _bytes,
    "unigram": lambda: _unigram("always"),
    "unigram of whole texts": lambda: _unigram("first"),
    "unigram without a first space": lambda: _unigram("never"),
    "fallback": _fallback,
    "words": _words,
}
WHITE_SPACE = [AddedToken(each, special=False, normalized=False) for each in ("\n", "\n\n", "  ")]


def coder_of(
    kind: str, template: tuple[str, list[str], str] = CHATML, *, rstrip: bool = False, more: Any = ()
) -> Coder:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](),
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
    )
    marks = [AddedToken(each, special=True, normalized=False, rstrip=rstrip) for each in template[1]]
    tokenizer.add_tokens([*marks, *more])
    tokenizer.chat_template = template[0]
    return Coder(tokenizer, InstructSettings("a.jsonl", max_length=10**5))


def messages(*contents: str) -> list[dict[str, str]]:
    return [
        {"role": ("user", "assistant")[place % 2], "content": each} for place, each in enumerate(contents)
    ]


def coded(coder: Coder, *contents: str) -> Coded:
    row = {"messages": messages(*contents)}
    (example,) = coder.examples(conversation_of(row, "messages", text=["text"], completion="completion"))
    return example


def answers_in(coder: Coder, example: Coded) -> list[str]:
    """The texts of the parts that are scored, each up to the end of a turn and what may stand behind it."""
    spans: list[list[int]] = []
    for before, label in zip([-100, *example.labels], example.labels, strict=False):
        if label != -100:
            if before == -100:
                spans.append([])
            spans[-1].append(label)
    return [coder.tokenizer.decode(span, clean_up_tokenization_spaces=False) for span in spans]


def plain(text: str, kind: str) -> str:
    """Texts but for white space and, of words, capital letters and marks."""
    return "".join((text.lower() if kind == "words" else text).split())


CASES = [
    *((kind, CHATML, False, ()) for kind in KINDS),
    ("fallback", CHATML, False, WHITE_SPACE),
    ("fallback", TEMPLATES["gemma: no system"], False, WHITE_SPACE),
    ("unigram", PHI_3, True, ()),
    ("bytes", PHI_3, True, ()),
    ("fallback", PHI_3, False, WHITE_SPACE),
]
TURNS = ("two and two?", "four", "What is it?", "Nothing, I think.\n\nOr\tis it?  x")


@pytest.mark.parametrize(("kind", "template", "rstrip", "more"), CASES)
def test_turns_are_scored_up_to_the_token_that_ends_them_and_read_as_the_library_reads_them(
    kind: str, template: tuple[str, list[str], str], rstrip: bool, more: Any
) -> None:
    coder, end = coder_of(kind, template, rstrip=rstrip, more=more), template[2]
    example = coded(coder, *TURNS)
    wanted = [plain(answer + end, kind) for answer in TURNS[1::2]]
    assert [plain(each, kind) for each in answers_in(coder, example)] == wanted
    stop = coder.tokenizer.convert_tokens_to_ids(end)
    assert coder.stops[0] == stop == example.labels[-1]
    scored = [label for label in example.labels if label != -100]
    assert scored.count(stop) == 2
    by_library = coder.tokenizer.apply_chat_template(messages(*TURNS), tokenize=False)
    ids = coder.tokenizer(by_library, add_special_tokens=False)["input_ids"]
    assert ids[: len(example.ids)] == example.ids


@pytest.mark.parametrize(("kind", "template", "rstrip", "more"), CASES)
def test_what_is_asked_is_what_was_read_before_an_answer(
    kind: str, template: tuple[str, list[str], str], rstrip: bool, more: Any
) -> None:
    coder = coder_of(kind, template, rstrip=rstrip, more=more)
    example = coded(coder, *TURNS)
    row = {"messages": messages(*TURNS[:3])}
    asked = coder.prompt(
        conversation_of(row, "messages", text=["text"], completion="completion", answered=False)
    )
    assert example.ids[: len(asked)] == asked
    assert example.labels[len(asked) - 1] == -100 != example.labels[len(asked)]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"content": "four<eos>"}, "message 2, of the assistant, holds <eos>"),
        ({"content": "four", "reasoning_content": "two and two"}, "with thoughts needs a chat template"),
        (
            {"content": None, "tool_calls": [{"function": {"name": "add", "arguments": {}}}]},
            "with calls of tools needs a chat template",
        ),
    ],
    ids=["mark", "thoughts", "call"],
)
def test_without_a_template_a_row_of_more_than_two_texts_is_named(answer: dict[str, Any], words: str) -> None:
    coder = coder_of("bytes")
    coder.tokenizer.chat_template = None
    coder = Coder(coder.tokenizer, InstructSettings("a.jsonl", max_length=100))
    row = {"messages": [{"role": "user", "content": "two and two?"}, {"role": "assistant", **answer}]}
    with pytest.raises(BadRow, match=words):
        coder.examples(conversation_of(row, "messages", text=["text"], completion="completion"))


def test_an_empty_special_token_is_in_no_text() -> None:
    coder = coder_of("bytes")
    coder.tokenizer.pad_token = ""
    coder = Coder(coder.tokenizer, InstructSettings("a.jsonl", max_length=100))
    assert answers_in(coder, coded(coder, "two and two?", "four")) == ["four<|im_end|>"]
