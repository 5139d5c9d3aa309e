"""The private names of other libraries that the package takes: each is there, and each that ruff lets pass is taken."""

from __future__ import annotations

import ast
import atexit
import functools
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "snugfit"


def modules_of(tree: ast.Module) -> dict[str, tuple[str, ...]]:
    """The names under which a file has torch, its modules, and what it takes from them."""
    names: dict[str, tuple[str, ...]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    path = tuple(alias.name.split("."))
                    names[alias.asname or "torch"] = path if alias.asname else ("torch",)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                names[alias.asname or alias.name] = (*(node.module or "").split("."), alias.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Attribute):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and (path := path_of(node.value, names)):
                names[target.id] = path
    return names


def path_of(node: ast.expr, names: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """The dotted path that an expression of names alone stands for; None where it is not of torch."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return (*names[node.id], *reversed(parts))


def private_paths() -> Iterator[tuple[str, str]]:
    """Each path of torch in the package with a private part, and a file that takes it."""
    for file in sorted(SOURCE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) or not re.search(
            r"[. ]_[A-Za-z]", text
        ):
            continue
        tree = ast.parse(text)
        names = modules_of(tree)
        for node in ast.walk(tree):
            path = path_of(node, names) if isinstance(node, ast.Attribute) else None
            if path and any(re.match(r"_(?!_)", part) for part in path):
                yield ".".join(path), str(file.relative_to(SOURCE))
        for path in names.values():
            if any(re.match(r"_(?!_)", part) for part in path):
                yield ".".join(path), str(file.relative_to(SOURCE))


@functools.cache  # for the tests that ask, not for whoever collects them
def private() -> dict[str, str]:
    """The same by path."""
    return dict(sorted(private_paths()))


def is_there(path: str) -> bool:
    """Whether a dotted path stands for anything, also for a module that is not imported yet."""
    first, *rest = path.split(".")
    thing, module = importlib.import_module(first), first
    for part in rest:
        module = f"{module}.{part}"
        if not hasattr(thing, part):
            try:
                thing = importlib.import_module(module)  # torch.optim forgets that it has one
                continue
            except ImportError:
                return False
        thing = getattr(thing, part)
    return True


def members() -> dict[str, object]:
    """Private members of objects, and an object that has each."""
    import optuna
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch.optim import optimizer
    from transformers import BertConfig

    module = torch.nn.Linear(1, 1)
    of_module = (
        "apply",
        "buffers",
        "call_impl",
        "compiled_call_impl",
        "forward_hooks",
        "modules",
        "parameters",
    )
    of_module = (*of_module, "non_persistent_buffers_set")
    return {
        **{f"_{name}": module for name in of_module},
        **dict.fromkeys(("_base", "_cdata", "_nnz", "_version", "_use_count"), torch.ones(1)),
        "_allow_unsafe_data_ptr_access": FakeTensorMode(),
        "_attn_implementation": BertConfig(),
        "_disable_adapters": BaseTunerLayer,
        "_foreach_supported_types": optimizer,
        "_getframe": sys,
        "_orig_mod": torch.compile(module, backend="eager"),
        "_qkv_same_embed_dim": torch.nn.MultiheadAttention(1, 1),
        "_run_exitfuncs": atexit,
        "_schema": torch.ops.aten.add.Tensor,
        "_sequence_nr": (module.weight * 2).grad_fn,
        "_trial_id": optuna.create_study().ask(),
    }


def test_there_are_private_names_to_look_for() -> None:
    assert "torch._C._get_flash_sdp_enabled" in private()
    assert "torch.ops.aten._to_copy.default" in private()
    assert not is_there("torch._C._gone") and not is_there("torch.ops.aten._gone.default")


def test_each_private_name_of_torch_is_in_the_torch_that_is_installed() -> None:
    assert {path: file for path, file in private().items() if not is_there(path)} == {}


def test_each_private_name_that_ruff_lets_pass_is_taken_and_is_there() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["flake8-self"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    allowed, taken = set(settings["extend-ignore-names"]), set(re.findall(r"\.(_[A-Za-z]\w*)", text))
    assert allowed - taken == set()
    by_path = {part for path in private() for part in path.split(".")}
    assert [name for name, owner in members().items() if not hasattr(owner, name)] == []
    assert allowed - by_path - members().keys() == set()
