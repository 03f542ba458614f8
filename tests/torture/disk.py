"""The contents that a folder may have after a power loss, derived from the recorded calls of a program.

`record` notes every change and every fsync; `crash_states` builds the folders that a crash may leave. The disk may have

- applied any subset of the changes to the entries of a folder (create, rename, remove) since the last fsync of that
  folder, each of them atomically,
- written any subset of the data since the last fsync of a file, and torn a write at a multiple of 512 bytes, with or
  without the file's new size,

and it keeps everything older. These guarantees are weaker than those of any common file system. The method is that of
ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et al., OSDI 2018).
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

from tests.torture.syscalls import supervise

CHANGES = ("open", "write", "fsync", "truncate", "rename", "link", "unlink", "mkdir", "rmdir")
UNREAD = ("log.txt", "lock")  # no program depends on the content of these files: every state has all of it
MARK = "mark "


class Entries(NamedTuple):
    """An atomic change to entries of folders, each given as (folder, name, object or None)."""

    changes: tuple[tuple[int, str, int | None], ...]

    @property
    def objects(self):
        return {folder for folder, _, _ in self.changes}

    def apply(self, tree):
        for folder, name, target in self.changes:
            entries = dict(tree[folder])
            entries.pop(name, None)
            if target is not None:
                entries[name] = target
            tree[folder] = entries


class Data(NamedTuple):
    """Bytes written to a file; the first `start` and those after `stop` are lost (None: no bytes after it)."""

    file: int
    offset: int
    content: bytes
    start: int = 0
    stop: int | None = None

    @property
    def objects(self):
        return {self.file}

    def apply(self, tree):
        old, kept = tree[self.file], self.content[self.start : self.stop]
        at = self.offset + self.start
        tree[self.file] = old[:at].ljust(at, b"\0") + kept + old[at + len(kept) :]

    def tears(self):
        """Yield the write torn at multiples of 512 bytes: at most 8 of these, and at most 8 multiples of 4 KiB."""
        size = len(self.content)
        points = {at for block in (512, 4096) for at in spread(range(block, size, block), 8)}
        for at in sorted(points):
            yield self._replace(stop=at)
            yield self._replace(start=at)


class Truncation(NamedTuple):
    """A new size of a file."""

    file: int
    size: int

    @property
    def objects(self):
        return {self.file}

    def apply(self, tree):
        tree[self.file] = tree[self.file][: self.size].ljust(self.size, b"\0")


class Sync(NamedTuple):
    """An fsync of a file or folder."""

    target: int


class Log(NamedTuple):
    """A recording: the initial content of a folder, and then its events: changes, syncs and marks (strings)."""

    before: dict[int, bytes | dict[str, int]]  # object -> content of a file or entries of a folder; 0 is the root
    events: list


class Recorder:
    """Tracks a program's calls in a model of the folder; `events` records their effects."""

    def __init__(self, folder, on_mark):
        self.folder, self.on_mark, self.events = Path(folder), on_mark, []
        self.tree, self.unnamed = {}, None  # the newest file that was created without a name (O_TMPFILE)
        self._read(self.folder)
        self.before = dict(self.tree)

    def _read(self, path):
        number = len(self.tree)
        self.tree[number] = {} if path.is_dir() else path.read_bytes()
        if path.is_dir():
            self.tree[number] = {child.name: self._read(child) for child in sorted(path.iterdir())}
        return number

    def find(self, path):
        """Return the object at a path, or None."""
        number = 0
        for name in Path(path).relative_to(self.folder).parts:
            entries = self.tree.get(number)
            if re.fullmatch(r"#\d+ \(deleted\)", name):  # how the kernel names a file without a name
                number = self.unnamed
            else:
                number = entries.get(name) if isinstance(entries, dict) else None
        return number

    def __call__(self, call):
        """Record a call that the kernel is about to execute, unless it will fail."""
        path = Path(call.paths[0])
        if path.parent == Path("/proc/self/fd"):
            path = Path(os.readlink(f"/proc/{call.pid}/fd/{path.name}"))
        if path.name.startswith(MARK):
            self.events.append(path.name.removeprefix(MARK))
            self.on_mark(self.events[-1])
        else:
            getattr(self, f"_{call.kind}")(call, path, self.find(path))

    def _do(self, change):
        change.apply(self.tree)
        self.events.append(change)

    def _set(self, path, target):
        if (folder := self.find(path.parent)) is not None:
            self._do(Entries(((folder, path.name, target),)))

    def _create(self, path, content):
        self._set(path, self._add(content))

    def _add(self, content):
        number = len(self.tree)
        self.tree[number] = self.before[number] = content
        return number

    def _open(self, call, path, number):
        flags = call.argument("w")
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            self.unnamed = self._add(b"")
        elif number is None and flags & os.O_CREAT:
            self._create(path, b"")
        elif isinstance(self.tree.get(number), bytes) and flags & os.O_TRUNC and self.tree[number]:
            self._do(Truncation(number, 0))

    def _write(self, call, path, number):
        if number is not None and call.data:  # otherwise the file is removed
            offset = call.offset
            self._do(Data(number, len(self.tree[number]) if offset is None else offset, call.data))

    def _truncate(self, call, path, number):
        if number is not None and call.argument("n") != len(self.tree[number]):
            self._do(Truncation(number, call.argument("n")))

    def _fsync(self, call, path, number):
        if number is not None:
            self.events.append(Sync(number))

    def _rename(self, call, path, number):
        target = Path(call.paths[1])
        folder, replaced = self.find(target.parent), self.tree.get(self.find(target))
        if number is not None and folder is not None and not (isinstance(replaced, dict) and replaced):
            self._do(Entries(((self.find(path.parent), path.name, None), (folder, target.name, number))))

    def _link(self, call, path, number):
        target = Path(call.paths[1])
        if number is not None and self.find(target) is None:
            self._set(target, number)

    def _unlink(self, call, path, number):
        if isinstance(self.tree.get(number), bytes):
            self._set(path, None)

    def _mkdir(self, call, path, number):
        if number is None:
            self._create(path, {})

    def _rmdir(self, call, path, number):
        if number is not None and self.tree[number] == {}:
            self._set(path, None)


