"""`import`: MarianMT folders are imported as run folders with the same model, or rejected with a one-line error."""

import io
import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from models.search import beam_search, greedy_search
from tests.helpers import marian_folders
from tests.helpers.marian_folders import BAD_ARCHIVES, reference_logits, tensors, write_folder, write_json, write_torch
from train.cli import main
from train.errors import UserError
from train.formats import import_folder
from train.formats.torch_file import TensorUnpickler, read_torch_file, rebuild_parameter
from train.formats.weights import read_weights
from train.run.checkpoint import load_model
from train.run.folder import RunFolder
from train.text import sentencepiece_tokenizer
from train.text.tokenizer import SpecialIds, Tokenizer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tie_word_embeddings": False, "encoder_layers": 2, "decoder_layers": 2},
        {"scale_embedding": False, "share_encoder_decoder_embeddings": False},
    ],
    ids=str,
)
def test_an_imported_model_computes_the_logits_of_marian(tmp_path, options):
    config = write_folder(tmp_path / "hf", **options)
    import_folder(tmp_path / "hf", tmp_path / "run", pytest.fail)
    model, tokenizer, run_config = load_model(tmp_path / "run")
    src, tgt = [*tokenizer.encode("a dog sleeps"), 2], [0, 7, 9, 30]
    logits = model(np.array([src]), np.array([tgt])).data[0]
    np.testing.assert_allclose(logits, reference_logits(tensors(config), config, src, tgt), atol=2e-5, rtol=1e-5)
    search = run_config.search
    assert (search.beam_size, search.length_penalty, search.length_penalty_type) == (3, 0.7, "length")
    assert model.config.suppressed_ids == (5,) and search.candidate_rule == "transformers"


def test_padding_begins_the_target_and_forbidden_tokens_are_never_chosen(tmp_path):
    write_folder(tmp_path / "hf")
    import_folder(tmp_path / "hf", tmp_path / "run", pytest.fail)
    model, tokenizer, _ = load_model(tmp_path / "run")
    src = np.array([[*tokenizer.encode("a dog"), 2]])
    model.output_bias.assign(np.where(np.isin(np.arange(model.config.vocab_size), [0, 1, 5]), 1e3, 0).astype("f4"))
    chosen = (
        greedy_search(model, src, max_extra_tokens=5)[0].tokens
        + beam_search(model, src, max_extra_tokens=5)[0][0].tokens
    )
    assert chosen and not {0, 1, 5} & {*chosen}
    start = model(src, np.array([[0]])).data
    np.testing.assert_array_equal(model(src, np.array([[1]])).data, start)  # <s> is read as padding


@pytest.fixture(scope="module")
def imported_run(tmp_path_factory):
    """A folder with an imported model `hf`, its run `run`, a source text `source` and its translation `target`."""
    folder = tmp_path_factory.mktemp("imported")
    write_folder(folder / "hf")
    import_folder(folder / "hf", folder / "run", pytest.fail)
    (folder / "source").write_text("a dog runs\n\ntwo cats\n")
    (folder / "target").write_text("two dogs\n\na cat\n")
    return folder


@pytest.mark.parametrize(
    "command, output",
    [
        ("import {folder}/hf --out {new}", "imported {folder}/hf as the run {new}"),
        ("translate --model {folder}/run --input {folder}/source --output {new}", "translated 3 lines"),
        ("info {folder}/run", "checkpoints  steps 0"),
        ("score --pairs {folder}/source {folder}/target --model {folder}/run", "3 pairs"),
        (
            "train {folder}/run/config.toml --init {folder}/run --out {new} --train-src {folder}/source --train-tgt"
            " {folder}/target --set train.max_steps=1 --set data.max_length=40",
            "starting from 34 of 34 parameters",
        ),
    ],
    ids=lambda text: text.split()[0],
)
def test_a_command_works_on_an_imported_run(imported_run, tmp_path, command, output, capsys):
    names = {"folder": imported_run, "new": tmp_path / "new"}
    assert main(command.format(**names).split()) == 0
    assert output.format(**names) in "".join(capsys.readouterr())


