"""An observed script computes what it computes alone, however it is launched, and whatever happens to the observer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snugfit.doctor.findings import is_ill
from snugfit.doctor.observe import POLL_SECONDS, Observation, observe
from snugfit.doctor.observe.child import watch_script
from tests.doctor.corpus import HERE, missing_package
from tests.doctor.ending import PLAIN

pytestmark = pytest.mark.slow

ROOT = HERE.parents[1]
KINDS = {
    "images under batch norm, a GAN": "clean/dcgan.py",
    "transformers' Trainer": "clean/hf_trainer.py",
    "ranks": "clean/ddp_gloo.py",
    "a loss scale": "clean/amp_recipe.py",
    "reinforcement learning": "clean/ppo.py",
    "a fault": "faulty/unknown_label_1.py",
}


def ending(script: Path, name: str, environment: dict[str, str]) -> tuple[list[str], Path]:
    """Return the command that runs a script and writes what came of it, and the file it writes for rank 0."""
    environment.update(PLAIN, PYTHONPATH=os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return [sys.executable, "-m", "tests.doctor.ending", f"{name}.json", str(script)], Path(f"{name}-0.json")


@pytest.mark.parametrize("kind", list(KINDS))
def test_losses_weights_and_exit_code_are_those_of_the_script_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = HERE / KINDS[kind]
    if missing_package(script):
        pytest.skip(f"{missing_package(script)} is not installed")
    environment: dict[str, str] = {}
    command, alone = ending(script, "alone", environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = subprocess.run(command, check=False, stdout=2).returncode
    observed_command, observed = ending(script, "observed", {})
    seen = observe(observed_command)
    assert json.loads(observed.read_text()) == json.loads(alone.read_text())
    assert (seen.exit_code, seen.failure, seen.failed) == (code, "", code != 0)


RANK = """
import os
import time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Subset, TensorDataset

def work(rank, size=2):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "PORT")
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = TensorDataset(torch.randn(48, 4))
    loader = DataLoader(Subset(rows, ROWS), batch_size=8)
    for (batch,) in [*loader, *loader]:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), batch[:, :2] * 2).backward()
        optimizer.step()
    dist.destroy_process_group()
    time.sleep(0.1)  # gloo's thread lets go of Python objects: where the interpreter ends meanwhile, torch aborts, watched or not

if __name__ == "__main__":
    BEGIN
"""
SAME_ROWS, OWN_ROWS = "range(24)", "range(rank, 48, 2)"
BY_ENVIRONMENT = 'work(int(os.environ["RANK"]))'
STARTS = {
    "torchrun": ("torchrun --standalone --nproc-per-node 2 train.py", BY_ENVIRONMENT),
    "spawn": ("python train.py", "mp.spawn(work, nprocs=2)"),
    "a module": ("python -m train", "mp.spawn(work, nprocs=2)"),
    "fork": ("python train.py", 'mp.start_processes(work, nprocs=2, start_method="fork")'),
    "a launcher of its own, as DeepSpeed's": ("python launch.py", BY_ENVIRONMENT),
}
LAUNCH = """
import os, subprocess, sys
ranks = [
    subprocess.Popen(
        [sys.executable, "-u", "train.py", f"--local_rank={rank}"],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
    )
    for rank in range(2)
]
sys.exit(max(each.wait() for each in ranks))
"""


def launched(start: str, rows: str, **limits: Any) -> Observation:
    """Run a training on two ranks, started in this way."""
    command, begin = STARTS[start]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = RANK.replace("ROWS", rows).replace("BEGIN", begin).replace('"PORT"', f'"{port}"')
    Path("train.py").write_text(script)
    Path("launch.py").write_text(LAUNCH)
    program, *arguments = command.split()
    return observe([str(Path(sys.executable).with_name(program)), *arguments], **limits)


@pytest.mark.parametrize("start", list(STARTS))
def test_each_rank_is_observed_as_the_rank_that_it_is_however_it_is_started(start: str) -> None:
    seen = launched(start, SAME_ROWS)
    assert (seen.exit_code, seen.updates_seen, seen.left_out) == (0, 6, ())
    assert [each.what for each in seen.findings] == ["All 2 ranks began with the same 8 rows."]


def test_accelerate_launch_and_an_import_of_accelerate_before_torch_leave_nothing_out() -> None:
    pytest.importorskip("accelerate")
    Path("train.py").write_text("""
