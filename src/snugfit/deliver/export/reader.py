"""Exports read by other libraries: this file runs as a program in a process of its own, which imports nothing else of ours.

It is given a folder with `request.json` and `inputs.safetensors`, and writes `outputs.safetensors` and `reading.json` there.
"""

from __future__ import annotations

import json
import runpy
import sys
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Request = dict[str, Any]
Inputs = list[dict[str, Any]]
Outputs = dict[str, Any]


def read_transformers(request: Request, inputs: Inputs) -> Outputs:
    """Read a folder, or a GGUF file in one, by transformers."""
    import torch
    import transformers

    folder = request["folder"]
    kind = getattr(transformers, request["auto"])
    more: dict[str, Any] = {}
    if "gguf" in request:
        more = {"gguf_file": request["gguf"]}
        if request.get("config"):  # GGUF's metadata leave out some of what transformers asks for
            more["config"] = transformers.AutoConfig.from_pretrained(request["config"])
    if not request.get("quantized"):
        more["dtype"] = torch.float32
    model = kind.from_pretrained(folder, **more).eval()
    reading = {"library": f"transformers {transformers.__version__}", **_logits(model, inputs)}
    stored = Path(folder, "generation_config.json")
    if stored.is_file():
        reading["stops"] = json.loads(stored.read_text(encoding="utf-8")).get("eos_token_id")
    reading["answers"] = _answers(model, request)
    reading["labels"] = [
        model.config.id2label[int(each.argmax())] for each in reading["logits"] if request.get("labels")
    ]
    return {**reading, **_tokenized(request), **_processed(request)}


def read_peft(request: Request, _inputs: Inputs) -> Outputs:
    """Read an adapter by peft, on the model it was trained on."""
    import peft
    import torch
    import transformers

    kind = getattr(transformers, request["auto"])
    more: dict[str, Any] = {"dtype": torch.float32, **request.get("settings", {})}
    if request.get("quantization"):
        more["quantization_config"] = transformers.BitsAndBytesConfig(**request["quantization"])

    def on(base: Any) -> Any:
        if request.get("vocabulary"):
            base.resize_token_embeddings(request["vocabulary"], mean_resizing=False)
        return peft.PeftModel.from_pretrained(base, request["folder"]).eval()

    model = on(kind.from_pretrained(request["base"], **more))
    if Path(request["folder"], "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(request["folder"])
    reading = {
        "library": f"peft {peft.__version__}",
        **_logits(model, _inputs),
        "answers": _answers(model, request),
    }
    if request.get("quantization"):
        del model  # read anew: a kernel may have packed the weights that it computed with
        whole = on(kind.from_pretrained(request["base"], **more).dequantize())
        reading["whole"] = _logits(whole, _inputs)["logits"]
    return reading


def read_state(request: Request, inputs: Inputs) -> Outputs:
    """Read plain weights into a module of transformers made from its configuration, every name of them."""
    import torch
    import transformers
    from safetensors.torch import load_file

    config = transformers.AutoConfig.from_pretrained(request["folder"])
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    model.to_empty(device="cpu")
    fresh = getattr(transformers, config.architectures[0])(config)  # buffers that no file holds
    for (_, ours), (_, made) in zip(model.named_buffers(), fresh.named_buffers(), strict=True):
        ours.copy_(made)
    del fresh
    model.load_state_dict(load_file(Path(request["folder"], request["file"])), strict=True)
    return {"library": f"safetensors {version('safetensors')}", **_logits(model.float().eval(), inputs)}


def read_exported_program(request: Request, inputs: Inputs) -> Outputs:
    """Read a program by torch.export."""
    import torch

    module = torch.export.load(Path(request["folder"], request["file"])).module()
    return {"library": f"torch {torch.__version__}", **_logits(module, inputs)}


def read_onnxruntime(request: Request, inputs: Inputs) -> Outputs:
    """Read a graph by onnxruntime, also several rows at once where they have one length."""
    import numpy
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(Path(request["folder"], request["file"])), providers=["CPUExecutionProvider"]
    )
    logits = [session.run(None, each)[0] for each in inputs]
    reading: Outputs = {"library": f"onnxruntime {onnxruntime.__version__}", "logits": logits}
    twice = {name: numpy.concatenate([value, value]) for name, value in inputs[0].items()}
    together = session.run(None, twice)[0]
    reading["batched"] = float(numpy.abs(together - numpy.concatenate([logits[0], logits[0]])).max())
    return reading


