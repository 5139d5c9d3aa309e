"""GGUF: shapes, weights and tokenizers as llama.cpp and transformers read them, and what they cannot hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from snugfit.deliver.export import gguf_model
from snugfit.deliver.export.export_model import export_source
from snugfit.deliver.export.gguf_model import check_architecture, packed
from snugfit.deliver.export.gguf_tokenizer import vocabulary_of
from snugfit.errors import ModelError
from tests.unit.data.texts.test_instruct import by_letters
from tests.unit.deliver.export.models import (
    MARKS,
    SHAPES,
    TEMPLATE,
    beginning_with_bos,
    of_bytes,
    of_pieces,
    stored,
)

pytest.importorskip("gguf")

TOKENIZERS = {
    "llama": lambda: of_bytes("gpt-2"),
    "llama 3.1": lambda: of_bytes("llama-bpe"),
    "qwen2": of_bytes,
    "qwen3": of_bytes,
    "gemma2": of_pieces,
    "gemma3": of_pieces,
}


def export(
    folder: Path, shape: str, numbers: str = "f16", tokenizer: Any = None
) -> tuple[Path, dict[str, Any]]:
    bundle, rows = stored(folder, shape, tokenizer or TOKENIZERS[shape]())
    output = folder / f"out-{numbers}"
    return output, export_source(bundle, "gguf", output, numbers=numbers, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_llama_cpp_gives_the_logits_answers_tokens_and_texts_that_were_scored(
    tmp_path: Path, reading_here: None, shape: str
) -> None:
    pytest.importorskip("xllamacpp")
    _, result = export(tmp_path, shape)
    by_transformers, by_llama_cpp = result["compared"]
    assert by_transformers["difference"] == pytest.approx(by_transformers["rounding"], rel=0.05)
    assert by_llama_cpp["reader"].startswith("llama.cpp")
    assert by_llama_cpp["difference"] < 0.01 and by_llama_cpp["answers"] == "4 of 4 equal"
    assert by_llama_cpp["equal"][:2] == ["tokens", "chat template"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: of_pieces("llama 2"),
        lambda: of_pieces("a space before the first text alone"),
        lambda: beginning_with_bos(of_pieces()),
    ],
)
def test_texts_begin_as_the_tokenizer_begins_them(
    tmp_path: Path, reading_here: None, make: Callable[[], Any]
) -> None:
    pytest.importorskip("xllamacpp")
    _, result = export(tmp_path, "llama", tokenizer=make())
    assert result["compared"][1]["equal"][:2] == ["tokens", "chat template"]


@pytest.mark.slow
@pytest.mark.parametrize(("numbers", "bytes_"), [("bf16", 2), ("q8_0", 34 / 32)])
def test_rounded_weights_are_as_small_as_they_are_named_and_no_further_off_than_rounding(
    tmp_path: Path, reading_here: None, numbers: str, bytes_: float
) -> None:
    from gguf import GGUFReader

    output, result = export(tmp_path, "qwen3", numbers)
    for each in result["compared"]:
        assert each["difference"] < 2 * each["rounding"] < 0.2
    tensors = {each.name: each for each in GGUFReader(output / f"model-{numbers}.gguf").tensors}
    down = tensors["blk.0.ffn_down.weight"]
    assert down.n_bytes == down.n_elements * bytes_
    assert "output.weight" not in tensors, "a tied head is not stored twice"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "wrong"), [("llama", {"permuted": False}), ("gemma3", {"shifted_norms": False})]
)
def test_a_mistaken_conversion_is_not_delivered(
    tmp_path: Path, reading_here: None, monkeypatch: pytest.MonkeyPatch, shape: str, wrong: dict[str, bool]
) -> None:
    kind = {"llama": "llama", "gemma3": "gemma3_text"}[shape]
    right = gguf_model.ARCHITECTURES[kind]
    monkeypatch.setitem(gguf_model.ARCHITECTURES, kind, dataclasses.replace(right, **wrong))
    with pytest.raises(ModelError, match=r"was not delivered: read back by .*, its logits differ by \d"):
        export(tmp_path, shape)
    assert not (tmp_path / "out-f16").exists()


def test_metadata_name_the_template_the_way_of_splitting_and_the_tokens_that_begin_and_end(
    tmp_path: Path,
) -> None:
    import gguf

    from snugfit.deliver.export.gguf_tokenizer import add_tokenizer

    for tokenizer, kind, split in ((of_bytes(), "gpt2", "qwen2"), (of_pieces(), "llama", "default")):
        path = tmp_path / f"{kind}.gguf"
        writer = gguf.GGUFWriter(path, "qwen2")
        end, turn = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<end_of_turn>")
        add_tokenizer(writer, tokenizer, (turn, end), len(tokenizer) + 3)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        fields = {
            name.removeprefix("tokenizer."): field.contents()
            for name, field in gguf.GGUFReader(path).fields.items()
            if name.startswith("tokenizer.")
        }
        assert (fields["ggml.model"], fields["ggml.pre"]) == (kind, split)
        assert fields["chat_template"] == TEMPLATE
        assert (fields["ggml.eos_token_id"], fields["ggml.eot_token_id"]) == (end, turn)
        assert fields["ggml.bos_token_id"] == tokenizer.bos_token_id
        assert fields["ggml.add_bos_token"] is False
        types = dict(zip(fields["ggml.tokens"], fields["ggml.token_type"], strict=True))
        kinds = gguf.TokenType
        assert types["<end_of_turn>"] == kinds.CONTROL
        assert types[f"[PAD{len(tokenizer) + 2}]"] == kinds.UNUSED
        if kind == "llama":
            assert types["<0x0A>"] == kinds.BYTE and types["<unk>"] == kinds.UNKNOWN
            assert "ggml.merges" not in fields and fields["ggml.add_space_prefix"] is False
        else:
            assert len(fields["ggml.merges"]) > 10


def test_a_tokenizer_that_llama_cpp_has_none_of_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="its model is WordLevel, and llama.cpp has BPE"):
        vocabulary_of(by_letters(TEMPLATE, MARKS))
    from tokenizers import Regex, pre_tokenizers

    other = of_bytes("gpt-2")
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("[a-z]+"), "isolated"), pre_tokenizers.ByteLevel(use_regex=False)]
    )
    with pytest.raises(ModelError, match="splits texts in a way that has no name here"):
        vocabulary_of(other)


@pytest.mark.parametrize(
    ("shape", "changes", "says"),
    [
        ("gemma2", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar is 16, and llama.cpp takes 32"),
        ("gemma2", {"final_logit_softcapping": None}, "logits are not capped"),
        ("gemma3", {"layer_types": ["full_attention"] * 7}, "layers that see a window stand elsewhere"),
        ("llama", {"hidden_act": "gelu"}, "its activation is gelu, and llama.cpp computes silu"),
        ("qwen3", {"attention_bias": True}, "its attention has biases"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "its positions are scaled by dynamic",
        ),
    ],
)
def test_what_the_format_cannot_say_of_a_model_is_refused_by_name(
    shape: str, changes: dict[str, Any], says: str
) -> None:
    kind, _, more = SHAPES[shape]
    check_architecture(kind(**more))
    with pytest.raises(ModelError, match=says):
        check_architecture(kind(**{**more, **changes}))


def test_another_architecture_is_refused_with_those_that_there_are() -> None:
    config = LlamaConfig()
    config.model_type = "phi3"
    with pytest.raises(
        ModelError, match="llama, qwen2, qwen3, gemma2, gemma3_text, and this model is a phi3"
    ):
        check_architecture(config)


def test_rows_that_no_blocks_fill_and_vectors_are_not_quantised() -> None:
    assert [packed(torch.ones(shape), "q8_0")[1].name for shape in ((2, 64), (2, 48), (64,))] == [
        "Q8_0",
        "F16",
        "F32",
    ]
