"""A pretended GPU: each case in a process of its own, as the first backward of a process decides about its devices."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.planner.pretend_gpu import native, pretended_gpu

SCRIPT = Path(__file__).with_name("pretended.py")
here = pytest.mark.skipif(pretended_gpu.why_not() is not None, reason=str(pretended_gpu.why_not()))


def facts(case: str) -> Any:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), case],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_linux_on_x86_64_with_a_tested_torch_needs_no_fallback() -> None:
    same = sys.platform == "linux" and platform.machine() == "x86_64"
    tested = torch.__version__.startswith(pretended_gpu.TESTED)
    assert (pretended_gpu.why_not() is None) == (same and tested and not torch.accelerator.is_available())


def test_another_version_of_torch_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.1.0+cpu")
    reason = pretended_gpu.why_not()
    assert reason is not None and "9.1.0+cpu" in reason and "2.13" in reason
    with (
        pytest.raises(pretended_gpu.CannotPretend, match="9.1.0"),
        pretended_gpu.pretending_gpu((8, 0), 2**30, "a GPU"),
    ):
        pass


def test_a_process_with_a_gpu_is_told_to_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "CUDA_VISIBLE_DEVICES" in str(pretended_gpu.why_not())


def test_another_machine_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "aarch64" in str(native.why_not())


@here
def test_a_torch_whose_tables_have_moved_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = native._guard_layout()
    monkeypatch.setattr(
        native, "_guard_layout", lambda: {k: v for k, v in layout.items() if k != "getStream"}
    )
    assert "getStream" in str(native.why_not())
    monkeypatch.setattr(native, "_REGISTRY", "_ZN3c104impl5movedE")
    assert "_ZN3c104impl5movedE" in str(native.why_not())


@here
def test_a_system_that_forbids_code_made_at_run_time_is_named_as_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(native.mmap, "mmap", forbidden)
    assert "Permission denied" in str(native.why_not())


@here
def test_a_destructor_takes_two_places_in_a_table() -> None:
    assert native._layout(["~One", "first", "second"]) == {"~One": 0, "first": 2, "second": 3}
    assert native._guard_layout()["type"] == 0  # the guard's destructor comes last
    assert native._hooks_layout()["isBuilt"] == 2  # the hooks' comes first


@pytest.mark.slow
@here
def test_everything_is_as_before_afterwards_and_the_process_ends_well() -> None:
    found = facts("undone")
    assert found["changed"] == [] and found["operators"] is True
    assert found["accelerator"] == "None"
    assert "without ATen_cuda" in found["generator"] or "CUDA" in found["generator"]


@pytest.mark.slow
@here
def test_a_process_that_has_run_a_backward_is_refused_and_left_as_it_was() -> None:
    found = facts("late")
    assert "a backward has run in this process before" in found["reason"]
    assert found["available"] is False


@pytest.mark.slow
@here
def test_python_finds_the_gpu_that_was_named() -> None:
    assert facts("answers") == {
        "available": True,
        "devices": [1, 1],
        "name": "Tesla T4",
        "capability": [7, 5],
        "properties": 16 * 2**30,
        "bf16": [False, True, "fp16"],  # a T4 emulates it
        "memory": [16 * 2**30, 0, int(0.9 * 16 * 2**30)],
        "elapsed": 0.0,
        "registered": 0,
        "tensors": ["cpu", "cuda:0", "cuda:0", "cuda:0"],
        "pinned": [1.0, 1.0],
    }


@pytest.mark.slow
@here
def test_blocks_that_stay_on_the_device_are_told_as_a_run_of_all_blocks_has_them() -> None:
    found = facts("staying")
    for name, case in found.items():
        peak, seconds, host = case["told"]
        # of layers that are merged one after the other, the most of the host may be at one that is not among the few
        beside = case["whole"][2] if name != "merged" else pytest.approx(case["whole"][2], rel=1e-6)
        assert [peak, host] == [case["whole"][0], beside], name
        assert seconds == pytest.approx(case["whole"][1], rel=0.01), name
        assert len(case["depths"]) == 3 and None not in case["depths"]
    weights = (2048 * 2048 + 2048) * 4
    assert found["most"]["told"][0] - found["few"]["told"][0] == 15 * weights
    host = {name: case["told"][2] for name, case in found.items()}
    assert host["files"] - host["read to files"] == 18 * weights, (
        "two are in memory on their way to the device"
    )
    assert found["none"]["told"][1] > found["few"]["told"][1] > found["most"]["told"][1]


@pytest.mark.slow
@here
def test_networks_learn_there_with_the_kernels_of_a_gpu() -> None:
    found = facts("networks")
    assert found["chosen"]["_foreach_addcdiv_.ScalarList"] == 2  # one for all weights in each of two updates
    assert found["fused"]["_fused_adamw_"] == 2 and "_foreach_lerp_.Scalar" not in found["fused"]
    assert found["loop"]["addcdiv_"] == 8  # four weights
    assert found["bf16"]["_to_copy"] > 0
    assert found["fp16"]["cudnn_batch_norm"] == found["fp16"]["cudnn_batch_norm_backward"] == 2
    assert found["recompute"]["convolution"] == 6  # in each update two layers, and the first again
    assert found["recompute"]["convolution_backward"] == 4
    assert found["words"]["embedding_dense_backward"] == 2
    assert found["saved on the host"]["gradients"] == 1


@pytest.mark.slow
@here
def test_recurrent_layers_run_in_cudnn_and_keep_what_its_like_keeps() -> None:
    found = facts("recurrent")
    assert all(each["gradients"] for each in found.values())
    outputs = {name: each["output"][0] for name, each in found.items()}
    assert (
        outputs["both ways"] == [3, 5, 32]
        and outputs["projected"] == [3, 5, 4]
        and outputs["packed"] == [8, 16]
    )
    assert found["half"]["output"] == [[3, 5, 16], "bfloat16", "cuda:0"]
    state = 4 * 3 * 5 * 16  # bytes of a hidden state at every step of every example
    kept = {name: each["kept"] for name, each in found.items() if "cell" not in name}
    assert kept == {
        "lstm": 12 * state,
        "gru": 8 * state,
        "rnn": 2 * state,
        "both ways": 2 * 3 * 12 * state,
        "projected": 2 * 12 * state,
        "half": 6 * state,
        "packed": 8 * 4 * 8 * 16,
    }
    assert found["gru cell"]["operators"]["_thnn_fused_gru_cell"] == 1
    assert found["lstm cell"]["operators"]["_thnn_fused_lstm_cell"] == 1


@pytest.mark.slow
@here
def test_a_process_group_leaves_what_the_compiler_knows_of_torch() -> None:
    assert facts("compiled") == {"answer": 3}  # else it would find functions of the pretended device there


@pytest.mark.slow
@here
def test_attention_runs_in_the_kernel_of_the_capability_forward_and_backward() -> None:
    found = facts("attention")
    assert found.pop("logsumexp") == [[2, 4, 100], [2, 4, 128]]  # the second in steps of 32
    shape = "torch.Size([2, 4, 100, 64])"
    flash, efficient = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention")
    # cuDNN's would come first on 9.0, but its dropout goes in steps of 1/16
    with_flash = {"8.0 float16 whole", "9.0 float16 whole"}
    assert len(found) == 12
    for case, (kernel, *rest) in found.items():
        assert kernel == (flash if case in with_flash else efficient), case
        assert rest == [shape, shape, "cuda:0"], case


@pytest.mark.slow
@here
def test_language_models_learn_there_without_masks_that_a_run_skips() -> None:
    found = facts("transformers")
    assert found["bert"]["_scaled_dot_product_efficient_attention_backward"] == 4  # two layers, two updates
    assert (
        "expand_as" not in found["bert"] and found["bert"]["all"] == 2
    )  # it looked, and found the mask whole
    for name, forwards in (("llama", 4), ("lora", 4), ("recompute", 8)):
        assert found[name]["_scaled_dot_product_flash_attention"] == forwards, name
        assert found[name]["_scaled_dot_product_flash_attention_backward"] == 4, name
    assert found["tied"]["weights"] == 1


@here
@pytest.mark.slow
def test_our_own_step_runs_there_with_what_moves_memory_and_changes_numbers() -> None:
    found = facts("steps")
    assert {*found} == {"offloading", "frozen", "averaged", "nothing frozen"}
    for name, plan in found.items():
        assert plan["applied"] == [True, True], name
        assert plan["gradients"] == ["cuda"] and plan["kernels"] == ["flash"], name
        assert plan["states"] == (["cpu"] if name == "offloading" else ["cuda"]), name
        assert plan["optimizer"] > 0, name


@here
@pytest.mark.slow
def test_packed_texts_are_attended_to_one_by_one_where_the_device_has_a_kernel_for_that() -> None:
    found = facts("packed")
    assert found["A100"]["attention"] == {
        "torch_attn::_varlen_attn": 3,
        "torch_attn::_varlen_attn_backward": 3,
    }
    assert found["A100"]["kernels"] == found["kept"]["kernels"] == ["flash_varlen"]
    assert found["computed again"]["attention"]["torch_attn::_varlen_attn"] == 6
    assert found["kept"]["attention"]["torch_attn::_varlen_attn"] == 3, "recompute.keep: [attention]"
    assert found["Tesla T4"]["attention"] == {
        "_scaled_dot_product_efficient_attention": 3,
        "_scaled_dot_product_efficient_attention_backward": 3,
    }


@here
@pytest.mark.slow
def test_with_masters_and_gradients_on_the_host_the_device_has_two_bytes_a_parameter_and_the_host_fourteen() -> (
    None
):
    found = facts("masters")
    matrices, vectors, largest = (found.pop(name) for name in ("matrices", "vectors", "largest"))
    weights = 2 * matrices + 4 * vectors
    device = {
        name: {kind: size for kind, size in each["device"].items() if size} for name, each in found.items()
    }
    assert [each["weights"] for each in device.values()] == pytest.approx([weights] * 3, rel=0.001)
    # masters and two moments of matrices, two moments of vectors, and a count of each parameter
    states = 12 * matrices + 8 * vectors
    assert device["on the device"]["optimizer"] == pytest.approx(states, rel=0.01)
    assert device["on the device"]["gradients"] == pytest.approx(weights, rel=0.01)
    assert "optimizer" not in device["optimizer on the host"]
    assert device["optimizer on the host"]["gradients"] == pytest.approx(weights, rel=0.01)
    assert "optimizer" not in device["gradients on the host"]
    assert device["gradients on the host"]["gradients"] <= 2 * 2 * largest  # of which some are on their way
    hosts = [each["host"] for each in found.values()]
    transient = 4 * 4 * largest  # weights and gradients that come and go
    assert states <= hosts[1] - hosts[0] <= states + transient
    assert weights - transient <= hosts[2] - hosts[1] <= weights + transient
    assert found["gradients on the host"]["peak"] < weights + 16 * largest