from accelerate import Accelerator
import torch
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
""")
    launcher = str(Path(sys.executable).with_name("accelerate"))
    seen = observe([launcher, "launch", "--cpu", "--num_processes", "1", "train.py"])
    assert (seen.exit_code, seen.updates_seen, seen.left_out, seen.findings) == (0, 8, (), ())


def test_forked_ranks_with_rows_of_their_own_are_clean() -> None:
    seen = launched("fork", OWN_ROWS)
    assert (seen.updates_seen, seen.left_out, seen.findings) == (6, (), ())


@pytest.mark.release
def test_a_gradient_that_is_clipped_on_one_rank_alone_is_found_by_the_weights_that_part() -> None:
    text = (HERE / "third_hand/faulty/norms_clipped_on_rank_zero.py").read_text()
    Path("train.py").write_text(
        text.replace("limit / 10)", "limit / 1000)")
    )  # as it stands, the limit is never reached
    seen = observe([sys.executable, "train.py"])
    (finding,) = [each for each in seen.findings if each.pitfall == "ranks_differ"]
    assert (finding.where, seen.failure) == ("train.py:59", "")
    clean = observe([sys.executable, str(HERE / "third_hand/clean/ddp_two_ranks.py")])
    assert (clean.failure, clean.left_out) == ("", ())
    assert not [each for each in clean.findings if is_ill([each])]


def test_all_ranks_are_interrupted_after_the_same_update() -> None:
    seen = launched("a launcher of its own, as DeepSpeed's", OWN_ROWS, stop_after=2)
    assert (seen.updates_seen, seen.stopped, seen.failed, seen.processes) == (2, True, False, 2)


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["heeded", "ignored"])
def test_the_scripts_own_handler_of_ctrl_c_runs_when_enough_was_seen(ctrl_c: Any) -> None:
    Path("train.py").write_text("""
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = 0
try:
    while True:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        done += 1
except KeyboardInterrupt:
    torch.save(model.state_dict(), "last.pt")
    print("saved after", done)
""")
    before = signal.signal(signal.SIGINT, ctrl_c)
    try:
        seen = observe([sys.executable, "train.py"], stop_after=5)
    finally:
        signal.signal(signal.SIGINT, before)
    assert Path("last.pt").exists()
    assert (seen.updates_seen, seen.exit_code, seen.stopped, seen.saves_seen) == (5, 0, True, 1)


@pytest.fixture
def heeded_ctrl_c() -> Iterator[None]:
    """Temporarily undo what a shell does to its jobs in the background, which ignore Ctrl-C, and so do the processes that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_ctrl_c")
def test_ctrl_c_ends_the_script_and_gives_what_was_seen_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text("""
import time, torch
from pathlib import Path
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for update in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
Path("waiting").touch()
time.sleep(600)
""")
    wait = subprocess.Popen.wait

    def pressed(process: Any, timeout: float | None = None) -> int:
        if Path("waiting").exists() and timeout == POLL_SECONDS:
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", pressed)
    seen = observe([sys.executable, "train.py"])
    assert (seen.updates_seen, seen.stopped, seen.failed) == (3, True, False)


BY_HAND = """
import torch
model = torch.nn.Linear(4, 2)
UPDATE
for _ in range(5):
    model.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    with torch.no_grad():
        step()
"""
UPDATES = {
    "by hand": "def step():\n    for each in model.parameters():\n        each -= 0.1 * each.grad",
    "another library's": (
        "class Optimizer:\n    def step(self):\n        for each in model.parameters():\n            each.sub_(0.1 * each.grad)\n"
        "step = Optimizer().step"
    ),
}


@pytest.mark.parametrize("kind", list(UPDATES))
def test_weights_that_torchs_optimizers_do_not_move_are_said_as_not_looked_at(kind: str) -> None:
    Path("train.py").write_text(BY_HAND.replace("UPDATE", UPDATES[kind]))
    log = watch_script(Path("train.py").resolve())
    (sentence,) = log.unwatched
    assert sentence.startswith("the updates of Linear (train.py:")


def test_a_model_that_is_compiled_is_said_as_not_looked_at() -> None:
    Path("train.py").write_text("""
import torch
model = torch.nn.Linear(4, 2)
model.compile(backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
""")
    assert watch_script(Path("train.py").resolve()).traced == ["torch.compile"]


