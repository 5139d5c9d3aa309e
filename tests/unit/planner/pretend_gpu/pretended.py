"""What a process does that pretends a GPU: `python pretended.py CASE` prints the facts that the tests look at, as JSON."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from snugfit.planner.pretend_gpu.pretended_gpu import CannotPretend, pretending_gpu
from snugfit.planner.trace.library_patches import as_real

aten = torch.ops.aten
GPU = ((8, 0), 80 * 2**30, "NVIDIA A100")


class Seen(TorchDispatchMode):
    """Counts the operators; whatever is asked for its value is 1: masks are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func.name().removeprefix("aten::")] += 1
        if func in (aten._local_scalar_dense.default, aten.is_nonzero.default):
            return True
        return func(*args, **(kwargs or {}))


def fake_(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    with mode:
                        new = torch.empty_strided(
                            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda"
                        )
                    learns = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if learns else new
                held[name] = made[id(tensor)]
    return model


def on_device(model: nn.Module) -> bool:
    """Whether all weights and all gradients that there must be are on the pretended device."""
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    return all(weight.is_cuda for weight in model.parameters()) and all(
        weight.grad is not None and weight.grad.is_cuda and weight.grad.shape == weight.shape
        for weight in learning
    )


def train(model: nn.Module, inputs: Any, mode: FakeTensorMode, **settings: Any) -> Counter[str]:
    """Two updates; which operators ran."""
    half, recompute = settings.pop("half", None), settings.pop("recompute", False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], **settings)
    with mode, Seen() as seen:
        for _ in range(2):
            with nullcontext() if half is None else torch.autocast("cuda", dtype=half):
                outputs = checkpoint(model, inputs(), use_reentrant=False) if recompute else model(**inputs())
                outputs = getattr(outputs, "logits", outputs)
                assert half is None or outputs.dtype == half
            rows = outputs.flatten(0, -2)
            labels = torch.empty(len(rows), dtype=torch.long, device="cuda")
            F.cross_entropy(rows.float(), labels).backward()
            assert on_device(model)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return seen.count


def undone() -> dict[str, Any]:
    import torch._dynamo

    modules = (torch.cuda, torch.accelerator, torch._C, torch._subclasses.fake_tensor, FakeTensorMode)
    before = [dict(vars(module)) for module in modules]
    operators = dict(torch._subclasses.fake_impls.op_implementations_dict)
    for _ in range(2):
        with pretending_gpu(*GPU), FakeTensorMode():
            kept = (torch.cuda.Stream(), torch.cuda.Event(), nn.Linear(2, 2, device="cuda"))
            kept[-1](torch.empty(1, 2, device="cuda")).sum().backward()
    del kept
    gc.collect()
    try:
        torch.Generator("cuda")
        refusal = ""
    except RuntimeError as error:
        refusal = str(error)
    torch.ones(1, requires_grad=True).sum().backward()
    same = [
        name
        for module, held in zip(modules, before, strict=True)
        for name in {*held, *vars(module)}
        if vars(module).get(name) is not held.get(name)
    ]
    return {
        "changed": same,
        "operators": operators == torch._subclasses.fake_impls.op_implementations_dict,
        "accelerator": str(torch.accelerator.current_accelerator()),
        "generator": refusal,
    }


def late() -> dict[str, Any]:
    torch.ones(1, requires_grad=True).sum().backward()
    try:
        with pretending_gpu(*GPU):
            reason = ""
    except CannotPretend as error:
        reason = str(error)
    return {"reason": reason, "available": torch.cuda.is_available()}


def compiled() -> dict[str, Any]:
    from snugfit.planner.trace.fake_ranks import fake_ranks

    with pretending_gpu(*GPU):
        with fake_ranks(2):
            pass
        return {"answer": torch.compile(lambda: 3, backend="eager")()}