def record(call, folder, on_mark=lambda text: None, streams=()):
    """Run a call in a fork and return its exit status and the log of what it did to `folder`.

    `on_mark` is called while the program waits in `mark`.
    """
    recorder = Recorder(folder, on_mark)
    status = supervise(call, folder, recorder, CHANGES, streams)
    actual = Recorder(folder, on_mark)
    assert contents(recorder.tree) == contents(actual.tree), "the model of the folder differs from the folder"
    return status, Log(recorder.before, recorder.events)


def mark(folder, text):
    """Note in the recording of this program that it has reached a point."""
    with suppress(OSError):
        os.rmdir(f"{folder}/{MARK}{text}")


def contents(tree, number=0, path=""):
    """Return {path: bytes, or None for a folder} of everything that can be reached from the root."""
    result = {}
    for name, target in sorted(tree[number].items()):
        inside = f"{path}{name}"
        if isinstance(tree[target], dict):
            result[inside] = None
            result |= contents(tree, target, f"{inside}/")
        else:
            result[inside] = tree[target]
    return result


def write(files, folder):
    """Write the result of `contents` to a folder, which must be new."""
    os.mkdir(folder)
    for path, content in files.items():
        if content is None:
            os.mkdir(f"{folder}/{path}")
        else:
            with open(f"{folder}/{path}", "xb", buffering=0) as file:
                file.write(content)


def spread(items, count):
    """Return at most `count` of the items, evenly spaced."""
    items = list(items)
    return items if len(items) <= count else [items[(2 * i + 1) * len(items) // (2 * count)] for i in range(count)]


def crash_states(log, rng, samples=64) -> Iterator[tuple[list[str], dict[str, bytes | None]]]:
    """Yield (marks reached, files) for each distinct state after a crash at any point of a log.

    With at most 6 pending changes, all subsets are built. With more changes, these subsets are built: every prefix, all
    changes but one, a single change, only the changes to entries or only those to data, and `samples` random subsets.
    Every write is torn twice: after all other changes, and after the earlier ones only.
    """
    tree, pending, marks, seen = dict(log.before), [], [], set()
    unread = set()
    for event in log.events:
        if isinstance(event, str):
            marks.append(event)
        elif isinstance(event, Sync):
            for change in [change for change in pending if event.target in change.objects]:
                change.apply(tree)
            pending = [change for change in pending if event.target not in change.objects]
        else:
            if isinstance(event, Entries):
                unread |= {number for _, name, number in event.changes if name in UNREAD}
            if event.objects & unread:
                event.apply(tree)
            else:
                pending.append(event)
        for changes in subsets(pending, rng, samples):
            state = dict(tree)
            for change in changes:
                change.apply(state)
            files = contents(state)
            digest = hashlib.sha256(repr(marks[-1:]).encode())
            for path, content in files.items():
                digest.update(f"{path} {-1 if content is None else len(content)}\n".encode() + (content or b""))
            if digest.digest() not in seen:
                seen.add(digest.digest())
                yield [*marks], files


def subsets(pending, rng, samples):
    """Yield the sequences of pending changes that a crash may have applied."""
    if len(pending) <= 6:
        for chosen in product((True, False), repeat=len(pending)):
            yield [change for change, is_chosen in zip(pending, chosen, strict=True) if is_chosen]
    else:
        yield from (pending[:n] for n in range(len(pending) + 1))
        yield from (pending[:n] + pending[n + 1 :] for n in range(len(pending)))
        yield from ([change] for change in pending)
        yield [change for change in pending if isinstance(change, Entries)]
        yield [change for change in pending if not isinstance(change, Entries)]
        for _ in range(samples):
            yield [change for change in pending if rng.random() < 0.5]
    for n, change in enumerate(pending):
        if isinstance(change, Data):
            for torn in change.tears():
                yield [*pending[:n], torn, *pending[n + 1 :]]
                yield [*pending[:n], torn]
