from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.core.selection import check
from snugfit.errors import PlanConflict, SettingError
from snugfit.kit.packing import packed_bodies
from snugfit.kit.packing.packed_bodies import bodies
from snugfit.step.step import Step
from snugfit.techniques import find
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.placement.packing import Packing, packed
from tests.laws import problems

LENGTHS = (5, 12, 3, 9, 2, 7)
TOKENS = 12
SIZES = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
GROUPED = {**SIZES, "num_key_value_heads": 1}
DISTIL = {"vocab_size": 31, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
GPT2 = {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
WINDOWED = {**GROUPED, "use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}
OPT = {
    "vocab_size": 31,
    "hidden_size": 16,
    "word_embed_proj_dim": 16,
    "ffn_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}
NEOX = {
    "vocab_size": 31,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
STOCK: list[tuple[str, str, dict[str, Any]]] = [
    ("BertForSequenceClassification", "BertConfig", SIZES),
    ("BertForTokenClassification", "BertConfig", SIZES),
    ("RobertaForSequenceClassification", "RobertaConfig", SIZES),
    ("DistilBertForTokenClassification", "DistilBertConfig", DISTIL),
    ("GPT2LMHeadModel", "GPT2Config", GPT2),
    ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    ("LlamaForSequenceClassification", "LlamaConfig", {**GROUPED, "pad_token_id": 0}),
    ("Qwen2ForCausalLM", "Qwen2Config", WINDOWED),
    ("OPTForCausalLM", "OPTConfig", OPT),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", NEOX),
]


def stock(model: str, config: str, sizes: dict[str, Any], attention: str = "sdpa") -> nn.Module:
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(0)
        made: nn.Module = getattr(transformers, model)(
            getattr(transformers, config)(**sizes, attn_implementation=attention)
        )
    return made.double()


def given(lengths: tuple[int, ...] = LENGTHS) -> dict[str, Tensor]:
    mask = (torch.arange(TOKENS) < torch.tensor(lengths).unsqueeze(1)).long()
    drawn = torch.randint(3, 31, mask.shape, generator=torch.Generator().manual_seed(3))
    return {"input_ids": drawn * mask, "attention_mask": mask}


@contextmanager
def shapes_of(module: nn.Module) -> Iterator[list[tuple[int, ...]]]:
    """The shapes that come out of it."""
    found: list[tuple[int, ...]] = []
    hook = module.register_forward_hook(lambda _module, _args, outputs: found.append(tuple(outputs.shape)))
    yield found
    hook.remove()


def tokens_of(model: nn.Module) -> nn.Module:
    return next(module for module in model.modules() if isinstance(module, nn.Embedding))


def logits_and_gradients(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits at real tokens, and the gradient of a sum of them with a share of its own for each."""
    model.zero_grad()
    logits = model(**batch).logits
    if logits.ndim == 3:
        logits = logits[batch["attention_mask"].bool()]
    (logits * torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)).sum().backward()
    return logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    ("model", "config", "sizes"), STOCK, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_stock_model_gives_the_same_logits_and_gradients_from_fewer_rows(
    model: str, config: str, sizes: dict[str, Any], attention: str
) -> None:
    if attention == "eager" and "sliding_window" in sizes:
        pytest.skip("its eager attention gives NaN where a window holds padding alone, packed or not")
    made = stock(
        model, config, {**sizes, "attn_pdrop": 0.0} if "n_embd" in sizes else sizes, attention
    ).eval()
    logits, gradients = logits_and_gradients(made, given())
    with packed(*bodies(made).values()), shapes_of(tokens_of(made)) as shapes:
        found, of_packed = logits_and_gradients(made, given())
    assert shapes[-1] == (4, TOKENS, 16), "38 tokens fit into 4 rows of 12"
    assert torch.allclose(found, logits, rtol=1e-10, atol=1e-12)
    assert problems.relative_error(of_packed, gradients) <= 1e-10


class Tagger(nn.Module):
    """Somebody's own: torch's encoder, tokens first, behind embeddings of its own, causal if asked."""

    def __init__(self, batch_first: bool = False, causal: bool = False, layers: int | None = 2) -> None:
        super().__init__()
        self.batch_first, self.causal = batch_first, causal
        self.tokens = nn.Embedding(31, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=batch_first)
        self.encoder = (
            layer if layers is None else nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        )
        self.seen: tuple[int, ...] = ()
        self.head = nn.Linear(16, 5)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        hidden = self.tokens(input_ids)
        mask = None
        if self.causal:
            mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        if not self.batch_first:
            hidden = hidden.transpose(0, 1)
        hidden = self.encoder(hidden, mask, src_key_padding_mask=attention_mask == 0)
        if not self.batch_first:
            hidden = hidden.transpose(0, 1)
        return type("Outputs", (), {"logits": self.head(hidden)})


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("layers", [None, 2])
@pytest.mark.parametrize("training", [False, True])
def test_torchs_encoder_in_somebodys_module_gives_the_same_logits_and_gradients(
    batch_first: bool, causal: bool, layers: int | None, training: bool
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Tagger(batch_first, causal, layers).double().train(training)
    assert list(bodies(made)) == ["encoder"]
    logits, gradients = logits_and_gradients(made, given())
    inner = next(module for module in made.modules() if isinstance(module, nn.LayerNorm))
    with packed(made.encoder), shapes_of(inner) as shapes:
        found, of_packed = logits_and_gradients(made, given())
    assert shapes[-1] == ((4, TOKENS, 16) if batch_first else (TOKENS, 4, 16))
    assert torch.allclose(found, logits, rtol=1e-10, atol=1e-12)
    assert problems.relative_error(of_packed, gradients) <= 1e-10


def test_rows_without_padding_are_left_as_they_are() -> None:
    made = stock(*STOCK[0])
    with packed(*bodies(made).values()), shapes_of(tokens_of(made)) as shapes:
        made(**given((TOKENS,) * 6))
        made(given()["input_ids"])
    assert shapes == [(6, TOKENS, 16)] * 2


def test_what_looks_across_examples_by_other_means_than_attention_is_refused_with_numbers() -> None:
    """Mamba's layers and convolutions run along the row; in float32 this one hides below the rounding of its outputs."""
    sizes = {**GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1}
    made = stock("JambaForCausalLM", "JambaConfig", sizes).float()
    with (
        packed(*bodies(made).values()),
        pytest.raises(
            SettingError,
            match=r"^packing: in JambaModel an example in a packed row changes by [\d.e-]+ with its neighbour",
        ),
    ):
        made(**given())


def test_what_does_not_go_by_the_positions_it_is_given_is_refused_with_numbers() -> None:
    made = stock(*STOCK[4])

    class Deaf(nn.Module):
        """Counts along the row, whatever positions it is asked for."""

        def __init__(self, table: nn.Embedding) -> None:
            super().__init__()
            self.table = table

        def forward(self, position_ids: Tensor) -> Tensor:
            found: Tensor = self.table(torch.arange(position_ids.shape[1]).expand_as(position_ids))
            return found

    body: Any = made.get_submodule("transformer")
    body.wpe = Deaf(body.wpe)
    with (
        packed(body),
        pytest.raises(
            SettingError,
            match=r"^packing: packed outputs of GPT2Model are [\d.e-]+ away from padded ones.*accounts for 1e-09",
        ),
    ):
        made(**given())


def test_the_check_is_made_once_and_leaves_randomness_and_modes_alone() -> None:
    made = stock(*STOCK[0]).train()
    part = made.get_submodule("bert.encoder").eval()
    (body,) = bodies(made).values()
    checked: set[nn.Module] = set()
    state = torch.random.get_rng_state()
    with packed(body, checked=checked), shapes_of(tokens_of(made)) as shapes:
        made(**given())
        drawn = torch.random.get_rng_state()
        first = len(shapes)
        torch.random.set_rng_state(state)
        made(**given())
    assert (first, len(shapes)) == (4, 5), "padded, packed, packed beside others; then the call itself"
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert made.training and not part.training
    assert checked == {body}


def test_lengths_that_the_host_knows_are_not_read_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stock(*STOCK[0]).eval()
    (body,) = bodies(made).values()
    batch = given()
    mask, lengths = batch["attention_mask"], LENGTHS
    with torch.no_grad(), packed(body, checked={body}):
        expected = made(**batch).logits
    monkeypatch.setattr(packed_bodies, "read", lambda *given, **more: pytest.fail("was read"))
    with (
        torch.no_grad(),
        packed(body, lengths, checked={body}, mask=mask),
        shapes_of(tokens_of(made)) as shapes,
    ):
        assert torch.equal(made(**batch).logits, expected)
        assert shapes[0][0] < len(LENGTHS), "nothing was packed"
        with pytest.raises(pytest.fail.Exception, match="was read"):  # somebody's own mask is looked at
            made(**{**batch, "attention_mask": mask.clone()})


def test_a_loaders_windows_are_packed_without_a_look_at_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(stock(*STOCK[5]), SGD(), "causal_lm", (Packing(),), micro_batch=3)
    data = given()
    window = Batch.of({**data, "labels": data["input_ids"].masked_fill(data["attention_mask"] == 0, -100)})
    step(window)
    monkeypatch.setattr(packed_bodies, "read", lambda *given, **more: pytest.fail("was read"))
    with shapes_of(tokens_of(step.model)) as shapes:
        assert step(window).applied
    assert [shape[0] for shape in shapes] == [2, 2], "nothing was packed"


def test_under_autocast_the_check_leaves_no_weight_without_its_gradient() -> None:
    """Autocast keeps its copies of weights: one that was made without gradients would serve the forward that is trained."""
    problem = problems.reader(())
    plain, changed = (
        problems.make_step(problem, (*problems.find_examples("bf16"), *given), dtype=torch.float32)
        for given in ((), (Packing(),))
    )
    for step in (plain, changed):
        step(problem.windows(torch.float32)[0])
    assert problems.gradients(changed).keys() == problems.gradients(plain).keys()


def test_outputs_that_are_not_finite_prove_nothing_and_are_checked_later() -> None:
    problem = problems.reader(())
    step = problems.make_step(problem, (Packing(),))
    window = problem.windows()[0]
    assert not step(problems.poisoned(window, math.nan)).applied
    assert step(window).applied


def test_left_padding_is_refused() -> None:
    made = stock(*STOCK[4])
    batch = {name: value.flip(1) for name, value in given().items()}
    with (
        packed(*bodies(made).values()),
        pytest.raises(SettingError, match="in 5 places of 6 rows .*padding_side = 'right'"),
    ):
        made(**batch)


def test_positions_of_the_users_own_are_refused() -> None:
    made = stock(*STOCK[5])
    with (
        packed(*bodies(made).values()),
        pytest.raises(SettingError, match="LlamaModel is called with position_ids"),
    ):
        made(**given(), position_ids=torch.arange(TOKENS).unsqueeze(0))


def test_a_mask_for_each_example_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, batch_first=True)
    padding = given()["attention_mask"] == 0
    with (
        packed(layer),
        pytest.raises(SettingError, match=r"a mask of shape \(12, 12, 12\), one for each example"),
    ):
        layer(torch.randn(6, TOKENS, 16), torch.zeros(12, TOKENS, TOKENS), padding)


def test_an_encoder_with_attention_in_windows_is_refused() -> None:
    sizes = {**SIZES, "local_attention": 4, "global_attn_every_n_layers": 2}
    ids = {"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    made = stock("ModernBertForSequenceClassification", "ModernBertConfig", {**sizes, **ids})
    with (
        packed(*bodies(made).values()),
        pytest.raises(SettingError, match="ModernBertModel attends within windows"),
    ):
        made(**given())


def test_a_pooler_that_gets_one_token_of_each_row_is_refused() -> None:
    made = stock("AlbertForSequenceClassification", "AlbertConfig", {**SIZES, "embedding_size": 16})
    with (
        packed(*bodies(made).values()),
        pytest.raises(SettingError, match="the pooler of the model gets a tensor of shape"),
    ):
        made(**given())


def test_labels_that_count_at_padding_are_refused() -> None:
    """As labels = input_ids makes them; where none does, nothing is asked."""
    batch = given()
    labels = batch["input_ids"]
    step = Step(stock(*STOCK[4]), find("sgd")(), "causal_lm", [Packing()])
    padding = int((batch["attention_mask"] == 0).sum())
    with pytest.raises(SettingError, match=rf"^packing: {padding} labels at padding count.*labels to -100"):
        step({**batch, "labels": labels})
    assert step({**batch, "labels": labels.masked_fill(batch["attention_mask"] == 0, -100)}).applied


def test_what_fails_on_packed_rows_alone_is_said_to_be_due_to_packing() -> None:
    sizes = {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    made = stock("DebertaV2ForTokenClassification", "DebertaV2Config", sizes, "eager")
    made(**given())
    with (
        packed(*bodies(made).values()),
        pytest.raises(
            SettingError,
            match="^packing: DebertaV2Model computes padded rows and fails on packed ones: .*length_grouping",
        ),
    ):
        made(**given())


def test_an_output_that_cannot_be_unpacked_is_refused_with_its_shapes() -> None:
    """Scores of routers are one row for each token, packed or not."""
    sizes = {**GROUPED, "num_local_experts": 2, "output_router_logits": True}
    made = stock("MixtralForCausalLM", "MixtralConfig", sizes).float()  # its experts take no float64
    with (
        packed(*bodies(made).values()),
        pytest.raises(SettingError, match=r"shape \(72, 2\) for padded rows and \(48, 2\) for packed ones"),
    ):
        made(**given())


def test_features_that_are_caught_inside_of_what_is_packed_are_refused() -> None:
    batch = {**given(), "labels": given()["input_ids"].masked_fill(given()["attention_mask"] == 0, -100)}
    inside, outside = "transformer.h.0.mlp", "transformer"
    for name, conflicts in ((inside, True), (outside, False)):
        teaching = find("distillation")(teacher="start", features={name: name})
        step = Step(stock(*STOCK[4]), find("sgd")(), "causal_lm", [teaching, Packing()])
        with (
            pytest.raises(
                SettingError, match=f"^distillation.features: '{name}' gives 4 rows .*Remove packing"
            )
            if conflicts
            else nullcontext()
        ):
            assert step(batch).applied


@pytest.mark.parametrize("make", [problems.vit, problems.viewer, problems.normed])
def test_a_model_that_holds_nothing_to_pack_is_refused(make: Callable[..., problems.Problem]) -> None:
    with pytest.raises(SettingError, match="holds nothing that can be packed.*Use length_grouping"):
        Packing().prepare(make(()).model())


def test_the_body_is_found_beside_its_heads_and_in_an_adapter() -> None:
    made = stock(*STOCK[5])
    assert list(bodies(made)) == ["model"]
    adapted = find("lora").example().prepare(made)
    assert [type(body).__name__ for body in bodies(adapted).values()] == ["LlamaModel"]


@pytest.mark.parametrize("others", [("lora",), ("hard_examples", "clip_norm"), ("gradient_cache",)])
@pytest.mark.parametrize("make", [problems.bert, problems.gpt2, problems.reader])
def test_a_run_of_a_stock_model_makes_the_same_updates_packed(
    make: problems.Maker, others: tuple[str, ...]
) -> None:
    techniques = problems.find_examples(*others)
    problem = make(techniques)
    plain = problems.make_step(problem, techniques, micro_batch=4)
    changed = problems.make_step(problem, (*techniques, Packing()), micro_batch=4)
    for window in problem.windows():
        assert changed(window).loss == pytest.approx(plain(window).loss, rel=1e-10)
    assert problems.relative_error(problems.weights(changed), problems.weights(plain)) <= 1e-10
    copy.deepcopy(changed.model)
    assert not any("forward" in vars(body) for body in bodies(changed.model).values()), (
        "packing has stayed behind"
    )


def test_what_acts_on_rows_inside_the_model_is_refused() -> None:
    for other in ("hidden_mixup", "stochastic_depth"):
        with pytest.raises(PlanConflict, match=f"'{other}' and 'packing' exclude each other"):
            check([find(other).example(), Packing()])
