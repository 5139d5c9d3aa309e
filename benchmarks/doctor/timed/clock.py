"""The processor time at which the updates of a script end, written to the file that its command names."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


class Clock:
    """Notes the beginning of the loop and the end of each update."""

    def __init__(self) -> None:
        self.marks = [time.process_time()]

    def tick(self) -> None:
        self.marks.append(time.process_time())

    def write(self) -> None:
        Path(sys.argv[1]).write_text(json.dumps(self.marks))
