from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from snugfit.core.batch import Batch, inputs_of
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import causal_lm, cross_entropy, over_batches
from snugfit.core.selection import check
from snugfit.core.technique import Context, Sharing, Technique
from snugfit.errors import DataError, PlanConflict, SettingError, SnugfitWarning
from snugfit.kit.language_models.chunked_loss_function import InChunks, Work, chunks_of, in_chunks
from snugfit.kit.language_models.lm_head import Postponed, output_head, postponed, postponed_in, whole
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.techniques import find
from snugfit.techniques.learning.lora import lora_
from snugfit.techniques.placement.chunked_loss import ChunkedLoss
from tests.laws.problems import gpt2, gradients, relative_error
from tests.unit.techniques.settings import context, refuses

VOCABULARY, WIDTH, ROWS, TOKENS = 97, 16, 3, 11

# float64 has 16 digits, and the chunks only change the order of additions
EXACT = 1e-10


def llama(tied: bool, dtype: torch.dtype = torch.float64) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return seeded(lambda: LlamaForCausalLM(config), dtype)


def gpt(dtype: torch.dtype = torch.float64) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": VOCABULARY, "n_positions": TOKENS, "n_embd": WIDTH, "n_layer": 1, "n_head": 2}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return seeded(lambda: GPT2LMHeadModel(GPT2Config(**sizes, **dropouts)), dtype)


def opt(dtype: torch.dtype = torch.float64) -> nn.Module:
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": WIDTH}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32, "dropout": 0.0}
    return seeded(lambda: OPTForCausalLM(OPTConfig(**sizes, **layers)), dtype)


def masked_bert(tied: bool = True) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=TOKENS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=tied,
    )
    return seeded(lambda: BertForMaskedLM(config), torch.float64)


