"""The folder of a table: made once, and gone on with only by the command and the settings that it was made by."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.files import open_own_folder, write_json

TOLD = ("scale", "steps", "settings")  # in a message by their value, files by their name


def begin(out: Path, shared: Mapping[str, Any], mark: str = "settings.json") -> None:
    """Makes the folder; UserError where it is of something else, or has rows of other settings: one table, one kind.

    `shared` is what all its rows have in common, and stands in the file `mark`. What has not been said before is added.
    """
    before = open_own_folder(out, mark) or {}
    for name, value in shared.items():
        if before.get(name, value) != value:
            was, now = (before[name], value) if name in TOLD else ("another", "this")
            raise UserError(f"{out}: expected {name} = {was}, as its rows have; got {now}; try a new --out")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / mark, {**before, **shared})
