"""The micro-batch: finer when memory runs out, and found by trying where it is 'auto'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import snugfit as sf
from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.core.technique import Technique
from snugfit.data.sizes import largest
from snugfit.display.terminal import TerminalDisplay
from snugfit.errors import OutOfMemory, SettingError
from snugfit.report.story import read_story
from snugfit.run.training.loop import Training
from snugfit.step.find_micro_batch import Fit, find_micro_batch, limit_on
from snugfit.step.micro_batch_sizes import cut, sizes
from snugfit.step.out_of_memory import advice
from snugfit.system import memory
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.sgd import SGD
from tests.laws import problems
from tests.laws.problems import differences, saved
from tests.unit.run.training.runs import events, finish, make_training, resumed, seen, stop_at, told

VOCABULARY, WIDTH, LONG, SHORT = 13, 8, 50, 5


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("out_of_memory", "find_micro_batch", "evaluate"):
        monkeypatch.setattr(f"snugfit.step.{module}.release_memory", lambda device: None)


class Capped(nn.Module):
    """A classifier of texts on a device with room for so many tokens of one forward, padding counted."""

    def __init__(self, most_tokens: int, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self._most_tokens = most_tokens  # of the device, not of the model: ranks may have others
        self.over_limit: list[int] = []
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if input_ids.numel() > self._most_tokens:
            self.over_limit.append(input_ids.numel())
            raise torch.OutOfMemoryError(f"CUDA out of memory: {input_ids.numel()} tokens")
        mask = attention_mask.unsqueeze(-1)
        hidden = (self.embedding(input_ids) * mask).sum(dim=1) / mask.sum(dim=1)
        logits: Tensor = self.head(self.dropout(hidden))
        return logits


def texts(count: int, long: int | None = None) -> list[dict[str, Any]]:
    """Short texts with one of ten times their length among them."""
    source = torch.Generator().manual_seed(3)

    def text(index: int) -> dict[str, Any]:
        length = LONG if index == long else SHORT
        ids = torch.randint(1, VOCABULARY, (length,), generator=source).tolist()
        return {"input_ids": ids, "attention_mask": [1] * length, "labels": ids[0] % 3}

    return [text(index) for index in range(count)]


def padded(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    width = max(len(example["input_ids"]) for example in examples)

    def pad(name: str) -> Tensor:
        return torch.tensor([example[name] + [0] * (width - len(example[name])) for example in examples])

    labels = torch.tensor([example["labels"] for example in examples])
    return {"input_ids": pad("input_ids"), "attention_mask": pad("attention_mask"), "labels": labels}


def text_run(folder: Path, model: nn.Module, micro_batch: Any = "auto", **settings: Any) -> Training:
    """A run over 24 texts in windows of 8, the seventeenth text ten times longer; it has been fitted."""
    training = make_training(
        folder,
        model=model,
        train=texts(24, long=17),
        collate=padded,
        plan=Plan(micro_batch=micro_batch),
        global_batch=8,
        **settings,
    )
    training.fit()
    return training


@pytest.mark.parametrize(
    ("most_tokens", "expected"), [(8 * LONG, 8), (8 * LONG - 1, 4), (2 * LONG, 2), (99, 1)]
)
def test_auto_is_the_largest_that_fits_the_longest_example_and_never_fails_in_training(
    tmp_path: Path, most_tokens: int, expected: int
) -> None:
    model = Capped(most_tokens)
    training = text_run(tmp_path, model)
    assert training.step.micro_batch == expected
    model.over_limit.clear()
    assert finish(training).updates == 6
    assert not model.over_limit and not events(training, "replan")
    assert sorted(index for window in seen(training)[:3] for index in window) == list(range(24))


def test_auto_says_what_was_tried_each_with_its_number(tmp_path: Path) -> None:
    training = text_run(tmp_path, Capped(2 * LONG))
    (event,) = events(training, "fit")
    tried = [(trial["micro_batch"], trial["fits"]) for trial in event["trials"]]
    assert tried == [(8, False), (4, False), (2, True)]
    assert event["trials"][0]["peak_bytes"] is None and event["trials"][2]["peak_bytes"] > 0
    assert (event["micro_batch"], event["rows"], event["longest"]) == (2, 8, True)
    assert "micro-batches of 2, tried on the 8 largest examples: 8: ran out of memory; 4:" in event["message"]


def test_where_sizes_are_not_known_the_first_window_is_tried_and_that_is_said(tmp_path: Path) -> None:
    class Lazy(Dataset[Any]):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> dict[str, Any]:
            return texts(24, long=17)[index]

    model = Capped(4 * LONG)
    training = make_training(
        tmp_path,
        model=model,
        train=Lazy(),
        collate=padded,
        plan=Plan(micro_batch="auto"),
        global_batch=8,
        shuffle=False,
    )
    training.fit()
    (event,) = events(training, "fit")
    assert training.step.micro_batch == 8 and not event["longest"]
    assert "will be split finer" in event["message"]
    assert finish(training).updates == 6, "the window of the long text was split"
    (replan,) = events(training, "replan")
    assert (replan["window"], replan["before"], replan["after"]) == (3, 8, 4)


def weighed(techniques: tuple[Technique, ...]) -> object:
    """Of dozens, each of a third of a second, those that are tried each time: none, and one with a state of its own."""
    quick = [technique.card.name for technique in techniques] in ([], ["ema"])
    return techniques if quick else pytest.param(techniques, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "techniques", [weighed(each) for each in problems.singles_and_together()], ids=problems.name_of
)
def test_looking_for_the_micro_batch_leaves_no_trace(techniques: tuple[Technique, ...]) -> None:
    problem = problems.main(techniques)
    first, second, _ = problem.windows()
    looked, never = (problems.make_step(problem, techniques, micro_batch=4, dropout=0.3) for _ in range(2))
    for window in (first, second):  # before the first update, and in the middle of a run
        before, randomness = saved(looked), torch.get_rng_state()
        assert find_micro_batch(looked, window).micro_batch == 7
        assert not differences(before, saved(looked))
        assert torch.equal(randomness, torch.get_rng_state())
        looked(window), never(window)
    assert not differences(saved(never), saved(looked))
    assert looked.micro_batch == 4


def test_a_model_is_measured_with_what_it_becomes_later_in_the_run() -> None:
    """Texts are cut short in the first windows, and the last ones are what has to fit."""
    techniques = (sf.SequenceLength(initial=8, fraction=0.5),)
    step = sf.Step(Capped(4 * LONG), SGD(learning_rate=0.1), techniques=techniques, total_updates=9)
    window = padded(texts(8, long=0))
    assert find_micro_batch(step, window).micro_batch == 4


def test_the_optimizers_state_is_there_while_sizes_are_tried() -> None:
    model = Capped(10**9)
    step = sf.Step(model, AdamW(learning_rate=0.1))
    state_sizes: list[int] = []
    model.register_forward_hook(lambda *_: state_sizes.append(len(step.optimizer.state)))
    find_micro_batch(step, padded(texts(8)))
    assert state_sizes[0] == 0 and set(state_sizes[1:]) == {len(list(model.parameters()))}
    assert not step.optimizer.state


def test_where_the_optimizer_has_no_room_for_its_step_no_size_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its states and temporaries are as large for any micro-batch: a run would end in its first update."""
    step = sf.Step(Capped(10**9), AdamW(learning_rate=0.1))

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory: states")

    monkeypatch.setattr(step.optimizer, "step", full)
    with pytest.raises(
        OutOfMemory, match="auto found none that fits a window of 8 examples: 8: ran out of memory"
    ):
        find_micro_batch(step, padded(texts(8)))