class Own(nn.Module):
    """Somebody's own: returns a tuple, whose first entry are the logits."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.body(self.embed(input_ids)))
        return self.head(hidden), hidden


def seeded(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make().to(dtype)


def window(seed: int = 0, tokens: int = TOKENS) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (ROWS, tokens), generator=source)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=source) < 0.3, -100)
    return {"input_ids": ids, "labels": labels}


def steps(
    make: Callable[[], nn.Module], loss: Any, *others: Technique, chunk: int = 4, **settings: Any
) -> tuple[Step, Step]:
    """The same step without and with the technique."""
    made = []
    for techniques in (others, (*others, ChunkedLoss(chunk=chunk))):
        sgd = find("sgd")(learning_rate=0.1)
        made.append(Step(make(), sgd, loss, techniques, total_updates=5, **settings))
    return made[0], made[1]


def agree(plain: Step, chunked: Step, tolerance: float = EXACT, windows: int = 2) -> None:
    for number in range(windows):
        expected, found = plain(window(number)), chunked(window(number))
        assert found.loss == pytest.approx(expected.loss, rel=tolerance) and found.weight == expected.weight
        assert relative_error(gradients(chunked), gradients(plain)) <= tolerance


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "llama": (lambda: llama(tied=False), "causal_lm"),
    "llama tied": (lambda: llama(tied=True), "causal_lm"),
    "gpt2 tied": (gpt, "causal_lm"),
    "opt, which lays its logits out": (opt, "causal_lm"),
    "bert": (lambda: masked_bert(tied=False), "cross_entropy"),
    "bert tied": (masked_bert, "cross_entropy"),
    "own": (lambda: seeded(Own), "cross_entropy"),
    "own, next token": (lambda: seeded(Own), "causal_lm"),
}


@pytest.mark.parametrize("chunk", [1, 4, 11, 22, 500])
@pytest.mark.parametrize("model", MODELS)
def test_any_chunk_gives_the_loss_and_the_gradient_of_the_whole(model: str, chunk: int) -> None:
    agree(*steps(*MODELS[model], chunk=chunk))


def teacher() -> nn.Module:
    """Another model than the one that is taught."""
    model = llama(tied=False)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    return model


class Capped(nn.Module):
    """A teacher that computes with its logits behind its head."""

    def __init__(self) -> None:
        super().__init__()
        self.model = teacher()

    def forward(self, **inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**inputs).logits
        return 5 * torch.tanh(logits / 5)


@pytest.mark.parametrize("chunk", [4, 500])
@pytest.mark.parametrize("make", [teacher, Capped])
def test_a_teacher_s_divergence_is_computed_in_chunks_too(make: Callable[[], nn.Module], chunk: int) -> None:
    other = make().double()
    distillation = find("distillation")(teacher=other, share=0.7)
    smoothing = find("label_smoothing").example()
    agree(*steps(lambda: llama(tied=False).double(), "causal_lm", smoothing, distillation, chunk=chunk))


def test_a_teacher_s_logits_of_all_tokens_are_never_made() -> None:
    own = teacher()
    sizes: list[int] = []
    own.lm_head.register_forward_hook(
        lambda _module, _args, logits: sizes.append(logits.numel()) if isinstance(logits, Tensor) else None
    )
    passes: list[int] = []
    own.model.register_forward_hook(lambda *_: passes.append(1))
    distillation = find("distillation")(teacher=own)
    _, chunked = steps(lambda: llama(False, torch.float32), "causal_lm", distillation, chunk=4)
    chunked(window())
    assert not sizes, "its head is called as it is by nobody but the chunks"
    assert len(passes) == 1, "it reads the micro-batch once, for all chunks forward and backward"


@pytest.mark.parametrize(
    "names", [["label_smoothing", "focal", "z_loss"], ["hidden_mixup", "z_loss"], ["sam"], ["fp16"]]
)
@pytest.mark.parametrize("model", ["llama tied", "bert", "own"])
def test_what_wraps_the_loss_is_computed_in_chunks_too(model: str, names: list[str]) -> None:
    make, loss = MODELS[model]
    others = [find(name).example() for name in names]
    dtype = torch.float32 if "fp16" in names else torch.float64
    plain, chunked = steps(lambda: make().to(dtype), loss, *others)
    agree(plain, chunked, tolerance=2e-2 if "fp16" in names else EXACT)  # fp16 has 11 bits


def test_a_head_that_scales_within_its_own_forward_keeps_its_scale_in_backward() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 0.5 * super().forward(input)

    def make() -> nn.Module:
        model = seeded(Own)
        model.head.__class__ = Scaled
        return model

    agree(*steps(make, "causal_lm"))


def test_rows_of_a_chunk_that_are_all_short_keep_their_padding() -> None:
    mask = (torch.arange(TOKENS) < torch.tensor([[4], [TOKENS], [6]])).long()
    batch = window()
    batch = {**batch, "labels": batch["labels"].masked_fill(mask == 0, -100), "attention_mask": mask}
    plain, chunked = steps(masked_bert, "cross_entropy", chunk=TOKENS)  # a row each
    assert chunked(batch).loss == pytest.approx(plain(batch).loss, rel=EXACT)
    assert relative_error(gradients(chunked), gradients(plain)) <= EXACT


def test_soft_labels_are_cut_with_their_classes() -> None:
    source = torch.Generator().manual_seed(5)
    soft = torch.rand(ROWS, TOKENS, VOCABULARY, generator=source, dtype=torch.float64).softmax(-1)
    batch = {**window(), "labels": soft}
    plain, chunked = steps(lambda: seeded(Own), "cross_entropy")
    assert chunked(batch).loss == pytest.approx(plain(batch).loss, rel=EXACT)
    assert relative_error(gradients(chunked), gradients(plain)) <= EXACT


def test_a_frozen_head_gets_no_gradient_and_a_frozen_body_leaves_it_whole() -> None:
    for frozen in ("head", "body"):

        def make(part: str = frozen) -> nn.Module:
            model = seeded(Own)
            names = ["head"] if part == "head" else ["embed", "body"]
            for name in names:
                model.get_submodule(name).requires_grad_(False)
            return model

        agree(*steps(make, "causal_lm"))


@pytest.mark.parametrize("names", [["bf16"], ["bf16", "fp32_logits"], ["fp32_logits", "bf16"]])
def test_under_autocast_the_chunks_are_computed_in_what_the_whole_is(names: list[str]) -> None:
    others = [find(name).example() for name in names]
    plain, chunked = steps(lambda: llama(False, torch.float32), "causal_lm", *others)
    # values are the same bits; gradients of the weight are added in float32 instead of within one product
    assert chunked(window()).loss == pytest.approx(plain(window()).loss, rel=1e-6)
    # bf16 has 8 bits
    assert relative_error(gradients(chunked), gradients(plain)) <= 2e-2
    dtypes = {tensor.dtype for tensor in gradients(chunked).values()}
    assert dtypes == {torch.float32}


def test_the_gradient_of_a_head_under_autocast_is_nearer_to_the_exact_one_than_a_sum_in_bf16_would_be() -> (
    None
):
    head, hidden = nn.Linear(WIDTH, VOCABULARY), torch.randn(1, 512, WIDTH)
    labels = torch.randint(0, VOCABULARY, (1, 512))

    def gradient(size: int, enabled: bool) -> Tensor:
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled), postponed(head):
            terms = in_chunks(over_batches(cross_entropy), head(hidden), Batch.of((hidden, labels)), size)
        terms.values.sum().backward()
        assert head.weight.grad is not None
        return head.weight.grad.clone()

    exact, one, many = gradient(512, False), gradient(512, True), gradient(4, True)
    error = [float((found - exact).norm() / exact.norm()) for found in (one, many)]
    assert error[1] < 1.5 * error[0] < 0.05


@pytest.mark.parametrize("dora", [False, True])
def test_an_adapted_head_is_computed_with_its_adapter(dora: bool) -> None:
    lora = find("lora")(rank=2, targets=("head", "body"), dora=dora)
    plain, chunked = steps(lambda: seeded(Own), "causal_lm", lora)
    agree(plain, chunked)
    assert any("head.lora_B" in name for name in gradients(chunked))


def test_an_adapted_head_is_computed_under_the_autocast_of_forward_again() -> None:
    others = [find("lora")(rank=2, targets=("head",)), find("bf16")()]
    plain, chunked = steps(lambda: seeded(Own, torch.float32), "causal_lm", *others)
    assert chunked(window()).loss == pytest.approx(plain(window()).loss, rel=1e-6)
    assert relative_error(gradients(chunked), gradients(plain)) <= 2e-2  # bf16 has 8 bits


@pytest.mark.slow
def test_dropout_in_the_head_draws_the_same_in_backward() -> None:
    model = lora_(nn.Sequential(nn.Linear(WIDTH, VOCABULARY)), rank=2, dropout=0.5, targets=["0"]).double()
    nn.init.normal_(model[0].lora_B["default"].weight)
    hidden = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)  # three chunks
    labels = window()["labels"][:2, :5]

    def value(at: Tensor) -> Tensor:
        torch.manual_seed(1)
        with postponed(model[0]):
            outputs = model(at)
        return in_chunks(
            over_batches(causal_lm), outputs, Batch.of((at, labels)), size=4, ahead=1
        ).weighted_sum()

    assert torch.autograd.gradcheck(value, hidden, atol=1e-6)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    total = value(hidden)
    drawn = torch.get_rng_state()
    total.backward()
    assert not torch.equal(state, drawn) and torch.equal(torch.get_rng_state(), drawn)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that is made, and of all storages that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, Tensor):
                self._note(tensor)
        return made

    def _note(self, tensor: Tensor) -> None:
        self.largest = max(self.largest, tensor.numel())
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        bytes_held = storage.nbytes()
        self.live += bytes_held
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._gone, key, bytes_held)

    def _gone(self, key: int, bytes_held: int) -> None:
        self._seen.discard(key)
        self.live -= bytes_held


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("names", [[], ["label_smoothing", "z_loss"]])
def test_nothing_of_tokens_times_vocabulary_is_ever_made(names: list[str], adapted: bool) -> None:
    vocabulary, tokens, chunk = 1000, 64, 8

    def make() -> nn.Module:
        model = Own()
        model.embed, model.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, vocabulary)
        return model

    others = [find(name).example() for name in names]
    if adapted:
        others.append(find("lora")(rank=2, targets=("head",)))
    largest = []
    for step in steps(make, "causal_lm", *others, chunk=chunk):
        step(window(tokens=tokens))  # what is made once is there
        with Largest() as seen:
            step(window(1, tokens=tokens))
        largest.append(seen.largest)
    # all the logits; and a chunk of them with the one label that it looks ahead, or the weight of the head
    assert largest[0] == ROWS * tokens * vocabulary
    assert largest[1] == max((chunk + 1) * vocabulary, WIDTH * vocabulary)


def test_the_gradient_of_a_plain_head_is_added_up_where_it_stands() -> None:
    vocabulary, chunk = 4000, 2
    head, hidden = nn.Linear(WIDTH, vocabulary, bias=False), torch.randn(1, 64, WIDTH, requires_grad=True)
    labels = torch.randint(0, vocabulary, (1, 64))
    with postponed(head):
        terms = in_chunks(over_batches(cross_entropy), head(hidden), Batch.of((hidden, labels)), chunk)
    with Largest() as seen:
        terms.values.sum().backward()
    weight_bytes, chunk_bytes = head.weight.nbytes, 4 * chunk * vocabulary
    # the weight, one buffer of its size; logits, a masked copy, their log-softmax and two gradients; the rest is small
    assert 2 * weight_bytes < seen.peak < 2 * weight_bytes + 6 * chunk_bytes < 3 * weight_bytes


def test_chunks_over_hidden_states_that_are_not_learned_are_freed_one_by_one() -> None:
    vocabulary, chunk = 4000, 2
    head, hidden = nn.Linear(WIDTH, vocabulary, bias=False), torch.randn(1, 64, WIDTH)
    labels = torch.randint(0, vocabulary, (1, 64))
    gc.collect()
    gc.disable()  # what waits for it stands in memory until then
    try:
        with postponed(head), Largest() as seen:
            terms = in_chunks(over_batches(cross_entropy), head(hidden), Batch.of((hidden, labels)), chunk)
    finally:
        gc.enable()
    assert terms.values.requires_grad
    # the weight, and what one chunk takes; the log-softmax of all of them would be 32 chunks
    assert seen.peak < head.weight.nbytes + 6 * 4 * chunk * vocabulary


def gradients_in_order(step: Step) -> list[str]:
    """The names of the weights in the order in which an update makes their gradients."""
    names = {parameter: name for name, parameter in step.model.named_parameters()}
    order: list[str] = []
    for parameter in names:
        parameter.register_post_accumulate_grad_hook(lambda each: order.append(names[each]))
    step(window())
    return order


def test_the_gradient_of_the_head_comes_when_all_blocks_have_theirs() -> None:
    _, chunked = steps(lambda: llama(False), "causal_lm")
    order = gradients_in_order(chunked)
    assert order[-1] == "lm_head.weight" and order[-2] == "model.embed_tokens.weight"


def test_ranks_send_the_gradient_of_the_head_first() -> None:
    """DDP sends what comes before the head's no earlier than that."""

    class Copies(Strategy):
        sharing = Sharing.COPIES

    _, chunked = steps(lambda: llama(False), "causal_lm", strategy=Copies())
    assert gradients_in_order(chunked)[0] == "lm_head.weight"