def answers() -> dict[str, Any]:
    from snugfit.core.random import preserved_randomness, seed_device
    from snugfit.kit.precision.bf16_rounding import alternative, has_bf16
    from snugfit.kit.streaming.slot import Slot
    from snugfit.kit.streaming.weight_stream import spare_device_bytes
    from snugfit.system.memory import available_bytes, memory_bytes, release_memory

    device = torch.device("cuda")
    with pretending_gpu((7, 5), 16 * 2**30, "Tesla T4"):
        stream, events = torch.cuda.Stream(device), [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        with torch.cuda.stream(stream):
            for event in events:
                event.record()
        torch.cuda.current_stream(device).wait_event(events[0])
        torch.cuda.current_stream().wait_stream(stream)
        stream.record_event().synchronize()
        torch.accelerator.current_stream(device).synchronize()
        with preserved_randomness(device):
            seed_device(3, device)
        release_memory(device)
        with FakeTensorMode():
            host = torch.empty(4).pin_memory().to(device, non_blocking=True).cpu()
            drawn = torch.empty(4, device=device).random_(generator=torch.Generator(device).manual_seed(1))
            listed = torch.tensor([1, 2], device=device)
            slot = Slot(64, device)
            slot.load(0, torch.empty(64, dtype=torch.uint8, pin_memory=True))
            slot.wait()
        return {
            "available": torch.cuda.is_available() and torch.accelerator.is_available(),
            "devices": [torch.cuda.device_count(), torch.accelerator.device_count()],
            "name": torch.cuda.get_device_name(),
            "capability": torch.cuda.get_device_capability(device),
            "properties": torch.cuda.get_device_properties(0).total_memory,
            "bf16": [has_bf16(device), torch.cuda.is_bf16_supported(), alternative(device)],
            "memory": [available_bytes(device), memory_bytes(device), spare_device_bytes(device)],
            "elapsed": events[0].elapsed_time(events[1]),
            "registered": int(torch.cuda.cudart().cudaHostRegister(0, 1, 0)),
            "tensors": [str(tensor.device) for tensor in (host, drawn, listed, slot.memory)],
            "pinned": torch.ones(2).pin_memory().tolist(),
        }


class Stack(nn.Module):
    """Blocks, and a head."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(2048, 4)

    def forward(self, rows: Tensor) -> Any:
        for block in self.blocks:
            rows = block(rows)
        return self.head(rows)


def staying() -> dict[str, Any]:
    """Bytes and seconds of plans in which some blocks stay on the device: as they are told, and run whole."""
    from snugfit.core.batch import Batch
    from snugfit.core.job import Job, Plan
    from snugfit.planner.prediction.plan_needs import Planner
    from snugfit.planner.target import Target, machine_of
    from snugfit.planner.trace.dry_run import Subject
    from snugfit.techniques import find

    def block() -> nn.Module:
        return nn.Sequential(
            nn.Linear(2048, 2048).requires_grad_(False),
            nn.Tanh(),
            nn.Linear(2048, 4),
            nn.Linear(4, 2048),
        )

    def model() -> nn.Module:
        with torch.device("meta"):
            return Stack([block() for _ in range(20)])

    found = {}
    window = Batch.of((torch.zeros(768, 2048), torch.zeros(768, dtype=torch.long)))
    with machine_of(Target(device="t4")) as machine:
        for name, settings in {
            "none": {},
            "few": {"resident": 3},
            "most": {"resident": 18},
            "files": {"resident": 3, "folder": "never-made"},
            "read to files": {"resident": 3, "folder": "never-made"},
            "merged": {"resident": 3},  # as it is saved, which takes more of the host than laying weights out
        }.items():
            adapters = (find("lora")(rank=4),) if name == "merged" else ()
            own = (find("adamw")(learning_rate=0.1), *adapters, find("weight_streaming")(**settings))
            subject = Subject(
                model, window, Job.of(global_batch=768, updates=4), 768, own, from_files="read" in name
            )
            planner, plan = Planner(subject, machine), Plan(device=machine.type, micro_batch=256)
            whole = planner.prediction_of_run(planner.run(plan, own, None, None), plan, own, exact=True)
            told = planner.predict(plan, own)
            found[name] = {
                "told": [told.peak_bytes, told.seconds_per_update, told.host_peak_bytes],
                "whole": [whole.peak_bytes, whole.seconds_per_update, whole.host_peak_bytes],
                "depths": [depth for depth, _ in planner._runs],
            }
    return found


def networks() -> dict[str, Any]:
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        images = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(2)
        )
        words = nn.Sequential(nn.Embedding(50, 8), nn.LayerNorm(8), nn.Linear(8, 5))
    found: dict[str, Any] = {}
    with pretending_gpu(*GPU), as_real():
        mode = FakeTensorMode()
        for model in (layers, images, words):
            fake_(model, mode)
        row = lambda: torch.empty(4, 8, device="cuda")  # noqa: E731
        image = lambda: torch.empty(2, 3, 16, 16, device="cuda")  # noqa: E731
        word = lambda: torch.empty(2, 6, dtype=torch.long, device="cuda")  # noqa: E731
        found["chosen"] = train(layers, lambda: {"input": row()}, mode)
        found["fused"] = train(layers, lambda: {"input": row()}, mode, fused=True)
        found["loop"] = train(layers, lambda: {"input": row()}, mode, foreach=False)
        found["bf16"] = train(layers, lambda: {"input": row()}, mode, half=torch.bfloat16)
        found["fp16"] = train(images, lambda: {"input": image()}, mode, half=torch.float16)
        found["recompute"] = train(images, image, mode, recompute=True)
        found["words"] = train(words, lambda: {"input": word()}, mode)
        with mode, torch.autograd.graph.save_on_cpu(pin_memory=False):
            loss = layers(row()).sum()
        with mode:
            loss.backward()
        found["saved on the host"] = Counter(gradients=int(on_device(layers)))
    return found


def recurrent() -> dict[str, Any]:
    """Outputs and gradients of recurrent layers and cells, and bytes of what cuDNN keeps."""
    kinds: dict[str, Any] = {
        "lstm": lambda: nn.LSTM(8, 16, batch_first=True),
        "gru": lambda: nn.GRU(8, 16),
        "rnn": lambda: nn.RNN(8, 16, nonlinearity="relu", bias=False),
        "both ways": lambda: nn.LSTM(8, 16, num_layers=3, bidirectional=True, dropout=0.1),
        "projected": lambda: nn.LSTM(8, 16, num_layers=2, proj_size=4),
        "half": lambda: nn.LSTM(8, 16),
        "packed": lambda: nn.GRU(8, 16, batch_first=True),
        "gru cell": lambda: nn.GRUCell(8, 16),
        "lstm cell": lambda: nn.LSTMCell(8, 16, bias=False),
    }
    found: dict[str, Any] = {}
    with pretending_gpu(*GPU), as_real():
        for name, make in kinds.items():
            with torch.device("meta"):
                layer = make()
            mode = FakeTensorMode()
            fake_(layer, mode)
            half = torch.autocast("cuda", torch.bfloat16) if name == "half" else nullcontext()
            sizes = torch.tensor([3, 3, 1, 1])  # steps at which so many texts go on
            with mode, half, Seen() as seen:
                inputs = torch.empty(3, 8) if "cell" in name else torch.empty(3, 5, 8)
                inputs = inputs.cuda().requires_grad_()
                if name == "packed":
                    rows, state = inputs.view(-1, 8)[:8], torch.empty(1, 3, 16, device="cuda")
                    weights = list(layer.parameters())
                    made = torch._VF.gru(rows, sizes, state, weights, True, 1, 0.0, True, False)
                else:
                    made = layer(inputs)
                output = made[0] if isinstance(made, tuple) else made
                kept = getattr(output.grad_fn, "_saved_result3", None)
            with mode:
                output.float().sum().backward()
            found[name] = {
                "output": [list(output.shape), str(output.dtype)[6:], str(output.device)],
                "gradients": bool(on_device(layer)) and inputs.grad is not None,
                "kept": None if kept is None else kept.nbytes,
                "operators": dict(seen.count),
            }
    return found


def attention() -> dict[str, Any]:
    found = {}
    for capability in ((7, 5), (8, 0), (9, 0)):
        with pretending_gpu(capability, 2**34, "a GPU"), FakeTensorMode():
            for dtype in (torch.float16, torch.float32):
                for mask in (None, torch.empty(2, 1, 100, 100, dtype=torch.bool, device="cuda")):
                    query = torch.empty(2, 4, 100, 64, dtype=dtype, device="cuda", requires_grad=True)
                    with Seen() as seen:
                        result = F.scaled_dot_product_attention(query, query, query, mask, dropout_p=0.1)
                        result.sum().backward()
                    assert query.grad is not None
                    kernel = next(
                        name for name in seen.count if "_scaled_dot_product" in name or "_softmax" in name
                    )
                    key = f"{capability[0]}.{capability[1]} {str(dtype)[6:]} {'mask' if mask is not None else 'whole'}"
                    found[key] = [kernel, *map(str, (result.shape, query.grad.shape, query.grad.device))]
    with pretending_gpu(*GPU), FakeTensorMode():
        query = torch.empty(2, 4, 100, 64, dtype=torch.float16, device="cuda")
        flash = aten._scaled_dot_product_flash_attention(query, query, query)
        efficient = aten._scaled_dot_product_efficient_attention(query, query, query, None, True)
        found["logsumexp"] = [[*flash[1].shape], [*efficient[1].shape]]
    return found


def transformers() -> dict[str, Any]:
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    with torch.device("meta"):
        bert = BertForSequenceClassification(BertConfig(**sizes, num_attention_heads=4))
        llama = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, tie_word_embeddings=True))
        adapted = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
        lora = get_peft_model(adapted, LoraConfig(target_modules=["q_proj", "v_proj"]))
    found = {}
    with pretending_gpu(*GPU), as_real():
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        ids = lambda: torch.empty(2, 16, dtype=torch.long, device="cuda")  # noqa: E731
        found["bert"] = train(fake_(bert, mode), lambda: {"input_ids": ids(), "attention_mask": ids()}, mode)
        fake_(llama, mode)
        found["llama"] = train(llama, lambda: {"input_ids": ids()}, mode, half=torch.bfloat16)
        found["tied"] = Counter(weights=int(llama.lm_head.weight is llama.get_input_embeddings().weight))
        llama.gradient_checkpointing_enable({"use_reentrant": False})
        found["recompute"] = train(llama, lambda: {"input_ids": ids()}, mode, half=torch.bfloat16)
        fake_(lora, mode)
        found["lora"] = train(lora, lambda: {"input_ids": ids()}, mode, half=torch.bfloat16)
    return found


def steps() -> dict[str, Any]:
    from dataclasses import replace

    from transformers import LlamaConfig, LlamaForCausalLM

    import snugfit as sf
    from snugfit.core.batch import Batch
    from snugfit.core.tree import map_tree
    from snugfit.step.step import Step

    plans = {
        "offloading": [sf.BF16(), sf.Recompute(), sf.ActivationOffload(min_bytes=1), sf.OptimizerOffload()],
        "frozen": [sf.NF4(), sf.LoRA(), sf.WeightStreaming(), sf.BF16(), sf.ClipNorm(1.0)],
        "averaged": [sf.FP16(), sf.EMA(), sf.SAM(), sf.ClipNorm(1.0)],
        "nothing frozen": [
            sf.BF16(),
            sf.WeightStreaming(),
        ],  # the blocks, which stay on the host at first, move
    }
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    data = {name: torch.ones(4, 16, dtype=torch.long) for name in ("input_ids", "attention_mask", "labels")}
    found = {}
    with pretending_gpu(*GPU), as_real():
        for name, techniques in plans.items():
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with torch.device("meta"):
                model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4))
            fake_(model, mode)
            with mode:
                optimizer = sf.AdamW(learning_rate=1e-3)
                step = Step(model, optimizer, techniques=techniques, micro_batch=2, device="cuda")
                with unset_fake_temporarily():
                    batch = Batch.of(data)
                    window = replace(batch, data=map_tree(mode.from_tensor, batch.data))
                with Seen() as seen:
                    results = [step(window) for _ in range(2)]
            states = {
                state.device.type
                for held in step.optimizer.state.values()
                for state in held.values()
                if isinstance(state, Tensor) and state.ndim
            }
            found[name] = {
                "applied": [result.applied for result in results],
                "weights": sorted({p.device.type for p in step.parameters}),
                "gradients": sorted({p.grad.device.type for p in step.parameters if p.grad is not None}),
                "states": sorted(states),
                "kernels": sorted(step.kernels or ()),
                "optimizer": seen.count["_fused_adamw_"],
            }
    return found


def packed() -> dict[str, Any]:
    """The operators of attention in updates of packed texts, by the GPU."""
    from dataclasses import replace

    from transformers import LlamaConfig, LlamaForCausalLM

    import snugfit as sf
    from snugfit.core.batch import Batch
    from snugfit.core.tree import map_tree
    from snugfit.step.step import Step

    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    mask = torch.ones(4, 16, dtype=torch.long)
    mask[1:, 8:] = 0  # three texts of 8 tokens beside one of 16
    data = {"input_ids": mask, "attention_mask": mask, "labels": mask.masked_fill(mask == 0, -100)}
    found = {}
    again, kept = sf.Recompute(), sf.Recompute(keep=("attention",))
    cases = (
        ("A100", "A100", (8, 0), [sf.BF16()]),
        ("computed again", "A100", (8, 0), [sf.BF16(), again]),
        ("kept", "A100", (8, 0), [sf.BF16(), kept]),
        ("Tesla T4", "Tesla T4", (7, 5), [sf.FP16()]),
    )
    for case, gpu, capability, others in cases:
        with pretending_gpu(capability, 16 * 2**30, gpu), as_real():
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with torch.device("meta"):
                model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
            fake_(model, mode)
            with mode:
                techniques = [*others, sf.Packing()]
                step = Step(model, sf.AdamW(learning_rate=1e-3), techniques=techniques, device="cuda")
                with unset_fake_temporarily():
                    batch = Batch.of(data)
                    window = replace(batch, data=map_tree(mode.from_tensor, batch.data))
                with Seen() as seen:
                    step(window)
            found[case] = {
                "attention": {name: count for name, count in seen.count.items() if "_att" in name},
                "kernels": sorted(step.kernels or ()),
            }
    return found


def masters() -> dict[str, Any]:
    """The memory of a device and of its host, as masters, the optimizer and gradients leave the one for the other."""
    import copy

    from transformers import LlamaConfig, LlamaForCausalLM

    import snugfit as sf
    from snugfit.core.batch import Batch
    from snugfit.core.job import Job, Plan
    from snugfit.planner.prediction.plan_needs import Planner
    from snugfit.planner.target import Target, machine_of
    from snugfit.planner.trace.dry_run import Subject

    sizes = {"vocab_size": 512, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4))
    data = {name: torch.ones(4, 16, dtype=torch.long) for name in ("input_ids", "attention_mask", "labels")}
    own = (sf.AdamW(), sf.ClipNorm(1.0))
    job = Job.of(global_batch=4, updates=10)
    subject = Subject(
        lambda: copy.deepcopy(model), Batch.of(data), job, 40, own, "causal_lm", from_files=True
    )
    vectors = sum(each.numel() for each in model.parameters() if each.ndim < 2)
    found: dict[str, Any] = {
        "matrices": sum(each.numel() for each in model.parameters()) - vectors,
        "vectors": vectors,
        "largest": max(each.numel() for each in model.parameters()),
    }
    techniques = [*own]
    with machine_of(Target(device="a100-80")) as machine:
        for name, more in {
            "on the device": sf.MasterWeights(),
            "optimizer on the host": sf.OptimizerOffload(),
            "gradients on the host": sf.GradientOffload(),
        }.items():
            techniques.append(more)
            run = Planner(subject, machine).predict(Plan(device=machine.type, micro_batch=2), techniques)
            found[name] = {"device": run.peak_by_kind, "host": run.host_peak_bytes, "peak": run.peak_bytes}
    return found


if __name__ == "__main__":
    cases = {
        case.__name__: case
        for case in (
            undone,
            late,
            answers,
            compiled,
            staying,
            networks,
            recurrent,
            attention,
            transformers,
            steps,
            packed,
            masters,
        )
    }
    print(json.dumps(cases[sys.argv[1]]()), flush=True)
    os._exit(
        0
    )  # as the planner's worker ends: autograd's threads for a pretended device cannot be taken down
