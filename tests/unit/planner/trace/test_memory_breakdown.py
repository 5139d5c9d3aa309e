"""The memory of an update: pieces add up to what is there, and measured agrees with what was counted otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.planner.cost.records import Op, Phase, Place, Role, Storage, Trace
from snugfit.planner.devices.hardware import find_device
from snugfit.planner.trace.memory_breakdown import Piece, memory_of_failure, memory_use
from snugfit.planner.trace.real_run import record_gradients, record_update
from snugfit.step.attempt import Attempt, Doing
from snugfit.step.step import Step
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.tools.planner_figures import Predicted
from snugfit.tools.setup import Setup, module_setup


def op(name: str, module: str, event: int, phase: Phase = Phase.FORWARD, workspace: int = 0) -> Op:
    return Op(name, Place(0, phase, 0, 0, module, -1), "cpu", torch.float32, 0, 0, 0, event, workspace)


def small_trace() -> Trace:
    """Weights of 100 bytes; two layers make activations of 40 and 60; the first's backward takes 30 for a moment."""
    return Trace(
        ops=[
            op("aten.mm.default", "first", 1),
            op("aten.mm.default", "second", 2),
            op("aten.view.default", "second", 3),
            op("aten.tanh_backward.default", "first", 3, Phase.BACKWARD),
        ],
        storages=[
            Storage(100, "cpu", -1, Role.WEIGHTS),
            Storage(40, "cpu", 0, Role.ACTIVATIONS),
            Storage(60, "cpu", 1, Role.ACTIVATIONS),
            Storage(30, "cpu", 3, Role.TEMPORARIES),
            Storage(999, "cuda", 3, Role.TEMPORARIES),
        ],
        events=[1, 2, 3, 4, 5, -4, -3, -2],
    )


def test_the_peak_is_the_highest_moment_on_the_device_and_its_pieces_add_up_to_it() -> None:
    use = memory_use(small_trace(), "cpu", "predicted", {0: "first"})
    assert use.peak_bytes == 230 and use.by_kind == {"weights": 100, "activations": 100, "temporaries": 30}
    assert use.at == {"segment": "backward 1", "module": "first", "operator": "aten.tanh_backward.default"}
    assert use.pieces == (
        Piece("weights", "first", 100, 1, ""),
        Piece("activations", "second", 60, 1, "aten.mm.default"),
        Piece("activations", "first", 40, 1, "aten.mm.default"),
        Piece("temporaries", "first", 30, 1, "aten.tanh_backward.default"),
    )
    assert use.culprit == use.pieces[0]


def test_the_timeline_has_a_point_for_each_operator() -> None:
    timeline = memory_use(small_trace(), "cpu", "predicted").timeline
    assert timeline.segments == ("forward 1", "forward 1", "forward 1", "backward 1")
    assert timeline.bytes_by_kind["activations"] == (40, 100, 100, 100)
    assert timeline.bytes_by_kind["temporaries"] == (0, 0, 0, 30)


def test_a_kernels_own_room_stands_beside_what_it_puts_out() -> None:
    trace = small_trace()
    trace.ops[1].workspace = 500
    use = memory_use(trace, "cpu", "predicted")
    assert use.peak_bytes == 100 + 40 + 60 + 500 and use.by_kind["workspace"] == 500
    assert use.spikes[0].kind == "workspace" and use.spikes[0].module == "second"


def test_a_spike_names_its_place_and_the_kind_that_rose() -> None:
    spikes = memory_use(small_trace(), "cpu", "predicted").spikes
    assert [(spike.bytes, spike.segment, spike.module, spike.kind) for spike in spikes][:2] == [
        (230, "backward 1", "first", "activations"),
        (200, "forward 1", "second", "activations"),
    ]


def test_where_memory_ran_out_the_last_moment_is_shown_and_not_the_peak() -> None:
    trace = small_trace()
    trace.ops.append(op("aten.sum.dim_IntList", "last", 6, Phase.BACKWARD))
    use = memory_use(trace, "cpu", "measured", ran_out="CUDA out of memory")
    assert use.peak_bytes == 230
    assert use.at_bytes == 200 and sum(piece.bytes for piece in use.pieces) == 200
    assert use.at["module"] == "last"


def rows(count: int = 16) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(count, 32, generator=generator), torch.arange(count) % 5)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 5))


def setup_of(**settings: object) -> Setup:
    return module_setup(mlp(), rows(), global_batch=8, device="cpu", **settings)  # type: ignore[arg-type]


def test_measured_bytes_are_those_that_the_process_allocates() -> None:
    setup = setup_of()
    windows = list(setup.loader().windows(0, 3))
    one, other = setup.step(), setup.step()
    for step in (one, other):
        step(windows[0])
    with AllocatedBytes("cpu") as allocated:
        one(windows[1])
    use = memory_use(record_update(other, windows[1]).trace, "cpu", "measured")
    kept = sum(use.by_kind.get(kind, 0) for kind in ("weights", "optimizer", "inputs"))
    # gradients of the window before are let go as the next one begins, and are seen by the record alone
    new_kinds = sum(use.by_kind.get(kind, 0) for kind in ("gradients", "activations", "temporaries"))
    assert use.peak_bytes == kept + new_kinds
    # a copy of the generator's state, which no operator makes, is there during an update
    assert allocated.peak == new_kinds - torch.get_rng_state().nbytes