def test_info_on_an_imported_run_omits_the_training_cost(imported_run, capsys):
    assert main(["info", str(imported_run / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines][5:7] == ["update", "memory"]


@pytest.mark.parametrize(
    "command, message",
    [
        ("draw {folder}/run curves --out {new}.svg", "got an imported run, which has no training history;"),
        ("train --resume --out {folder}/run", "got an imported run, which has no optimizer state; try --init"),
        ("import {folder}/run --out {new}", "got a run folder; try using it directly, with --model {folder}/run or"),
    ],
    ids=lambda text: text.split()[0],
)
def test_a_command_that_needs_a_training_run_rejects_an_imported_run(imported_run, tmp_path, command, message, capsys):
    names = {"folder": imported_run, "new": tmp_path / "new"}
    assert main(command.format(**names).split()) == 2
    assert message.format(**names) in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("legacy", [False, True])
def test_torch_files_are_read_without_torch(tmp_path, legacy):
    torch = pytest.importorskip("torch", reason="torch writes the file to read")
    table = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {"a": table, "transposed": table.t(), "part": table[1:, 2], "half": table.half(), "bf16": table.bfloat16()}
    state["parameter"] = torch.nn.Parameter(table)
    torch.save(state, tmp_path / "file", _use_new_zipfile_serialization=not legacy)
    arrays = read_torch_file(tmp_path / "file")
    assert arrays.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(arrays[name], tensor.detach().float().numpy(), err_msg=name)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_torch_file_has_the_tensors_of_the_safetensors_file(tmp_path, legacy):
    config = write_folder(tmp_path / "hf")
    write_torch(tmp_path / "file", tensors(config), legacy)
    expected, arrays = load_file(tmp_path / "hf" / "model.safetensors"), read_torch_file(tmp_path / "file")
    assert expected.keys() == arrays.keys()
    assert all(np.array_equal(expected[name], arrays[name]) for name in arrays)


class Attack:
    """An object whose unpickling would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_pickle_that_runs_code_is_refused_and_runs_nothing(tmp_path, zipped):
    payload = pickle.dumps({"weight": Attack(tmp_path / "touched")})
    if zipped:
        with zipfile.ZipFile(tmp_path / "file", "w") as archive:
            archive.writestr("archive/data.pkl", payload)
    else:
        (tmp_path / "file").write_bytes(payload)
    with pytest.raises(UserError, match="expected a pickle of tensors only; got 'pathlib.*', which could run code"):
        read_torch_file(tmp_path / "file")
    assert not (tmp_path / "touched").exists()


def write_pickle(path, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + content + b".")
        archive.writestr("archive/data/0", np.arange(4, dtype="f4").tobytes())
        archive.writestr("archive/version", b"3\n" * 500)


NESTED = b")" + b"\x85" * 200_000  # a tuple whose hash overflows the stack
FUNCTION = b"ctorch._utils\n_rebuild_parameter\n"
STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"


def tensor(sizes, strides, more=b""):
    """Return opcodes of a tensor with these sizes and strides, and of more arguments."""
    call = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return call + STORAGE + b"K\0(" + sizes + b"t(" + strides + b"t\x89N" + more + b"tR"


BOMB = b"}X\x01\0\0\0w" + tensor(b"J\0\0\0\x40", b"K\0") + b"s"


@pytest.mark.parametrize(
    "content, message",
    [
        (b"}" + NESTED + b"Ns", "a key that is not a name"),
        (b"}(" + NESTED + b"Nu", "a key that is not a name"),
        (b"ccollections\nOrderedDict\n]]" + NESTED + b"aNaa\x85R", "a key that is not a name"),
        (b"\x8f(" + NESTED + b"\x90", "an opcode that no tensor needs"),
        (FUNCTION + b"N}X\x0c\0\0\0__defaults__K\x03\x85s\x86b", "attributes of an object"),
        (STORAGE + b"}X\x08\0\0\0n_valuesK\x05sb", "attributes of an object"),
        (BOMB, "tensors of 4,294,967,296 bytes in a file of"),
        (b"}X\1\0\0\0a" + tensor(b"K\1" * 65, b"K\0" * 65) + b"s", "a tensor with 65 sizes and 65 strides"),
        (b"}X\1\0\0\0a" + tensor(b"K\1", b"") + b"s", "a tensor with 1 sizes and 0 strides"),
        (b"}X\1\0\0\0a" + tensor(b"\x8a\xff" + b"\x7f" * 255, b"K\0") + b"s", "with invalid sizes"),
        (b"}X\1\0\0\0a" + tensor(b"J\xff\xff\xff\xff", b"K\0") + b"s", "with invalid sizes"),
        (b"}X\1\0\0\0a" + tensor(b"K\1", b"K\0", b"NNNN") + b"s", "takes from 4 to 7 positional arguments"),
        (b"}X\1\0\0\0a" + FUNCTION + b"(NNNNtRs", "takes from 1 to 3 positional arguments"),
        (STORAGE[:-2] + b"NNtQ", "a storage of an unsupported dtype"),
    ],
    ids=[
        *("key", "keys", "OrderedDict", "set", "function", "storage", "stride 0", "dimensions", "strides"),
        *("large", "negative", "arguments", "parameter", "view"),
    ],
)
def test_a_pickle_cannot_crash_fill_the_memory_or_change_an_object(tmp_path, content, message):
    write_pickle(tmp_path / "file", content)
    with pytest.raises(UserError, match=message):
        read_torch_file(tmp_path / "file")
    assert rebuild_parameter.__defaults__ == (None, None)


def test_a_list_that_a_pickle_uses_many_times_becomes_one_dictionary(tmp_path):
    """Otherwise a pickle of n bytes could need n**2 bytes of memory."""
    calls = (b"ccollections\nOrderedDict\nq\1", b"](](X\1\0\0\0aNe](X\1\0\0\0bNee\x85q\2")
    values = b"".join(b"X\1\0\0\0%d" % i + value for i, value in enumerate([*calls, b"h\1h\2R", b"h\1h\2R"]))
    content = b"\x80\2}(" + values + b"u."
    tensors = TensorUnpickler(io.BytesIO(content)).load()
    assert tensors["2"] == {"a": None, "b": None} and tensors["3"] == {}


def test_damaged_and_compressed_zip_files_give_a_one_line_error(tmp_path):
    path = tmp_path / "file"
    for compression in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        write_pickle(path, b"}", compression)
        with pytest.raises(UserError, match="expected PyTorch weights; got 'compressed data'"):
            read_torch_file(path)


@pytest.mark.parametrize(("damage", "message"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_bad_zip_file_gives_a_one_line_error(tmp_path, damage, message):
    write_pickle(tmp_path / "file", b"}")
    damage(tmp_path / "file")
    with pytest.raises(
        UserError, match=f"expected PyTorch weights; got '.*{re.escape(message)}.*'; try a new download"
    ):
        read_torch_file(tmp_path / "file")


def test_a_pipe_is_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "file")
    with pytest.raises(UserError, match="expected PyTorch weights; got a pipe"):
        read_torch_file(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"PK\x03\x04 no zip", b"\x80\x02}q\x00.", pickle.dumps([1] * 5), b"\x80\x02J\1", b"\x80\x04\x95\1"),
        b"\x80\x02c" + b"a" * 10_000 + b"\nb\n.",
    ],
)
def test_damaged_torch_files_give_a_one_line_error(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_torch_file(tmp_path / "file")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_weights_in_several_files_and_in_bfloat16(tmp_path):
    save_file({"a": np.float32([1, 2])}, tmp_path / "1.safetensors")
    header = json.dumps({"b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    data = np.uint16([0x3F80, 0xC000]).tobytes()
    (tmp_path / "2.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    write_json(tmp_path / "model.safetensors.index.json", index)
    weights = read_weights(tmp_path)
    assert weights["a"].tolist() == [1, 2] and weights["b"].tolist() == [1, -2]


def change(folder, **changes):
    values = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {**values, **changes})


def drop_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.decoder.layers.0.fc1.bias"]
    save_file(weights, folder / "model.safetensors")


def infinite_tensor(folder):
    weights = load_file(folder / "model.safetensors")
    weights["final_logits_bias"] = np.full_like(weights["final_logits_bias"], 1e300, "f8")
    save_file(weights, folder / "model.safetensors")


def truncate(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def other_tokenizer(folder):
    Tokenizer(marian_folders.tokenizer_spec(262)).save(folder / "tokenizer.json")


BAD = {
    "no config": (
        lambda f: (f / "config.json").unlink(),
        "config.json: expected settings of a model; got a path that does not exist",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "expected model.safetensors or pytorch_model.bin"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "source.spm: expected a SentencePiece model; got a"),
    "unknown": (
        lambda f: change(f, model_type="t5"),
        "model_type: expected marian or bert or gpt2; got 't5'; try a model that docs/formats.md describes",
    ),
    "sizes": (lambda f: change(f, d_model=16), "model.shared.weight: expected shape"),
    "type": (lambda f: change(f, model_type=["marian"]), "model_type: expected marian or bert or gpt2; got ['marian']"),
    "no name": (lambda f: change(f, activation_function=[1]), "activation_function: expected one of swish"),
    "flag": (lambda f: change(f, scale_embedding="false"), "scale_embedding: expected true or false; got 'false'"),
    "tied": (lambda f: change(f, tie_word_embeddings="no"), "tie_word_embeddings: expected true or false; got 'no'"),
    "infinite": (infinite_tensor, "final_logits_bias: expected finite float32 values; got NaN or infinity"),
    "layers": (lambda f: change(f, decoder_layers=3), "decoder_layers: expected 1, the same as encoder_layers"),
    "text": (lambda f: change(f, d_model="8"), "d_model: expected a whole number; got '8'"),
    "activation": (lambda f: change(f, activation_function="tanh"), "activation_function: expected one of swish"),
    "pre-norm": (lambda f: change(f, normalize_before=True), "normalize_before: expected false"),
    "start": (lambda f: change(f, decoder_start_token_id=7), "expected 0, the value of pad_token_id; got 7"),
    "heads": (lambda f: change(f, **dict.fromkeys(marian_folders.HEADS, 3)), "d_model: expected a multiple of n_heads"),
    "tensor": (drop_tensor, "model.decoder.layers.0.fc1.bias: expected shape (12,), as in the settings; got no t"),
    "truncated": (truncate, "model.safetensors: expected weights in safetensors; got '"),
    "tokenizer size": (other_tokenizer, "subwords, the value of vocab_size; got 262; try"),
    "exists": (
        lambda f: write_json(f.parent / "run", 1),
        "expected a new run folder; got a file; try another --out",
    ),
    "dropout": (lambda f: change(f, dropout="0.1"), "dropout: expected a number; got '0.1'"),
    "surrogate": (
        lambda f: (f / "generation_config.json").write_text('{"note": "\\ud800"}'),
        "generation_config.json: expected Unicode text; got '\\ud800', half of a character; try a new download",
    ),
    "surrogate in an index": (
        lambda f: (f / "model.safetensors").rename(f / "model.safetensors.index.json").write_text('{"a": "\\udc80"}'),
        "model.safetensors.index.json: expected Unicode text; got '\\udc80', half of a character",
    ),
    "no list": (
        lambda f: write_json(f / "generation_config.json", {"suppress_tokens": 5}),
        "expected single token ids from 0 to 268 other than eos_token_id = 2; got 5; try removing this",
    ),
    "sequences": (
        lambda f: write_json(f / "generation_config.json", {"bad_words_ids": [[3, 4]]}),
        "other than eos_token_id = 2; got [[3, 4]]; try removing this setting",
    ),
    "forbidden end": (
        lambda f: write_json(f / "generation_config.json", {"bad_words_ids": [[2]]}),
        "generation_config.json: bad_words_ids: expected single token ids from 0 to 268 other than eos_token_id = 2;",
    ),
    "outside the vocabulary": (
        lambda f: write_json(f / "generation_config.json", {"suppress_tokens": [269]}),
        "hf/generation_config.json: suppress_tokens: expected single token ids from 0 to 268",
    ),
    "negative id": (
        lambda f: (f / "generation_config.json").unlink() or change(f, bad_words_ids=[[-1]]),
        "config.json: bad_words_ids: expected single token ids from 0 to 268 other than eos_token_id = 2; got [[-1]];",
    ),
    "beam": (
        lambda f: write_json(f / "generation_config.json", {"num_beams": 4.0}),
        "hf/generation_config.json: num_beams: expected a whole number from 1 to 512; got 4.0; try num_beams = 4\n",
    ),
    "penalty": (
        lambda f: (f / "generation_config.json").unlink() or change(f, length_penalty=99),
        "hf/config.json: length_penalty: expected a number from -10 to 10; got 99.0; try a model that docs",
    ),
}


@pytest.mark.parametrize("damage, message", BAD.values(), ids=BAD)
def test_bad_folders_give_a_one_line_error_and_leave_nothing(tmp_path, damage, message, capsys):
    write_folder(tmp_path / "hf")
    damage(tmp_path / "hf")
    existed = (tmp_path / "run").exists()
    assert main(["import", str(tmp_path / "hf"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and "; try " in error
    assert (tmp_path / "run").exists() == existed


def test_a_name_that_a_configuration_cannot_contain_is_reported_as_that_of_out(imported_run, tmp_path, capsys):
    assert main(["import", str(imported_run / "hf"), "--out", str(tmp_path / "a\nb")]) == 2
    assert capsys.readouterr().err.startswith("npx-transformer: --out: expected UTF-8 text on one line; got ")


def test_a_setting_that_our_search_lacks_is_reported_and_the_others_are_imported(tmp_path):
    write_folder(tmp_path / "hf")
    disabled = {"min_new_tokens": None, "sequence_bias": [], "encoder_repetition_penalty": 1}
    lacking = {
        "no_repeat_ngram_size": 3, "min_new_tokens": 5, "begin_suppress_tokens": [9], "forced_decoder_ids": [[1, 9]],
        "sequence_bias": [[[9], -5.0]], "encoder_no_repeat_ngram_size": 2, "encoder_repetition_penalty": 2.0,
        "exponential_decay_length_penalty": [3, 1.2],
    }  # fmt: skip
    for name, settings in (("none", disabled), ("all", lacking)):
        settings = settings | {"num_beams": 2, "early_stopping": True}
        write_json(tmp_path / "hf" / "generation_config.json", settings)
        warnings = []
        import_folder(tmp_path / "hf", tmp_path / name, warnings.append)
        assert load_model(tmp_path / name)[2].search.candidate_rule == "fairseq"
        expected = [f"{key} = {value!r} is not imported" for key, value in lacking.items() if name == "all"]
        assert sorted(w.split(": ", 1)[1] for w in warnings) == sorted(expected)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 1}, {"num_beams": 1, "early_stopping": True}], ids=str)
def test_one_beam_is_greedy_search(tmp_path, settings):
    write_folder(tmp_path / "hf")
    write_json(tmp_path / "hf" / "generation_config.json", settings | {"length_penalty": 1.0})
    import_folder(tmp_path / "hf", tmp_path / "run", pytest.fail)
    search = load_model(tmp_path / "run")[2].search
    assert (search.beam_size, search.candidate_rule) == (1, "plain")


def test_config_json_sets_the_search_only_without_generation_config_json(tmp_path):
    write_folder(tmp_path / "hf", num_beams=6, length_penalty=0.3, bad_words_ids=[[7]], no_repeat_ngram_size=3)
    write_json(tmp_path / "hf" / "generation_config.json", {"num_beams": 2})
    import_folder(tmp_path / "hf", tmp_path / "a", pytest.fail)
    (tmp_path / "hf" / "generation_config.json").unlink()
    warnings = []
    import_folder(tmp_path / "hf", tmp_path / "b", warnings.append)
    assert [w.split(": ", 1)[1] for w in warnings] == ["no_repeat_ngram_size = 3 is not imported"]
    (first, _, with_file), (second, _, without_file) = (load_model(tmp_path / name) for name in "ab")
    assert (with_file.search.beam_size, with_file.search.length_penalty) == (2, 1.0)
    assert (without_file.search.beam_size, without_file.search.length_penalty) == (6, 0.3)
    assert (first.config.suppressed_ids, second.config.suppressed_ids) == ((), (7,))


def word_tokenizer(monkeypatch):
    """Return a SentencePiece tokenizer whose engine splits at spaces, with a language code in its vocabulary."""
    monkeypatch.setattr(sentencepiece_tokenizer, "load_engine", lambda *arguments: marian_folders.WordEngine())
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", ">>deu<<", ">>a", "b<<", "c"])}
    return sentencepiece_tokenizer.SentencePieceTokenizer(b"", vocabulary, SpecialIds(0, 0, 1, 2))


def test_only_a_language_code_of_the_vocabulary_is_a_token(monkeypatch):
    tokenizer = word_tokenizer(monkeypatch)
    assert tokenizer.encode_batch([">>deu<< c", ">>a b<< c", "c >>deu<<", ">>a"]) == [[3, 6], [4, 5, 6], [6, 3], [4]]
    assert tokenizer.encode_batch([]) == []


def test_a_sentencepiece_tokenizer_decodes_only_ids_of_its_vocabulary(monkeypatch):
    tokenizer = word_tokenizer(monkeypatch)
    assert tokenizer.decode([6, 1, 0]) == "c"
    for i in (-1, 7):
        with pytest.raises(ValueError, match=f"ids: expected 0 to 6; got {i}"):
            tokenizer.decode([6, i])


def test_the_lock_names_the_import(tmp_path, monkeypatch):
    write_folder(tmp_path / "hf")
    holders = []
    monkeypatch.setattr(RunFolder, "commit", lambda run: holders.append((run.path / "lock").read_text()))
    import_folder(tmp_path / "hf", tmp_path / "run", print)
    assert json.loads(holders[0])["program"] == "import"
