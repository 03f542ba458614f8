"""Time the translation of a batch: this project's search, CTranslate2 and PyTorch (Marian of transformers).

    python -m benchmarks.translate --engine ours --engine ctranslate2 --beam 4 --sentences 32 --length 25
    python -m benchmarks.translate --engine ours --engine torch --device cuda

All engines have random weights of the same shapes and are forced to generate exactly `--output-length` tokens per
sentence. They run in turn, each in its own process (turns.py).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks import turns

ENGINES = ("ours", "ctranslate2", "ctranslate2-int8", "torch")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    base = {"d-model": 512, "heads": 8, "d-ff": 2048, "layers": 6, "vocab": 37000}
    for name, default in (base | {"beam": 4, "sentences": 32, "length": 25, "output-length": 40}).items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    turns.add_options(p, ENGINES, steps=5, warmup=1)
    return p.parse_args()


def main() -> None:
    a = arguments()
    if a.worker:
        makers = {"ours": ours, "torch": marian}
        return turns.serve(makers.get(a.worker, ctranslate2)(a))
    title = (
        f"d_model {a.d_model}, heads {a.heads}, d_ff {a.d_ff}, layers {a.layers}, vocabulary {a.vocab}, beam {a.beam}, "
        f"{a.sentences} sentences of {a.length} tokens, {a.output_length} tokens out, {a.device}"
    )
    turns.compare("benchmarks.translate", a, title, tokens=a.sentences * (a.length + a.output_length))


def sources(a: argparse.Namespace) -> Any:
    """Return source ids (sentences, length) without special tokens."""
    import numpy as np

    return np.random.default_rng(0).integers(4, a.vocab, (a.sentences, a.length))


def ours(a: argparse.Namespace) -> Callable[[], None]:
    """Return a step of this project's search; a zero embedding keeps EOS from being chosen."""
    import npx
    from models import Transformer, TransformerConfig
    from models.search import beam_search, greedy_search

    npx.configure_process()
    npx.use_device(a.device)
    model = Transformer(TransformerConfig(a.vocab, a.d_model, a.d_ff, a.heads, a.layers))
    model.embedding.weight.data[model.config.eos_id] = 0
    src = sources(a)
    extra = a.output_length - a.length

    def step() -> None:
        if a.beam == 1:
            hypotheses = greedy_search(model, src, max_extra_tokens=extra)
        else:
            hypotheses = [best for best, *_ in beam_search(model, src, beam_size=a.beam, max_extra_tokens=extra)]
        lengths = {len(hypothesis.tokens) for hypothesis in hypotheses}
        assert lengths == {a.output_length}, lengths

    return step


def ctranslate2(a: argparse.Namespace) -> Callable[[], None]:
    """Return a step of CTranslate2, with random weights written to a temporary folder."""
    import ctranslate2 as ct2
    import numpy as np

    random = np.random.default_rng(0)
    spec = ct2.specs.TransformerSpec.from_config((a.layers, a.layers), a.heads)

    def matrix(*shape: int) -> Any:
        return random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    def linear(layer: Any, n_out: int, n_in: int, bias: bool = False) -> None:
        layer.weight = matrix(n_out, n_in)
        if bias:
            layer.bias = np.zeros(n_out, np.float32)

    def norm(layer: Any) -> None:
        layer.gamma, layer.beta = np.ones(a.d_model, np.float32), np.zeros(a.d_model, np.float32)

    def attention(layer: Any, *widths: int) -> None:
        for part, width in zip(layer.linear, widths, strict=True):
            linear(part, width, a.d_model)
        norm(layer.layer_norm)

    d = a.d_model
    table = matrix(a.vocab, a.d_model)
    for side in (spec.encoder, spec.decoder):
        embedding = side.embeddings[0] if isinstance(side.embeddings, list) else side.embeddings
        embedding.weight = table
        norm(side.layer_norm)
        for layer in side.layer:
            attention(layer.self_attention, 3 * d, d)
            if side is spec.decoder:
                attention(layer.attention, d, 2 * d, d)
            norm(layer.ffn.layer_norm)
            linear(layer.ffn.linear_0, a.d_ff, d, bias=True)
            linear(layer.ffn.linear_1, d, a.d_ff, bias=True)
    spec.decoder.projection.weight = table
    names = ["<blank>", "<unk>", "<s>", "</s>", *(f"t{i}" for i in range(4, a.vocab))]
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = "<s>"
    src = [[names[i] for i in row] for row in sources(a)]
    with tempfile.TemporaryDirectory() as folder:
        spec.validate()
        spec.save(folder)
        compute = "int8" if a.worker.endswith("int8") else "float32"
        translator = ct2.Translator(folder, a.device, compute_type=compute, inter_threads=1, intra_threads=a.threads)

    def step() -> None:
        results = translator.translate_batch(
            src, beam_size=a.beam, max_decoding_length=a.output_length, min_decoding_length=a.output_length
        )
        lengths = {len(result.hypotheses[0]) for result in results}
        assert lengths == {a.output_length}, lengths

    return step


def marian(a: argparse.Namespace) -> Callable[[], None]:
    """Return a step of PyTorch, with the Marian model of transformers."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(a.threads)
    shape = {"layers": a.layers, "attention_heads": a.heads, "ffn_dim": a.d_ff}
    config = MarianConfig(
        vocab_size=a.vocab, d_model=a.d_model, pad_token_id=0, eos_token_id=3, bos_token_id=2,
        decoder_start_token_id=2, forced_eos_token_id=None,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in shape.items()},
    )  # fmt: skip
    model = MarianMTModel(config).eval().to(a.device)
    src = torch.from_numpy(sources(a)).to(a.device)

    def step() -> None:
        with torch.inference_mode():
            n = a.output_length
            ids = model.generate(src, num_beams=a.beam, do_sample=False, min_new_tokens=n, max_new_tokens=n)
        assert ids.shape[1] == n + 1, ids.shape

    return step


if __name__ == "__main__":
    main()
