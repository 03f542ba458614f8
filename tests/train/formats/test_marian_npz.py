"""Marian's own .npz files give the same parameters as Hugging Face's format, and bad files raise one-line errors."""

import io
import zipfile

import numpy as np
import pytest

from tests.helpers import marian_folders
from train.cli import main
from train.formats import marian, marian_npz
from train.run.checkpoint import load_model
from train.text import sentencepiece_tokenizer

pytest.importorskip("yaml", reason="pyyaml is not installed (extra formats)")
TOKENS = ["</s>", "<unk>", "a", "dog", "runs", "yes", "null", '"', "1"]
CONFIG = {**marian_folders.SIZES, **marian_folders.HEADS, "encoder_layers": 2, "vocab_size": len(TOKENS) + 1}


@pytest.fixture(autouse=True)
def words(monkeypatch):
    for module in (sentencepiece_tokenizer, marian_npz):
        monkeypatch.setattr(module, "load_engine", lambda *arguments: marian_folders.WordEngine())


def write_model(tmp_path, shared=True, tied=True, settings=(), tensors=None):
    folder = tmp_path / "marian"
    options = {"share_encoder_decoder_embeddings": shared, "tie_word_embeddings": tied}
    arrays = marian_folders.tensors(CONFIG | options)
    for name in arrays:
        if name in marian_npz.TABLES:
            arrays[name][-1] = 0  # padding
    names = ["v.yml"] if shared else ["v.yml", "w.yml"]
    decoder = {"vocabs": [names[0], names[-1]], "beam-size": 6, "normalize": 0.7}
    marian_folders.write_npz(folder, tensors or arrays, settings, **decoder)
    for name in names:
        lines = [f'"{token}": {i}' if token != '"' else f"'\"': {i}" for i, token in enumerate(TOKENS)]
        (folder / name).write_text("\n".join(lines) + "\n")
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(b"")
    return folder, arrays


def run_import(folder, tmp_path):
    return main(["import", str(folder), "--out", str(tmp_path / "run")])


@pytest.mark.parametrize(("shared", "tied"), [(True, True), (False, True), (False, False), (True, False)])
def test_the_parameters_are_those_of_the_model_in_hugging_faces_format(tmp_path, shared, tied):
    folder, arrays = write_model(tmp_path, shared, tied)
    assert run_import(folder, tmp_path) == 0
    model, tokenizer, config = load_model(tmp_path / "run")
    arrays["final_logits_bias"][0, -1] = marian_npz.PADDING_BIAS
    expected = marian.from_marian(arrays, model.config, "model")
    state = model.state_dict()
    assert expected.keys() == state.keys()
    assert all(np.array_equal(expected[name], state[name]) for name in state)
    assert tokenizer.encode("a dog") == [2, 3] and tokenizer.pad_id == len(TOKENS) and tokenizer.eos_id == 0
    assert (config.search.beam_size, config.search.length_penalty, config.search.length_penalty_type) == (
        6,
        0.7,
        "length",
    )
    assert (model.config.position_rates, model.config.norm_eps) == ("tensor2tensor", 1e-6)
    assert model.config.suppressed_ids == (TOKENS.index("<unk>"),)


def test_the_unknown_token_is_allowed_on_demand_and_penalties_are_reported(tmp_path, capsys):
    folder, _ = write_model(tmp_path)
    with (folder / "decoder.yml").open("a") as file:
        file.write("allow-unk: true\nword-penalty: 2.5\n")
    assert run_import(folder, tmp_path) == 0
    assert "decoder.yml: word-penalty has no counterpart and is ignored" in capsys.readouterr().err
    assert load_model(tmp_path / "run")[0].config.suppressed_ids == ()


@pytest.mark.parametrize(("beam", "rule"), [(1, "plain"), (2, "transformers")])
def test_one_beam_is_greedy_search(tmp_path, beam, rule):
    folder, _ = write_model(tmp_path)
    with (folder / "decoder.yml").open("a") as file:
        file.write(f"beam-size: {beam}\n")
    assert run_import(folder, tmp_path) == 0
    search = load_model(tmp_path / "run")[2].search
    assert (search.beam_size, search.candidate_rule) == (beam, rule)


