"""The program that learns byte pairs, in a process of its own: `tokenizer.py` starts it, and `_merges` there says why.

It takes lines of JSON: a tokenizer.json without pieces, what the trainer is to know, each part of the text as a list of
strings, null; and gives back the merges as one line. Alone in its process it imports nothing of this package.
"""

import ctypes
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main() -> None:
    """Standard input to standard output."""
    from tokenizers import Tokenizer, trainers

    with suppress(OSError, AttributeError):  # nobody learns for a process that was killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    asked = (json.loads(line) for line in sys.stdin)
    engine, settings, ended = Tokenizer.from_str(json.dumps(next(asked))), next(asked), False

    def parts() -> Iterator[list[str]]:
        nonlocal ended
        for part in asked:
            if part is None:
                ended = True
                return
            yield part

    engine.train_from_iterator(parts(), trainers.BpeTrainer(show_progress=False, **settings))
    if ended:  # else who asks is gone
        print(json.dumps(json.loads(engine.to_str())["model"]["merges"]), flush=True)


if __name__ == "__main__":
    main()