@pytest.mark.slow
def test_measured_is_as_predicted() -> None:
    for settings in ({}, {"techniques": [sf.Recompute()]}, {"micro_batch": 4}, {"techniques": [sf.EMA()]}):
        setup = setup_of(**settings)
        step = setup.step()
        window, _ = setup.loader().worst_window()
        step(window)
        measured = memory_use(record_update(step, window).trace, "cpu", "measured")
        predicted = Predicted(setup, find_device("cpu"), settings.get("micro_batch", 8)).memory()
        besides = predicted.by_kind.get("workspace", 0)
        assert measured.peak_bytes == pytest.approx(predicted.peak_bytes - besides, rel=0.01), settings


def test_weights_and_the_optimizers_state_have_their_modules() -> None:
    setup = setup_of()
    step = setup.step()
    window = next(setup.loader().windows(0, 1))
    step(window)
    recorded = record_update(step, window)
    use = memory_use(recorded.trace, "cpu", "measured", recorded.modules)
    sizes = {(piece.kind, piece.module): piece.bytes for piece in use.pieces}
    assert sizes["weights", "0"] == 4 * (32 * 64 + 64)
    assert sizes["optimizer", "0"] == 2 * 4 * (32 * 64 + 64) + 8  # two moments, and two counts of steps


class Short(nn.Module):
    """A layer for which there is no memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def failing() -> tuple[Step, Setup]:
    model = nn.Sequential(nn.Linear(32, 1000), nn.Tanh(), Short(), nn.Linear(1000, 5))
    setup = module_setup(model, rows(), optimizer=sf.SGD(learning_rate=0.1), global_batch=8, device="cpu")
    return setup.step(), setup


def test_the_pieces_at_a_failure_are_those_that_it_left_no_room_beside(tmp_path: Path) -> None:
    step, setup = failing()
    window = next(setup.loader().windows(0, 1))
    use, again = memory_of_failure(step, Attempt(Doing.UPDATE, window), tmp_path)
    assert again == "forward and backward of the window"
    assert use.ran_out == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert use.at["segment"] == "forward 1" and use.at["module"] == "1"
    sizes = {(piece.kind, piece.module): piece.bytes for piece in use.pieces}
    assert sizes["weights", "0"] == 4 * 33_000
    assert sizes["activations", "1"] == 4 * 8 * 1000, "kept for a backward that does not come"
    assert not list(tmp_path.iterdir()), "on a CPU there is no allocator's record"


def test_of_an_evaluation_the_scoring_of_one_example_is_looked_at(tmp_path: Path) -> None:
    step, setup = failing()
    window = next(setup.loader().windows(0, 1))
    use, again = memory_of_failure(step, Attempt(Doing.EVALUATION, window), tmp_path)
    assert again == "the scoring of one example after the other" and use.of == "an evaluation"
    assert use.ran_out == "CUDA out of memory. Tried to allocate 2.00 GiB"
    assert use.at["segment"] == "evaluation" and use.at["module"] == "1"
    sizes = {(piece.kind, piece.module): piece.bytes for piece in use.pieces}
    assert sizes["weights", "0"] == 4 * 33_000
    assert sizes["temporaries", "1"] == 4 * 1000, "of one row, and nothing is kept for a backward"


def test_where_no_micro_batch_was_found_two_of_the_smallest_are_looked_at(tmp_path: Path) -> None:
    setup = setup_of(optimizer=sf.SGD(learning_rate=0.1))
    step, window = setup.step(), next(setup.loader().windows(0, 1))
    use, again = memory_of_failure(step, Attempt(Doing.FIT, window), tmp_path)
    assert again == "forward and backward of 2 examples in micro-batches of 1" and use.ran_out is None
    assert set(use.timeline.segments) >= {"forward 1", "forward 2", "backward 2"}
    assert "forward 3" not in use.timeline.segments


@pytest.mark.parametrize("doing", Doing)
def test_looking_at_a_failure_leaves_the_step_where_it_was(tmp_path: Path, doing: Doing) -> None:
    step, setup = failing()
    window, before = next(setup.loader().windows(0, 1)), step.micro_batch
    weights = [parameter.detach().clone() for parameter in step.parameters]
    random = torch.get_rng_state()
    memory_of_failure(step, Attempt(doing, window), tmp_path)
    assert torch.equal(random, torch.get_rng_state()) and step.progress.windows == 0
    assert step.micro_batch == before and step.model.training
    assert all(parameter.grad is None for parameter in step.parameters)
    assert all(torch.equal(now, then) for now, then in zip(step.parameters, weights, strict=True))


def test_an_error_of_another_kind_is_not_taken_for_a_failure_of_memory() -> None:
    step, setup = failing()
    window = next(setup.loader().windows(0, 1))
    step.model[2] = nn.Linear(999, 1000)
    with pytest.raises(RuntimeError, match="shapes"):
        record_gradients(step, window)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_step_that_updates_in_its_backward_or_waits_for_others_is_not_run_again(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setup_of(techniques=[sf.OptimizerInBackward()] if ranks == 1 else [])
    step = setup.step()
    window = next(setup.loader().windows(0, 1))
    monkeypatch.setattr(step.strategy, "world_size", ranks)
    before = [parameter.detach().clone() for parameter in step.parameters]
    recorded = record_gradients(step, window)
    use = memory_use(recorded.trace, "cpu", "measured")
    assert not recorded.trace.ops and use.at["segment"] == "before the update"
    assert use.by_kind["weights"] == sum(parameter.nbytes for parameter in step.parameters)
    assert all(torch.equal(now, then) for now, then in zip(step.parameters, before, strict=True))