def test_names_of_vocabularies_with_control_characters_are_not_used(tmp_path):
    folder, _ = write_model(tmp_path)
    (folder / "decoder.yml").write_text('vocabs: ["v.yml\\nx", "v.yml\\nx"]\n')
    assert run_import(folder, tmp_path) == 0


def test_norms_before_the_sublayers_end_with_two_norms(tmp_path):
    settings = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
    folder, _ = write_model(tmp_path, settings=settings)
    with np.load(folder / "model.npz") as file:
        arrays = {f"{name}_pre" if "_ln_" in name else name: file[name] for name in file.files}
    for side in ("encoder", "decoder"):
        arrays |= {f"{side}_top_ln_{part}": np.full((1, 8), 3, np.float32) for part in ("scale", "bias")}
    np.savez(folder / "model.npz", **arrays)
    assert run_import(folder, tmp_path) == 0
    model, *_ = load_model(tmp_path / "run")
    assert (model.decoder_norm.gamma.data == 3).all() and model.config.norm_placement == "pre"


def test_the_shorter_of_two_vocabularies_is_filled(tmp_path):
    folder, _ = write_model(tmp_path, shared=False)
    with np.load(folder / "model.npz") as file:
        arrays = dict(file)
    arrays["encoder_Wemb"] = arrays["encoder_Wemb"][:-2]
    np.savez(folder / "model.npz", **arrays)
    (folder / "v.yml").write_text("\n".join((folder / "v.yml").read_text().splitlines()[:-2]))
    assert run_import(folder, tmp_path) == 0
    model, tokenizer, _ = load_model(tmp_path / "run")
    assert tokenizer.source.pad_id == tokenizer.target.pad_id == len(TOKENS)
    assert not model.source_embedding.weight.data[-3:].any()


def compress(folder):
    with np.load(folder / "model.npz") as file:
        np.savez_compressed(folder / "model.npz", **dict(file))


def drop(folder):
    with np.load(folder / "model.npz") as file:
        np.savez(folder / "model.npz", **{name: file[name] for name in file.files if name != "special:model.yml"})


def quantize(folder):
    with np.load(folder / "model.npz") as file:
        np.savez(folder / "model.npz", **dict(file) | {"encoder_l1_self_Wq": np.ones((8, 8), np.int8)})


def pickled(folder):
    np.savez(folder / "model.npz", **{"special:model.yml": np.array([print], object)})


def with_settings(content):
    """Return a function that replaces the file of the settings in a folder's model.npz."""

    def damage(folder):
        with zipfile.ZipFile(folder / "model.npz", "w") as archive:
            archive.writestr("special:model.yml.npy", content)

    return damage


def npy(dtype, shape):
    """Return a .npy file with 4 bytes whose header has this Python code."""
    header = b"{'descr': %s, 'fortran_order': False, 'shape': %s, }\n" % (dtype, shape)
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"text"


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


