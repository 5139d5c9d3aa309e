"""The observer looks at what a script does without being seen by it, and without being stopped by what it is given."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._device import _device_constructors

from snugfit.doctor.findings import is_ill
from snugfit.doctor.observe.child import watch_script
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.script_events import Step
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.watch import install

TRAINING = """
def error(predicted, wanted):
    apart = (predicted - wanted) * torch.ones(2)
    return torch.sub(apart, 0.5 * wanted).square().mean() * 0.1 + apart.abs().mean()
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(batch, labels, updates=2):
    for _ in range(updates):
        optimizer.zero_grad()
        outputs = model(batch)
        (nn.functional.cross_entropy(outputs, labels) + error(outputs, batch[:, :2])).backward()
        optimizer.step()
    with torch.no_grad():
        (model(batch) - batch[:, 2:]).abs().mean().item()
        (model(batch).argmax(1) == labels).float().mean().item()
"""


def written(tmp_path: Path, script: str) -> Path:
    """Write a script that defines a training and goes on as given."""
    path = tmp_path / "train.py"
    path.write_text(f"import os, sys\nimport torch\nfrom torch import nn\n{TRAINING}\n{script}\n")
    return path


def watched(tmp_path: Path, script: str) -> Log:
    """Return the log of a script that defines a training and goes on as given."""
    return watch_script(written(tmp_path, script))


def test_the_observer_begins_without_torch_which_the_script_imports_or_does_not() -> None:
    begins = "import sys, snugfit.doctor.observe.child; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", begins], check=False).returncode == 0


def test_no_function_is_wrapped_that_a_default_device_knows_by_its_identity() -> None:
    patches = Patches()
    install(Recorder(8, None, None), patches)
    patches.undo()
    assert {original for _, _, original in patches.wrapped}.isdisjoint(_device_constructors())


ROWS = "torch.randn(8, 4), torch.arange(8) % 2"
WITHSTOOD = {
    "a working folder that was deleted": f"os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); train({ROWS})",
    "arguments of other types": f"""
for call in (nn.functional.cross_entropy, nn.functional.mse_loss):
    try:
        call('a', 3)
    except (TypeError, AttributeError):
        pass
try:
    torch.argmax('a')
except TypeError:
    train({ROWS})
""",
    "a subclass of tensors that refuses": f"""
class Strict(torch.Tensor):
    @classmethod
    def __torch_function__(kind, function, types, args=(), kwargs=None):
        if function is not torch.nn.functional.linear:
            raise NotImplementedError(function)
        with torch._C.DisableTorchFunction():
            return function(*[torch.Tensor(each) if type(each) is Strict else each for each in args])
model[0](torch.randn(8, 4).as_subclass(Strict))
train({ROWS})
""",
    "nested tensors": f"""
one = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
one - one
train({ROWS})
""",
    "nested tensors with a graph": f"""
one, other = (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=each) for each in (True, False))
one - other, one + other
train({ROWS})
""",
    "operands by name": f"""
torch.sub(input=torch.ones(2), other=torch.ones(2)), torch.ones(2).subtract(other=torch.ones(2))
train({ROWS})
""",
    "complex numbers, where a warning is an error": f"""
import warnings
warnings.simplefilter("error")
spectrum = torch.fft.rfft(model(torch.randn(8, 4)), dim=0)
(spectrum - torch.ones_like(spectrum)).abs().mean().backward()
warnings.resetwarnings()
train({ROWS})
""",
    "a saved dictionary that holds itself": f"""
import pickle
one = {{}}
one['one'] = one
pickle.dumps(obj=one)
train({ROWS})
""",
    "dropouts that drop nothing unless they are told to": f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, rows):
        hidden = self.layer(rows)
        assert torch.equal(nn.functional.alpha_dropout(hidden, 0.5), hidden)
        assert torch.equal(nn.functional.feature_alpha_dropout(hidden, 0.5), hidden)
Net()(torch.randn(8, 4))
train({ROWS})
""",
    "softmax and differences of fake tensors": f"""
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    scores = torch.ones(2, 3, requires_grad=True)
    (torch.softmax(scores, 1) - torch.ones(2, 3)).square().mean() + 0.5
train({ROWS})
""",
    "a file of kinds of tensors that few functions take": f"""
import io
file = io.BytesIO()
spectrum, small = torch.randn(4, 6, dtype=torch.cfloat), torch.randn(4, 6).to(torch.float8_e4m3fn)
torch.save({{"edges": torch.eye(9).to_sparse(), "spectrum": spectrum, "small": small}}, file)
file.seek(0)
torch.load(file)
train({ROWS})
""",
    "complex weights, where a warning is an error": f"""
import warnings
warnings.simplefilter("error")
spectrum = nn.Parameter(torch.randn(5, 4, dtype=torch.cfloat))
moving = torch.optim.SGD([spectrum], lr=0.1)
(torch.fft.rfft(torch.randn(8, 4), dim=0) * spectrum).abs().mean().backward()
moving.step()
warnings.resetwarnings()
train({ROWS})
""",
    "joblib's arguments by name": f"""
import joblib
joblib.dump(value=3, filename=os.devnull)
train({ROWS})
""",
}


