"""A script runs under observation as it runs alone; what ends it is told."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.cli.app import main
from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe import Observation, observe
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.events.log import read_log, write_log
from snugfit.doctor.observe.events.script_events import Forward, Step
from snugfit.errors import SettingError
from tests.doctor.corpus import HERE, scripts

pytestmark = pytest.mark.slow

TRAIN = """
import json, sys
import torch
from torch import nn
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
loader = torch.utils.data.DataLoader(torch.randn(40, 6), batch_size=10, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
losses = []
for epoch in range(int(sys.argv[2])):
    for x in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item().hex())
open(sys.argv[1], "w").write(json.dumps({"losses": losses, "name": __name__, "path": sys.path[:2], "next": torch.rand(3).tolist()}))
"""


def test_losses_randomness_and_sys_path_are_those_of_the_script_alone() -> None:
    Path("train.py").write_text(TRAIN)
    subprocess.run([sys.executable, "train.py", "alone.json", "3"], check=True)
    seen = observe([sys.executable, "train.py", "observed.json", "3"], updates=4)
    assert json.loads(Path("observed.json").read_text()) == json.loads(Path("alone.json").read_text())
    assert (seen.exit_code, seen.updates_seen, seen.stopped, seen.processes) == (0, 12, False, 1)
    assert seen.findings == ()


def test_the_scripts_own_exit_code_and_a_module_by_name_are_seen() -> None:
    Path("job.py").write_text("import torch\ntorch.nn.Linear(2, 2)(torch.zeros(1, 2))\nraise SystemExit(3)")
    assert observe([sys.executable, "-m", "job"]).exit_code == 3


def test_a_script_that_fails_is_said_to_with_the_end_of_its_traceback() -> None:
    Path("job.py").write_text(
        "import torch\ntorch.nn.Linear(2, 2)(torch.zeros(1, 2))\nraise KeyError('no such column')"
    )
    seen = observe([sys.executable, "job.py"])
    assert seen.failed and seen.exit_code == 1
    assert seen.error.splitlines()[-1] == "KeyError: 'no such column'"
    assert 'job.py", line 3' in seen.error
    assert seen.left_out == ("what would have followed: the command failed, exit code 1",)


@pytest.mark.parametrize(
    ("given", "failed", "ended"),
    [
        ({"exit_code": 3}, True, "exit code 3"),
        ({"exit_code": -9}, True, "by SIGKILL"),
        ({"exit_code": -15, "stopped": True}, False, "stopped by the doctor"),
        ({"exit_code": -2, "stopped": True, "interrupted": True}, False, "stopped by Ctrl-C"),
        ({}, False, "exit code 0"),
    ],
)
def test_a_command_that_is_stopped_has_not_failed(given: dict[str, int], failed: bool, ended: str) -> None:
    seen = _seen(**given)
    assert (seen.failed, seen.ended) == (failed, ended)
    assert any("the command failed" in sentence for sentence in seen.left_out) is failed
    assert seen.as_dict()["failed"] is failed


@pytest.mark.parametrize(
    ("given", "certainty", "code"),
    [
        ({}, None, 0),
        ({}, Certainty.LIKELY, 0),
        ({}, Certainty.CERTAIN, 1),
        ({"traced": ("torch.compile",)}, Certainty.LIKELY, 3),
        ({"updates_seen": 0}, None, 3),
        ({"unwatched": ("half of it",)}, Certainty.CERTAIN, 1),
        ({"exit_code": 7}, Certainty.CERTAIN, 4),
        ({"exit_code": -2, "stopped": True}, None, 0),
    ],
)
def test_the_exit_code_says_what_was_found_left_out_or_failed(
    given: dict[str, Any],
    certainty: Certainty | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    findings = () if certainty is None else (Finding("zero_grad", certainty, "something"),)
    seen = replace(_seen(**given), findings=findings)
    monkeypatch.setattr("snugfit.doctor.observe.observe", lambda command, **limits: seen)
    assert main(["doctor", "--json", "--", "python", "train.py"]) == code
    assert json.loads(capsys.readouterr().out)["exit_code"] == seen.exit_code


def test_a_launcher_that_is_not_installed_is_refused_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--", "deepspeed-of-nobody", "train.py"]) == 2
    assert "'deepspeed-of-nobody' is not a command" in capsys.readouterr().err


def test_limits_that_are_not_positive_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--stop-after", "0", "--", sys.executable, "train.py"]) == 2
    assert "got --detailed-updates 8, --seconds 120, --stop-after 0" in capsys.readouterr().err


def test_a_failure_of_the_observer_is_said_by_its_last_line() -> None:
    (sentence,) = _seen(failure="Traceback:\n  File\nZeroDivisionError: division by zero\n").left_out
    assert sentence.endswith("ZeroDivisionError: division by zero")


def _seen(**given: Any) -> Observation:
    counts = {"exit_code": 0, "updates_seen": 3, "stopped": False, "processes": 1, "evaluations_seen": 0}
    return Observation((), **{**counts, "saves_seen": 0, "seconds": 1.0, **given})


def test_a_script_that_goes_on_is_stopped_when_its_time_is_over() -> None:
    Path("train.py").write_text(TRAIN)
    seen = observe([sys.executable, "train.py", "never.json", "1000000"], seconds=1.0)
    assert seen.stopped
    assert seen.exit_code == 0
    assert seen.updates_seen > 0
    assert not Path("never.json").exists()


def test_a_script_that_never_comes_to_a_step_again_is_ended_after_the_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snugfit.doctor.observe.GRACE_SECONDS", 1.0)
    Path("job.py").write_text("import time, torch\ntorch.nn.Linear(2, 2)(torch.zeros(1, 2))\ntime.sleep(600)")
    seen = observe([sys.executable, "job.py"], seconds=1.0)
    assert seen.stopped
    assert seen.exit_code == -signal.SIGTERM


INTERRUPTED = """
import os, signal, sys, time
if "late" in sys.argv:
    import torch
    weight = torch.nn.Parameter(torch.ones(2))
    weight.sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
