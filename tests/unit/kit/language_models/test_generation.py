"""A row's answer is that of the row alone, up to the model's last position."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from snugfit.errors import DataError
from snugfit.kit.language_models.generation import Generation, generate, padded_left, positions_of

POSITIONS, WANTED = 16, 9
LENGTHS = (14, 11, 14, 8, 2)
"""Of prompts: four of the five leave fewer positions than are wanted, two of them as many as each other."""
BART_SIZES = {"layers": 1, "ffn_dim": 16, "attention_heads": 2}


def gpt2() -> Any:
    """Learned positions, of which there is none behind the last."""
    return GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=4))


def llama() -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=POSITIONS,
        )
    )


def bart() -> Any:
    """It reads a prompt in other positions than those of its answer."""
    sizes = {f"{side}_{size}": count for side in ("encoder", "decoder") for size, count in BART_SIZES.items()}
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=40,
            d_model=16,
            max_position_embeddings=POSITIONS,
            forced_eos_token_id=None,
            **sizes,
        )
    )


def made(make: Any) -> Any:
    torch.manual_seed(3)
    model = make().double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # so that the likeliest token changes from place to place
    model.generation_config.eos_token_id = None
    return model


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(1, 40, (length,), generator=draw).tolist() for length in LENGTHS]


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize(
    "settings",
    [Generation(WANTED), Generation(WANTED, temperature=1.0, top_p=0.9), Generation(WANTED, num_beams=2)],
    ids=["greedy", "drawn", "beams"],
)
def test_a_batch_near_the_last_position_has_each_answer_of_its_row_alone(
    make: Any, settings: Generation
) -> None:
    model, rows = made(make), prompts()

    def together(stops: Sequence[int]) -> list[list[int]]:
        return generate(model, padded_left(rows, 0), range(len(rows)), stops, settings)

    def alone(stops: Sequence[int]) -> list[list[int]]:
        each = [(padded_left([row], 0), [place]) for place, row in enumerate(rows)]
        return [generate(model, *row, stops, settings)[0] for row in each]

    endless, rooms = together(()), [min(WANTED, POSITIONS - length) for length in LENGTHS]
    assert endless == alone(())
    assert [len(answer) for answer in endless] == rooms
    stop = endless[3][-2]  # of a row that goes on where the longest have ended
    ended = together([stop])
    assert ended == alone([stop])
    assert len(ended[3]) < rooms[3]


def test_a_row_that_ends_in_the_room_of_all_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, passes = made(llama), list[int]()
    whole = model.generate

    def counted(**arguments: Any) -> Any:
        passes.append(len(arguments["input_ids"]))
        return whole(**arguments)

    monkeypatch.setattr(model, "generate", counted)
    generate(model, padded_left(prompts(), 0), range(len(LENGTHS)), range(40), Generation(WANTED))
    assert passes == [len(LENGTHS)]
    passes.clear()
    generate(model, padded_left(prompts(), 0), range(len(LENGTHS)), (), Generation(WANTED))
    assert passes == [
        5,
        3,
        2,
        1,
    ]  # the two longest, the next two, and the one with room for all that is wanted


def test_a_prompt_without_a_position_behind_it_is_refused() -> None:
    with pytest.raises(DataError, match="it has 16 tokens, and the model reads 16 with its answer"):
        generate(made(gpt2), padded_left([[1] * POSITIONS, [2]], 0), range(2), (), Generation(1))


def test_a_prompt_takes_no_positions_from_the_answer_of_a_model_that_writes_another_text() -> None:
    model, rows = made(bart), prompts()
    longest = max(LENGTHS)
    right = {
        "input_ids": torch.tensor([row + [1] * (longest - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
    }
    answers = generate(model, right, range(len(rows)), (), Generation(2 * POSITIONS))
    assert [len(answer) for answer in answers] == [POSITIONS] * len(rows)
    alone = [generate(model, padded_left([row], 1), [0], (), Generation(2 * POSITIONS))[0] for row in rows]
    assert answers == alone


def test_attention_has_no_mask_where_prompts_are_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that torch may take its flash kernel, which on CUDA splits a long cache among the processors and takes no mask."""
    masks: list[Any] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def noting(*args: Any, attn_mask: Any = None, **kwargs: Any) -> Any:
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noting)
    model = made(llama)
    generate(model, padded_left([[1, 2, 3], [4, 5, 6]], 0), [0, 1], [], Generation(4))
    assert masks and all(mask is None for mask in masks)
    generate(model, padded_left([[1, 2, 3], [4]], 0), [0, 1], [], Generation(4))
    assert any(mask is not None for mask in masks)


@pytest.mark.parametrize(
    ("settings", "positions"),
    [
        ({"max_position_embeddings": 32}, 32),
        ({"max_position_embeddings": 32, "rope_scaling": {"type": "linear", "factor": 4.0}}, 128),
        ({"max_position_embeddings": 32, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 128),
        ({"max_position_embeddings": 128, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 128),
        ({"max_position_embeddings": 128, "rope_parameters": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}}, 128),
        ({"max_position_embeddings": 32, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_type": "default"}}}, 32),
        ({"max_position_embeddings": 32, "alibi": True}, sys.maxsize),
        ({}, sys.maxsize),
    ],
)  # fmt: skip
def test_a_model_reads_as_far_as_its_stretched_positions_reach(
    settings: dict[str, object], positions: int
) -> None:
    model = torch.nn.Module()
    model.config = SimpleNamespace(**settings)  # type: ignore[assignment]
    assert positions_of(model) == positions
