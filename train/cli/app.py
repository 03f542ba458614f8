"""Shared parts of all commands: the typer application, the device option, text input and output."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup

from npx.ranges import Range
from train.cli.options import checked_option, print_stderr
from train.cli.streams import GuardedStream, raise_broken_output, stream_lines
from train.errors import UserError, quote
from train.files import WOULD_REPLACE_A_FILE, atomic_write, open_for_reading
from train.json_files import check_outside_run
from train.run.config import suggest_setting
from train.run.key_names import resolve_name
from train.text.lines import MAX_LINE_BYTES, count_lines

# Maps each command, in the order of --help, to the file of this folder that registers it.
COMMANDS = {
    "demo": "demo",
    "data": "data",
    "train": "train",
    "translate": "translate",
    "parse": "parse",
    "generate": "generate",
    "classify": "classify",
    "embed": "embed",
    "score": "score",
    "score-trees": "score_trees",
    "average": "average",
    "import": "import_model",
    "export": "export_model",
    "info": "info",
    "draw": "draw",
    "serve": "serve",
    "plan": "plan",
    "reproduce": "reproduce",
}
COMMAND_SYNONYMS = {  # maps command names of other programs to the command that has the same purpose here
    **dict.fromkeys(("prepare", "preprocess", "download", "tokenize"), "data"),
    **dict.fromkeys(("fit", "finetune", "fine-tune", "resume"), "train"),
    **dict.fromkeys(("decode", "predict", "infer", "interactive"), "translate"),
    **dict.fromkeys(("evaluate", "eval", "eval-lm", "validate", "test", "perplexity"), "score"),
    **dict.fromkeys(("plot", "visualize"), "draw"),
    **dict.fromkeys(("show", "describe", "summary"), "info"),
    "version": "--version",
}
OTHER_OPTIONS = {  # maps our options to those of fairseq, sacreBLEU, OpenNMT, Marian and Hugging Face
    "--train-src F --train-tgt F": "--trainpref --train-file",
    "--valid-src F --valid-tgt F": "--validpref",
    "--vocab-size": "--bpe-size --bpe-operations --nwordssrc --nwordstgt",
    "--metric": "-m --metrics",
    "--metric bleu_intl, or a BLEU with another tokenization": "-tok --tokenize",
    "--model": "-m --path --models --model-path",
    "--model RUN/checkpoints/step-N": "--checkpoint --ckpt",
    "--input": "--src --source -i --text",
    "--input F alone; the output has no subwords": "--detokenize --remove-bpe --post-process",
    "--input F alone; subwords spell unknown words": "--replace-unk --replace-unknown",
    "--output": "-o --out --output-file --results-path",
    "--hyp": "-i --input --hypothesis --hypotheses --sys --predictions",
    "--ref": "--reference --references --refs --tgt --target",
    "--metric bleu_13a_lc": "-lc --lowercase",
    "--bootstrap": "--confidence --confidence-n --paired-bs-n",
    "--baseline": "--paired-bs",
    "--beam-size": "--beams --num-beams -b",
    "--alignments": "--print-alignment --alignment --report-align",
    "--length-penalty-type length --length-penalty": "--lenpen --normalize",
    "--n-best": "--nbest --num-return-sequences",
    "--samples": "--sampling --sample --do-sample",
    "--top-k": "--sampling-topk --topk --random-sampling-topk",
    "--top-p": "--sampling-topp --topp --random-sampling-topp",
    "--temperature": "--random-sampling-temp",
    "--prefixes": "--constrain --prefix --prefix-size --tgt-prefix",
    "--batch-tokens": "--max-tokens --batch-size",
    "--tokens": "--max-length --length --max-len --max-new-tokens",
    "--to": "--format -f",
    "--max-extra-tokens": "--max-len --max-len-a --max-len-b --max-length --max-new-tokens",
    "--quiet": "-q --silent",
    "--tokenizer-lines": "--learn-from",  # the former names of our options
    "--keep-non-latin": "--keep-scripts",
    "--device cuda": "--gpu --cuda",
    "--out": "--save-dir --destdir --output-dir --model-dir --save-model -o",
    "--resume, or --init RUN to copy only weights": "--restore-file --resume-from-checkpoint --continue",
}
PRESET_ARGUMENT = "a preset, such as tiny, as the first argument"


class Commands(TyperGroup):
    """The commands of the application. The name of an option is never accepted as the value of another option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        bypass_typer_converters(self, ctx)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        if args and (synonym := COMMAND_SYNONYMS.get(args[0].lower())):
            raise UserError(f"{args[0]}: unknown command; did you mean `npx-transformer {synonym}`?")
        name, command, rest = super().resolve_command(ctx, args)
        if command:
            check_values(command.get_params(ctx), rest)
            bypass_typer_converters(command, ctx)
        return name, command, rest


