"""Parity with transformers, if it is installed: we import random models that it writes, and export them again."""

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from models.search import beam_search, greedy_search
from tests.helpers.marian_folders import write_npz
from train.formats import export_run, import_folder
from train.run.checkpoint import load_model

pytestmark = pytest.mark.slow
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed (extra formats)")
pytest.importorskip("transformers", reason="transformers is not installed; it writes the models")
torch = pytest.importorskip("torch", reason="torch is not installed; transformers needs it")
from transformers import MarianConfig, MarianMTModel, MarianTokenizer  # noqa: E402

WORDS = "a the one dog cat bird house tree runs sleeps sings sees likes old small green".split()
SENTENCES = [" ".join(np.random.default_rng(i).choice(WORDS, 6)) for i in range(400)]
ACTIVATIONS = ("swish", "gelu", "relu", "gelu_new")
VOCABULARIES: tuple[dict[str, Any], ...] = (
    {},
    {"share_encoder_decoder_embeddings": False},
    {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
)
SHAPES = [
    {"activation_function": activation, "scale_embedding": i % 2 == 0}
    | {f"{side}_layers": 1 + i // 4 for side in ("encoder", "decoder")}
    | vocabularies
    for i, (activation, vocabularies) in enumerate(itertools.product(ACTIVATIONS, VOCABULARIES))
]
SIZES = {"d_model": 16} | {
    f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in (("ffn_dim", 24), ("attention_heads", 2))
}
EXTRA = 1  # tokens of a target, with `</s>`, beyond those of its source, without
ALPHA = 1.5  # length penalty; with a smaller one, beam search of a random model mostly finds empty targets


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Return a SentencePiece model as bytes, and its pieces."""
    folder = tmp_path_factory.mktemp("pieces")
    (folder / "text").write_text("\n".join(SENTENCES))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=36, minloglevel=2
    )
    engine = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
    names = [engine.id_to_piece(i) for i in range(engine.get_piece_size())]
    return (folder / "m.model").read_bytes(), [name for name in names if not name.startswith("<")]


def end_some_outputs(model):
    """Set the bias of `</s>` so that greedy outputs end for about half of all sources."""
    sources = torch.randint(2, model.config.vocab_size - 1, (100, 8))
    settings = {"do_sample": False, "max_new_tokens": 12, "suppress_tokens": [0]}
    logits = model.generate(sources, **settings, output_logits=True, return_dict_in_generate=True).logits
    gaps = torch.stack([step[:, 1:].amax(-1) - step[:, 0] for step in logits])
    model.final_logits_bias[0, 0] = gaps.amin(0).median()


def write_model(folder, pieces, options):
    """Write a model with transformers, and its tokenizer; return it."""
    vocabulary = {name: i for i, name in enumerate(["</s>", "<unk>", *pieces[1], ">>deu<<", "<pad>"])}
    pad = len(vocabulary) - 1
    torch.manual_seed(3)  # with others, a greedy search may meet two logits that differ by less than the rounding error
    special = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(vocab_size=len(vocabulary), init_std=0.3, **special, **SIZES | options)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "norm" in name:
                p += torch.randn_like(p) * 0.1
            if "encoder_attn.out_proj.weight" in name:
                p *= 4  # makes outputs depend on the source
    end_some_outputs(model)
    model.generation_config.update(bad_words_ids=[[pad]], num_beams=4, length_penalty=ALPHA, early_stopping=True)
    model.save_pretrained(folder)
    is_separate = not config.share_encoder_decoder_embeddings
    for name in ("vocab.json", *["target_vocab.json"] * is_separate):
        (folder / name).write_text(json.dumps(vocabulary))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(pieces[0])
    settings = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": is_separate}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model


def generate(model, batch, settings):
    """Return the tokens that transformers generates, with the end, under our length limit, which depends on the row."""
    limits = batch.attention_mask.sum(1) - 1 + EXTRA
    outputs = [[] for _ in limits]
    for limit in limits.unique():
        rows = (limits == limit).nonzero()[:, 0]
        inputs = {name: array[rows] for name, array in batch.items()}
        found = model.generate(**inputs, do_sample=False, max_new_tokens=int(limit), **settings)[:, 1:].tolist()
        for i, ids in zip(rows.tolist(), found, strict=True):
            outputs[i] = ids[: ids.index(0) + 1] if 0 in ids else ids
    return outputs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_imported_and_exported_models_equal_those_of_transformers(tmp_path, pieces, options):
    theirs = write_model(tmp_path / "hf", pieces, options)
    import_folder(tmp_path / "hf", tmp_path / "run", pytest.fail)
    ours, tokenizer, _ = load_model(tmp_path / "run")
    export_run(tmp_path / "run", "huggingface", tmp_path / "again", "float32", pytest.fail)
    again, their_tokenizer = (cls.from_pretrained(tmp_path / "again") for cls in (MarianMTModel, MarianTokenizer))
    lines = [*SENTENCES[:198], "Ünknown  words", ">>deu<< a dog"]
    batch = their_tokenizer(lines, return_tensors="pt", padding=True)
    assert [[*ids, 0] for ids in tokenizer.encode_batch(lines)] == their_tokenizer(lines).input_ids
    src = batch.input_ids.numpy()
    tgt = np.concatenate([np.full((len(lines), 1), tokenizer.pad_id), src[:, :4]], axis=1)
    logits = ours(src, tgt).data
    rules = {"length_penalty": ALPHA, "length_penalty_type": "length", "max_extra_tokens": EXTRA}
    searches = [({"num_beams": 1}, greedy_search(ours, src, max_extra_tokens=EXTRA))] + [
        (
            {"num_beams": 4, "length_penalty": ALPHA, "early_stopping": early_stopping},
            [best[0] for best in beam_search(ours, src, **rules, candidate_rule=rule)],
        )
        for rule, early_stopping in (("transformers", "never"), ("fairseq", True))
    ]
    for model in (theirs, again.eval()):
        with torch.no_grad():
            expected = model(**batch, decoder_input_ids=torch.tensor(tgt)).logits.numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        # The exported folder is searched with the settings of its own generation_config.json.
        for settings, hypotheses in searches if model is theirs else [searches[0], ({}, searches[-1][1])]:
            outputs = generate(model, batch, settings)
            pairs = [(row, [*best.tokens, *[0] * best.finished]) for row, best in zip(outputs, hypotheses, strict=True)]
            if settings != {"num_beams": 1}:  # transformers ranks outputs that are cut off with the others; we do not
                pairs = [(row, tokens) for row, tokens in pairs if row[-1] == 0]
                assert len({tuple(row) for row, _ in pairs}) > 2  # if all were empty, this would compare nothing
            assert [row for row, _ in pairs] == [tokens for _, tokens in pairs]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [SHAPES[0], SHAPES[0] | VOCABULARIES[1]], ids=str)
def test_a_model_in_marians_own_format_has_the_same_logits(tmp_path, pieces, options):
    theirs = write_model(tmp_path / "hf", pieces, options)
    tensors = {name: array.numpy() for name, array in theirs.state_dict().items()}
    for name in [name for name in tensors if "Wemb" in name or "embed" in name or "shared" in name]:
        tensors[name][-1] = 0  # padding
    folder = tmp_path / "marian"
    tensors = {name: x for name, x in tensors.items() if name != "lm_head.weight"}
    write_npz(folder, tensors, {"transformer-ffn-activation": options["activation_function"]}, vocabs=["v.yml"] * 2)
    names = ["</s>", "<unk>", *pieces[1], ">>deu<<"]
    (folder / "v.yml").write_text("\n".join(f"{json.dumps(name)}: {i}" for i, name in enumerate(names)))
    for name in ("source.spm", "target.spm"):
        (folder / name).write_bytes(pieces[0])
    import_folder(folder, tmp_path / "run", pytest.fail)
    imported, tokenizer, _ = load_model(tmp_path / "run")
    # Marian computes positions and norms differently from transformers.
    ours = replace(imported.config, position_rates="paper", norm_eps=1e-5).build()
    ours.load_state_dict(imported.state_dict())
    src = np.array([[*ids, 0] for ids in tokenizer.encode_batch(["a dog sleeps", "the old cat"])])
    tgt = np.concatenate([np.full((2, 1), tokenizer.pad_id), src[:, :3]], axis=1)
    with torch.no_grad():
        expected = theirs(torch.tensor(src), decoder_input_ids=torch.tensor(tgt)).logits.numpy()
    np.testing.assert_allclose(ours.eval()(src, tgt).data[..., :-1], expected[..., :-1], atol=1e-5)
