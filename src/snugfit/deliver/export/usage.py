"""Code for the card of an export: how inputs are made by what lies beside it."""

from __future__ import annotations

from snugfit.data.tables.table_format import TableFormat
from snugfit.deliver.export.exported_model import ExportedModel

_TEXTS = """\
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = tokenizer(TEXTS, truncation=True, return_tensors="TENSORS")
"""
_CHAT = """\
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER")
inputs = ASKED
"""
_CHAT_INPUTS = """tokenizer.apply_chat_template(
    [{"role": "user", "content": "a question"}], add_generation_prompt=True, return_dict=True, return_tensors="TENSORS"
)"""
_PICTURES = """\
from PIL import Image
from transformers import AutoImageProcessor

processor = AutoImageProcessor.from_pretrained("FOLDER")
inputs = processor(Image.open("picture.png").convert("RGB"), return_tensors="TENSORS")
"""
_TABLE = """\
import runpy

encode = runpy.run_path("FOLDER/table_inputs.py")["encode"]
row = ROW
inputs = INPUTS
"""
_PIPELINE = """\
from transformers import pipeline

print(pipeline("TASK", model="FOLDER"MORE)(EXAMPLE))
"""


_SOUNDS = """\
from transformers import AutoFeatureExtractor, CLASS

extractor = AutoFeatureExtractor.from_pretrained("FOLDER")
inputs = extractor(samples, sampling_rate=RATE, return_tensors="pt")  # one channel, as an array of float32
print(CLASS.from_pretrained("FOLDER")(CALL).logits.softmax(-1))
"""


def prompt_example(subject: ExportedModel) -> str:
    """Return a text in quotes that a language model takes without a template: a prompt ends with the line break that stood before each answer."""
    return r'"a question\n"' if subject.answers_prompts else '"a text"'


def asked_usage(subject: ExportedModel, tensors: str, *, chat: bool) -> str:
    """Return the call of the tokenizer that makes a language model's inputs, by its chat template or of a plain text."""
    call = _CHAT_INPUTS if chat else f'tokenizer({prompt_example(subject)}, return_tensors="TENSORS")'
    return call.replace("TENSORS", tensors)


def inputs_usage(subject: ExportedModel, tensors: str) -> str:
    """Return code that makes `inputs`, the arguments of a graph by their names.

    Args:
        tensors: "np" for arrays of numpy, "pt" for tensors of torch.
    """
    if subject.kind == "pictures":
        return _PICTURES.replace("TENSORS", tensors)
    if subject.kind == "table":
        return _table_usage(subject, tensors)
    if subject.generates:
        chat = subject.answers_prompts and bool(getattr(subject.predictor.tokenizer, "chat_template", None))
        return _CHAT.replace("ASKED", asked_usage(subject, tensors, chat=chat))
    texts = '"a text", "another text"' if subject.pair is not None else '"a text"'
    return _TEXTS.replace("TEXTS", texts).replace("TENSORS", tensors)


def _table_usage(subject: ExportedModel, tensors: str) -> str:
    """Return code that makes the inputs of a row that lies in the middle of those that were trained on."""
    table = TableFormat.of(subject.meta["table"])
    row: dict[str, float | str] = {each.name: each.middle for each in table.numbers}
    row |= {each.name: each.values[0] for each in table.categories}
    inputs = "encode([row])"
    if tensors == "pt":
        inputs = f"{{name: torch.from_numpy(each) for name, each in {inputs}.items()}}"
    return _TABLE.replace("ROW", repr(row)).replace("INPUTS", inputs)


def pipeline_usage(subject: ExportedModel) -> str:
    """Return code that calls the pipeline of transformers for the task."""
    if subject.kind == "sounds":
        return _sounds_usage(subject)
    task = subject.pipeline or subject.task
    more = ""
    if subject.scale is not None:
        more += ', function_to_apply="none"'
    if subject.names_any_number:
        more += ", top_k=None"
    if subject.labels_texts:
        more += ", truncation=True"
    example = '"picture.png"' if subject.kind == "pictures" else '"a text"'
    if subject.pair is not None:
        example = '{"text": "a text", "text_pair": "another text"}'
    return _PIPELINE.replace("TASK", task).replace("MORE", more).replace("EXAMPLE", example)


def _sounds_usage(subject: ExportedModel) -> str:
    """Return code that calls a model of sounds by itself: the pipeline takes none that sees spectrograms as pictures."""
    from snugfit.data.sounds.sound_format import SoundFormat

    sounds = SoundFormat.of(subject.meta["sounds"])
    name = "AutoModelForImageClassification" if sounds.channels else "AutoModelForAudioClassification"
    spread = f"inputs['input_values'][:, None].expand(-1, {sounds.channels}, -1, -1)"
    call = spread if sounds.channels else "**inputs"
    return _SOUNDS.replace("CLASS", name).replace("RATE", str(sounds.rate)).replace("CALL", call)
