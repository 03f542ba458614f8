"""The output folder of a table. Only the command that created the folder can add rows, with the same settings."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from train.errors import UserError
from train.files import write_text
from train.json_files import read_output_marker, write_sealed
from train.run.key_names import upgrade_setting

SHOWN_SETTINGS = ("scale", "steps", "settings")  # settings whose values a message shows; the others are hashes of files


def open_table_folder(out: Path, settings: Mapping[str, Any], settings_file: str = "settings.json") -> None:
    """Create the folder, or check that it belongs to this command and has the same settings.

    The file `settings_file` holds the settings that all rows share; settings that it lacks are added. Raises UserError
    for a folder of another command and for different settings.
    """
    stored = read_output_marker(out, settings_file) or {}
    if "settings" in stored:
        stored["settings"] = [*map(upgrade_setting, stored["settings"])]
    for name, value in settings.items():
        if stored.get(name, value) != value:
            expected, got = f"the same {name}", "different ones"
            if name in SHOWN_SETTINGS:
                expected, got = f"{name} = {stored[name]}", value
            raise UserError(f"{out}: expected {expected}, as in the finished rows; got {got}; try a new --out")
    out.mkdir(parents=True, exist_ok=True)
    write_sealed(out / settings_file, {**stored, **settings})


def write_table(out: Path, name: str, table: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Write a table as NAME.json and its Markdown page as NAME.md."""
    write_text(out / f"{name}.json", json.dumps(table, indent=1) + "\n")
    write_text(out / f"{name}.md", "\n".join(lines) + "\n")
