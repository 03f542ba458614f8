"""Import folders of other programs as run folders."""

from collections.abc import Callable
from pathlib import Path

from train.errors import UserError, quote
from train.files import describe_path
from train.formats.huggingface import CONFIG, READERS, generation_file, write_run
from train.formats.marian_npz import find_npz, read_npz
from train.formats.settings import SUPPORTED_MODEL, TRY_SUPPORTED, read_object
from train.json_files import check_outside_run
from train.run.config import RunConfig, checked_value, fields_of
from train.run.folder import RunFolder


def import_folder(folder: Path, out: Path, on_warning: Callable[[str], object]) -> RunFolder:
    """Write a model of another program as a run folder.

    Args:
        folder: a folder with config.json, weights and tokenizer files of a MarianMT, GPT-2 or BERT model in Hugging
            Face's format, or with Marian's own .npz file and its vocabularies.
        out: the run folder to write, new or empty.
        on_warning: called with a message for each search setting that has no counterpart here.

    Raises UserError for a file that is missing, damaged or inconsistent with the others, and for unsupported features.
    """
    if not folder.is_dir():
        got = describe_path(folder)
        raise UserError(f"{folder}: expected a folder with {CONFIG}; got {got}; try the folder of a downloaded model")
    if RunFolder(folder).config_file.exists():
        suggestion = f"using it directly, with --model {quote(folder)} or --init {quote(folder)}"
        raise UserError(f"{folder}: expected a model of another program; got a run folder; try {suggestion}")
    npz = None if (folder / CONFIG).exists() else find_npz(folder)
    config = {} if npz else read_object(folder / CONFIG)
    kind = config.get("model_type")
    if npz is None and kind not in [*READERS]:  # a list, because `kind` may be unhashable
        expected = " or ".join(READERS)
        raise UserError(f"{folder / CONFIG}: model_type: expected {expected}; got {kind!r}; {TRY_SUPPORTED}")
    run = RunFolder(out)
    if not run.is_new():
        raise UserError(f"{out}: expected a new run folder; got {describe_path(out)}; try another --out")
    check_outside_run(out)
    if npz:
        imported = read_npz(npz, on_warning)
    else:
        imported = READERS[str(kind)](folder, config, read_object(generation_file(folder)), on_warning)
    data = {"tokenizer": str(run.tokenizer_file.absolute()), "vocab_size": max(5, imported.model_config.vocab_size)}
    tables = {**imported.tables, "data": {**imported.tables["data"], **data}}
    checked_value("data", fields_of("data")["tokenizer"], data["tokenizer"], "--out")
    for (table, key), (file, source_key) in imported.source_keys.items():
        field, value = fields_of(table)[key], tables[table][key]
        checked_value(table, field, value, f"{file}: {source_key}", source_key, SUPPORTED_MODEL)
    run_config = RunConfig.from_dict(tables, source=str(folder))
    write_run(run, run_config, imported.model_config, imported.tokenizer, imported.parameters)
    return run