NO_ARRAY = "model.npz: expected a Marian model; got 'a file that is not an array of numbers'; try a new download"
BAD_SETTINGS = {
    "no .npy": (b"hello", NO_ARRAY),
    "text": (saved(np.array("a: b")), NO_ARRAY),
    "bytes": (saved(np.array(b"a: b")), NO_ARRAY),
    "raw": (saved(np.zeros(3, "V4")), NO_ARRAY),
    "record": (saved(np.zeros(3, [("a", "f4"), ("b", "i4")])), NO_ARRAY),
    "complex": (saved(np.zeros(3, "c8")), NO_ARRAY),
    "True": (npy(b"'<f4'", b"(True,)"), NO_ARRAY),
    "tuples": (npy(b"((((),),),)", b"(1,)"), NO_ARRAY),
    "signs": (npy(b"-" * 9000 + b"1", b"(1,)"), NO_ARRAY),
    "brackets": (npy(b"[" * 5000, b"(1,)"), NO_ARRAY),
    "digits": (npy(b"'<f4'", b"(" + b"9" * 5000 + b",)"), NO_ARRAY),
    "no dtype": (npy(b"'<f1'", b"(4,)"), "expected a Marian model; got 'data type '<f1' not understood'"),
    "too short": (npy(b"'<f4'", b"(30000000000,)"), "expected a Marian model; got 'cannot reshape array of size 1"),
    "too large": (npy(b"'<f4'", b"(99999999999999999999,)"), "got 'Maximum allowed dimension exceeded'"),
    "other numbers": (saved(np.zeros(3)), "special:model.yml: expected keys with values; got NoneType"),
}
BAD = {
    **{name: (with_settings(content), message) for name, (content, message) in BAD_SETTINGS.items()},
    **{
        f"zip, {name}": (lambda f, damage=damage: damage(f / "model.npz"), message)
        for name, (damage, message) in marian_folders.BAD_ARCHIVES.items()
    },
    "a second model": (lambda f: (f / "b.npz").write_bytes(b""), "expected one .npz file; got 2"),
    "truncated": (lambda f: (f / "model.npz").write_bytes(b"PK"), "model.npz: expected a Marian model; got '"),
    "compressed": (compress, "expected a Marian model; got 'compressed data'"),
    "pickled": (pickled, "expected a Marian model; got 'a file that is not an array of numbers'"),
    "quantized": (quantize, "encoder_l1_self_Wq: expected floats; got int8"),
    "no settings": (drop, "special:model.yml, which Marian writes, is missing"),
    "no vocabulary": (lambda f: (f / "v.yml").unlink(), "v.yml: expected a vocabulary; got a path that does not exist"),
    "no end": (lambda f: (f / "v.yml").write_text("<unk>: 0"), "v.yml: expected a vocabulary with </s>"),
    "no mapping": (lambda f: (f / "v.yml").write_text("- 1"), "v.yml: expected keys with values; got list"),
    "bad YAML": (lambda f: (f / "v.yml").write_text("a: ["), "v.yml: expected YAML; got '"),
    "an id as text": (lambda f: (f / "v.yml").write_text("</s>: x\n<unk>: 1"), "</s>: expected a number; got 'x'"),
    "other size": (lambda f: (f / "v.yml").write_text("</s>: 0\n<unk>: 1"), "model.shared.weight: expected shape"),
    "settings": (lambda f: (f / "decoder.yml").write_text("beam-size: many\nvocabs: [v.yml, v.yml]"), "beam-size: exp"),
    "beam": (
        lambda f: (f / "decoder.yml").write_text("beam-size: 9999\nvocabs: [v.yml, v.yml]"),
        "/decoder.yml: beam-size: expected a whole number from 1 to 512; got 9999; try",
    ),
}
LACKS = {
    "transformer-ffn-activation": ("gelu", "transformer-ffn-activation: expected swish or relu; got gelu"),
    "type": ("s2s", "type: expected transformer; got s2s"),
    "dec-depth": (1, "dec-depth: expected 2, the same as enc-depth; got 1"),
    "transformer-preprocess": ("d", "transformer-preprocess: expected norms after each sub-layer"),
    "dim-emb": (None, "dim-emb: expected a number; got None"),
    "transformer-heads": (3, "dim-emb: expected a multiple of n_heads"),
    "transformer-postprocess": (["d", "a"], "transformer-postprocess: expected one value; got ['d', 'a']"),
}


@pytest.mark.parametrize(("damage", "message"), BAD.values(), ids=[*BAD])
def test_a_bad_file_gives_a_one_line_error(tmp_path, capsys, damage, message):
    folder, _ = write_model(tmp_path)
    damage(folder)
    check_error(folder, tmp_path, capsys, message)


@pytest.mark.parametrize(("key", "value", "message"), [(key, *rest) for key, rest in LACKS.items()])
def test_what_our_model_lacks_gives_a_one_line_error(tmp_path, capsys, key, value, message):
    folder, _ = write_model(tmp_path, settings={key: value})
    check_error(folder, tmp_path, capsys, message)


def test_a_parameter_of_another_architecture_gives_a_one_line_error(tmp_path, capsys):
    folder, _ = write_model(tmp_path)
    with np.load(folder / "model.npz") as file:
        np.savez(folder / "model.npz", **dict(file) | {"decoder_l1_rnn_W": np.ones((8, 8), np.float32)})
    check_error(folder, tmp_path, capsys, "expected only tensors of a Marian model; got decoder_l1_rnn_W")


def check_error(folder, tmp_path, capsys, message):
    assert run_import(folder, tmp_path) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (tmp_path / "run").exists()
