"""Parity with transformers, if it is installed: we import random GPT-2 models that it writes, and it reads ours."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from models.search import beam_search, greedy_search
from train.formats import export_run, import_folder
from train.formats.huggingface import write_run
from train.run.checkpoint import load_model
from train.run.config import RunConfig
from train.run.folder import RunFolder
from train.text.plain import PlainTokenizer

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers", reason="transformers is not installed; it writes the models")
torch = pytest.importorskip("torch", reason="torch is not installed; transformers needs it")

SHAKESPEARE = Path(__file__).parents[1] / "configs/tinyshakespeare.toml"
POSITIONS, PROMPT, LENGTH = 24, 5, 12  # positions of a model, tokens of a prompt, and tokens that are generated
N_PROMPTS = 200
MERGES = ["d o", "do g", "a t", "c at", "Ġ cat"]
END = "<|endoftext|>"
SHAPES = [
    {"activation_function": "gelu_new", "n_layer": 1},
    {"activation_function": "relu", "n_inner": 24, "tie_word_embeddings": False},
    {"activation_function": "gelu", "n_head": 4, "layer_norm_epsilon": 1e-3},
    {"activation_function": "swish", "n_layer": 3, "n_inner": 40, "tie_word_embeddings": False},
]
OURS = [
    {"positions": "sinusoidal"},
    {"positions": "learned", "activation": "relu", "max_positions": POSITIONS},
    {"positions": "sinusoidal_halves", "activation": "silu", "tying": "none", "attention_bias": True},
    {"positions": "learned", "activation": "gelu_erf", "max_positions": POSITIONS, "scale_embedding": False},
]


def write_model(folder, options):
    """Write a model with random weights, which often predicts the end of a text, and its tokenizer; return it."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(pair.replace(" ", "") for pair in MERGES), END]
    vocabulary, end = {name: i for i, name in enumerate(names)}, len(names) - 1
    torch.manual_seed(0)
    special = {"bos_token_id": end, "eos_token_id": end}
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": POSITIONS, "initializer_range": 0.3}
    config = transformers.GPT2Config(vocab_size=len(names), **special, **sizes | options)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "bias" in name or "ln_" in name:
                p += torch.randn_like(p) * 0.1
        row = model.lm_head.weight[end]
        model.transformer.ln_f.bias += 2.5 * row / row.square().sum()
    never = [[vocabulary[byte]] for byte in "ÀÁ"]  # our padding and beginning of a text
    model.generation_config.update(bad_words_ids=never, pad_token_id=end)
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES]) + "\n", encoding="utf-8")
    return model


def generate(model, prompts, end, **settings):
    """Return the tokens that transformers generates for prompts, without the end, and whether each has ended."""
    batch, all_tokens = torch.tensor(prompts), torch.ones(prompts.shape, dtype=torch.long)
    outputs = model.generate(batch, attention_mask=all_tokens, do_sample=False, max_new_tokens=LENGTH, **settings)
    rows = outputs[:, prompts.shape[1] :].tolist()
    return [(row[: row.index(end)], True) if end in row else (row, False) for row in rows]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_imported_models_equal_those_of_transformers(tmp_path, options):
    theirs = write_model(tmp_path / "hf", options)
    import_folder(tmp_path / "hf", tmp_path / "run", pytest.fail)
    ours, tokenizer, _ = load_model(tmp_path / "run")
    their_tokenizer = transformers.GPT2Tokenizer.from_pretrained(tmp_path / "hf")
    for text in ("a dog cat", "Ünknown  words\n", "犬 \U0001f600"):
        assert tokenizer.encode(text) == their_tokenizer(text).input_ids

    end = tokenizer.eos_id
    texts = np.random.default_rng(0).integers(end, size=(N_PROMPTS, POSITIONS))
    with torch.no_grad():
        expected = theirs(torch.tensor(texts)).logits.numpy()
    np.testing.assert_allclose(ours(texts).data, expected, rtol=0, atol=1e-5)

    prompts = texts[:, :PROMPT]
    greedy = greedy_search(ours, prompts, max_extra_tokens=LENGTH)
    outputs = generate(theirs, prompts, end, num_beams=1)
    assert [(best.tokens, best.finished) for best in greedy] == outputs
    assert 0 < sum(ended for _, ended in outputs) < N_PROMPTS  # outputs of both kinds are compared

    rules = {"length_penalty": 1.0, "length_penalty_type": "length", "max_extra_tokens": LENGTH}
    for rule, early_stopping in (("transformers", "never"), ("fairseq", True)):
        beams = beam_search(ours, prompts, **rules, candidate_rule=rule)
        settings = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": early_stopping}
        outputs = generate(theirs, prompts, end, **settings)
        # transformers ranks outputs that are cut off with the others; we rank them last.
        pairs = [(tokens, best.tokens) for (tokens, ended), (best,) in zip(outputs, beams, strict=True) if ended]
        assert len(pairs) > N_PROMPTS / 4
        assert all(tokens == our_tokens for tokens, our_tokens in pairs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", OURS, ids=str)
def test_exported_language_models_equal_those_of_transformers(tmp_path, options):
    text = "To be, or not to be: that is the question.\n"
    (tmp_path / "text").write_text(text)
    tokenizer = PlainTokenizer.from_files([tmp_path / "text"], "characters", 260)
    small = {"d_model": 16, "d_ff": 24, "n_heads": 2, "n_layers": 2}
    config = RunConfig.load(SHAKESPEARE)
    shape = replace(config.transformer_config(tokenizer.vocab_size), **small | options)
    ours, rng = shape.build(), np.random.default_rng(0)
    for p in ours.parameters():
        p.data += 0.2 * rng.normal(size=p.shape).astype(np.float32)
    write_run(RunFolder(tmp_path / "run"), config, shape, tokenizer, ours.state_dict())
    export_run(tmp_path / "run", "huggingface", tmp_path / "hf", "float32", pytest.fail)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")(text).input_ids == tokenizer.encode(text)

    texts = rng.integers(tokenizer.vocab_size, size=(N_PROMPTS, POSITIONS))
    with torch.no_grad():
        expected = theirs(torch.tensor(texts)).logits.numpy()
    np.testing.assert_allclose(ours.eval()(texts).data, expected, rtol=0, atol=1e-5)
    prompts = texts[:, :PROMPT]
    greedy = greedy_search(ours, prompts, max_extra_tokens=LENGTH)
    assert [(best.tokens, best.finished) for best in greedy] == generate(theirs, prompts, tokenizer.eos_id)