def test_a_second_loss_of_a_forward_adds_to_the_gradient_of_the_head() -> None:
    head, hidden = nn.Linear(WIDTH, VOCABULARY), torch.randn(1, 8, WIDTH)
    batch = Batch.of((hidden, torch.arange(8)[None]))
    loss = over_batches(cross_entropy)
    seams = ChunkedLoss(chunk=4).seams(replace(context(head), loss=cross_entropy))
    assert seams.loss is not None and seams.forward is not None
    chunked = seams.loss(loss)
    (2 * loss(head(hidden), batch).values).sum().backward()
    expected, head.weight.grad = head.weight.grad, None
    with seams.forward(batch):
        outputs = head(hidden)
        (chunked(outputs, batch).values + chunked(outputs, batch).values).sum().backward()
    torch.testing.assert_close(head.weight.grad, expected)


def test_a_weight_of_a_frozen_head_that_makes_no_logits_is_no_error() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.unused = nn.Linear(WIDTH, VOCABULARY), nn.Parameter(torch.zeros(2))
            self.linear.requires_grad_(False)

        def forward(self, hidden: Tensor) -> Tensor:
            return self.linear(hidden)

    head, hidden = Head(), torch.randn(1, 8, WIDTH, requires_grad=True)
    with postponed(head):
        batch = Batch.of((hidden, torch.arange(8)[None]))
        in_chunks(over_batches(cross_entropy), head(hidden), batch, 4).values.sum().backward()
    assert hidden.grad is not None and hidden.grad.abs().sum() > 0


