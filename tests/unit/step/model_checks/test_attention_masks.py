"""What the host knows of a micro-batch's padding is not read from the device, and every mask is the one that transformers makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.batch import Batch
from snugfit.step.step import Step
from snugfit.techniques.learning.sgd import SGD

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 50,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 1}
CONFIGS: dict[str, Any] = {
    "bert": lambda: transformers.BertConfig(**SMALL),
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "gpt2": lambda: transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=50),
    "long windows": lambda: transformers.MistralConfig(**GROUPED, sliding_window=32),
    "short windows": lambda: transformers.MistralConfig(**GROUPED, sliding_window=4),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SMALL,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=4,
    ),
    "eager": lambda: transformers.LlamaConfig(**GROUPED, attn_implementation="eager"),
}
WHOLE, RIGHT, LEFT = (8, 8), (8, 5), (5, 8)


class Reads(TorchDispatchMode):
    """Counts how often a tensor becomes a number: where it is on a device, each is a wait."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket is torch.ops.aten._local_scalar_dense
        return func(*args, **(kwargs or {}))


def model_of(name: str) -> Any:
    config = CONFIGS[name]()
    encoder = name in ("bert", "modernbert")
    torch.manual_seed(0)
    kind = transformers.AutoModelForMaskedLM if encoder else transformers.AutoModelForCausalLM
    return kind.from_config(config)


def step_of(model: Any, **more: Any) -> Step:
    return Step(model, SGD(learning_rate=0.1), "cross_entropy", **more)


def window(mask: torch.Tensor) -> Batch:
    source = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, mask.shape, generator=source)
    return Batch.of({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})


def padded(lengths: tuple[int, ...], side: str = "right") -> torch.Tensor:
    places = torch.arange(8) if side == "right" else torch.arange(8).flip(0)
    return torch.stack([(places < length).long() for length in lengths])


def reads(step: Step, batch: Batch) -> int:
    for _ in range(2):  # the first time the answer is compared
        with Reads() as found:
            step.forward(batch)
    return found.count


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("lengths", [WHOLE, RIGHT])
def test_a_stock_model_does_not_ask_for_padding_that_the_host_knows(
    name: str, lengths: tuple[int, ...]
) -> None:
    assert reads(step_of(model_of(name)), window(padded(lengths))) == 0


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("lengths", [WHOLE, RIGHT])
def test_loss_and_gradients_are_those_of_a_model_that_asks_to_the_bit(
    name: str, lengths: tuple[int, ...]
) -> None:
    batch = window(padded(lengths))
    asking, answered = step_of(model_of(name)), step_of(model_of(name))
    asking._masks._kinds = []
    for _ in range(2):
        assert asking(batch).loss == answered(batch).loss
    ours = answered.gradients()
    assert all(torch.equal(ours[key], gradient) for key, gradient in asking.gradients().items())


def test_padding_on_the_left_whose_place_the_host_does_not_know_is_asked_for() -> None:
    batch = window(padded(LEFT, "left"))
    assert batch.has_padding is None
    step = step_of(model_of("llama"))
    with Reads() as found:
        step.forward(batch)
    assert found.count > 0


def test_a_mask_that_was_made_on_a_device_is_asked_for() -> None:
    batch = window(padded(WHOLE))
    unknown = Batch(batch.data, batch.rows)
    assert unknown.has_padding is None
    with Reads() as found:
        step_of(model_of("llama")).forward(unknown)
    assert found.count > 0


def test_micro_batches_know_their_own_padding() -> None:
    batch = window(padded(RIGHT))
    assert [batch.select([row]).has_padding for row in (0, 1)] == [False, False]  # the second is cut
    uncut = Batch(batch.data, 2, lengths=batch.lengths, gapless=True)
    assert [uncut.select([row]).has_padding for row in (0, 1)] == [False, True]


def test_a_model_that_masks_tokens_by_itself_goes_on_asking_and_gets_its_own_mask() -> None:
    model = model_of("llama")
    forward = model.model.forward

    def masking(*args: Any, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        own = attention_mask.clone()
        own[:, 2] = 0
        return forward(*args, attention_mask=own, **kwargs)

    model.model.forward = masking
    batch = window(padded(WHOLE))
    asking, answered = step_of(model), step_of(model)
    asking._masks._kinds = []
    for _ in range(2):
        ours = answered.forward(batch).logits
        assert torch.equal(ours, asking.forward(batch).logits)
    assert answered._masks._differs


def test_functions_that_make_masks_are_as_before_after_a_forward_and_after_one_that_fails() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as functions

    before = dict(functions._local_mapping), functions["sdpa"]
    step, batch = step_of(model_of("llama")), window(padded(WHOLE))
    step.forward(batch)
    with pytest.raises(IndexError):
        step.forward(Batch.of({**batch.data, "input_ids": batch.data["input_ids"] + 50}))
    assert (dict(functions._local_mapping), functions["sdpa"]) == before


def test_a_mask_function_of_the_users_own_is_called_and_stays() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as functions

    made: list[Any] = []
    stock = functions["sdpa"]

    def own(**given: Any) -> Any:
        made.append(given["attention_mask"])
        return stock(**given)

    functions["sdpa"] = own
    try:
        step_of(model_of("llama")).forward(window(padded(RIGHT)))
        assert functions["sdpa"] is own
    finally:
        del functions["sdpa"]
    assert len(made) == 1


@pytest.mark.slow
def test_a_compiled_model_is_compiled_once_for_micro_batches_of_one_shape() -> None:
    from torch._dynamo.testing import CompileCounter

    model, counter = model_of("llama"), CompileCounter()
    step = step_of(model)
    model.forward = torch.compile(model.forward, backend=counter)
    for lengths in (WHOLE, RIGHT, WHOLE):
        step.forward(Batch(window(padded(lengths)).data, 2, lengths=lengths, gapless=True))
        compiled = counter.frame_count
    assert compiled == 1


def test_texts_that_are_written_from_others_go_on_asking() -> None:
    config = transformers.BartConfig(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        vocab_size=50,
    )
    step = step_of(transformers.BartForConditionalGeneration(config))
    assert reads(step, window(padded(WHOLE))) > 0
