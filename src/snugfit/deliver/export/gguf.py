"""A GGUF file, for llama.cpp and what is built on it."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from snugfit.data.texts.tokens import special_frame
from snugfit.deliver.export.comparison import EXACT, Comparison, differences
from snugfit.deliver.export.export_format import ExportOptions, Format, Written
from snugfit.deliver.export.exported_model import ExportedModel, check_of_transformers
from snugfit.deliver.export.gguf_model import (
    NUMBERS,
    add_shape,
    add_weights,
    check_architecture,
    gguf_rounding,
)
from snugfit.deliver.export.gguf_tokenizer import add_tokenizer, vocabulary_of
from snugfit.deliver.export.hf import auto_class
from snugfit.deliver.export.read_back import Reading, answers_of, judged, prompts_of, read, texts_of
from snugfit.deliver.export.scored import ScoredRows, rounded_logits
from snugfit.deliver.export.usage import prompt_example
from snugfit.errors import ModelError

LLAMA_CPP = "xllamacpp"
"""The package that has llama.cpp."""

_MOST_PROBABILITIES = 1000
"""Of one place that llama.cpp is asked for: they come as text."""

_SLACK, _OF_ROUNDING = 1e-3, 4.0
"""Difference that llama.cpp makes, which rounds activations and its cache as the weights are: a part of the spread, and parts of the
difference that rounding the weights makes."""

_RARE = 6.0
"""Times the usual difference of a logit that none exceeds."""

_USAGE = """\
from llama_cpp import Llama  # or: llama-cli -m FOLDER/FILE