def read_llama_cpp(request: Request, _inputs: Inputs) -> Outputs:
    """Read a GGUF file by llama.cpp, through the server of its package for Python."""
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(Path(request["folder"], request["gguf"]))
    settings.n_ctx = request["context"]
    settings.n_parallel = settings.cpuparams.n_threads = 1
    settings.n_gpu_layers = settings.verbosity = 0
    settings.warmup = False
    server = xllamacpp.Server(settings)

    def ask(path: str, body: dict[str, Any]) -> Any:
        question = urllib.request.Request(
            f"{server.listening_address}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(question) as answer:
            return json.load(answer)

    answers, likely = [], []
    for prompt, most in zip(request["prompts"], request["most"], strict=True):
        completion = ask(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": most,
                "temperature": 0,
                "n_probs": request["probabilities"],
                "cache_prompt": False,
                "return_tokens": True,
            },
        )
        ended = completion["stop_type"] == "eos"
        end = (
            -1
            if ended and completion["tokens"][-1:] and completion["tokens"][-1] in request["stops"]
            else None
        )
        answers.append({"tokens": completion["tokens"][:end], "ended": ended})
        likely.append(
            [
                {
                    "token": place["id"],
                    "top": {str(each["id"]): each["logprob"] for each in place["top_logprobs"]},
                }
                for place in completion.get("completion_probabilities", ())
            ]
        )
    texts = [
        ask("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]
        for text in request["texts"]
    ]
    written = [ask("/apply-template", {"messages": each})["prompt"] for each in request["conversations"]]
    return {
        "library": f"llama.cpp by xllamacpp {version('xllamacpp')}",
        "answers": answers,
        "likely": likely,
        "tokens": texts,
        "written": written,
    }


def _logits(model: Any, inputs: Inputs) -> Outputs:
    import torch

    with torch.no_grad():
        outputs = [model(**each) for each in inputs]
    return {"logits": [_tensor(each).float() for each in outputs]}


def _tensor(output: Any) -> Any:
    if isinstance(output, dict) or hasattr(output, "logits"):
        output = output["logits"] if isinstance(output, dict) else output.logits
    return output[0] if isinstance(output, (tuple, list)) else output


def _answers(model: Any, request: Request) -> list[dict[str, Any]]:
    """Return greedy answers, as its own settings of generation end them."""
    import torch

    answers = []
    for prompt, most in zip(request.get("prompts", ()), request.get("most", ()), strict=True):
        ids = torch.tensor([prompt])
        stops = {"eos_token_id": request["stops"] or None} if request.get("give_stops") else {}
        whole = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            do_sample=False,
            **stops,
        )
        begin = (
            1 if model.config.is_encoder_decoder else len(prompt)
        )  # behind what was read, or what it begins with
        tokens = whole[0, begin:].tolist()
        end = next((place for place, token in enumerate(tokens) if token in request["stops"]), None)
        answers.append({"tokens": tokens[:end], "ended": end is not None})
    return answers


def _tokenized(request: Request) -> Outputs:
    """Return tokens of texts, and what the template writes of conversations."""
    if not request.get("texts") and not request.get("conversations"):
        return {}
    from transformers import AutoTokenizer

    more = {"gguf_file": request["gguf"]} if "gguf" in request else {}
    tokenizer = AutoTokenizer.from_pretrained(request["folder"], **more)
    framed = request.get("framed", False)
    return {
        "tokens": [
            tokenizer(
                *([text] if isinstance(text, str) else text), add_special_tokens=framed, truncation=framed
            )["input_ids"]
            for text in request["texts"]  # a pair is a list of two
        ],
        "written": [
            tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=False)
            for each in request.get("conversations", ())
        ],
    }


def _processed(request: Request) -> Outputs:
    """Return pictures as the processor in the folder makes them for the model."""
    if not request.get("pictures"):
        return {}
    from PIL import Image
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(request["folder"])
    pictures = []
    for path in request["pictures"]:
        with Image.open(path) as picture:
            pictures.append(processor(picture.convert(request["mode"]), return_tensors="pt")["pixel_values"])
    return {"pixels": pictures}


def _encoded(request: Request, inputs: Inputs) -> Outputs:
    """Return whether the file in the folder makes of each row of a table what the model was given."""
    if not request.get("cells"):
        return {}
    import numpy

    encode = runpy.run_path(str(Path(request["folder"], "table_inputs.py")))["encode"]
    made = [encode([row]) for row in request["cells"]]
    return {
        "encoded": [
            all(numpy.array_equal(one[name], numpy.asarray(given)) for name, given in own.items())
            for one, own in zip(made, inputs, strict=True)
        ]
    }


READERS: dict[str, Callable[[Request, Inputs], Outputs]] = {
    "transformers": read_transformers,
    "peft": read_peft,
    "state": read_state,
    "torch": read_exported_program,
    "onnxruntime": read_onnxruntime,
    "llama.cpp": read_llama_cpp,
}


def main(folder: str) -> None:
    """Read what the folder's request asks for."""
    place = Path(folder)
    request = json.loads((place / "request.json").read_text(encoding="utf-8"))
    by_numpy = request["reader"] in ("onnxruntime", "llama.cpp")
    if by_numpy:
        from safetensors.numpy import load_file, save_file
    else:
        from safetensors.torch import load_file, save_file  # type: ignore[assignment]
    stored = load_file(place / "inputs.safetensors")
    inputs: Inputs = [{} for _ in range(request["rows"])]
    for name, tensor in stored.items():
        row, _, argument = name.partition(".")
        inputs[int(row)][argument] = tensor
    reading = {**READERS[request["reader"]](request, inputs), **_encoded(request, inputs)}
    tensors = {
        f"{group}.{row}": tensor if by_numpy else tensor.contiguous()
        for group in ("logits", "pixels", "whole")
        for row, tensor in enumerate(reading.pop(group, ()))
    }
    save_file(tensors, place / "outputs.safetensors")
    reading["modules"] = sorted(name for name in sys.modules if name.partition(".")[0] == "snugfit")
    (place / "reading.json").write_text(json.dumps(reading), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
