"""Write, replace and remove folders. If the process is killed at any moment, a complete folder can still be found.

Another user with access to a run can replace the folder `checkpoints` with a link at any time. `checkpoints` is
checked just before a folder in it is created or removed, so only a link made in the next microseconds is missed.

There is no portable call that exchanges two folders, so `replace_folder` renames the old folder to a hidden name, then
renames the new one to the target, and removes the old one last. Between the two renames, `existing_folder` finds the
old folder under the hidden name.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from train.files import WriteError, file_version, fsync, unique_name
from train.json_files import reject_links

CHECKPOINT = r"(step|best)-[0-9]+|best|averaged"  # names of the folders in `checkpoints`


def hidden_name(path: Path, suffix: str) -> str:
    """Return the path of a hidden folder next to `path`.

    The path is a string, because Path interns its parts: with Path objects, the table of interned strings grew by 1.7
    MiB in 2,500 checkpoints.
    """
    return f"{path.parent}/.{path.name}.{suffix}"


@contextmanager
def new_folder(target: Path, must_be_new: bool = False) -> Iterator[str]:
    """Create a hidden folder and yield its path; after the block, rename it to `target`, replacing that folder.

    With `must_be_new`, as for a folder that the user named, `target` must be missing or empty.
    """
    partial = unique_name(target.parent) if must_be_new else hidden_name(target, "partial")
    try:
        if os.path.lexists(partial):
            try:
                _remove(partial)
            except OSError as error:
                problem = f"{partial}: expected a leftover that can be removed; got '{error.strerror}'"
                raise WriteError(f"{problem}; earlier files are intact", "removing it") from None
        if not must_be_new:
            reject_links(target.parent)
        os.makedirs(partial)
        yield partial
        fsync(partial)
        (os.rename if must_be_new else replace_folder)(partial, target)
    finally:
        remove_partial(partial)


def replace_folder(new: str, target: Path) -> None:
    """Rename the complete folder `new` to `target` and remove the previous `target`."""
    old = hidden_name(target, "replaced")
    if os.path.lexists(target):
        # `target` has already been replaced: a process was killed before it removed the old folder.
        if os.path.lexists(old):
            remove_folder(Path(old))
        os.replace(target, old)
    try:
        os.replace(new, target)
    except OSError:
        if os.path.lexists(old):
            os.replace(old, target)
        raise
    fsync(target.parent)
    if os.path.lexists(old):
        with suppress(OSError):  # the next replacement or `finish_replacements` removes it
            remove_folder(Path(old))


def remove_folder(path: Path) -> None:
    """Rename a folder, or a link to one, to a hidden name, then remove it.

    If the process is killed, no partially removed folder remains under the original name.
    """
    hidden = hidden_name(path, "old.partial")
    reject_links(path.parent)
    remove_partial(hidden)
    os.replace(path, hidden)
    _remove(hidden)


def remove_partial(path: str) -> None:
    """Remove a partial folder, or a link or file in its place; ignore errors."""
    with suppress(OSError):
        _remove(path)


def _remove(path: str) -> None:
    """Remove a folder, a file or a link (but not the target of a link)."""
    (shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)


def existing_folder(path: Path) -> Path:
    """Return the path under which a folder can be read now: its own, or a hidden one during replacement."""
    old = hidden_name(path, "replaced")
    return Path(old) if not path.exists() and os.path.isdir(old) else path


def folder_version(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a folder is replaced; () if it has been removed."""
    with suppress(FileNotFoundError):
        return file_version(os.stat(path))
    return ()


def original_name(path: Path) -> str:
    """Return the visible name of a folder whose path `existing_folder` returned."""
    match = re.fullmatch(r"\.(.+)\.replaced", path.name)
    return match[1] if match else path.name


def finish_replacements(parent: Path) -> None:
    """Complete or undo checkpoint replacements that a killed process left unfinished. The caller must hold the lock."""
    for old in parent.glob(".*.replaced"):
        target = parent / original_name(old)
        with suppress(OSError):
            if not re.fullmatch(CHECKPOINT, target.name):
                continue
            if target.exists():
                remove_folder(old)
            else:
                os.replace(old, target)