class Application(Commands):
    """The commands of the program, in the order of COMMANDS."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def check_values(params: Sequence[Any], args: Sequence[str]) -> None:
    """Raise UserError for a wrong use of options that click would accept or report unhelpfully.

    Among these are an option with too few values, a repeated option that takes one value, an empty path, and an unknown
    option whose name is a configuration key or an option of other programs.
    """
    if "--out=" in args or ("--out", "") in pairwise(args):  # an unset shell variable gives an empty path
        raise UserError("--out: expected a path; got an empty one; try --out . for the current folder")
    options = {name: p for p in params if p.param_type_name == "option" for name in p.opts}
    given: set[str] = set()
    for i, name in enumerate(args):
        if name == "--":
            return
        option, _, value = name.partition("=")
        if option not in options:
            value = value or next((text for text in args[i + 1 : i + 2] if not text.startswith("-")), "")
            reject_unknown(option, value, options)
            continue
        if option in given:  # click would ignore the first value
            join = ", or a file that joins both texts (`cat A B`)" if option.endswith(("-src", "-tgt")) else ""
            raise UserError(f"{option}: given twice; try only one value{join}")
        if not (options[option].is_flag or options[option].multiple):
            given.add(option)
        path = value or next(iter(args[i + 1 : i + 2]), "")
        if option in ("--output", "--svg") and path.endswith("/"):  # Path would remove the slash
            raise UserError(f"{path}: expected a file to write; got the name of a folder; try another path")
        parts = re.split("[,:]", path)
        if len(parts) > 1 and options[option].multiple and not os.path.exists(path) and all(map(os.path.exists, parts)):
            suggestion = " ".join(f"{option} {quote(part)}" for part in parts)
            raise UserError(f"{option}: expected one path; got {path}; try {suggestion}")
        if name not in options or options[name].is_flag:
            continue
        n = options[name].nargs
        following = [*args[i + 1 :]]
        end = next((k for k, value in enumerate(following[:n]) if value in options), min(n, len(following)))
        if end < n:
            metavar = options[name].metavar or "a value"
            got = f"{end} of {n} values" if n > 1 else "no value"
            before = f" before {following[end]}" if following[end:] else ""
            raise UserError(f"{name}: expected {metavar}; got {got}{before}; try {name} {metavar}")


def reject_unknown(option: str, value: str, options: Container[str]) -> None:
    """Raise UserError for an unknown option if this program has an equivalent; click rejects the other options."""
    searches = "--beam-size" in options  # has options for keys of [search]
    if option == "--set":  # an option of `train`
        name, _, text = value.removeprefix("search.").partition("=")
        key = resolve_name(name) if searches else None
        key_option = option_of(key or f"search.{name}")
        suggestion = f"{key_option} {text}" if key_option in options else ""
    else:
        has_keys = searches or "--set" in options or "--train-src" in options
        key = resolve_name(option[2:]) if option.startswith("--") and has_keys else None
        key_option = option_of(key) if key else ""
        suggestion = equivalent_option(option, options) or (key_option if key_option in options else "")
        if key and not suggestion and not searches:
            is_preset = key == "model.preset"  # the first argument, which is required, sets this key
            suggestion = "" if "--set" in options else "`train` with "
            suggestion += PRESET_ARGUMENT if is_preset else suggest_setting(option[2:], value, key)
            raise UserError(f"{option}: this is a configuration key, not an option of this command; try {suggestion}")
    if searches and key and key.startswith("search.") and not suggestion:
        got = f"the configuration key {key}; try setting it in config.toml of the run"
        raise UserError(f"{option}: expected an option of this command; got {got}")
    if suggestion:
        raise UserError(f"{option}: unknown option; try {suggestion}")


def option_of(key: str) -> str:
    """Return the name that an option for a key, such as search.max_extra_tokens, would have."""
    return f"--{key.partition('.')[2].replace('_', '-')}"


def equivalent_option(name: str, options: Container[str]) -> str:
    """Return the option among `options` that is called `name` in another program, or ""."""
    ours = (our for our, names in OTHER_OPTIONS.items() if name in names.split())
    return next((our for our in ours if re.split("[, ]", our)[0] in options), "")


def bypass_typer_converters(command: Any, ctx: Any) -> None:
    """Convert paths and text, and accept defaults, without typer's converters.

    The converters import pydantic, which alone takes a fifth of the time that a command needs to start.
    """
    parameters = inspect.signature(command.callback).parameters
    for option in command.get_params(ctx):
        annotation = get_args(getattr(parameters.get(option.name), "annotation", None))[:1]  # T of Annotated[T, ...]
        kind = next(
            (kind for kind in (Path, str, list[Path], list[str]) if annotation in ((kind,), (kind | None,))), None
        )
        option.process_value = partial(process_value, option, kind, option.process_value)


def process_value(option: Any, kind: Any, typer_process: Callable[..., Any], ctx: Any, value: Any) -> Any:
    """Convert, check and return the value of an option. Replaces click's method of the same name.

    `kind` is the type of an option that takes a path, a text, or a list of either; for other options, it is None.
    """
    is_missing = value in (None, (), []) and (option.required or option.multiple or option.nargs != 1)
    if isinstance(value, str) and kind in (Path, str):
        value = kind(value)
    elif isinstance(value, list | tuple) and kind in (list[Path], list[str]) and not is_missing:
        value = [get_args(kind)[0](item) for item in value]
    elif is_missing or isinstance(value, str | list | tuple):
        return typer_process(ctx, value)
    return option.callback(ctx, option, value) if option.callback else value


app = typer.Typer(
    cls=Application,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train the Transformer of [i]Attention Is All You Need[/i], translate with it, score and inspect it.",
    epilog="Start with [b]npx-transformer demo[/b]. For help on one command: [b]npx-transformer train --help[/b].",
)
DEVICES = Range(str, choices=("cpu", "cuda"))
Device = Annotated[str, checked_option(DEVICES, help="Compute on cpu (NumPy) or cuda (CuPy).", metavar="cpu|cuda")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder written by `train`.", show_default=False)]


def use_device(name: str) -> None:
    """Configure the process and compute on the device `name`; raise UserError if it is not available."""
    import npx

    npx.configure_process()
    try:
        npx.use_device(name)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error)) from None


STDIO = Path("-")  # standard input or output
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print progress or a summary.")]


@contextmanager
def open_input(path: Path | None) -> Iterator[Iterator[str | None]]:
    """Yield the lines of a text file, a pipe or standard input as they arrive, and None while the input pauses."""
    if path in (None, STDIO):
        if sys.stdin.isatty():
            print("reading lines from the terminal; Ctrl-D on an empty line ends the input", file=sys.stderr)
        yield stream_lines(sys.stdin.buffer, "stdin", MAX_LINE_BYTES)
        return
    with open_for_reading(path, "a text file (a sentence goes to standard input)", pipes=True) as file:
        yield stream_lines(file, str(path), MAX_LINE_BYTES)


@contextmanager
def line_progress(verb: str, input: Path | None, output: Path | None, enabled: bool = True) -> Iterator[Any]:
    """Yield the `Work` that shows progress through the lines of `input`. `verb` is a participle such as "translated".

    If a terminal displays the results or supplies the input, no progress is shown.
    """
    from train.progress import Display

    from_file = input is not None and input != STDIO
    on_terminal = not from_file and sys.stdin.isatty() or output in (None, STDIO) and sys.stdout.isatty()
    total = count_lines(input) if enabled and input is not None and from_file and input.is_file() else None
    with Display(enabled and not on_terminal) as display, display.work(verb, "lines", total) as work:
        yield work


@contextmanager
def open_output(path: Path | None, *others: Path | None, models: Sequence[Path] = (), mode: str = "t") -> Iterator[Any]:
    """Yield a stream to a file that is replaced atomically on success, or a text stream to standard output (UTF-8).

    Raises UserError for a file that `check_output` rejects.
    """
    if path in (None, STDIO):
        sys.stdout.flush()
        with open(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n") as file:
            output = GuardedStream(file, raise_broken_output)
            yield output
            output.flush()
        return
    check_output(path, *others, models=models)
    try:
        with atomic_write(path, mode, follow_links=True) as file:
            yield file
    except KeyboardInterrupt:
        print_stderr(f"interrupted before {path} was complete")
        raise


def check_output(path: Path, *others: Path | None, models: Sequence[Path] = ()) -> None:
    """Raise UserError if `path` cannot be written, is inside a run, or would replace standard input or one of `others`.

    `others` are the other inputs and outputs of the command, and `models` are the runs that it reads.
    """
    for other in filter(None, (Path("/dev/stdin"), *others)):
        is_same_new_file = not path.exists() and os.path.realpath(path) == os.path.realpath(other)
        if is_same_new_file or path.is_file() and other.exists() and path.samefile(other):
            raise UserError(f"{path}: {WOULD_REPLACE_A_FILE}")
    check_outside_run(path, "file", "another path", models)
    if path.is_dir() or not path.parent.is_dir():
        got = "a folder" if path.is_dir() else f"a path in {path.parent}, which is not a folder"
        raise UserError(f"{path}: expected a file to write; got {got}; try another path")
    if path.suffix.lower() in (".gz", ".bz2", ".xz", ".zst"):
        got = f"the name of a compressed file; try {quote(path.with_suffix(''))}, which other programs can compress"
        raise UserError(f"{path}: expected the name of a file without compression; got {got}")
