"""Chat templates as they are published: those of TRL's wheel, Mistral's v0.3 and ChatML, each with a tokenizer that is trained on the spot."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""
"""Of Mistral 7B Instruct v0.3, without its tools: a system's message stands in the last question, and nowhere where the assistant is last."""

_IM = ("<|im_start|>", "<|im_end|>")
_TURNS = ("<start_of_turn>", "<end_of_turn>")
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_DEEPSEEK = ("<｜User｜>", "<｜Assistant｜>")
_DEEPSEEK_TOOLS = tuple(
    f"<｜tool▁{name}｜>"
    for name in (
        "calls▁begin",
        "calls▁end",
        "call▁begin",
        "call▁end",
        "sep",
        "outputs▁begin",
        "outputs▁end",
        "output▁begin",
        "output▁end",
    )
)
_HARMONY = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>")
_GEMMA_4 = (
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
)


@dataclass(frozen=True)
class Published:
    """What a template is to give.

    Args:
        marks: special tokens of its tokenizer, beside the first and the last of a text.
        bos, eos: those.
        end: of a turn.
        opens: what it writes in a scored answer before its text.
        alone: whether each answer becomes an example of its own, as the template writes earlier turns otherwise.
        otherwise: whether it asks for an answer otherwise than it writes one down.
        systems: whether it takes a message of the system.
        calls: what it writes of the call `add(a=1)` up to the end of the turn; None where it writes none.
        thoughts: whether it writes the thoughts of the last answer.
    """

    marks: tuple[str, ...]
    end: str
    bos: str = "<bos>"
    eos: str = "<eos>"
    opens: str = ""
    alone: bool = False
    otherwise: bool = False
    systems: bool = True
    calls: str | None = None
    thoughts: bool = False


_NO_THOUGHT = "<think>\n\n</think>\n\n"
_JSON_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
_LLAMA_CALL = '{"name": "add", "parameters": {"a": 1}}<|eot_id|>'
_DEEPSEEK_CALL = (
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
)
PUBLISHED = {
    "chatml": Published(_IM, "<|im_end|>", eos="<|im_end|>"),
    "mistral": Published(("[INST]", "[/INST]"), "<eos>", opens=" "),
    "llama3": Published(_HEADERS, "<|eot_id|>", eos="<|eot_id|>"),
    "llama3_1": Published(_HEADERS, "<|eot_id|>", eos="<|eot_id|>", calls=_LLAMA_CALL),
    "llama3_2": Published(_HEADERS, "<|eot_id|>", eos="<|eot_id|>", calls=_LLAMA_CALL),
    "qwen2_5": Published(_IM, "<|im_end|>", eos="<|im_end|>", calls=_JSON_CALL),
    "qwen3": Published(
        _IM,
        "<|im_end|>",
        eos="<|im_end|>",
        opens=_NO_THOUGHT,
        alone=True,
        calls=_NO_THOUGHT + _JSON_CALL,
        thoughts=True,
    ),
    "qwen3_instruct_2507": Published(_IM, "<|im_end|>", eos="<|im_end|>", calls=_JSON_CALL),
    "gemma": Published(_TURNS, "<end_of_turn>", systems=False),
    "gemma3": Published(_TURNS, "<end_of_turn>"),
    "gemma4": Published(_GEMMA_4, "<turn|>", calls="<|tool_call>call:add{a:1}<tool_call|><|tool_response>"),
    "gemma4_v5": Published(
        _GEMMA_4, "<turn|>", calls="<|tool_call>call:add{a:1}<tool_call|><|tool_response>", thoughts=True
    ),
    "phi3": Published(("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), "<|end|>", eos="<|endoftext|>"),
    "phi3_5": Published(
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"), "<|end|>", eos="<|endoftext|>"
    ),
    "deepseekv3": Published(
        (*_DEEPSEEK, *_DEEPSEEK_TOOLS),
        "<｜end▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        alone=True,
        otherwise=True,
        calls=_DEEPSEEK_CALL,
    ),
    "deepseek_r1_distill": Published(
        (*_DEEPSEEK, *_DEEPSEEK_TOOLS),
        "<｜end▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        alone=True,
        otherwise=True,
    ),
    "gptoss": Published(
        _HARMONY,
        "<|return|>",
        eos="<|return|>",
        opens="<|channel|>final<|message|>",
        alone=True,
        calls=' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>',
        thoughts=True,
    ),
}


def template_of(name: str) -> str:
    """Return the text of a template, or of its `_training` twin, which marks the assistant."""
    own = {"chatml": CHATML, "mistral": MISTRAL}
    if name in own:
        return own[name]
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("TRL, whose wheel carries the templates, is not installed: pip install trl==1.16.0")
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


@functools.cache
def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and their pairs, trained on the template's own text, with its marks."""
    template, published = template_of(name), PUBLISHED[name]
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator([template], trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained, bos_token=published.bos, eos_token=published.eos, pad_token="<pad>"
    )
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in published.marks])
    tokenizer.chat_template = template
    return tokenizer


def text_of(tokenizer: PreTrainedTokenizerFast, ids: Any) -> str:
    """Return the text of tokens as it is, marks too."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))
