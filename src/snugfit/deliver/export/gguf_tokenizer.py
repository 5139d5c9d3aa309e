"""A tokenizer in GGUF: its tokens with their types, its merges or scores, how it splits texts, and which tokens begin and end what."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snugfit.data.texts.tokens import special_frame
from snugfit.errors import ModelError

_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    _LLAMA_3: "llama-bpe",
    _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"): "qwen2",
}
"""llama.cpp's names of the expressions by which byte-level tokenizers split texts."""

_BYTES, _PIECES = "gpt2", "llama"
"""llama.cpp's names of tokenizers: byte-level BPE, and pieces in the way of sentencepiece."""

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_NEVER_MERGED = -1000.0
"""Score of a token that no merge makes."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as llama.cpp reads it.

    Args:
        model: llama.cpp's name of its kind.
        split: llama.cpp's name of the way in which it splits texts.
        merges: pairs of tokens, the first to merge first.
        prefix: a text begins with a space.
    """

    model: str
    split: str
    merges: Sequence[tuple[str, str]]
    prefix: bool


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return a tokenizer as llama.cpp reads it.

    Raises:
        ModelError: names what llama.cpp has none of.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _unsupported(f"{type(tokenizer).__name__} is no fast tokenizer", tokenizer)
    parts = json.loads(backend.to_str())
    model = parts["model"]
    if model["type"] != "BPE":
        raise _unsupported(f"its model is {model['type']}, and llama.cpp has BPE", tokenizer)
    merges = [_pair(each) for each in model["merges"]]
    splitters, normalizers = (
        _listed(parts["pre_tokenizer"], "pretokenizers"),
        _listed(parts["normalizer"], "normalizers"),
    )
    if any(each["type"] == "ByteLevel" for each in splitters):
        return Vocabulary(_BYTES, _split(splitters, normalizers, tokenizer), merges, False)
    if model.get("byte_fallback"):
        kinds = {each["type"] for each in (*splitters, *normalizers)}
        if unknown := kinds - {"Metaspace", "Replace", "Prepend", "Split"}:
            raise _unsupported(f"it changes texts by {', '.join(sorted(unknown))}", tokenizer)
        # behind a mark llama.cpp begins with a space too, which "first" does not: so not where a template begins texts with marks
        always = "always", *(() if tokenizer.chat_template else ("first",))
        prefix = any(
            each["type"] == "Prepend" or (each["type"] == "Metaspace" and each["prepend_scheme"] in always)
            for each in (*splitters, *normalizers)
        )
        return Vocabulary(_PIECES, "default", merges, prefix)
    raise _unsupported(
        "it is neither byte-level nor falls back to bytes, so that it cannot write every text", tokenizer
    )


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first, second


def _listed(part: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return list(part[key]) if part["type"] == "Sequence" else [part]


def _split(
    splitters: Sequence[Mapping[str, Any]], normalizers: Sequence[Mapping[str, Any]], tokenizer: Any
) -> str:
    """Return llama.cpp's name of the way in which a byte-level tokenizer splits texts."""
    if others := {each["type"] for each in normalizers} - {"NFC"}:
        raise _unsupported(f"it changes texts by {', '.join(sorted(others))}", tokenizer)
    *before, last = splitters
    if last["type"] == "ByteLevel" and not last.get("add_prefix_space"):
        if not before and last.get("use_regex", True):
            return "gpt-2"
        expressions = [each.get("pattern", {}).get("Regex") for each in before]
        if len(expressions) == 1 and expressions[0] in SPLITS and not last.get("use_regex", True):
            return SPLITS[expressions[0]]
    raise _unsupported(
        "it splits texts in a way that has no name here (known are those of GPT-2, Llama 3 and Qwen 2)",
        tokenizer,
    )


def _unsupported(why: str, tokenizer: Any) -> ModelError:
    return ModelError(
        "--to",
        f"gguf cannot hold the {type(tokenizer).__name__}: {why}",
        "Take hf, and llama.cpp's convert_hf_to_gguf.py on that folder.",
    )


def add_tokenizer(writer: Any, tokenizer: Any, stops: Sequence[int], size: int) -> None:
    """Write a tokenizer among a file's metadata.

    Args:
        stops: tokens that end an answer.
        size: rows of the embeddings, which may be more than there are tokens.
    """
    vocabulary = vocabulary_of(tokenizer)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.split)
    tokens, types = _tokens(tokenizer, vocabulary, size)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if vocabulary.model == _BYTES:
        writer.add_token_merges([" ".join(pair) for pair in vocabulary.merges])
    else:
        writer.add_token_scores(_scores(tokens, vocabulary.merges))
        writer.add_add_space_prefix(vocabulary.prefix)
    frame, end = special_frame(tokenizer), tokenizer.eos_token_id
    for add, token in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, end if end is not None else next(iter(stops), None)),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if token is not None:
            add(token)
    # besides the end of a sequence, what ends a turn, and what ends a message that another one follows
    others = [token for token in stops if token != end]
    for add, token in zip((writer.add_eot_token_id, writer.add_eom_token_id), others, strict=False):
        add(token)
    writer.add_add_bos_token(tokenizer.bos_token_id is not None and tokenizer.bos_token_id in frame.prefix)
    writer.add_add_eos_token(end is not None and end in frame.suffix)
    if tokenizer.chat_template:
        writer.add_chat_template(str(tokenizer.get_chat_template()))


def _tokens(tokenizer: Any, vocabulary: Vocabulary, size: int) -> tuple[list[str], list[int]]:
    """Return the tokens of all ids with their types; ids without one are unused."""
    import gguf

    kinds = gguf.TokenType
    by_id = {place: token for token, place in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for place in range(size):
        token, kind = by_id.get(place), kinds.NORMAL
        if token is None:
            token, kind = f"[PAD{place}]", kinds.UNUSED
        elif place in added:
            kind = kinds.CONTROL if added[place].special else kinds.USER_DEFINED
        if vocabulary.model == _PIECES:
            if place == tokenizer.unk_token_id:
                kind = kinds.UNKNOWN
            elif _BYTE.fullmatch(token):
                kind = kinds.BYTE
        tokens.append(token)
        types.append(int(kind))
    return tokens, types


def _scores(tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> list[float]:
    """Return scores by which llama.cpp merges pieces in the order of the merges: the earlier, the higher.

    >>> _scores(["a", "b", "ab"], [("a", "b")])
    [-1000.0, -1000.0, 0.0]
    """
    first: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        first.setdefault("".join(pair), rank)
    return [float(-first[token]) if token in first else _NEVER_MERGED for token in tokens]