os.kill(os.getppid(), signal.SIGINT)
time.sleep(60)
"""


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_before_anything_was_seen_ends_the_doctor_and_blames_no_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("train.py").write_text(INTERRUPTED)
    assert main(["doctor", "--", sys.executable, "train.py"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_later_gives_what_was_seen_so_far_and_is_called_so() -> None:
    Path("train.py").write_text(INTERRUPTED)
    seen = observe([sys.executable, "train.py", "late"])
    assert (seen.updates_seen, seen.stopped, seen.interrupted) == (1, True, True)
    assert seen.ended == "stopped by Ctrl-C"


def test_a_page_that_can_be_written_no_more_takes_no_finding_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = replace(_seen(), findings=(Finding("zero_grad", Certainty.CERTAIN, "something"),))
    page = tmp_path / "page"

    def observed(command: list[str], **limits: Any) -> Observation:
        page.touch()
        return seen

    monkeypatch.setattr("snugfit.doctor.observe.observe", observed)
    assert main(["doctor", "--html", str(page), "--", "python", "train.py"]) == 2
    told = capsys.readouterr()
    assert "zero_grad: something" in told.out
    assert "the page cannot be written" in told.err and "Traceback" not in told.err


def test_a_command_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SettingError, match="'no-such-program' is not a command"):
        observe(["no-such-program"])
    with pytest.raises(SettingError, match="no command after --"):
        observe([])


def test_a_command_without_torch_is_refused() -> None:
    with pytest.raises(SettingError, match="never imported torch"):
        observe([sys.executable, "-c", "print('nothing')"])
    with pytest.raises(SettingError, match="exit code 3 .*Mend its own error"):
        observe([sys.executable, "-c", "raise SystemExit(3)"])


@pytest.mark.parametrize(
    "name", ["quickstart", "ema", "gradient_accumulation", "dcgan", "word_lm", "vae", "swa"]
)
def test_an_observed_script_prints_the_same_numbers_and_draws_the_same_random_ones(name: str) -> None:
    script = HERE / "clean" / f"{name}.py"
    alone, observed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(alone):
        left = runpy.run_path(str(script), run_name="__main__")
    state = torch.get_rng_state()
    weights = _weights(left)
    with contextlib.redirect_stdout(observed):
        watch_script(script)
    assert observed.getvalue() == alone.getvalue()
    assert torch.equal(torch.get_rng_state(), state)
    again = runpy.run_path(str(script), run_name="__main__")
    assert all(torch.equal(one, other) for one, other in zip(weights, _weights(again), strict=True))


def _weights(names: dict[str, object]) -> list[torch.Tensor]:
    modules = [value for value in names.values() if isinstance(value, torch.nn.Module)]
    return [parameter for module in modules for parameter in module.parameters()]


def test_everything_that_was_replaced_is_put_back() -> None:
    before = _public()
    watch_script(scripts("clean")[1])
    assert _public() == before


def _public() -> list[object]:
    from torch.optim import lr_scheduler
    from torch.utils.data import DataLoader

    owners = (
        torch.nn.Module,
        torch.optim.Optimizer,
        torch.amp.GradScaler,
        DataLoader,
        lr_scheduler.LRScheduler,
    )
    names = (
        "__call__",
        "__init__",
        "__iter__",
        "load_state_dict",
        "step",
        "scale",
        "zero_grad",
        "add_param_group",
    )
    functions = [
        torch.save,
        torch.load,
        torch.autograd.backward,
        torch.nn.functional.cross_entropy,
        torch.argmax,
        torch.Tensor.eq,
        torch.Tensor.__eq__,
        torch.Tensor.__ne__,
        torch.Tensor.__hash__,
    ]
    return [*functions, torch.nn.utils.clip_grad_norm_, *(getattr(o, n, None) for o in owners for n in names)]


def test_a_failure_of_the_observer_ends_the_observation_and_not_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snugfit.doctor.observe.watchers.losses.watch_losses._seen", lambda *given: 1 / 0)
    log = watch_script(HERE / "clean" / "quickstart.py")
    assert log.complete
    assert "ZeroDivisionError" in log.failure


def test_a_log_is_read_as_it_was_written() -> None:
    log = watch_script(HERE / "clean" / "quickstart.py")
    assert sum(1 for _ in log.of(Step)) == 12
    assert sum(1 for event in log.of(Forward) if event.grad) == 12
    write_log(log, Path("log.json"))
    assert read_log(Path("log.json")) == log


AROUND = {
    "transformers first": "import transformers, accelerate, peft",
    "torch.jit.trace": "import torch",
    "sparse and nested": "import torch",
}


@pytest.mark.parametrize("kind", list(AROUND))
def test_libraries_and_traces_around_a_training_leave_it_as_it_is(kind: str) -> None:
    more = {
        "torch.jit.trace": "torch.jit.trace(model.eval(), torch.zeros(4, 6)); model.train(); torch.func.vmap(model[0])(torch.ones(2, 6))",
        "sparse and nested": (
            "nn.Linear(6, 2)(torch.eye(6).to_sparse()); nn.Linear(6, 2)(torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)]))"
        ),
    }
    script = TRAIN.replace("losses = []", f"{more.get(kind, '')}\nlosses = []")
    Path("train.py").write_text(f"{AROUND[kind]}\n{script}")
    subprocess.run([sys.executable, "train.py", "alone.json", "3"], check=True)
    seen = observe([sys.executable, "train.py", "observed.json", "3"], updates=4)
    assert json.loads(Path("observed.json").read_text()) == json.loads(Path("alone.json").read_text())
    assert (seen.exit_code, seen.updates_seen, seen.failure) == (0, 12, "")
    assert seen.findings == ()
    assert seen.traced == (("torch.func", "torch.jit.trace") if kind == "torch.jit.trace" else ())


def test_a_script_that_multiprocessing_keeps_is_none_of_the_next_ones_source(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys\nsys.modules['__mp_main__'] = sys.modules['__main__']  # as its import does\n"
    )
    assert watch_script(script).complete
    kept = [getattr(each, "__file__", None) for each in sys.modules.values()]
    assert str(script) not in kept
