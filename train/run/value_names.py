"""Suggestions for unknown values: misspellings, and names of values in other programs (for keys, see key_names.py)."""

from collections.abc import Iterable

from train.run.key_names import plain_name, similar_names

# For each key or option, the names of its values in other programs. Under "": names without a counterpart here.
OTHER_VALUES = {
    "bool": {"true": "yes on 1", "false": "no off 0"},
    "device": {"cuda": "gpu nvidia", "": "tpu npu"},
    "task": {"translation": "translate mt nmt seq2seq", "language": "lm clm causal_lm language_modeling",
             "masking": "mlm masked_lm", "classification": "classify", "tagging": "ner token_classification"},
    "vocabularies": {"shared": "joint joined true", "separate": "false"},
    "architecture": {"encoder_decoder": "transformer seq2seq", "decoder": "decoder_only gpt",
                     "encoder": "encoder_only bert", "rnn": "lstm gru"},
    "norm_placement": {"pre": "prenorm pre_norm pre_ln preln before",
                       "post": "postnorm post_norm post_ln postln after"},
    "norm_type": {"layer_norm": "layernorm ln layer", "rms_norm": "rmsnorm rms"},
    "positions": {"sinusoidal": "sinusoid sincos sine sin", "learned": "learnable", "rotary": "rope",
                  "shaw": "relative relative_key"},
    "tying": {"all": "true yes shared joint three_way", "none": "false no separate untied"},
    "activation": {"silu": "swish", "gelu": "gelu_new gelu_tanh gelu_pytorch_tanh", "": "elu prelu selu celu"},
    "matrix_init": {"xavier": "glorot xavier_uniform glorot_uniform"},
    "embedding_init": {"xavier": "glorot xavier_uniform glorot_uniform", "normal": "gaussian"},
    "schedule": {"inverse_sqrt": "invsqrt inv_sqrt rsqrt inverse_square_root",
                 "linear": "polynomial polynomial_decay linear_with_warmup",
                 "cosine": "cosine_annealing cosine_decay cosine_with_warmup",
                 "constant": "none fixed constant_with_warmup"},
    "best_metric": {"loss": "perplexity ppl nll cross_entropy valid_loss eval_loss val_loss",
                    "bleu": "sacrebleu eval_bleu", "accuracy": "acc"},
    "precision": {"float32": "fp32 single", "float64": "fp64 double", "bf16": "bfloat16", "fp16": "float16 half"},
    "reduce_dtype": {"float32": "fp32 single", "bf16": "bfloat16"},
    "candidate_rule": {"tensor2tensor": "t2t", "transformers": "marian huggingface hf", "fairseq": "ctranslate2 ct2"},
    "link": {"nvlink": "nvswitch", "ib": "infiniband", "ethernet": "tcp eth"},
    "to": {"huggingface": "hf transformers", "ctranslate2": "ct2"},
    "length_penalty_type": {"paper": "gnmt wu", "length": "avg average"},
}  # fmt: skip


def suggest_value(key: str, value: object, choices: Iterable[str]) -> str:
    """Return the choice that a value of a key or option probably means (a synonym or a misspelling), or "".

    `key` is a name without its table or dashes.
    """
    names = {name: ours for ours, names in OTHER_VALUES.get(key, {}).items() for name in names.split()}
    word = plain_name(str(value))
    spelled = {plain_name(choice): choice for choice in choices}
    if word in names:
        return names[word]
    return next((spelled[close] for close in similar_names(word, spelled)), "")