def test_a_graph_without_a_break_is_compiled_of_every_function_that_is_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import torch
from torch.nn import functional as F
IN_TORCH = "acos asin ceil exp floor log log10 log2 log_softmax logsumexp max mean min pow reciprocal round rsqrt sigmoid sign softmax sort sqrt std sum topk var argmax argmin argsort randn_like".split()
WITH_A_NUMBER = {"log_softmax": 1, "logsumexp": 1, "max": 1, "min": 1, "softmax": 1, "sort": 1, "pow": 2, "topk": 2, "argmax": 1, "argmin": 1, "argsort": 1}
@torch.compile(backend="eager", fullgraph=True)
def computed(x):
    made = [getattr(torch, name)(x, *([WITH_A_NUMBER[name]] if name in WITH_A_NUMBER else [])) for name in IN_TORCH]
    made += [torch.stack([x, x, x, x]), torch.cat([x, x, x, x]), torch.concat([x, x]), torch.sub(x, x), torch.matmul(x, x.t()), torch.bmm(x[None], x.t()[None])]
    made += [torch.gather(x, 1, torch.zeros(8, 1, dtype=torch.long)), torch.reshape(x, (4, 8)), torch.cosine_similarity(x, x), F.cosine_similarity(x, x)]
    made += [F.cross_entropy(x, torch.zeros(8, dtype=torch.long)), F.mse_loss(x, x * 0), F.dropout(x, 0.1), F.layer_norm(x, (4,)), F.logsigmoid(x), F.softmax(x, 1)]
    made += [F.scaled_dot_product_attention(x[None], x[None], x[None]), F.kl_div(x.log_softmax(1), x.softmax(1)), F.embedding(torch.zeros(3, dtype=torch.long), x)]
    return sum((each[0] if isinstance(each, tuple) else each).float().mean() for each in made)
computed(torch.rand(8, 4) / 2 + 0.1)
""")
    assert observe([sys.executable, str(script)]).exit_code == 0


def test_losses_that_a_script_compiles_with_torch_jit_script_are_compiled_as_they_are() -> None:
    Path("train.py").write_text("""
import torch
from torch.nn import functional as F
from torch.nn.functional import mse_loss

class Loss(torch.nn.Module):
    def forward(self, scores, labels):
        hits = torch.argmax(scores, 1).eq(labels).float().mean()
        return F.cross_entropy(scores, labels) + mse_loss(scores, scores * 2) + hits

loss = torch.jit.script(Loss())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss(model(torch.randn(4, 4)), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
""")
    log = watch_script(Path("train.py").resolve())
    assert (log.complete, log.failure, log.updates) == (True, "", 3)


def test_the_gradient_of_an_inner_value_that_a_script_keeps_is_its_own() -> None:
    Path("train.py").write_text("""
import torch
from torch import nn
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.mix, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20)
    def forward(self, tokens):
        self.inner = self.mix(self.read(tokens)).tanh()
        self.inner.retain_grad()
        return self.head(self.inner)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    tokens = torch.randint(0, 20, (6, 11))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert model.inner.grad is None
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""")
    log = watch_script(Path("train.py").resolve())
    assert (log.complete, log.failure, log.error) == (True, "", "")


WATCHERS = (
    "modules.watch_files",
    "loaders.watch_loaders",
    "losses.watch_losses",
    "modules.watch_modules",
    "optimizers.watch_schedules",
    "scores.watch_scores",
    "texts.watch_texts",
    "updates.watch_updates",
)


@pytest.mark.parametrize("watcher", WATCHERS)
def test_a_watcher_that_raises_takes_itself_out_and_the_script_goes_on(
    watcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise ZeroDivisionError(watcher)

    monkeypatch.setattr(f"snugfit.doctor.observe.watchers.{watcher}.where", broken)
    Path("train.py").write_text("""
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(16, 4))
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scaler = torch.amp.GradScaler("cpu")
loader = torch.utils.data.DataLoader(torch.randint(0, 20, (32, 4)), batch_size=8)
for batch in loader:
    optimizer.zero_grad()
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(batch), batch[:, 0] % 4) + nn.functional.mse_loss(model(batch), torch.ones(8, 4))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    average.update_parameters(model)
with torch.no_grad():
    scores = model(batch)
    right = (scores > 0) == (torch.ones(8, 4) > 0)
    torch.argmax(scores, 1)
torch.save(model.state_dict(), "model.pt")
model.load_state_dict(torch.load("model.pt", weights_only=False))
""")
    log = watch_script(Path("train.py").resolve())
    assert log.complete
    assert f"ZeroDivisionError: {watcher}" in log.failure
