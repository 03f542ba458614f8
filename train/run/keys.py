"""Every key of a run's configuration: its meaning, choices, range and default, in one place.

A key is a dataclass field, see models/fields.py. Those of [data] that only one task has stand in its file in tasks/.
"""

from dataclasses import dataclass, make_dataclass
from typing import Any

from models import PRESETS, TransformerConfig
from models.fields import COUNT, FRACTION, POSITIVE, key, overrides
from models.search import PENALTIES
from npx import PRECISIONS
from npx.kernels.cross_entropy import SMOOTHING_CLASSES
from train.tasks import TASKS
from train.text.tokenizer import PRETOKENIZERS

PRESET = key("base", "Architecture of the paper (base, big, rows of Table 3) that the keys below start from.",
             choices=PRESETS)  # fmt: skip
# What tensor2tensor ran where the paper's text says something else, by table: each key can be set back alone.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "tensor2tensor": {
        "model": {
            "norm": "pre",
            "positions": "sinusoidal_halves",
            "attention_dropout": 0.1,
            "activation_dropout": 0.1,
        },
        "train": {"smoothing_over": "others", "adam_eps_inside": True},
    },
}
VARIANT = key(
    "paper",
    "Details as the paper's text has them, or as its authors' program ran them (tensor2tensor): norms before"
    " sub-layers, sines before cosines, dropout also on attention weights and after the ReLU, label smoothing over"
    " the wrong types alone, Adam's epsilon before the bias correction.",
    choices=VARIANTS,
)
ModelSection: Any = make_dataclass(
    "ModelSection",
    [("preset", str, PRESET), ("variant", str, VARIANT), *overrides(TransformerConfig, "what the preset says")],
    namespace={"__doc__": "[model]: Which Transformer. A key that is left out is the preset's."},
    frozen=True,
)


@dataclass(frozen=True)
class AnyTask:
    """The keys of [data] that every task has."""

    task: str = key("translation", "What is learned from the text.", choices=TASKS)
    tokenizer: str = key(
        "bpe",
        "Learned on the training text, all sides together: "
        + "; ".join(f"{' or '.join(task.tokenizers)} for {task.name}" for task in TASKS.values())
        + "; or the path of a saved tokenizer.json.",
    )
    pretokenizer: str = key(
        "words",
        "What a piece may not reach across: words and punctuation (words; for plain text), or white space alone"
        " (whitespace; for text that is tokenised already).",
        choices=PRETOKENIZERS,
    )
    vocab_size: int = key(
        37000, "Types V of the vocabulary at most, its 4 special ones included.", within="[5, 16777216]"
    )
    prepared: str = key(
        "", "Folder of token arrays, which runs on the same text may share; empty: RUN/data.", may_change=True
    )
    max_length: int = key(
        256,
        "Longest side in tokens, end included, of a pair (longer ones are skipped and counted); of a text, the tokens"
        " that are predicted in a row, which is how far a language model looks back.",
        within="[2, 65535]",
    )


def data_section() -> Any:
    """[data]: the keys of every task, in the order of `TASKS`, then those that all have."""
    own = [task.keys for task in reversed(TASKS.values())]
    about = " ".join(str(task.keys.__doc__) for task in TASKS.values())
    return dataclass(frozen=True)(type("DataSection", (AnyTask, *own), {"__doc__": f"[data]: Which text. {about}"}))


DataSection = data_section()