@pytest.mark.parametrize("kind", list(WITHSTOOD))
def test_what_a_script_may_do_is_no_failure_of_the_observer(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = watched(tmp_path, WITHSTOOD[kind])
    assert (log.failure, log.complete, log.updates, log.unwatched) == ("", True, 2, [])


def test_a_model_without_values_is_said_as_not_looked_at_and_the_training_after_it_is(tmp_path: Path) -> None:
    log = watched(
        tmp_path,
        f"""
bare = nn.Linear(4, 2, device="meta")
nn.functional.mse_loss(bare(torch.ones(8, 4, device="meta")), torch.ones(8, 2, device="meta")).backward()
train({ROWS})
""",
    )
    assert (log.failure, log.complete, log.updates) == ("", True, 2)
    assert log.unwatched == ["calls on the meta device, where tensors have no values"]


COUNTED = {
    "a mode of functions": """
from torch.overrides import TorchFunctionMode
class Counting(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        calls.append(function.__name__)
        return function(*args, **(kwargs or {}))
with Counting():
    train(batch, labels)
""",
    "a mode of dispatch": """
from torch.utils._python_dispatch import TorchDispatchMode
class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        calls.append(str(function))
        return function(*args, **(kwargs or {}))
with Counting():
    train(batch, labels)
""",
    "a subclass that logs": """
class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(kind, function, types, args=(), kwargs=None):
        calls.append(function.__name__)
        return super().__torch_function__(function, types, args, kwargs or {})
train(batch.as_subclass(Logged), labels)
""",
}


@pytest.mark.parametrize("kind", list(COUNTED))
def test_the_scripts_own_modes_and_subclasses_see_no_call_of_the_observer(kind: str, tmp_path: Path) -> None:
    script = f"calls = []\nbatch, labels = {ROWS}\n{COUNTED[kind]}\nopen(r'{tmp_path}/calls', 'w').write('\\n'.join(calls))"
    names: dict[str, Any] = {}
    exec(f"import torch\nfrom torch import nn\n{TRAINING}\n{script}", names)
    alone = (tmp_path / "calls").read_text().splitlines()
    log = watched(tmp_path, script)
    assert (log.failure, log.complete, log.updates) == ("", True, 2)
    assert (tmp_path / "calls").read_text().splitlines() == alone and len(alone) > 10


def test_a_profiler_counts_no_operation_of_the_observer_and_what_it_ran_over_is_said(tmp_path: Path) -> None:
    script = f"""
from collections import Counter
batch, labels = {ROWS}
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
    train(batch, labels, updates=3)
open(r'{tmp_path}/counts', 'w').write(str(sorted(Counter(each.name for each in profiler.events()).items())))
train(batch, labels, updates=3)
"""
    exec(f"import torch\nfrom torch import nn\n{TRAINING}\n{script}", {})
    alone = (tmp_path / "counts").read_text()
    log = watched(tmp_path, f"train({ROWS})\n{script}")
    assert (tmp_path / "counts").read_text() == alone and "aten::addmm" in alone
    assert (log.failure, log.updates, log.complete, log.whole) == ("", 8, True, False)
    assert (log.passes_unseen, log.passes_profiled) == (
        4,
        3,
    )  # the pass after it belongs to the step that ends the gap
    (said,) = log.unwatched
    assert said.startswith("what ran under a profiler")
    assert [each.pitfall for each in diagnose([log])] == ["leakage"]  # the first training scores its own rows


UNDER_A_SCHEDULE = """
from torch.profiler import ProfilerActivity, profile, schedule
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
moving = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
plan = schedule(wait={wait}, warmup=1, active=2, repeat=1)
with profile(activities=[ProfilerActivity.CPU], schedule=plan) as profiler:
    for update in range(16):
        rows = torch.randn(12, 6)
        for part in rows.split(6):
            (nn.functional.cross_entropy(model(part), part[:, :2].argmax(1)) / 2).backward()
        optimizer.step()
        moving.step()
        {clears}
        profiler.step()
with torch.no_grad():
    {mode}
    rows = torch.randn(20, 6)
    print((model(rows).argmax(1) == rows[:, :2].argmax(1)).float().mean())
"""


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0, 1, 5])
def test_what_follows_a_profiler_is_looked_at_from_the_next_step_on(tmp_path: Path, wait: int) -> None:
    sound = UNDER_A_SCHEDULE.format(wait=wait, clears="optimizer.zero_grad()", mode="model.eval()")
    log = watched(tmp_path, sound)
    assert (log.failure, log.updates, log.profiled, log.complete) == ("", 16, True, True)
    assert not is_ill(diagnose([log])), diagnose([log])
    steps = [event.update for event in log.of(Step)]
    assert steps[-1] == 15 and 16 - 5 <= len(steps) < 16

    kept = UNDER_A_SCHEDULE.format(wait=wait, clears="", mode="model.eval()")
    assert [each.pitfall for each in diagnose([watched(tmp_path, kept)]) if is_ill([each])] == ["zero_grad"]
    trains = UNDER_A_SCHEDULE.format(wait=wait, clears="optimizer.zero_grad()", mode="pass")
    found = {each.pitfall for each in diagnose([watched(tmp_path, trains)]) if is_ill([each])}
    assert found == {"train_mode"}


