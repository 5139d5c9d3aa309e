from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm
from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.hard_examples import HardExamples
from snugfit.techniques.learning.sam import SAM
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.chunked_loss import ChunkedLoss

SIZES = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_experts_per_tok": 2}
COEFFICIENT = 0.5


def mixtral(**settings: Any) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MixtralForCausalLM(
            MixtralConfig(
                **SIZES,
                **HEADS,
                **{
                    "num_local_experts": 4,
                    "output_router_logits": True,
                    "router_aux_loss_coef": COEFFICIENT,
                    **settings,
                },
            )
        )


def qwen() -> nn.Module:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **SIZES,
                **HEADS,
                head_dim=4,
                num_experts=4,
                moe_intermediate_size=8,
                output_router_logits=True,
                router_aux_loss_coef=COEFFICIENT,
            )
        )


def texts(rows: int = 6) -> dict[str, Tensor]:
    """Of unequal lengths; one of them has nothing that is scored."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(11, (rows, 7), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(rows):
        mask[row, 7 - row % 4 :] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[rows - 1] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def gradients(step: Step, data: Any) -> dict[str, Tensor]:
    with step.computed(Batch.of(data)):
        return {n: p.grad.clone() for n, p in step.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", [mixtral, qwen])
@pytest.mark.parametrize("micro_batch", [None, 4, 1])
def test_the_gradient_is_that_of_transformers_own_loss_however_the_window_is_split(
    make: Callable[[], nn.Module], micro_batch: int | None
) -> None:
    model, oracle, data = make(), make().train(), texts()
    found = gradients(Step(model, SGD(), "causal_lm", micro_batch=micro_batch), data)
    own = oracle(**data)
    own.loss.backward()
    expected = {n: p.grad for n, p in oracle.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    step = Step(make(), SGD(), "causal_lm", micro_batch=micro_batch)
    result = step(data)
    assert result.loss == pytest.approx(float(own.loss.detach()), rel=1e-5)
    assert float(result.metrics["router_loss"]) == pytest.approx(float(own.aux_loss.detach()), rel=1e-5)


@pytest.mark.parametrize(
    "techniques",
    [(ClipNorm(0.1), SAM(rho=0.1)), (HardExamples(fraction=0.5),)],
    ids=["sam", "hard examples"],
)
def test_techniques_that_run_a_window_again_meet_the_same_loss(techniques: tuple[Any, ...]) -> None:
    whole, split = (
        gradients(Step(mixtral(), SGD(), "causal_lm", techniques, micro_batch=size), texts())
        for size in (None, 2)
    )
    torch.testing.assert_close(split, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_chunks_of_the_logits_keep_the_routers_part(micro_batch: int | None) -> None:
    plain = gradients(Step(mixtral(), SGD(), "causal_lm"), texts())
    chunked = gradients(
        Step(mixtral(), SGD(), "causal_lm", [ChunkedLoss(chunk=5)], micro_batch=micro_batch), texts()
    )
    torch.testing.assert_close(chunked, plain, rtol=1e-4, atol=1e-6)


def test_a_model_that_does_not_ask_for_it_has_no_such_loss() -> None:
    result = Step(mixtral(output_router_logits=False), SGD(), "causal_lm")(texts())
    assert "router_loss" not in result.metrics


def with_routers(outputs: Any, data: Any) -> LossTerms:
    terms = causal_lm(outputs, data)
    return LossTerms(terms.values + COEFFICIENT * outputs.aux_loss, terms.weights)


def test_a_loss_that_adds_it_itself_has_it_once_and_only_over_whole_windows() -> None:
    own, ours = (gradients(Step(mixtral(), SGD(), loss), texts()) for loss in (with_routers, "causal_lm"))
    torch.testing.assert_close(own, ours)
    with pytest.raises(SettingError, match=r"^loss: uses outputs\.aux_loss.*Leave it out"):
        Step(mixtral(), SGD(), with_routers, micro_batch=2)(texts())


def test_outputs_without_the_loss_are_said_to_have_none() -> None:
    step = Step(mixtral(), SGD(), "causal_lm", forward=lambda model, batch: model(batch["input_ids"]).logits)
    with pytest.warns(UserWarning, match="output_router_logits=True, and its outputs have no aux_loss"):
        assert "router_loss" not in step(texts()).metrics


def test_another_formula_is_refused_in_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.mixtral import modeling_mixtral

    monkeypatch.setattr(
        modeling_mixtral, "load_balancing_loss_func", lambda logits, *_: logits[0].softmax(-1).square().mean()
    )
    assert Step(mixtral(), SGD(), "causal_lm")(texts()).applied
    with pytest.raises(SettingError, match=r"^plan\.micro_batch: the aux_loss of MixtralForCausalLM is"):
        Step(mixtral(), SGD(), "causal_lm", micro_batch=2)(texts())
