"""Parity with `BertModel` of the transformers library, if it is installed: random weights, same outputs."""

import numpy as np
import pytest

from autograd import no_grad
from models import Encoder, TransformerConfig

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

LAYOUT = {
    "architecture": "encoder", "positions": "learned", "norm_placement": "post", "activation": "gelu_erf",
    "token_types": 2, "attention_bias": True, "embedding_norm": True, "pooler": True, "norm_eps": 1e-12,
    "dropout": 0.0,
}  # fmt: skip
SIZES = {"vocab_size": 50, "d_model": 48, "d_ff": 96, "n_heads": 4, "n_layers": 3, "max_positions": 20}


def bert_weights(bert, scale):
    """Return the weights of a BertModel under our names. Our embedding is multiplied by `scale` when it is read."""
    w = {name: p.detach().numpy() for name, p in bert.named_parameters()}
    ours = {
        "embedding.weight": w["embeddings.word_embeddings.weight"] / scale,
        "text_positions.weight": w["embeddings.position_embeddings.weight"],
        "token_types.weight": w["embeddings.token_type_embeddings.weight"],
        "embedding_norm.gamma": w["embeddings.LayerNorm.weight"],
        "embedding_norm.beta": w["embeddings.LayerNorm.bias"],
        "pooler.linear.weight": w["pooler.dense.weight"].T,
        "pooler.linear.bias": w["pooler.dense.bias"],
    }
    for i in range(SIZES["n_layers"]):
        theirs, layer = f"encoder.layer.{i}", f"layers.{i}"
        qkv = [f"{theirs}.attention.self.{name}" for name in ("query", "key", "value")]
        ours[f"{layer}.attention.query_key_value.weight"] = np.concatenate([w[f"{x}.weight"].T for x in qkv], axis=1)
        ours[f"{layer}.attention.query_key_value.bias"] = np.concatenate([w[f"{x}.bias"] for x in qkv])
        for name, linear in {
            "attention.output": "attention.output.dense",
            "feed_forward.inner": "intermediate.dense",
            "feed_forward.outer": "output.dense",
        }.items():
            ours[f"{layer}.{name}.weight"] = w[f"{theirs}.{linear}.weight"].T
            ours[f"{layer}.{name}.bias"] = w[f"{theirs}.{linear}.bias"]
        for name, norm in {"attention_residual": "attention.output", "feed_forward_residual": "output"}.items():
            ours[f"{layer}.{name}.norm.gamma"] = w[f"{theirs}.{norm}.LayerNorm.weight"]
            ours[f"{layer}.{name}.norm.beta"] = w[f"{theirs}.{norm}.LayerNorm.bias"]
    return ours


def test_outputs_equal_those_of_bert():
    """Compare hidden states and pooler, for rows of different lengths and two texts, to 1e-5 in float32."""
    torch.manual_seed(0)
    c = transformers.BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
        max_position_embeddings=20, type_vocab_size=2, initializer_range=0.3,
    )  # fmt: skip
    bert = transformers.BertModel(c).eval()
    with torch.no_grad():
        for p in bert.parameters():
            p += 0.1 * torch.randn_like(p)
    model = Encoder(TransformerConfig(**SIZES, **LAYOUT)).eval()
    model.load_state_dict({n: np.ascontiguousarray(a) for n, a in bert_weights(bert, 48**0.5).items()})
    rng = np.random.default_rng(0)
    ids, types = rng.integers(3, 50, (4, 12)), (np.arange(12) >= np.array([[5], [9], [3], [12]])).astype(np.int64)
    for row, length in enumerate((12, 12, 7, 3)):
        ids[row, length:] = types[row, length:] = 0
    mask = ids != 0
    with torch.no_grad():
        theirs = bert(torch.tensor(ids), attention_mask=torch.tensor(mask), token_type_ids=torch.tensor(types))
    with no_grad():
        hidden, pooled = model.encode(ids, types)[0].data, model.text_vectors(ids, "first", types).data
    assert hidden.dtype == np.float32
    assert np.abs(hidden - theirs.last_hidden_state.numpy())[mask].max() < 1e-5
    assert np.abs(pooled - theirs.pooler_output.numpy()).max() < 1e-5