class HeadProducts(TorchDispatchMode):
    """Counts the products with a matrix as large as the head's."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(each.shape) for each in args if isinstance(each, Tensor)]
        is_product = func.name().startswith(("aten::mm", "aten::addmm"))
        self.count += is_product and any(VOCABULARY in shape for shape in shapes)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("frozen", "products"), [(True, 2), (False, 4)])
def test_logits_are_made_again_for_the_gradient_of_the_head_alone(frozen: bool, products: int) -> None:
    def make() -> nn.Module:
        model = seeded(Own)
        model.head.requires_grad_(not frozen)
        return model

    _, chunked = steps(make, "cross_entropy", chunk=4)
    chunked(window())
    with HeadProducts() as seen:
        chunked(window())
    assert seen.count == products * len(chunks_of(ROWS, TOKENS, 4))


def test_under_a_loss_scale_gradients_are_made_of_the_scaled_loss() -> None:
    """In float16 a likelihood of a hundred-millionth is 0, if it is not scaled first."""
    head, hidden = nn.Linear(WIDTH, VOCABULARY).half(), torch.zeros(1, 8, WIDTH, dtype=torch.float16)
    hidden.requires_grad_()
    rare = torch.full((VOCABULARY,), -19.0)
    rare[0] = 0.0
    head.bias.data.copy_(rare)
    with postponed(head):
        batch = Batch.of((hidden, torch.zeros(1, 8, dtype=torch.long)))
        terms = in_chunks(over_batches(cross_entropy), head(hidden), batch, 4)
    terms.values.backward(torch.full_like(terms.values, 2.0**12))
    assert hidden.grad is not None and head.bias.grad is not None
    assert (head.bias.grad[1:] > 0).all() and hidden.grad.abs().sum() > 0


def test_evaluation_never_makes_all_the_logits_and_finds_the_loss_that_it_finds_without_it() -> None:
    plain, chunked = steps(lambda: llama(False), "causal_lm")
    batches = [Batch.of(window(number)) for number in range(2)]
    found = []
    for step in (plain, chunked):
        with Largest() as seen:
            found.append(evaluate(Scored.of(step), batches, {"perplexity": "perplexity"}))
        largest = seen.largest
    assert found[1] == pytest.approx(found[0], rel=EXACT)
    assert largest < ROWS * TOKENS * VOCABULARY


@pytest.mark.slow
def test_metrics_that_look_at_logits_get_them() -> None:
    def spread(outputs: Any, data: Any) -> Tensor:
        logits: Tensor = outputs.logits
        assert logits.shape == (ROWS, TOKENS, VOCABULARY)
        return logits.std(dim=(1, 2))

    plain, chunked = steps(masked_bert, "cross_entropy")
    metrics: dict[str, Any] = {"spread": spread, "accuracy": "accuracy"}
    expected, found = (evaluate(Scored.of(step), [Batch.of(window())], metrics) for step in (plain, chunked))
    assert found == pytest.approx(expected, rel=EXACT)


def test_the_score_of_an_evaluation_is_of_the_users_own_loss() -> None:
    smoothing = find("label_smoothing").example()
    plain, chunked = steps(lambda: seeded(Own), "cross_entropy", smoothing)
    expected, found = (evaluate(Scored.of(step), [Batch.of(window())], {}) for step in (plain, chunked))
    assert found == pytest.approx(expected, rel=EXACT)


@contextmanager
def behind(model: nn.Module, change: Callable[[Tensor], Any]) -> Iterator[None]:
    hook = model.register_forward_hook(lambda module, args, outputs: (change(outputs[0]), outputs[1]))
    yield
    hook.remove()


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: 30 * torch.tanh(logits / 30),
        lambda logits: 0.5 * logits,
        lambda logits: torch.tanh(logits),
        lambda logits: logits[:, -1],
        lambda logits: logits.view(-1, VOCABULARY),
        lambda logits: logits.view(TOKENS, ROWS, -1),
        lambda logits: logits.reshape(ROWS, TOKENS, VOCABULARY - 1),
        lambda logits: logits @ torch.eye(VOCABULARY),
    ],
)
def test_a_model_that_computes_with_its_logits_is_refused(change: Callable[[Tensor], Any]) -> None:
    _, step = steps(lambda: seeded(Own), "cross_entropy")
    with (
        behind(step.model, change),
        pytest.raises(SettingError, match="^chunked_loss: the model .* Remove chunked_loss"),
    ):
        step(window())


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits.contiguous(),
        lambda logits: logits.float(),
        lambda logits: logits.to(torch.float32).contiguous(),
        lambda logits: logits.to(logits.device),
        lambda logits: logits.view(ROWS, TOKENS, -1),
        lambda logits: logits.reshape(logits.shape),
        lambda logits: torch.reshape(logits, (*logits.size()[:2], logits.size(-1))),
        lambda logits: torch.clone(logits).view(logits.shape[0], -1, VOCABULARY),
    ],
)
def test_a_model_that_only_lays_out_or_casts_its_logits_is_taken(change: Callable[[Tensor], Any]) -> None:
    plain, chunked = steps(lambda: seeded(Own), "cross_entropy")
    with behind(plain.model, change), behind(chunked.model, change):
        agree(plain, chunked, tolerance=1e-6)  # float32 logits have 7 digits


def test_soft_capping_in_a_stock_model_is_refused() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 1,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    _, step = steps(lambda: Gemma2ForCausalLM(Gemma2Config(**sizes, **heads)), "causal_lm")
    with pytest.raises(SettingError, match="scales, caps or picks its logits behind the head"):
        step(window())


def test_logits_of_another_module_are_refused_by_name() -> None:
    model = seeded(Own)
    step = Step(
        model,
        find("sgd")(learning_rate=0.1),
        "cross_entropy",
        [ChunkedLoss(chunk=4)],
        forward=lambda m, d: m(d["input_ids"])[1],
    )
    with pytest.raises(SettingError, match="^chunked_loss.head: the logits .* do not come from Linear"):
        step(window())
    with pytest.raises(
        SettingError, match="chunked_loss.head: 'haed' matches no module .* Did you mean 'head'"
    ):
        ChunkedLoss(head="haed").seams(context(model))
    assert output_head(model, "body", "chunked_loss.head") is model.body


def test_a_head_in_a_reentrant_checkpoint_is_refused() -> None:
    def inside(model: nn.Module, data: Any) -> Any:
        return checkpoint(lambda ids: model(ids), data["input_ids"], use_reentrant=True)

    _, step = steps(lambda: seeded(Own), "cross_entropy", forward=inside)
    with pytest.raises(
        SettingError, match="^chunked_loss: the head was called where gradients are not recorded"
    ):
        step(window())


def test_a_classifier_of_rows_trains_as_ever_and_is_told_once_that_it_does_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).double()
    step = Step(model, find("sgd")(learning_rate=0.1), "cross_entropy", [ChunkedLoss()], micro_batch=2)
    batch = (torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2]))
    expected = F.cross_entropy(model(batch[0]), batch[1]).item()
    with pytest.warns(
        SnugfitWarning, match=r"^chunked_loss: does nothing, as the head gets \(2, 4\)"
    ) as caught:
        assert step(batch).loss == pytest.approx(expected, rel=EXACT)
    assert len(caught) == 1


class Routed(nn.Module):
    """Logits, and a value of each token of its own that is to be learned too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.router, self.lm_head = nn.Embedding(11, 4), nn.Linear(4, 1), nn.Linear(4, 11)

    def forward(self, input_ids: Tensor) -> dict[str, Tensor]:
        hidden = self.tokens(input_ids)
        return {"logits": self.lm_head(hidden), "aux": self.router(hidden).square().mean()}