@pytest.mark.parametrize(("device", "limit"), [("cuda", 950), ("cpu", 385)])
def test_a_trial_may_take_what_is_free_but_for_some_headroom(
    device: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU by what is free, not by what it has: others may have the rest. Only a GPU can show how much headroom suffices."""
    asked: list[str] = []
    monkeypatch.setattr(
        "snugfit.step.find_micro_batch.available_bytes", lambda given: asked.append(given.type) or 1000
    )
    assert limit_on(torch.device(device), processes=2) == limit
    assert asked == [device]
    monkeypatch.setattr("snugfit.step.find_micro_batch.available_bytes", lambda given: None)
    assert limit_on(torch.device(device), 1) is None


def test_the_peak_of_a_run_begins_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[str] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: reset.append(device.type))
    memory.reset_peak_memory(torch.device("cuda"))
    memory.reset_peak_memory(torch.device("cpu"))
    assert reset == ["cuda"]
    training = text_run(tmp_path, Capped(10**9), micro_batch=None)
    monkeypatch.setattr(
        "snugfit.run.training.loop.reset_peak_memory",
        lambda device: reset.append(training.step.progress.updates),
    )
    finish(training)
    assert reset == ["cuda", 0]


def test_on_a_cpu_larger_sizes_are_predicted_from_smaller_ones_and_the_chosen_one_is_measured() -> None:
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 3))
    window = (torch.randn(256, 64), torch.randint(0, 3, (256,)))

    def look(limit: int | None) -> Fit:
        return find_micro_batch(sf.Step(model, SGD(learning_rate=0.1)), window, limit)

    whole = look(None)
    assert whole.micro_batch == 256 and not whole.trials[0].predicted
    peak = whole.trials[0].peak_bytes
    assert peak is not None
    less = look(peak - 1)
    assert less.micro_batch == 128
    last = less.trials[-1]
    assert not last.predicted and last.peak_bytes is not None and last.peak_bytes <= peak - 1
    few = look(600_000)
    assert [(trial.micro_batch, trial.predicted) for trial in few.trials] == [
        (256, True),
        (128, True),
        (64, False),
    ]
    for trial in few.trials[:-1]:
        step = sf.Step(model, SGD(learning_rate=0.1), micro_batch=trial.micro_batch)
        with AllocatedBytes() as allocated, step.computed(Batch.of(window)):
            pass
        assert trial.peak_bytes == pytest.approx(allocated.peak, rel=0.05)


def test_a_limit_that_not_one_row_keeps_is_refused_with_its_numbers() -> None:
    step = sf.Step(Capped(10**9), SGD(learning_rate=0.1))
    with pytest.raises(
        OutOfMemory, match=r"none that fits a window of 8 examples: 8: .* predicted.*\(of 10 B\)"
    ):
        find_micro_batch(step, padded(texts(8)), limit_bytes=10)


def test_the_tightest_of_the_machines_limits_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from snugfit.system import memory

    (tmp_path / "job").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable: 8 kB\n")
    (tmp_path / "own").write_text("0::/job\n")
    for name, value in {"max": "6000", "current": "5000", "stat": "inactive_file 100\n"}.items():
        (tmp_path / "job" / f"memory.{name}").write_text(value)
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "own")
    assert memory.available_bytes(torch.device("cpu")) == 6000 - 5000 + 100
    (tmp_path / "job" / "memory.max").write_text("max")
    assert memory.available_bytes(torch.device("cpu")) == 8 * 1024
    (tmp_path / "meminfo").unlink()
    assert memory.available_bytes(torch.device("cpu")) is None


def test_what_torch_says_without_memory_is_recognised() -> None:
    from snugfit.system.memory import is_out_of_memory

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    wrapped = ValueError("the layer failed")
    wrapped.__cause__ = caught.value
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(
    ("words", "is_it"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("Triton Error [CUDA]: out of memory", True),
        ("MPS backend out of memory (MPS allocated: 5.00 GB)", True),
        ("CUDA error: an illegal memory access was encountered", False),
        ("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", False),
    ],
)
def test_what_libraries_of_a_device_say_without_memory_is_recognised(words: str, is_it: bool) -> None:
    from snugfit.system.memory import is_out_of_memory

    assert is_out_of_memory(RuntimeError(words)) is is_it


def test_allocated_bytes_are_those_alive_at_once() -> None:
    before = torch.ones(1000)
    with AllocatedBytes() as allocated:
        view = before[:10].view(2, 5)
        assert allocated.now == 0, "a view of what was there takes nothing"
        made = before * 2
        assert allocated.now == 4000
        sum_ = (made + 1).sum()
        assert (allocated.now, allocated.peak) == (4004, 8004)
        made[:5].zero_()
        assert allocated.now == 4004
        del made
        assert allocated.now == 4
    assert view.shape == (2, 5) and sum_.ndim == 0


def test_what_backward_keeps_is_counted_until_it_is_freed() -> None:
    layer = nn.Linear(100, 100, bias=False)
    with AllocatedBytes() as allocated:
        outputs = layer(torch.ones(10, 100)).exp()
        held = allocated.now
        outputs.sum().backward()
        del outputs
    assert held == 4 * 10 * 100 * 2, "the input and the exponential; the sum before it is not needed"
    assert layer.weight.grad is not None
    assert allocated.now == 4 * 100 * 100, "the gradient"


def test_the_largest_examples_are_found_where_they_are_in_memory() -> None:
    examples = texts(24, long=17)
    assert largest(examples, 3) == [17, 0, 1]
    assert largest(Subset(examples, [5, 17, 2]), 2) == [1, 0]
    assert largest([(torch.zeros(2, 3), 1), (torch.zeros(7), 0)], 1) == [1]
    assert largest(TensorDataset(torch.zeros(5, 2)), 2) == [0, 1]

    class Lazy:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Tensor:
            raise AssertionError("looking at it may cost")

    assert largest(Lazy(), 2) is None


@pytest.mark.parametrize("rows", [1, 5, 8, 30])
def test_every_size_cuts_a_window_into_parts_of_at_most_that_many(rows: int) -> None:
    for size in sizes(rows):
        parts = cut(rows, size)
        assert max(map(len, parts)) <= size and sum(map(len, parts)) == rows
        assert min(map(len, cut(rows, size, paired=True))) >= min(2, rows) or size == 1


def test_a_run_that_ran_out_of_memory_trains_what_it_would_have_trained(tmp_path: Path) -> None:
    capped, roomy = Capped(4 * LONG).double(), Capped(10**9).double()
    short = text_run(tmp_path / "short", capped, micro_batch=None, validation=texts(20))
    enough = text_run(tmp_path / "enough", roomy, micro_batch=None, validation=texts(20))
    assert finish(short).updates == finish(enough).updates == 6
    assert capped.over_limit, "memory never ran out"
    for name, weight in roomy.state_dict().items():
        assert torch.allclose(capped.state_dict()[name], weight, rtol=1e-10, atol=1e-13)
    assert seen(short) == seen(enough)
    for one, other in zip(events(short, "update"), events(enough, "update"), strict=True):
        assert (one["update"], one["window"]) == (other["update"], other["window"])
        assert one["metrics"]["loss"] == pytest.approx(other["metrics"]["loss"], rel=1e-10)
    (replan,) = events(short, "replan")
    assert (replan["before"], replan["after"], short.step.micro_batch) == (8, 4, 4)
    assert replan["window"] == 1 + next(n for n, ids in enumerate(seen(short)) if 17 in ids)
    assert not events(enough, "replan")


def test_a_run_resumed_after_it_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def run(folder: str, seed: int = 0) -> Training:
        model = Capped(4 * LONG, dropout=0.5)
        return text_run(tmp_path / folder, model, micro_batch=None, checkpoint_every=1, seed=seed)

    whole = run("whole")
    finish(whole)
    failed = events(whole, "replan")[0]["window"]
    stop_at(run("parts"), failed + 1)
    rest = resumed(run("parts"))
    assert rest.step.micro_batch == 4, "what the run had found"
    finish(rest)
    assert not differences(saved(whole.step), saved(rest.step))
    assert told(whole) == told(rest)
    assert len(events(rest, "replan")) == 1


def test_a_resume_with_another_plan_follows_that_plan(tmp_path: Path) -> None:
    stop_at(text_run(tmp_path, Capped(4 * LONG), micro_batch=None), 3)
    other = make_training(
        tmp_path,
        model=Capped(4 * LONG),
        train=texts(24, long=17),
        collate=padded,
        plan=Plan(micro_batch=3),
        global_batch=8,
    )
    assert resumed(other).step.micro_batch == 3


def test_auto_is_not_looked_for_again_by_a_resumed_run(tmp_path: Path) -> None:
    stop_at(text_run(tmp_path, Capped(2 * LONG)), 3)
    again = make_training(
        tmp_path,
        model=Capped(2 * LONG),
        train=texts(24, long=17),
        collate=padded,
        plan=Plan(micro_batch="auto"),
        global_batch=8,
    )
    again.restore()
    again.fit()
    assert again.step.micro_batch == 2
    assert len(events(again, "fit")) == 1


def test_an_evaluation_that_runs_out_of_memory_scores_every_row_once(tmp_path: Path) -> None:
    def score(most_tokens: int) -> Training:
        training = text_run(
            tmp_path / str(most_tokens),
            Capped(most_tokens).double(),
            micro_batch=None,
            validation=texts(13),
            metrics={"accuracy": "accuracy"},
            evaluate_batch=13,
        )
        training.evaluate(type("Never", (), {"asked": False, "reason": None})())
        training.evaluate(type("Never", (), {"asked": False, "reason": None})())
        return training

    short, enough = score(4 * SHORT), score(10**9)
    for one, other in zip(events(short, "evaluation"), events(enough, "evaluation"), strict=True):
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-12)
    told_of = [(event["before"], event["after"]) for event in events(short, "replan")]
    assert told_of == [(7, 4)], (
        "no more are scored at once than an update has, and the second evaluation begins with what the first has found"
    )
    assert short.step.micro_batch is None, "the updates have their own"
    with pytest.raises(OutOfMemory, match=r"evaluate.batch: memory ran out in scoring a single example"):
        score(SHORT - 1)


def test_a_replan_is_shown_and_is_in_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalDisplay() as display:
        training = text_run(tmp_path, Capped(4 * LONG), micro_batch=None, display=display)
        display({"event": "run", "name": "texts"})
        finish(training)
    message = "ran out of memory with 8 examples in a micro-batch (CUDA out of memory: 400 tokens). It was run again with 4 at most"
    assert message in capsys.readouterr().err
    (incident,) = read_story(tmp_path).incidents
    assert incident.kind == "warning" and message in incident.text


def test_auto_through_sf_train(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    model = Capped(2 * LONG)
    result = sf.train(
        model,
        texts(24, long=17),
        collate=padded,
        global_batch=8,
        epochs=1,
        micro_batch="auto",
        output=tmp_path,
        track=False,
        display=heard.append,
    )
    assert result.status == "finished" and result.updates == 3
    kinds = [event["event"] for event in heard]
    assert kinds.index("fit") < kinds.index("run")
    assert next(event for event in heard if event["event"] == "run")["plan"]["micro_batch"] == 2


@pytest.mark.parametrize("micro_batch", [0, -1, 2.5, "all"])
def test_a_micro_batch_that_is_none_is_refused(tmp_path: Path, micro_batch: Any) -> None:
    with pytest.raises(SettingError, match=r"^micro_batch: must be a positive whole number, auto or null"):
        sf.train(Capped(9), texts(8), collate=padded, micro_batch=micro_batch, output=tmp_path)
    with pytest.raises(SettingError, match=r"micro_batch: must be at least 1 .*\.$") as raised:
        sf.Step(Capped(9), SGD(), micro_batch=micro_batch)
    assert "find_micro_batch" not in str(raised.value)


def test_a_step_cannot_find_its_micro_batch_and_says_what_can() -> None:
    with pytest.raises(
        SettingError, match=r"found 'auto'\. .*train\(…, micro_batch='auto'\); .*find_micro_batch"
    ):
        sf.Step(Capped(9), SGD(), micro_batch="auto")  # type: ignore[arg-type]


def test_advice_names_what_saves_memory_and_first_what_leaves_the_result_as_it_is() -> None:
    text = advice(["adamw", "recompute"])
    assert text.index("'weight_streaming'") < text.index("(the result stays)") < text.index("'lora'")
    for absent in ("cudnn_benchmark", "channels_last", "compile", "recompute", "adamw_8bit"):
        assert f"'{absent}'" not in text
