"""A program that trains byte-pair encoding in a separate process, started by `_train_merges` in tokenizer.py.

It reads lines of JSON: first a tokenizer.json without a vocabulary, then the trainer's settings, then chunks of text as
lists of strings, and finally null. It writes the merges as one line of JSON. It does not import this package.
"""

import ctypes
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # an option of Linux's prctl


def main() -> None:
    """Train on standard input and write the merges to standard output."""
    from tokenizers import Tokenizer, trainers

    with suppress(OSError, AttributeError):  # ask Linux to kill this process when its parent dies
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    messages = (json.loads(line) for line in sys.stdin)
    engine = Tokenizer.from_str(json.dumps(next(messages)))
    settings = next(messages)
    is_complete = False

    def chunks() -> Iterator[list[str]]:
        nonlocal is_complete
        for chunk in messages:
            if chunk is None:
                is_complete = True
                return
            yield chunk

    engine.train_from_iterator(chunks(), trainers.BpeTrainer(show_progress=False, **settings))
    if is_complete:  # false if the parent process has died
        print(json.dumps(json.loads(engine.to_str())["model"]["merges"]), flush=True)


if __name__ == "__main__":
    main()