def test_a_script_under_a_profiler_is_interrupted_after_as_many_updates_as_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    recorder = Recorder(8, None, None, stop_after=2)
    patches = Patches()
    install(recorder, patches)
    try:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            for _ in range(2):
                weight.square().sum().backward()
                optimizer.step()
    finally:
        patches.undo()
    assert raised == [signal.SIGINT] and recorder.log.stopped


NESTED = """
class Nested(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def forward(self, values):
        return self.inner(values)
deep = nn.Linear(4, 2)
for _ in range(DEPTH):
    deep = Nested(deep)
nn.functional.mse_loss(deep(torch.ones(8, 4)), torch.ones(8, 2)).backward()
"""


def runs_alone(depth: int) -> bool:
    """Return whether modules nested as deep as this run without the observer."""
    try:
        exec(f"import torch\nfrom torch import nn\n{NESTED.replace('DEPTH', str(depth))}", {})
    except RecursionError:
        return False
    return True


def test_modules_nested_as_deep_as_python_allows_run_under_observation_as_alone(tmp_path: Path) -> None:
    deepest = next(depth for depth in range(400, 0, -10) if runs_alone(depth))
    assert deepest > 100
    script = NESTED.replace("DEPTH", str(deepest - 10))  # for the frames that run the script
    log = watched(tmp_path, f"{script}\ntrain({ROWS})")
    assert (log.failure, log.complete, log.updates, log.unwatched) == ("", True, 2, [])


def test_a_script_sees_and_sets_its_own_limit_of_recursion_and_may_run_into_it(tmp_path: Path) -> None:
    before = sys.getrecursionlimit()
    log = watched(
        tmp_path,
        f"""
assert sys.getrecursionlimit() == {before}
sys.setrecursionlimit({before + 100})
assert sys.getrecursionlimit() == {before + 100}
sys.setrecursionlimit({before})
class Endless(nn.Module):
    def forward(self, values):
        return self(values)
for _ in range(3):
    try:
        Endless()(torch.ones(8, 4))
    except RecursionError:
        pass
train({ROWS})
""",
    )
    assert (log.failure, log.complete, log.updates) == ("", True, 2)
    assert sys.getrecursionlimit() == before
    assert torch._C._is_torch_function_enabled()


WATCHED_ALONE = """
import sys
from pathlib import Path
from snugfit.doctor.observe.child import watch_script
log = watch_script(Path(sys.argv[1]))
print([log.failure, log.complete, log.updates, log.traced])
"""


@pytest.mark.slow
def test_a_step_that_torch_compile_runs_is_seen_and_nothing_of_the_observer_is_warned_of(
    tmp_path: Path,
) -> None:
    """In a process of its own: torch.compile keeps a table of torch's functions from when it is first asked for."""
    script = f"""
@torch.compile(backend="eager")
def step():
    optimizer.step()
@torch.compile(backend="eager")
def update():
    optimizer.zero_grad()
    model.zero_grad()
    nn.functional.mse_loss(model(torch.ones(8, 4)), torch.ones(8, 2)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
@torch.compile(backend="eager")
def apart(one, other):
    return (one - other).square().mean() + nn.functional.mse_loss(one, one)
train({ROWS})
for _ in range(2):
    step()
    update()
    apart(torch.ones(8, 4), torch.zeros(8, 4))
"""
    path = written(tmp_path, script)
    asked = [sys.executable, "-c", WATCHED_ALONE, str(path)]
    run = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert run.stdout == "['', True, 6, ['torch.compile']]\n"
    assert "Dynamo" not in run.stderr


def test_a_sampler_without_weak_references_has_a_number_of_its_own() -> None:
    recorder, sampler = Recorder(8, None, None), range(4)
    assert recorder.number(sampler) == recorder.number(sampler) != recorder.number([0, 1])
