"""The settings of a recipe's data: where rows come from, what their columns are, and how they become examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from snugfit.core.settings import Bound, Count, Section, setting
from snugfit.data.files.file_kinds import AUGMENTATIONS, SOUND_AUGMENTATIONS
from snugfit.data.named_sources import Stopping, files_of, sources_of
from snugfit.data.splits.hold_out import hold_out_of, is_hold_out
from snugfit.data.splits.leaks import LeakSettings

if TYPE_CHECKING:
    from snugfit.data.sources import RowSource
    from snugfit.data.splits.sides import Validation

COLUMNS = (
    "text",
    "pair",
    "positive",
    "negative",
    "label",
    "label_columns",
    "completion",
    "target",
    "answers",
    "image",
    "audio",
    "columns",
    "categories",
    "series",
    "time",
    "known",
    "past",
)
"""Settings of `data` that name columns."""

SIZE = "a size, such as 24GiB, or null"
"""The values of a setting of memory or disk, in words."""


@dataclass(frozen=True)
class Data(Section):
    """The source of the examples and the way they are read."""

    key: ClassVar[str] = "data"

    train: str | tuple[str, ...] | Mapping[str, Any] = setting(
        "training rows: a CSV, TSV, JSON, JSON Lines, Parquet or text file, shards (shards-{000..003}.tar, or their folder), a data set of Hugging Face (hf://OWNER/NAME/CONFIG:SPLIT, or the folder of save_to_disk), a folder of pictures or sounds with a folder for each class, or package.module:function; several of them as a list, or by name with weights",
        takes="a file, a list of files, or files by name, each with from, weight and rename",
        example="rows.csv",
    )
    validation: (
        Annotated[float, Bound(above=0, below=1)] | str | tuple[str, ...] | Mapping[str, Any] | None
    ) = setting(
        "held-out rows: a fraction of the training rows, {share: 0.1, group: COLUMN} for whole groups of them or {share: 0.1, time: COLUMN} for the last "
        "ones, a file, several files as a list or by name, or null for none",
        0.1,
        takes="a fraction between 0 and 1, a share with group or time, a file, a list of files, files by name or null",
    )
    text: Annotated[tuple[str, ...], Bound(entries=1)] = setting(
        "columns of text, joined by a line break", ("text",), takes="a name or a list of names"
    )
    pair: str | None = setting(
        "column of a second text, which is read with the first one as the model's tokenizer joins a pair; null: none",
        None,
        takes="a name or null",
        example="answer",
    )
    positive: str = setting("column of a text that belongs to that of data.text", "positive")
    negative: str | None = setting(
        "column of a text that is like those of the row and does not belong to them; null: other rows' texts alone are told apart",
        None,
        takes="a name or null",
        example="negative",
    )
    label: str = setting("column of labels", "label")
    separator: str = setting(
        "text between the labels of a row that has any number of them; a list in JSON needs none",
        ";",
        example="|",
    )
    label_columns: tuple[str, ...] | None = setting(
        "columns of 0 and 1, one for each label that a row may have; null: data.label lists them",
        None,
        takes="a name, a list of names or null",
        example=("rude", "threat"),
    )
    threshold: Annotated[float, Bound(above=0, below=1)] = setting(
        "probability from which a row is predicted to have a label", 0.5
    )
    scheme: Literal["bio", "bilou", "bioes"] = setting(
        "tags that spans of characters are learned as: bio (B-, I-), bilou (also L- at the end and U- for one word) or bioes (E- and S-)",
        "bio",
    )
    columns: tuple[str, ...] | None = setting(
        "columns of a table to learn from; null: all but the label and those that rows are held out by",
        None,
        takes="a name, a list of names or null",
        example=("age", "city"),
    )
    categories: tuple[str, ...] | None = setting(
        "columns of a table that hold categories though they look like numbers, such as codes; those of texts do anyway",
        None,
        takes="a name, a list of names or null",
        example=("code",),
    )
    series: tuple[str, ...] | None = setting(
        "columns that tell the series of a long table apart; null: it is one series",
        None,
        takes="a name, a list of names or null",
        example=("store", "item"),
    )
    time: str = setting("column of times: dates in the form of ISO 8601, or whole numbers", "time")
    known: tuple[str, ...] | None = setting(
        "columns of numbers that are known ahead, such as a price that is set",
        None,
        takes="a name, a list of names or null",
        example=("price",),
    )
    past: tuple[str, ...] | None = setting(
        "columns of numbers that are known up to now only",
        None,
        takes="a name, a list of names or null",
        example=("visitors",),
    )
    horizon: Count | None = setting(
        "steps of a series to predict; null: a season, or 12 where there is none, and fewer where no series is long enough",
        None,
        example=24,
    )
    history: Count | None = setting(
        "steps before them that the model sees; null: two seasons, or three horizons where those are more, and fewer where no series is long enough",
        None,
        example=168,
    )
    season: Count | None = setting(
        "steps after which a series is much the same; null: a day of hours or minutes, a week of days, a year of weeks or months",
        None,
        example=24,
    )
    frequency: str | None = setting(
        "step between the rows of a series: a number and second, minute, hour, day, week, month, quarter, year or step; null: inferred",
        None,
        example="15 minutes",
    )
    stride: Count = setting("steps between the windows of a series that are trained on", 1)
    quantiles: tuple[float, ...] = setting(
        "quantiles to predict, ascending, with 0.5 among them", (0.1, 0.5, 0.9), takes="a list of numbers"
    )
    image: str = setting("column of paths of pictures, relative to the file they stand in", "image")
    audio: str = setting("column of paths of sounds, relative to the file they stand in", "audio")
    classes: tuple[str, ...] | None = setting(
        "names of the classes of masks, by their numbers, of the labels that a row may have any number of, or of tags of words that may lack in the rows to train on; null: those that are there",
        None,
        takes="a list of names or null",
        example=("background", "road"),
    )
    size: Count | None = setting(
        "side of the square that pictures are made, in pixels; null: as the model asks for", None, example=224
    )
    augment: tuple[str, ...] = setting(
        "changes that are drawn for each picture that is trained on: crop (35 to 100% of its area), flip (left to right), rotate (up to 15 degrees), "
        "color (brightness, contrast and saturation by up to 30%), erase (a rectangle, of one picture in four), and transforms of torchvision, which "
        "come behind color, such as v2.TrivialAugmentWide or v2.RandomPosterize(bits=4)",
        ("crop", "flip"),
        takes=f"a list of {', '.join(AUGMENTATIONS)} and transforms of torchvision",
    )
    picture_cache: int | str | None = setting(
        "disk that decoded pictures and masks may take in the user's cache, where each is decoded once for all epochs and runs; null: none is kept",
        None,
        takes=SIZE,
        example="20GiB",
    )
    feature_cache: int | str | None = setting(
        "disk that the features of sounds may take in the user's cache, where each sound is decoded and made into features once for all epochs and runs; "
        "null: none are kept",
        None,
        takes=SIZE,
        example="20GiB",
    )
    mask_probability: Annotated[float, Bound(above=0, below=1)] | None = setting(
        "part of the tokens of a text, or of a picture, that is hidden and predicted, drawn anew in each epoch; null: 0.15 of tokens, 0.6 of a picture",
        None,
        example=0.3,
    )
    seconds: Annotated[float, Bound(above=0)] | None = setting(
        "length that sounds are cut or filled up to, in seconds; null: as much as the model hears, or 10 where it hears any length",
        None,
        example=2.5,
    )
    augment_audio: tuple[str, ...] | None = setting(
        "changes that are drawn for each sound that is trained on: crop (where in a longer sound its part begins), time_mask and frequency_mask (two "
        "stretches of time or of frequencies put to their mean, each a fifth at most); null: all that the model's features have",
        None,
        takes=f"a list of {', '.join(SOUND_AUGMENTATIONS)}, or null",
        example=("crop", "time_mask"),
    )
    answers: tuple[str, str] = setting(
        "columns of the better and the worse of two answers: texts, or messages that go on from the prompt or begin with it",
        ("chosen", "rejected"),
        takes="a list of two names",
    )
    completion: str = setting(
        "column of answers, which alone are scored; data.text is the prompt", "completion"
    )
    target: str = setting(
        "column of the text that is to be written after reading that of data.text", "target"
    )
    prefix: str | None = setting(
        "text before each one that is read, by which a model that has learned more than one work is told which to do; null: none",
        None,
        takes="text or null",
        example="summarize: ",
    )
    target_length: Count = setting(
        "tokens of a text that is written at most, special tokens counted; max_length is of the one that is read",
        128,
    )
    format: Literal["messages", "sharegpt", "alpaca", "prompt_completion"] | None = setting(
        "form of conversations: lists of messages with role and content, or of conversations with from and value, the columns instruction, "
        "input and output, or those of data.text and data.completion; null: by the columns that are there",
        None,
        takes="messages, sharegpt, alpaca, prompt_completion or null",
        example="messages",
    )
    scored: Literal["all", "last"] = setting(
        "answers of a conversation that are learned: all or the last; a message's own train or weight wins",
        "all",
    )
    template: str | None = setting(
        "chat template in place of the tokenizer's own: chatml, or a file in Jinja",
        None,
        takes="chatml, a file or null",
        example="chatml",
    )
    add_tokens: tuple[str, ...] | None = setting(
        "tokens that the tokenizer gets where it does not know them, such as the marks of data.template; the model gets rows of its embeddings for "
        "those that it has none to spare for, drawn around the mean of the others; null: none",
        None,
        takes="a token, a list of tokens or null",
        example=("<|im_start|>", "<|im_end|>"),
    )
    documents: Literal["joined", "apart"] = setting(
        "texts of several rows: joined follow one another in blocks of max_length tokens, apart each is cut into examples of its own, so that no "
        "token sees another text; packing puts such examples into rows of one length, under masks",
        "joined",
    )
    document_separator: str | None = setting(
        'line that parts the documents of a plain text (.txt), such as "---", or "" for an empty line; null: a line that is <|endoftext|> or the '
        "tokenizer's end of a sequence; a file without such a line is one document",
        None,
        takes="a line or null",
        example="---",
    )
    too_long: Literal["cut_end", "cut_prompt", "drop"] = setting(
        "treatment of a conversation of more than max_length tokens: cut_end cuts its end, cut_prompt its oldest turns and the beginning of "
        "its prompt, drop leaves it out",
        "cut_end",
    )
    max_length: Count = setting("tokens of one example at most, special tokens counted", 128)
    stopping_strategy: Stopping = setting(
        "end of an epoch over sources with weights: first_exhausted with the last row of the first source that is through, all_exhausted of "
        "the last one",
        "first_exhausted",
    )
    stream: Count | None = setting(
        "rows that are read at a time, for data that are larger than memory: their examples are shuffled among each other, and train.updates is the "
        "length of the run; null: all rows are read before the run begins",
        None,
        example=1024,
    )
    bad_rows: Literal["fail", "skip"] = setting(
        "rows that cannot be used: fail ends the run, skip leaves them out", "fail"
    )
    leaks: Literal["warn", "fail", "drop"] = setting(
        "rows to validate on whose input is also trained on: warn says how many and which, fail ends the run, drop leaves them out of training",
        "warn",
    )
    near_duplicates: bool = setting(
        "whether nearly equal inputs leak too: texts with 80% of their characters in common, pictures that look alike, rows of a table with equal "
        "numbers of three digits",
        False,
    )
    balance: str | None = setting(
        "column, such as that of the labels, of whose values each has the same part of the examples that are trained on; null: rows come as often as "
        "they are there",
        None,
        takes="a name or null",
        example="label",
    )
    collate: str | None = setting(
        "function from a list of examples to a batch",
        None,
        takes="package.module:function or null",
        example="mine:collate",
    )

    @property
    def rows(self) -> RowSource:
        """The rows to train on, as they are read."""
        return sources_of(self.train, self.stopping_strategy)

    @property
    def held_out(self) -> Validation:
        """The rows to validate on, as they are read; a share of those to train on, or None."""
        written = self.validation
        if written is None or isinstance(written, (int, float)):
            return written
        if isinstance(written, Mapping) and is_hold_out(written):
            return hold_out_of(written)
        return sources_of(written, setting="data.validation")

    @property
    def leak_settings(self) -> LeakSettings:
        """The treatment of inputs that are on both sides."""
        return LeakSettings(self.leaks, self.near_duplicates)

    @property
    def train_sources(self) -> tuple[str, ...]:
        """The names of the sources of rows to train on."""
        return files_of(self.train)

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all sources of rows."""
        written = self.validation
        if written is None or isinstance(written, (int, float)):
            return self.train_sources
        return (*self.train_sources, *files_of(written))