def with_auxiliary(outputs: Any, data: Any) -> LossTerms:
    values = F.cross_entropy(outputs["logits"].transpose(1, 2), data["labels"], reduction="none")
    return LossTerms(values + data["share"].mean() * outputs["aux"])


with_auxiliary.labels_ahead = 0  # type: ignore[attr-defined]


def test_a_loss_of_another_output_too_is_refused_as_its_gradient_would_be_lost() -> None:
    ids = torch.arange(20).view(2, 10) % 11
    batch = {"input_ids": ids, "labels": ids, "share": torch.ones(2)}
    step = Step(
        Routed(),
        find("sgd")(),
        with_auxiliary,
        [ChunkedLoss(chunk=4)],
        forward=lambda model, data: model(data["input_ids"]),
    )
    with pytest.raises(
        SettingError, match="^chunked_loss: the loss depends on something that learns beside the logits"
    ):
        step(batch)
    for parameter in step.model.router.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(SettingError, match=r"weight of shape \(11, 4\)"):
        step(batch)
    step.model.tokens.requires_grad_(False)
    assert step(batch).applied, "what learns nothing loses nothing"


def own_loss(outputs: Any, data: Any) -> LossTerms:
    """Squared error of the label's score, weighted by an entry of the batch."""
    logits, labels = outputs[0], data["labels"].clamp(min=0)
    values = (logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - 1) ** 2
    return LossTerms(values, data["trust"])