@dataclass(frozen=True)
class TrainSection:
    """[train]: How the model is trained."""

    seed: int = key(1, "Fixes the first weights, the order of batches and dropout.", within="[0, 4294967295]")
    batch_tokens: int = key(
        25000, "Size of a micro-batch: at most so many tokens on each side, padding included.", within=COUNT
    )
    accumulate: int = key(1, "Micro-batches an update: the gradient of all in the memory of one.", within="[1, 4096]")
    max_steps: int = key(100_000, "Updates to train for.", within=COUNT, may_change=True)
    warmup_steps: int = key(4000, "Updates in which the rate rises; then it falls as step^-0.5.", within=COUNT)
    lr_scale: float = key(
        1.0,
        "Factor on the paper's learning rate d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).",
        within=POSITIVE,
    )
    beta1: float = key(0.9, "Adam: decay of the mean of the gradients.", within=FRACTION)
    beta2: float = key(0.98, "Adam: decay of the mean of the squared gradients.", within=FRACTION)
    adam_eps: float = key(1e-9, "Adam: added to the root of the second moment.", within=POSITIVE)
    adam_eps_inside: bool = key(
        False, "Adam: adam_eps is added before the bias correction (TensorFlow, fairseq), not after it (the paper)."
    )
    weight_decay: float = key(0.0, "Decoupled weight decay; 0 is none, as in the paper.", within="[0, 1000]")
    clip_norm: float = key(0.0, "Longest gradient (Euclidean norm); 0 never clips, as in the paper.", within="[0, 1e9]")
    label_smoothing: float = key(0.1, "Share of the target probability that is spread over the types.", within=FRACTION)
    smoothing_over: str = key(
        "all",
        "The types it is spread over: all V, the V - 1 wrong ones, or those without padding (V - 2).",
        choices=SMOOTHING_CLASSES,
    )
    precision: str = key(
        "float32",
        "Numbers the model computes with. On a GPU also tf32 (faster products of float32) and, with weights kept in"
        " float32, bf16 or fp16 (whose loss is scaled as its range needs); float64 is for checks.",
        choices=PRECISIONS,
    )
    graphs: bool = key(
        False,
        "On a GPU: ask for all kernels of a batch at once, as a CUDA graph of its shape; for batches of a few thousand"
        " tokens.",
    )
    recompute: bool = key(
        False,
        "Keep of each layer only what goes in and out, and form the rest again on the way back: the same gradients"
        " in less memory and more time.",
        may_change=True,
    )
    max_skipped: int = key(
        10,
        "Updates in a row that may be skipped because a loss or gradient is not finite, before training stops.",
        within="[0, 1e6]",
        may_change=True,
    )
    validate_every: int = key(1000, "Updates between validations.", within=COUNT, may_change=True)
    checkpoint_every: int = key(1000, "Updates between checkpoints.", within=COUNT, may_change=True)
    checkpoint_minutes: float = key(
        0.0,
        "Minutes of updates between checkpoints (the paper: 10); 0: checkpoint_every decides.",
        within="[0, 1e6]",
        may_change=True,
    )
    keep_last: int = key(5, "Checkpoints kept; `average` takes the mean of these.", within=COUNT, may_change=True)
    patience: int = key(
        0,
        "Stop after so many validations without a lower loss, or a better score where a task is judged by one (F1);"
        " 0: never early.",
        within="[0, 1e6]",
        may_change=True,
    )
    validate_bleu: bool = key(
        True, "Also translate the validation text (or parse it), and report its BLEU (its F1).", may_change=True
    )
    shard: bool = key(
        False,
        "Of several ranks each keeps and updates only its part of Adam's moments and of the weights in float32 that"
        " bf16 and fp16 have, instead of all of them.",
        may_change=True,
    )
    reduce_dtype: str = key(
        "float32",
        "Numbers in which ranks send each other gradients: float32, which is as they are, or bf16, half of the bytes."
        " They are added as they are.",
        choices=("float32", "bf16"),
    )
    rank_timeout: float = key(
        20.0,
        "Seconds without a sign of life of a rank, or of waiting for it, after which a run of several ranks ends.",
        within="[1, 1e6]",
        may_change=True,
    )
    log_every: int = key(50, "Updates between lines of metrics.jsonl and log.txt.", within=COUNT, may_change=True)


@dataclass(frozen=True)
class SearchSection:
    """[search]: How `translate` and `parse` search; their options go before. A validation is greedy."""

    beam: int = key(4, "Hypotheses kept for a sentence; 1 is greedy search.", within="[1, 512]", may_change=True)
    alpha: float = key(0.6, "Exponent of the length penalty; 0 is none.", within="[0, 10]", may_change=True)
    penalty: str = key(
        "paper",
        "Score = log-probability / penalty: ((5 + |Y|) / 6)^alpha (paper), or |Y|^alpha (length: fairseq, Marian,"
        " CTranslate2); |Y| counts the end of the sentence.",
        choices=PENALTIES,
        may_change=True,
    )
    max_extra: int = key(
        50, "Tokens a translation may have more than its source.", within="[1, 10000]", may_change=True
    )
    batch_tokens: int = key(4096, "Source tokens translated together, padding included.", within=COUNT, may_change=True)


SECTIONS: dict[str, Any] = {"model": ModelSection, "data": DataSection, "train": TrainSection, "search": SearchSection}

# What the paper (Table 3), or the model's author, changes in [train] for a preset.
TRAINING: dict[str, dict[str, Any]] = {
    "big": {"max_steps": 300_000},
    "big-enfr": {"max_steps": 300_000},
    "D-ls0.0": {"label_smoothing": 0.0},
    "D-ls0.2": {"label_smoothing": 0.2},
    "parsing-wsj": {"max_steps": 40_000},
    "parsing-semi": {"max_steps": 300_000},
    "parsing-small": {"max_steps": 13_000},
    "tiny": {"max_steps": 8000},
}
# By every preset and variant: at its default where TRAINING and VARIANTS have none.
DECIDED = ("label_smoothing", "max_steps", "smoothing_over", "adam_eps_inside")
NAMED = ("preset", "variant")  # the keys of [model] that stand for others
