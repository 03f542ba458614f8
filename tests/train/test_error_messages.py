"""Error messages: every user error is one line that names its cause and what to try."""

import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import train
from models import Transformer, TransformerConfig
from tests.helpers.trainings import write_pairs
from train.cli import main
from train.run.folder import RunFolder
from train.tasks.parsing.pictures import draw_tree
from train.tasks.parsing.trees import Leaf, Tree
from train.text.xml import xml_safe
from train.viewer.inspection import source_ids

NOT_XML = "a\x01b\x1bc\x0cd\ufffee\ud800f"


def error_line(capfd, *arguments, status=2):
    """Return the single line on stderr of a failing command."""
    capfd.readouterr()
    assert main([*map(str, arguments)]) == status
    out, err = capfd.readouterr()
    assert err.count("\n") == 1 and not (status and out), (out, err)
    return err


@pytest.fixture
def copy(uninterrupted, tmp_path):
    return shutil.copytree(uninterrupted, tmp_path / "run")


# ---- options and values


@pytest.mark.parametrize("command", [["train", "--resume", "--out"], ["average"], ["info"]], ids=str)
def test_a_misspelled_run_is_answered_with_the_run(command, copy, capfd):
    line = error_line(capfd, *command, copy.with_name("rnu"))
    assert line.endswith(f"got a path that does not exist; try {copy}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["translate", "--model", "RUN", "--beam-size", "x"],
            "--beam-size: expected a whole number from 1 to 512; got x; try",
        ),
        (["train", "tiny", "--set", "train.peak_lr=0,001", "--out", "D"], "try peak_lr = 0.001\n"),
        (["average", "RUN", "--last", "1,000"], "got 1,000; try 1000\n"),
        (["plan", "base", "--price", "12,345.5"], "got 12,345.5; try 12345.5\n"),
        (["plan", "base", "--tokens-per-second", "30k"], "got 30k; try 30000\n"),
        (["plan", "base", "--tokens-per-second", "fast"], "got fast; try 20000\n"),
        (["data", "own", "--hold-out", "-1", "--out", "D"], "got -1; try 0\n"),
        (["data", "own", "--hold-out", "abc", "--out", "D"], "got abc; try 0\n"),
        (["score", "--bootstrap", "-1"], "got -1; try 0\n"),
        (["generate", "--model", "RUN", "--top-k", "-1"], "got -1; try 0\n"),
        (["generate", "--model", "RUN", "--seed", "-1"], "got -1; try 0\n"),
        (["train", "tiny", "--max-hours", "-1", "--out", "D"], "got -1.0; try 0\n"),
        (["translate", "--model", "RUN", "--beam-size", "5,000"], "got 5,000; try leaving --beam-size out\n"),
        (["translate", "--model", "RUN", "--device", "tpu"], '--device: expected one of "cpu", "cuda"; got tpu\n'),
        (["info", "base", "--device", "gpu"], "got gpu; try cuda\n"),
        (
            ["score", "--pairs", "a", "--model", "RUN"],
            "--pairs: expected SRC TGT; got 1 of 2 values before --model; try",
        ),
        (["score", "--model", "RUN", "--pairs", "a"], "--pairs: expected SRC TGT; got 1 of 2 values; try --pairs SRC"),
        (
            ["reproduce", "table1", "--out", "--scale"],
            "--out: expected DIR; got no value before --scale; try --out DIR",
        ),
        (["translate", "--model", "--help"], "--model: expected RUN; got no value before --help; try --model RUN"),
        (["translate", "--input", "--model", "RUN"], "--input: expected F; got no value before --model; try --input F"),
        (["info", "base", "--device", "x"], '--device: expected one of "cpu", "cuda"; got x\n'),
        (["info", "RUN", "--vocab-size", "5"], "--vocab-size applies only to presets and configuration files; "),
        (["plan", "RUN", "--vocab-size", "5"], "--vocab-size applies only to presets and configuration files; "),
        (["data", "own", "--out", "D", "--train-src=x", "--train-tgt=x", "--mirror=b"], "--mirror b has no effect"),
        (["data", "ownn", "--out", "D"], "got 'ownn'; try own"),
        (["info", "RUN", "--set", "model.n_layers=2"], "--set applies only to presets and configuration files; "),
        (
            ["info", "tiny", "--set", "model.n_layer=2"],
            "--set: model.n_layer: unknown key of [model]; try model.n_layers",
        ),
        (["info", "runs/x"], "got a path that does not exist; try a folder that `train` has written"),
        (["plan", "runs/x"], "got a path that does not exist; try a folder that `train` has written"),
        (["average", "runs/x"], "runs/x: expected a run folder; got a path that does not exist; try"),
        (["info", "tine"], "got a path that does not exist; try tiny"),
        (["draw", "curves", "runs/a", "--out", "a.svg"], "got 'runs/a'; try `draw runs/a curves`"),
        (["prepare", "own"], "prepare: unknown command; did you mean `npx-transformer data`?"),
        (["train", "--set", "train.max_steps", "100", "--out", "D"], "; try --set train.max_steps=VALUE\n"),
        (["train", "tiny", "--lr", "0.1", "--out", "D"], "--lr: this is a configuration key, not an option"),
        (["train", "--arch", "x", "--out", "D"], "; try a preset, such as tiny, as the first argument\n"),
        (
            ["train", "tiny", "--lenpen", "1", "--out", "D"],
            "; try --set search.length_penalty=VALUE (exponent of the length penalty)\n",
        ),
        (["data", "own", "--bpe-dropout", "0.1"], "; try `train` with --set train.bpe_dropout=0.1\n"),
        (["train", "tiny", "--fp16", "--out", "D"], "try --set train.precision=fp16\n"),
        (["train", "tiny", "--epochs", "5", "--out", "D"], "try --set train.max_steps=VALUE"),
        (["train", "tiny", "--max-steps=5"], "try --set train.max_steps=5"),
        (["train", "tiny", "--freeze", "encoder.*"], "of this command; try --set 'train.freeze=encoder.*'"),
        (["train", "tiny", "--set", "train.optimizer=sgd", "--out", "D"], "is always Adam; try train.peak_lr"),
        (["train", "tiny", "--set", "optimizer=adam", "--out", "D"], "is always Adam; try train.peak_lr"),
        (["train", "tiny", "--optimizer", "adam", "--out", "D"], "is always Adam; try train.peak_lr"),
        (["translate", "--lr", "1"], "No such option: --lr"),
        (
            ["train", "tiny", "--out", "D", "--train-text", "x"],
            "--train-text: expected an option of the task translation; got",
        ),
        (["train", "tiny", "--out", "D", "--train-text", "x"], "=language --set model.architecture=decoder\n"),
        (
            ["train", "tiny", "--out", "D", "--train-text", "x", "--set", "model.architecture=decoder"],
            "; try --set data.task=language\n",
        ),
        (["train", "tiny", "--out", "D", "--set", "train.peak_lr", "0.1"], "(0.1); try --set train.peak_lr=0.1\n"),
        (["train", "tiny", "--out", "D", "--set", "train.peak_lr", "=", "0.1"], "; try --set train.peak_lr=0.1\n"),
        (["train", "tiny", "--out", "D", "--set", "train.peak_lr", "=0.1"], "; try --set train.peak_lr=0.1\n"),
        (["train", "--out", "RUN", "--set", "train.max_steps=5"], "got neither; try --resume\n"),
        (
            ["train", "", "--out", "D"],
            "'': expected a configuration file; got a path that does not exist; try tiny or a",
        ),
        (["train", "tiny", "TEXTS", "--out", "D", "--set", "data.tokenizer="], "'': expected a Hugging Face tokenizer"),
        (["train", "tiny", "TEXTS", "--out", "D", "--set", "data.vocab_size=9"], "data.vocab_size: expected at least"),
        (
            ["draw", "RUN", "heads", "--out", "a.svg", "--input", "a\udcff"],
            "--input: expected UTF-8; got invalid bytes",
        ),
        (["generate", "--model", "RUN", "--prompt", "a\udcff"], "--prompt: expected UTF-8; got invalid bytes"),
        (
            ["translate", "--model", "TEXT"],
            "expected a run folder or a checkpoint folder; got another folder; try a folder that `train`",
        ),
        (["parse", "--model", "RUN", "--svg", "tree.png"], "tree.png: expected a file name ending in .svg; got '.png'"),
        (["train", "tiny", "--set", "train.max_steps=5,000", "--out", "D"], 'got "5,000"; try max_steps = 5000\n'),
        (["train", "tiny", "--set", "train.max_steps=1e4", "--out", "D"], "got 10000.0; try max_steps = 10000\n"),
        (
            ["score", "--ref", "a.ref", "b.ref", "--hyp", "x"],
            "(b.ref); try --ref b.ref\n",
        ),
        (
            ["train", "tiny", "--set", "train.max_steps=x", "--out", "D"],
            "; try leaving max_steps out (the default of the preset)\n",
        ),
        (["train", "tiny", "--set", 'train.max_steps="100"', "--out", "D"], 'got "100"; try max_steps = 100\n'),
        (["train", "tiny", "--set", 'train.peak_lr="1e-4"', "--out", "D"], 'got "1e-4"; try peak_lr = 1e-4\n'),
        (["train", "tiny", "--set", "model.dropout=1.5", "--out", "D"], "got 1.5\n"),  # the range says what to do
        (["train", "tiny", "--set", "train.max_steps=0", "--out", "D"], "got 0\n"),
        (["train", "tiny", "--set", "model.n_kv_heads=0.5", "--out", "D"], "got 0.5\n"),
        (["train", "tiny", "--set", "train.log_every=x", "--out", "D"], "try log_every = 50 (the default)"),
        (["draw", "RUN", "attention", "--out", "a.svg"], "got 'attention'; try heads\n"),
        (["draw", "RUN", "loss", "--out", "a.svg"], "got 'loss'; try curves\n"),
        (["draw", "RUN", "confusio", "--out", "a.svg"], "got 'confusio'; try confusion\n"),
        (
            ["train", "--resume", "--out", "TEXT"],
            "expected a run folder to resume; got a folder that is not empty; try",
        ),
        (["translate", "--model", "RUN", "FILE"], "extra argument(s) (<FILE>); try --input <FILE>\n"),
        (["translate", "--model", "RUN", "FILE", "y.en"], "try --input <FILE>\n"),
        *(
            ([command, *words, "--model", "r"], f"; try `echo 'A dog.' | npx-transformer {command} --model r`, or")
            for command in ("translate", "parse", "classify", "embed")
            for words in (["A dog."], ["A", "dog."])
        ),
        (
            ["translate", "--model", "RUN", "--scores", "It's"],
            """ try `echo 'It'"'"'s' | npx-transformer translate --model <RUN> --scores`, or --input F for a file\n""",
        ),
        (["draw", "RUN", "heads", "--out", "a.svg", "A dog"], "(A dog); try --input 'A dog'\n"),
        (
            ["translate", "--model", "RUN", "--input", "A dog"],
            "A dog: expected a text file (a sentence goes to standard input); got a path that does not exist; try",
        ),
        (["train", "base", "TEXT", "--out", "D"], "; try --data /"),
        (["train", "RUN", "--out", "D"], "config.toml, or, instead of CONFIG, --init /"),
        (["train", "TEXT", "--out", "D"], "got a folder; try the path of a file inside it\n"),
        (["score", "x.hyp", "x.ref"], "; try --ref F --hyp F\n"),
        (["score", "x.hyp", "--ref", "x.ref"], "; try --hyp x.hyp\n"),
        (["data", "FILE", "FILE", "--out", "D"], "; try own --train-src <FILE> --train-tgt <FILE>\n"),
        (["data", "own", "FILE", "FILE", "--out", "D"], "; try --train-src <FILE> --train-tgt <FILE>\n"),
        (
            ["data", "FILE", "--train-src", "x", "--out", "D"],
            "; try own --train-src F --train-tgt F for your own text\n",
        ),
        (["data", "wmt14", "--out", "D"], "; try wmt14-en-"),
        (["data", "tatoeba", "--out", "D"], "; try own --train-src F --train-tgt F for your own text\n"),
        (["data", "own", "--tokenizer", "char", "--out", "D"], "expected one of bpe, wordpiece; got 'char'\n"),
        (["data", "own", "--tokenizer", "<FILE>", "--out", "D"], "; try `train --set data.tokenizer=<FILE>`\n"),
        (["score", "--ref", "FILE", "--hyp", "FILE", "--src", "FILE", "--metric", "comet"], "are out of scope\n"),
        (
            ["train", "--data", "TEXT", "--out", "D"],
            "got neither; try `npx-transformer train tiny --data <TEXT> ...`\n",
        ),
        (["translate", "--model", "RUN", "--checkpoint", "5"], "; try --model RUN/checkpoints/step-N\n"),
        (["score", "--ref", "FILE", "--hyp", "FILE", "--metric", "blue"], "; got 'blue'; try bleu\n"),
        (["train", "FILE", "FILE", "--out", "D"], "; try tiny --train-src <FILE> --train-tgt <FILE>\n"),
        (["train", "tiny", "FILE", "FILE", "--out", "D"], "; try --train-src <FILE> --train-tgt <FILE>\n"),
        (["translate", "RUN", "FILE"], "Missing option '--model'; try --model <RUN> --input <FILE>\n"),
        (
            ["translate", "--model", "<RUN>,<RUN>"],
            "--model: expected one path; got <RUN>,<RUN>; try --model <RUN> --model <RUN>\n",
        ),
        (["score", "--ref=<FILE>:<FILE>", "--hyp", "x"], "got <FILE>:<FILE>; try --ref <FILE> --ref <FILE>\n"),
        (["translate", "--model", "RUN", "--output", "o.de.gz"], "got the name of a compressed file; try o.de, which"),
        (["train", "small", "--out", "D"], "got a path that does not exist; try tiny or another preset (base, big"),
        (["translate", "RUN"], "Missing option '--model'; try --model <RUN>\n"),
        (["train", "tiny", "FILE", "--out", "D"], "; try --train-src /"),
        (["data", "own", "FILE", "--out", "D"], "; try --train-src /"),
        (["generate", "--model", "RUN", "A dog"], "(A dog); try --prompt 'A dog'\n"),
        (["translate", "--model", "RUN", "TEXT"], "; try --model /"),
        (["score", "--hyp", "x", "--ref", "y", "--metric", "bleu", "chrf"], "(chrf); try --metric chrf\n"),
        (
            ["train", "tiny", "--set", "train.seed=1", "train.log_every=2", "--out", "D"],
            "; try --set train.log_every=2\n",
        ),
        (["export", "RUN", "--to", "ct2", "--out", "D"], "got ct2; try ctranslate2\n"),
        (["average", "RUN", "RUN"], "; try a single RUN, or npx-transformer average --help\n"),
        (["train", "tiny"], "Missing option '--out'; try --out RUN, or npx-transformer train --help\n"),
        (["train", "--resume", "RUN"], "Missing option '--out'; try --resume --out /"),
        (["translate", "x"], "Missing option '--model'; try --model RUN, or npx-transformer translate --help\n"),
        (["plan", "base", "--link", "infiniband"], '"nvlink", "ib", "ethernet"; got infiniband; try ib\n'),
        (["data", "own", "--trainpref", "a", "--out", "D"], "try --train-src F --train-tgt F\n"),
        (["data", "own", "--validpref", "a", "--out", "D"], "try --valid-src F --valid-tgt F\n"),
        (
            ["data", "own", "--destdir", "a"],
            "--destdir: unknown option; try",
        ),
        (["data", "own", "--bpe-size", "1000", "--out", "D"], "try --vocab-size\n"),
        (["data", "own", "--tokenizer", "sentencepiece", "--out", "D"], "got 'sentencepiece'; try bpe\n"),
        (["data", "own", "--tokenizer", "unigram", "--out", "D"], "got 'unigram'; try bpe\n"),
        (["train", "tiny", "--max-epoch", "3", "--out", "D"], "try --set train.max_steps=VALUE (number of updates)\n"),
        (["train", "tiny", "--set", "train.epochs=3", "--out", "D"], "]; try train.max_steps (number of updates)\n"),
        (
            ["score", "--ref", "FILE", "--hyp", "FILE", "--metric", "comet"],
            "got 'comet'; try chrf, because neural metrics are out of scope\n",
        ),
        (["score", "--ref", "FILE", "--hyp", "FILE", "--metric", "bleu_lc"], "got 'bleu_lc'; try bleu_13a_lc\n"),
        *(
            (["train", "tiny", "--out", "D", "--set", f"train.csv={text}"], f"; try csv = {value}\n")
            for text, value in {"True": "true", "yes": "true", "1": "true", "off": "false"}.items()
        ),
        (["train", "configs/my.toml", "--out", "D"], "try configs/ in a clone of the repository\n"),
        (["generate", "--model", "RUN", "--max-len", "5"], "--max-len: unknown option; try --tokens\n"),
        (["translate", "-m", "RUN"], "-m: unknown option; try --model\n"),
        (["train", "tiny", "--out", "D", "--fp16=false"], "try --set train.precision=VALUE\n"),
        (["train", "tiny", "--amp", "--out", "D"], "try --set train.precision=VALUE\n"),
        (
            ["score", "--ref", "FILE", "--hyp", "FILE", "--metric", "bleu,chrf"],
            "--metric: expected one metric; got bleu,chrf; try --metric bleu --metric chrf\n",
        ),
        (["score", "-m", "bleu"], "-m: unknown option; try --metric\n"),
        (["translate", "--model", "RUN", "--remove-bpe"], "try --input F alone; the output has no subwords\n"),
        (["translate", "--model", "RUN", "--set", "search.beam_size=2"], "--set: unknown option; try --beam-size 2\n"),
        (["translate", "--model", "RUN", "--set=search.batch_tokens=9"], "try --batch-tokens 9\n"),
        *(
            (
                [command, *words, "--model", "RUN"],
                "got the configuration key search.candidate_rule; try setting it in config.toml of the run\n",
            )
            for command in ("translate", "parse")
            for words in (["--rule", "fairseq"], ["--set", "search.candidate_rule=fairseq"], ["--stop-early"])
        ),
        (["translate", "--model", "RUN", "--set", "lenpen=2"], "--set: unknown option; try --length-penalty 2\n"),
        (["translate", "--model", "RUN", "--beams", "2"], "--beams: unknown option; try --beam-size\n"),
        (["translate", "--model", "RUN", "--set", "train.seed=9"], "No such option: --set"),
        (
            ["train", "tiny", "--set", "data.tokenizer=runs/a", "b/tokenizer.json", "--out", "D"],
            "; try --set 'data.tokenizer=runs/a b/tokenizer.json', because a value with a space needs quotes\n",
        ),
        (["train", "tiny", "--data", "FILE", "--out", "D"], "; got a file; try --train-src <FILE> --train-tgt F\n"),
        (["train", "tiny", "--data", "TEXT", "--out", "D"], "expected a folder written by `npx-transformer data`; got"),
        (["train", "FILE", "--out", "D"], ", or --train-src <FILE> of `train` if it is a text\n"),
        (["info", "FILE"], ", or --train-src <FILE> of `train` if it is a text\n"),
        *(
            (
                ["draw", "RUN", picture, "--input", "FILE", "--out", "a.svg"],
                '--input: expected a sentence; got the path of a file, <FILE>; try --input "$(head -n 1 <FILE>)"\n',
            )
            for picture in ("heads", "beam")
        ),
        (
            ["train", "tiny", "TEXTS", "--out", "D", "--set", "data.tokenizer=<RUN>"],
            "got a folder; try data.tokenizer=<RUN>/tokenizer.json\n",
        ),
        (["parse", "--model", "RUN", "--svg", "no/tree.svg"], "expected a file to write; got a path in no, which"),
    ],
)
def test_a_usage_error_names_its_option_and_writes_nothing(
    arguments, message, uninterrupted, text, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    sides = [f"--train-{side}={text / f'train.{end}'}" for side, end in (("src", "en"), ("tgt", "de"))]
    for name, values in {
        "RUN": [uninterrupted],
        "TEXT": [text],
        "FILE": [text / "train.en"],
        "TEXTS": [*sides, "--quiet"],
    }.items():
        while name in arguments:
            at = arguments.index(name)
            arguments = [*arguments[:at], *values, *arguments[at + 1 :]]
        arguments = [str(word).replace(f"<{name}>", str(values[0])) for word in arguments]
        message = message.replace(f"<{name}>", str(values[0]))
    capfd.readouterr()
    assert main([*map(str, arguments)]) == 2
    assert message in capfd.readouterr().err.splitlines(keepends=True)[-1]
    assert not any(tmp_path.iterdir())


def test_a_large_text_is_not_a_configuration(tmp_path, capfd):
    for name, suggestion in (("a b", "--train-src '{}' of `train` if it is a text"), ("my.toml", "a shorter file")):
        (file := tmp_path / name).write_text("A dog runs .\n" * 6000)
        message = f"{file}: expected a configuration file; got a text of more than 65,536 bytes; try "
        for arguments in (["train", file, "--out", tmp_path / "new"], ["info", file]):
            assert error_line(capfd, *arguments).endswith(f"{message}{suggestion.format(file)}\n")


def test_a_folder_of_runs_is_answered_with_their_names(uninterrupted, tmp_path, capfd):
    for name in "ba":
        shutil.copytree(uninterrupted, tmp_path / name)
    message = f"got a folder with 2 runs; try {tmp_path}/a or {tmp_path}/b\n"
    for arguments in (
        ["translate", "--model", tmp_path],
        ["average", tmp_path],
        ["info", tmp_path],
        ["draw", tmp_path, "curves", "--out", "a.svg"],
        ["train", "--resume", "--out", tmp_path],
        ["train", "--init", tmp_path, "--out", "new"],
    ):
        assert error_line(capfd, *arguments).endswith(message)


def test_a_folder_of_a_run_is_answered_with_the_run(uninterrupted, capfd):
    checkpoints = uninterrupted / "checkpoints"
    for folder in (checkpoints, *checkpoints.glob("step-*")):
        for command in ("average", "info"):
            message = f"{folder}: expected a run folder; got a folder of a run; try {uninterrupted}\n"
            assert error_line(capfd, command, folder).endswith(message)


def test_suggested_paths_are_quoted_for_the_shell(uninterrupted, tmp_path, capfd):
    run = shutil.copytree(uninterrupted, tmp_path / "a b" / "run")
    other = Path(__file__).with_name("run_0_2")
    for arguments, suggestion in (
        (["translate", "--model", run.parent], f"try '{run}'"),
        (["info", run / "checkpoints"], f"try '{run}'"),
        (
            ["train", run, "--out", "D"],
            f"'{run}/config.toml', or, instead of CONFIG, --init '{run}' or --resume --out '{run}'",
        ),
        (
            ["train", "tiny", "--data", run, "--out", "D"],
            f"got a run; try the folder that the run was trained on, or, instead of CONFIG, --init '{run}'",
        ),
        (
            ["translate", "--model", run, "--model", other],
            f"try training one of them with --set data.tokenizer='{run}/tok",
        ),
    ):
        assert suggestion in error_line(capfd, *arguments)


def test_every_path_in_a_suggested_option_is_quoted():
    """An f-string that ends in an option, such as --out, continues with `quote` or a TOML string."""
    bare = re.compile(r"(--(?:out|init|data|model)|data\.tokenizer)[ =]\{(?!quote\(|to_toml\()")
    for file in Path(train.__file__).parent.rglob("*.py"):
        for line in file.read_text(encoding="utf-8").splitlines():
            if not re.search("cannot be combined|is used instead", line):
                assert not bare.search(line), (file, line)


def test_a_file_of_a_checkpoint_is_answered_with_the_run(uninterrupted, capfd):
    file = uninterrupted / "checkpoints" / "step-12" / "state.json"
    message = f"{file}: expected a run folder or a checkpoint folder; got a file; try {uninterrupted}\n"
    assert error_line(capfd, "translate", "--model", file).endswith(message)


def test_a_run_that_has_lost_its_configuration_is_still_a_run(copy, capfd):
    (copy / "config.toml").unlink()
    assert "config.toml is missing; try giving CONFIG.toml" in error_line(capfd, "train", "--resume", "--out", copy)


def test_a_picture_of_the_validation_text_needs_one(copy, tmp_path, capfd):
    config = (copy / "config.toml").read_text(encoding="utf-8")
    (copy / "config.toml").write_text(re.sub(r"(valid_(src|tgt)) = .*", r'\1 = ""', config), encoding="utf-8")
    err = error_line(capfd, "draw", copy, "roles", "--out", tmp_path / "roles.svg")
    assert err.endswith(": expected a run with data.valid_src; got a run in which it is empty; try another run\n")
    assert not (tmp_path / "roles.svg").exists()


@pytest.mark.parametrize("command", ["data", "data valid", "score", "train"])
def test_unequal_texts_are_named_before_any_output(command, uninterrupted, text, tmp_path, capfd):
    src = text / "train.en"
    tgt = text / "valid.de"
    out = tmp_path / "out"
    arguments = {
        "data": ["data", "own", f"--train-src={src}", f"--train-tgt={tgt}", f"--out={out}", "--quiet"],
        "data valid": [
            "data",
            "own",
            f"--train-src={src}",
            f"--train-tgt={text / 'train.de'}",
            f"--valid-src={src}",
            f"--valid-tgt={tgt}",
            f"--out={out}",
        ],
        "score": ["score", "--model", uninterrupted, "--pairs", src, tgt],
        "train": ["train", "tiny", f"--train-src={src}", f"--train-tgt={tgt}", f"--out={out}", "--quiet"],
    }
    assert "got 40 and 5; try files made from the same pairs" in error_line(capfd, *arguments[command])


def test_an_empty_sentence_is_rejected():
    class Nothing:
        eos_id = 2

        def encode(self, sentence):
            return []

    with pytest.raises(Exception, match="got 0; try at least one word$"):
        source_ids(Transformer(TransformerConfig.preset("tiny", 300)), Nothing(), " ")


def test_the_missing_extra_of_the_demo_is_named(capfd):
    assert main(["demo", "--help"]) == 0
    assert "npx-transformer[demo]" in capfd.readouterr().out


def test_a_training_without_time_reports_that_nothing_was_saved(text, tmp_path, capfd):
    sides = [f"--train-{side}={text / f'train.{end}'}" for side, end in (("src", "en"), ("tgt", "de"))]
    sizes = ["--set=data.vocab_size=290", "--set=train.batch_tokens=100"]
    assert main(["train", "tiny", *sides, *sizes, "--out", str(tmp_path / "a"), "--max-hours", "1e-7"]) == 0
    pattern = r"done after step 0 \(max_hours\), 0 tokens in [\d:]+ of updates: no checkpoint; continue with --resume\n"
    assert re.search(pattern, capfd.readouterr().err)


def test_a_run_with_relative_paths_says_where_it_looked_for_its_texts(copy, tmp_path, monkeypatch, capfd):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = RunFolder(copy).config_file
    config.write_text(re.sub(r'(?m)^(\w+_(?:src|tgt)) = ".*/', r'\1 = "texts/', config.read_text(encoding="utf-8")))
    err = error_line(capfd, "train", "--resume", "--out", copy, "--set=train.max_steps=13")
    base = tmp_path / "elsewhere"
    assert (
        "texts/train.de, texts/valid.en, texts/valid.de: expected text files; got paths that do not exist"
        "; try --train-src F --train-tgt F --valid-src F --valid-tgt F with other paths (these paths are relative to "
        f"{base})\n" in err
    )
    valid = ("--set=data.valid_src=", "--set=data.valid_tgt=")
    err = error_line(capfd, "train", "--resume", "--out", copy, f"--train-tgt={copy / 'config.toml'}", *valid)
    assert (
        "texts/train.en: expected a text file; got a path that does not exist; try --train-src with another path (this "
        f"path is relative to {base})\n" in err
    )


def test_a_changed_training_text_is_answered_with_a_new_run(copy, text, capfd):
    files = [f"--train-src={text}/valid.en", f"--train-tgt={text}/valid.de"]
    error = error_line(capfd, "train", "--resume", "--out", copy, *files, "--set=train.max_steps=13")
    assert error.endswith("or a new run that starts from its weights (--init RUN --out NEW)\n")


def test_a_prompt_on_standard_input_is_not_ignored_silently(copy, capfd):
    stdin = os.dup(0)
    try:
        os.dup2(os.pipe()[0], 0)
        warning = "--prompt is empty, and standard input is not read; try --prompt TEXT\n"
        for prompt, before in (([], warning), (["--prompt", "A"], "")):
            assert main(["generate", "--model", str(copy), *prompt]) == 2
            assert capfd.readouterr().err.startswith(f"{before}npx-transformer: {copy}: ")
    finally:
        os.dup2(stdin, 0)


# ---- damaged runs


def test_a_lost_configuration_is_reported(copy, text, capfd):
    config = RunFolder(copy).config_file
    config.unlink()
    err = error_line(capfd, "translate", "--model", copy, "--input", text / "valid.en", "--quiet", status=0)
    assert f"{config}: missing; using the defaults of [search]" in err


def test_a_damaged_checkpoint_is_reported_even_with_quiet(copy, capfd):
    newest = RunFolder(copy).step_paths()[-1]
    with (newest / "model.safetensors").open("r+b") as file:
        file.truncate(99)
    capfd.readouterr()
    assert main(["train", "--resume", "--out", str(copy), "--quiet"]) == 0
    (damage,) = capfd.readouterr().err.splitlines()
    assert f"{newest / 'model.safetensors'}: " in damage and damage.endswith("using the previous checkpoint")
    assert "done after step 12" in RunFolder(copy).log_file.read_text(encoding="utf-8").splitlines()[-1]


def test_info_reports_a_tokenizer_of_another_run(copy, tmp_path, capfd):
    write_pairs(tmp_path, "other", 30, seed=5)
    sides = [f"--train-{side}={tmp_path / f'other.{end}'}" for side, end in (("src", "en"), ("tgt", "de"))]
    other = ["train", "tiny", *sides, "--out", tmp_path / "other", "--set=train.max_steps=1", "--quiet"]
    assert main([*map(str, [*other, "--set=data.vocab_size=280", "--set=train.batch_tokens=100"])]) == 0
    shutil.copy(tmp_path / "other" / "tokenizer.json", copy)
    assert "expected the tokenizer of the model" in error_line(capfd, "info", copy)


# ---- pictures


def test_characters_invalid_in_xml_are_replaced_in_pictures(uninterrupted, tmp_path):
    assert xml_safe(NOT_XML + "\t\n\x7f\U0001f600") == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf\t\n\x7f\U0001f600"
    drawn = [["draw", uninterrupted, what, "--out", tmp_path / f"{what}.svg"] for what in ("heads", "beam")]
    for arguments in (*drawn, ["reproduce", "figures", "--model", uninterrupted, "--out", tmp_path / "figures"]):
        assert main([*map(str, arguments), "--input", f"one {NOT_XML[:-2]} two"]) == 0
    pictures = [*tmp_path.rglob("*.svg")]
    assert len(pictures) == 5 and all(ElementTree.parse(file) for file in pictures)
    tree = draw_tree(Tree("TOP", [Leaf("X", NOT_XML)]), ["(TOP", "end"], [[1.0, 0.0]] * 2)
    assert ElementTree.fromstring(tree) is not None


@pytest.mark.parametrize("what", ["curves", "memory", "beam"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_name_of_a_run_that_is_not_utf8_is_drawn(copy, tmp_path, what, suffix):
    pytest.importorskip("matplotlib", reason="draws pictures")
    run = copy.rename(tmp_path / os.fsdecode(b"o\nut\xff"))
    picture = tmp_path / f"x.{suffix}"
    options = ["--input", "one"] if what == "beam" else []
    assert main(["draw", str(run), what, *options, "--out", str(picture)]) == 0
    assert picture.stat().st_size and "ut\ufffd" in (tmp_path / "x.alt.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["o\nx", os.fsdecode(b"x\xff")])
def test_a_path_that_a_configuration_cannot_hold_is_answered_with_a_new_name(copy, text, tmp_path, capfd, name):
    run = copy.rename(tmp_path / name)
    texts = [f"--train-src={tmp_path / name}.en", f"--train-tgt={text / 'train.de'}"]
    for key, options in (("tokenizer", ["--init", str(run)]), ("train_src", ["tiny", *texts])):
        assert main(["train", *options, f"--out={tmp_path / 'out'}"]) == 2
        error = capfd.readouterr().err
        assert f": path: data.{key}: expected UTF-8 text on one line; got " in error
        assert error.endswith("; try renaming the file or folder, or using a link to it\n")