def test_a_loss_of_ones_own_that_says_so_is_cut_with_what_it_looks_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forward(model: nn.Module, data: Any) -> Any:
        return model(data["input_ids"])

    with pytest.raises(
        SettingError, match="^chunked_loss: the loss is not known to score each token by itself"
    ):
        steps(lambda: seeded(Own), own_loss, forward=forward)
    monkeypatch.setattr(own_loss, "labels_ahead", 0, raising=False)
    plain, chunked = steps(lambda: seeded(Own), own_loss, forward=forward)
    batch = {**window(), "trust": torch.rand(ROWS, TOKENS, dtype=torch.float64)}
    assert chunked(batch).loss == pytest.approx(plain(batch).loss, rel=EXACT)
    assert relative_error(gradients(chunked), gradients(plain)) <= EXACT


def test_a_loss_that_gives_no_value_for_each_token_is_refused() -> None:
    def of_rows(outputs: Any, data: Any) -> Tensor:
        logits: Tensor = outputs[0]
        return logits.mean(dim=(1, 2))

    of_rows.labels_ahead = 0  # type: ignore[attr-defined]
    _, step = steps(lambda: seeded(Own), of_rows)
    with pytest.raises(
        SettingError, match=r"^chunked_loss: the loss gives values of shape \(1,\) for 1 rows of"
    ):
        step(window())


