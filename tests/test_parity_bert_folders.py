"""Parity with transformers, if it is installed: we import BERT models that it writes with random weights."""

import json
import unicodedata

import numpy as np
import pytest

from autograd import no_grad
from train.formats import import_folder
from train.run.checkpoint import load_model

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers", reason="transformers is not installed; it writes the models")
torch = pytest.importorskip("torch", reason="torch is not installed; transformers needs it")

WORDS = "a dog cat runs sleeps ##s ##ing ##ly run sleep un ##believ ##able é ö 中 文 1 2 ##3 . , ! - ##a ##e".split()
VOCABULARY = [
    "[PAD]",
    "[unused0]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *WORDS,
    *"bcdefghij",
    *(f"##{c}" for c in "bcdfghij"),
]
SHAPES = [
    {},
    {"hidden_act": "relu", "num_hidden_layers": 1, "type_vocab_size": 1},
    {"hidden_act": "gelu_new", "num_attention_heads": 4, "tie_word_embeddings": False},
    {"hidden_act": "swish", "num_hidden_layers": 3, "layer_norm_eps": 1e-5},
]
CASED = [True, False, True, False]


def write_model(folder, options, lower, architecture):
    """Write a model with random weights, whose vocabulary is not in our order."""
    torch.manual_seed(len(options))
    c = transformers.BertConfig(
        **{
            "vocab_size": len(VOCABULARY), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 24, "max_position_embeddings": 40, "initializer_range": 0.3,
        } | options
    )  # fmt: skip
    model = getattr(transformers, architecture)(c).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    return model


def odd_lines(n):
    """Return lines of words and of random characters from many scripts, combining marks and control characters."""
    rng, ranges = (
        np.random.default_rng(0),
        ((32, 127), (0, 700), (0x300, 0x370), (0x4E00, 0x4F00), (0x1F600, 0x1F650), (0x2000, 0x2070)),
    )
    lines = []
    for _ in range(n):
        characters = [chr(rng.integers(*ranges[rng.integers(len(ranges))])) for _ in range(rng.integers(1, 20))]
        words = rng.choice(["dog", "Sleeps", "running", "unbelievable", "É", "中文", "x" * 120], rng.integers(0, 4))
        lines.append(" ".join(["".join(characters), *words]).replace("\n", " "))
    return [line for line in lines if unicodedata.normalize("NFC", line).strip()]


@pytest.mark.parametrize("architecture", ["BertForMaskedLM", "BertModel", "BertForPreTraining"])
@pytest.mark.parametrize(("options", "lower"), [*zip(SHAPES, CASED, strict=True)], ids=str)
def test_an_imported_model_equals_that_of_transformers(tmp_path, options, lower, architecture):
    bert = write_model(tmp_path / "bert", options, lower, architecture)
    warnings = []
    import_folder(tmp_path / "bert", tmp_path / "run", warnings.append)
    assert len(warnings) == (architecture == "BertForPreTraining")
    model, tokenizer, _ = load_model(tmp_path / "run")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path / "bert")
    lines = odd_lines(300)
    names = sorted(tokenizer.spec["model"]["vocab"], key=tokenizer.spec["model"]["vocab"].__getitem__)
    pieces = [[names[i] for i in ids] for ids in tokenizer.encode_batch(lines)]
    assert pieces == [theirs.tokenize(line) for line in lines]

    n_types = options.get("type_vocab_size", 2)
    texts = [("a dog runs.", "cats sleep"), ("unbelievable!", "a a a a"), ("running", "b")]
    batch = theirs(*map(list, zip(*texts, strict=True)), padding=True, return_tensors="pt")
    batch["token_type_ids"] = batch["token_type_ids"].clamp(max=n_types - 1)
    numbers = np.array([names.index(token) for token in VOCABULARY])  # our id for each of theirs
    ids, mask = numbers[batch["input_ids"].numpy()], batch["attention_mask"].numpy().astype(bool)
    with torch.no_grad():
        expected = bert(**batch, output_hidden_states=True)
    with no_grad():
        hidden, logits = model.encode(ids)[0].data, model(ids).data
    assert np.abs(hidden - expected.hidden_states[-1].numpy())[mask].max() < 1e-5
    if architecture == "BertModel":
        pooled = model.text_vectors(ids, "first").data
        assert np.abs(pooled - expected.pooler_output.numpy()).max() < 1e-5
        return
    their_logits = (expected.logits if architecture == "BertForMaskedLM" else expected.prediction_logits).numpy()
    assert np.abs(logits[..., numbers] - their_logits)[mask].max() < 1e-5 * max(1, np.abs(their_logits).max())