model = Llama("FOLDER/FILE")
CALL
"""


def _check(subject: ExportedModel, _choice: ExportOptions) -> None:
    check_of_transformers(subject, "gguf")
    if not subject.generates:
        raise ModelError(
            "--to", f"gguf holds language models, and this one is for the task '{subject.task}'", "Take onnx."
        )
    check_architecture(subject.config)
    vocabulary_of(subject.predictor.tokenizer)


def file_name(choice: ExportOptions) -> str:
    """Return the name of the file."""
    return f"model-{choice.numbers}.gguf"


def _write(subject: ExportedModel, folder: Path, choice: ExportOptions, scored: ScoredRows) -> Written:
    import gguf

    config, name = subject.config, file_name(choice)
    writer = gguf.GGUFWriter(folder / name, check_architecture(config).name)
    try:
        writer.add_name(str(subject.run_event.get("name") or subject.task))
        add_shape(writer, config, choice.numbers)
        add_tokenizer(writer, subject.predictor.tokenizer, scored.stops, config.vocab_size)
        add_weights(writer, subject.model, config, choice.numbers)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    call = (
        'print(model.create_chat_completion([{"role": "user", "content": "a question"}]))'
        if scored.conversations
        else f"print(model({prompt_example(subject)}))"
    )
    notes = [
        f"Fewer bits by llama.cpp's own command, whose K-quants no Python package writes: `llama-quantize {name} model-Q4_K_M.gguf Q4_K_M`."
    ]
    if not _has_llama_cpp():
        notes.append(
            f"It was not read by llama.cpp itself, as {LLAMA_CPP} was not installed: its tokens, its template and its stop tokens are "
            "not compared."
        )
    return Written(
        usage=_USAGE.replace("CALL", call).replace("FILE", name), notes=notes, header={"library_name": "gguf"}
    )


def _has_llama_cpp() -> bool:
    return importlib.util.find_spec(LLAMA_CPP) is not None


def _read_back(
    subject: ExportedModel, folder: Path, choice: ExportOptions, scored: ScoredRows
) -> list[Comparison]:
    whole = rounded_logits(scored, gguf_rounding(choice.numbers))
    assert whole is not None
    request = {
        "gguf": file_name(choice),
        "auto": auto_class(subject),
        "give_stops": True,
        **prompts_of(scored),
    }
    with tempfile.TemporaryDirectory(prefix="snugfit-config-") as config:
        subject.config.save_pretrained(config)
        reading = read("transformers", folder, scored, {**request, "config": config})
    comparisons = [judged(reading, scored, whole=whole)]
    if _has_llama_cpp() and comparisons[0].problem is None:
        asked: dict[str, Any] = {
            "texts": [text for text, _ in scored.texts],
            "conversations": scored.conversations,
            "context": min(subject.config.max_position_embeddings, _context(scored)),
            "probabilities": min(subject.config.vocab_size, _MOST_PROBABILITIES),
        }
        reading = read("llama.cpp", folder, scored, {**request, **asked})
        reading = _with_own_beginning(reading, subject.predictor.tokenizer)
        comparisons.append(_of_llama_cpp(reading, scored, whole))
    return comparisons


def _with_own_beginning(reading: Reading, tokenizer: Any) -> Reading:
    """Return the reading with texts as they are tokenised: llama.cpp takes away the beginning that its tokenizer adds again."""
    bos = tokenizer.bos_token
    if bos is None or tokenizer.bos_token_id not in special_frame(tokenizer).prefix:
        return reading
    written = [text if text.startswith(bos) else bos + text for text in reading.values["written"]]
    return replace(reading, values={**reading.values, "written": written})


def _context(scored: ScoredRows) -> int:
    return max(each["input_ids"].shape[1] for each in scored.inputs) + 64


def placed(
    entries: Sequence[Mapping[str, Any]], tokens: Sequence[int]
) -> list[tuple[int, Mapping[str, Any]]]:
    """Return entries with the places of their tokens among those of an answer: the server leaves out places whose text is no whole letter.

    An entry whose place is not certain is left out too. The token that ends an answer stands behind the others.

    >>> placed([{"token": 5}, {"token": 6}, {"token": 9}], [5, 7, 6])
    [(0, {'token': 5}), (2, {'token': 6}), (3, {'token': 9})]
    >>> placed([{"token": 5}], [5, 5])
    []
    """
    asked = [entry["token"] for entry in entries]
    if len(entries) == len(tokens) + 1 or (asked and asked[-1] not in tokens):
        tokens = [*tokens, asked[-1]]
    first = _earliest(asked, tokens)
    last = [len(tokens) - 1 - place for place in reversed(_earliest(asked[::-1], tokens[::-1]))]
    pairs = zip(first, last, entries, strict=True)
    return [(one, entry) for one, other, entry in pairs if one == other]


def _earliest(wanted: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """Return the first places at which one token after the other stands."""
    places, at = [], 0
    for token in wanted:
        at += next((step for step, each in enumerate(tokens[at:]) if each == token), 0)
        places.append(at)
        at += 1
    return places


def _of_llama_cpp(reading: Reading, scored: ScoredRows, whole: list[torch.Tensor]) -> Comparison:
    """Return how far llama.cpp's probabilities, answers, tokens and texts are from what was scored.

    Args:
        whole: logits with weights rounded as the file's are.
    """
    own: list[torch.Tensor] = []
    rounding: list[torch.Tensor] = []
    given: list[torch.Tensor] = []
    for row, places in enumerate(reading.values["likely"]):
        start = len(scored.prompts[row]) - 1
        answer, other = scored.answers[row].tokens, reading.answers[row].tokens
        for place, entry in placed(places, other):
            if place > len(answer) or answer[:place] != other[:place]:
                break  # from here on it goes on from another text
            ids = torch.tensor([int(each) for each in entry["top"]])
            given.append(torch.tensor(list(entry["top"].values()), dtype=torch.float64))
            for logits, into in ((scored.logits, own), (whole, rounding)):
                into.append(logits[row][0, start + place].double().log_softmax(-1)[ids])
    difference, largest = differences(own, given)
    by_rounding = differences(own, rounding)[0]
    bound = EXACT + _SLACK + _OF_ROUNDING * by_rounding
    unexplained = differences(rounding, given)[0]
    problem = None
    if not unexplained <= bound:
        problem = f"its logits differ by {unexplained:.3g} of their spread beside the rounding of its weights, more than {bound:.3g}"
    # an answer may part at a place that was left out, whose difference is not known: it is no rarer than what is normal
    usual = bound * max(float(each.std()) for each in own) if own else 0.0
    answers, different = answers_of(reading, scored, 2 * max(largest, _RARE * usual))
    checked, missed = texts_of(reading, scored)
    stopped = any(one.ended and one == two for one, two in zip(scored.answers, reading.answers, strict=True))
    return Comparison(
        reading.library,
        len(scored.inputs),
        difference,
        largest,
        by_rounding,
        answers,
        (*checked, *(("stop tokens",) if stopped else ())),
        problem or different or missed,
    )


FORMAT = Format(
    name="gguf",
    summary="A GGUF file for llama.cpp: Llama, Qwen 2 and 3, Gemma 2 and 3.",
    packages=("gguf", "transformers"),
    numbers=NUMBERS,
    check=_check,
    write=_write,
    read_back=_read_back,
)