def test_labels_that_are_not_one_a_token_are_refused() -> None:
    _, step = steps(lambda: seeded(Own), "cross_entropy")
    with pytest.raises(DataError, match=r"labels of shape \(3,\) do not fit logits of 3 rows and 11 tokens"):
        step({**window(), "labels": torch.zeros(ROWS, dtype=torch.int64)})


def test_what_does_not_go_by_tokens_is_refused() -> None:
    for other in ("gradient_cache", "mixup"):
        with pytest.raises(PlanConflict, match="chunked_loss"):
            check([ChunkedLoss(), find(other).example()])
    own = Context(nn.Linear(2, 2), torch.device("cpu"), loss=nn.MSELoss(reduction="none"))
    with pytest.raises(SettingError, match="not known to score each token"):
        ChunkedLoss().seams(own)
    refuses(ChunkedLoss, chunk=0)


def test_a_model_is_left_as_it_was() -> None:
    _, step = steps(gpt, "causal_lm")
    step(window())
    assert not any("forward" in vars(module) for module in step.model.modules())
    assert isinstance(step.model(**inputs_of(window())[1]).logits, Tensor)


@pytest.mark.parametrize(
    ("rows", "tokens", "size", "ahead"), [(1, 1, 1, 0), (3, 11, 4, 1), (9, 5, 12, 1), (2, 7, 100, 1)]
)
def test_chunks_cover_each_place_once_and_are_no_larger_than_asked(
    rows: int, tokens: int, size: int, ahead: int
) -> None:
    seen = torch.zeros(rows, tokens)
    for chunk in chunks_of(rows, tokens, size, ahead):
        chunk.of(seen).add_(1)
        assert chunk.of(seen).numel() <= size
        assert chunk.end == min(chunk.stop + ahead, tokens)
    assert bool((seen == 1).all())


def test_postponed_logits_are_found_wherever_the_loss_looks_for_them() -> None:
    from transformers.modeling_outputs import CausalLMOutput

    with postponed(head := nn.Linear(2, 3)):
        later = head(torch.ones(1, 2, 2))
    assert isinstance(later, Postponed)
    for outputs in (later, {"logits": later}, (later, None), CausalLMOutput(logits=later)):
        assert postponed_in(outputs) is later
        made = whole(outputs)
        assert postponed_in(made) is None and type(made) is (Tensor if outputs is later else type(outputs))
        assert postponed_in(outputs) is later
    assert whole(logits := torch.ones(1)) is logits


def test_recomputed_blocks_of_a_stock_model_and_chunks_give_the_same_gradient() -> None:
    plain, chunked = steps(lambda: gpt2(()).model(), "causal_lm", micro_batch=2)
    chunked.model.gradient_checkpointing_enable({"use_reentrant": False})
    texts = {name: tensor.clamp(max=10) for name, tensor in window(tokens=9).items()}
    assert chunked(texts).loss == pytest.approx(plain(texts).loss, rel=EXACT)
    assert relative_error(gradients(chunked), gradients(plain)) <= EXACT


def test_nothing_of_a_chunk_is_handed_to_what_moves_saved_tensors() -> None:
    head, hidden = nn.Linear(4, 9), torch.randn(2, 6, 4, requires_grad=True)
    work = Work(head.forward, lambda logits, _: LossTerms(logits.logsumexp(-1), None), chunks_of(2, 6, 3))
    packed: list[torch.Size] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.shape)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        values, _ = InChunks.apply(work, [*head.parameters()], None, hidden, *head.parameters())
    assert packed == [hidden.shape] * 2  # the hidden states, and the gradients by them
    values.sum().backward()
    assert hidden.grad is not None and hidden.grad.abs().sum() > 0
