"""Every key of a run's configuration: its meaning, choices, range and default, in one place.

A key is a dataclass field (see models/fields.py). Keys of [data] that belong to one task are in that task's file.
"""

from dataclasses import dataclass, make_dataclass
from typing import Any

from models import PRESETS, TransformerConfig
from models.fields import COUNT, FRACTION, POSITIVE, key, optional_keys
from models.search import CANDIDATE_RULES, LENGTH_PENALTY_RANGE, LENGTH_PENALTY_TYPES
from npx import PRECISIONS
from npx.kernels.cross_entropy import SMOOTHING_CLASSES
from train.tasks import TASKS
from train.text.tokenizer import PRETOKENIZERS

PRESET = key(
    "base",
    "A model of the paper (base, big, rows of Table 3, parsing) or a small one (tiny, parsing-small); the keys below"
    " override its values.",
    choices=PRESETS,
)
# The keys in which the authors' program, tensor2tensor, differs from the text of the paper. The user can override each
# of them. Version 1 is transformer_base of the first public commit (15 June 2017, the week of the paper) and of the
# releases up to 1.1.
VERSION_1: dict[str, dict[str, Any]] = {
    "model": {
        "positions": "sinusoidal_halves",
        "position_rates": "tensor2tensor",
        "attention_bias": True,
        "matrix_init": "uniform_unit_scaling",
        "target_space": True,
        "decoder_start": "zeros",
    },
    "train": {"smoothing_classes": "others", "adam_eps_before_correction": True},
    "search": {"candidate_rule": "tensor2tensor"},
}
# Version 2 is transformer_base_v2, the default from 6 October 2017 (commit d5bdfcc8).
VERSION_2_CHANGES: dict[str, dict[str, Any]] = {
    "model": {"norm_placement": "pre", "attention_dropout": 0.1, "activation_dropout": 0.1},
    "train": {"warmup_steps": 8000, "lr_scale": 2.0},
}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "tensor2tensor-v1": VERSION_1,
    "tensor2tensor-v2": {table: keys | VERSION_2_CHANGES.get(table, {}) for table, keys in VERSION_1.items()},
    # A mixture of both versions, with the paper's position rates, for runs of earlier versions of this program.
    "tensor2tensor": {
        "model": {
            "norm_placement": "pre",
            "positions": "sinusoidal_halves",
            "position_rates": "paper",
            "attention_dropout": 0.1,
            "activation_dropout": 0.1,
        },
        "train": {"smoothing_classes": "others", "adam_eps_before_correction": True},
    },
}
VARIANT = key(
    "paper",
    "Details of the paper's text (paper), or of its authors' program as of June 2017 (tensor2tensor-v1) or October"
    " 2017 (tensor2tensor-v2); docs/configuration.md lists the keys. tensor2tensor, a mixture of both, only serves to"
    " load runs of earlier versions of this program.",
    choices=VARIANTS,
)
ModelSection: Any = make_dataclass(
    "ModelSection",
    [("preset", str, PRESET), ("variant", str, VARIANT), *optional_keys(TransformerConfig, "the preset's value")],
    namespace={
        "__doc__": "[model]: The Transformer. Keys that are left out have the preset's values.",
        "__module__": __name__,  # where pickle looks for the class
    },
    frozen=True,
)


def tasks_by_tokenizers() -> dict[tuple[str, ...], list[str]]:
    """Return the names of the tasks, grouped by the kinds of tokenizers that they can train."""
    names: dict[tuple[str, ...], list[str]] = {}
    for task in TASKS.values():
        names.setdefault(task.tokenizers, []).append(task.name)
    return names


@dataclass(frozen=True)
class CommonKeys:
    """The keys of [data] that every task has."""

    task: str = key("translation", "The task to train for.", choices=TASKS)
    tokenizer: str = key(
        "bpe",
        "Kind of tokenizer to train on all sides of the training text: "
        + "; ".join(f"{' or '.join(kinds)} for {', '.join(names)}" for kinds, names in tasks_by_tokenizers().items())
        + "; or the path of an existing tokenizer.json.",
        is_path=True,
    )
    pretokenizer: str = key(
        "words",
        "Where text is split before it is segmented into subwords: at words and punctuation (words, for plain text) or"
        " only at whitespace (whitespace, for tokenized text).",
        choices=PRETOKENIZERS,
    )
    vocab_size: int = key(37000, "Maximum vocabulary size V, including 4 special tokens.", interval="[5, 16777216]")
    prepared: str = key(
        "",
        "Folder for the token arrays, which runs on the same text can share; empty: RUN/data.",
        may_change=True,
        is_path=True,
    )
    max_length: int = key(
        256,
        "Maximum number of tokens per side of a pair, end of sentence included (longer pairs are skipped and counted)."
        " Language model: length of the context. Labeled text: maximum number of tokens, including beginning and end.",
        interval="[2, 65535]",
    )


def data_section() -> Any:
    """Return the dataclass of [data]: the keys of every task, in the order of `TASKS`, then the common ones."""
    of_tasks = [task.key_class for task in reversed(TASKS.values())]
    task_texts = " ".join(str(task.key_class.__doc__) for task in TASKS.values())
    return dataclass(frozen=True)(
        type("DataSection", (CommonKeys, *of_tasks), {"__doc__": f"[data]: The text. {task_texts}"})
    )


DataSection = data_section()


SCORES = (name for task in TASKS.values() for name in task.scores if name not in task.lower_is_better)
METRICS = ("loss", *dict.fromkeys(SCORES))
SCHEDULES = {  # maps a name to the learning rate after warmup, for the log; see train/learn/schedule.py
    "noam": "step^-0.5",
    "inverse_sqrt": "step^-0.5",
    "linear": "linear decay, to 0 after train.max_steps",
    "cosine": "cosine decay, to 0 after train.max_steps",
    "constant": "constant",
}


@dataclass(frozen=True)
class TrainSection:
    """[train]: Training."""

    seed: int = key(1, "Seed of the initialization, the order of batches and dropout.", interval="[0, 4294967295]")
    init: str = key(
        "",
        "Run or checkpoint that provides the initial weights; empty: random weights. Option: --init.",
        may_change=True,
        is_path=True,
    )
    init_parameters: str = key(
        "",
        "Patterns, separated by commas, of the parameters that train.init sets, such as encoder.*; empty: all."
        " Option: --init-parameters.",
    )
    freeze: str = key(
        "", "Patterns, separated by commas, of parameters that are not trained, such as embedding.weight, encoder.*."
    )
    batch_tokens: int = key(25000, "Maximum tokens per side of a micro-batch, padding included.", interval=COUNT)
    gradient_accumulation_steps: int = key(
        1,
        "Micro-batches per update. Their gradients are summed, so an update needs only the memory of one micro-batch.",
        interval="[1, 4096]",
    )
    max_steps: int = key(100_000, "Number of updates.", interval=COUNT, may_change=True)
    schedule: str = key(
        "noam",
        "Learning rate after warmup: proportional to step^-0.5 as in the paper (noam; also called inverse_sqrt), linear"
        " or cosine decay to 0 after max_steps, or constant.",
        choices=SCHEDULES,
        may_change=True,
    )
    peak_lr: float = key(
        0.0,
        "Highest learning rate, reached at the end of warmup; replaces lr_scale. 0 means the paper's value, lr_scale *"
        " (d_model * warmup_steps)^-0.5.",
        interval="[0, 1e9]",
        may_change=True,
    )
    warmup_steps: int = key(
        4000,
        "Number of updates in which the learning rate rises linearly; then train.schedule applies.",
        interval=COUNT,
        may_change=True,
    )
    lr_scale: float = key(
        1.0,
        "Factor that multiplies the paper's learning rate d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).",
        interval=POSITIVE,
        may_change=True,
    )
    beta1: float = key(0.9, "Adam: decay rate of the mean of the gradients.", interval=FRACTION)
    beta2: float = key(0.98, "Adam: decay rate of the mean of the squared gradients.", interval=FRACTION)
    adam_eps: float = key(
        1e-9, "Adam: epsilon, added to the square root of the second moment.", interval="[1e-30, 1e9]"
    )
    adam_eps_before_correction: bool = key(
        False, "Adam: add epsilon before the bias correction (TensorFlow, fairseq) instead of after it (the paper)."
    )
    weight_decay: float = key(
        0.0, "Decoupled weight decay (AdamW); 0 disables it, as in the paper.", interval="[0, 1000]"
    )
    ema_decay: float = key(
        0.0,
        "Decay of the exponential moving average of the weights; 0 disables it, and 0.999 is a common value."
        " Validations, checkpoints and commands use the average. It takes the memory of one more copy of the weights.",
        interval=FRACTION,
    )
    clip_norm: float = key(
        0.0,
        "Clip the global gradient L2 norm to this value; 0 disables clipping, as in the paper.",
        interval="[0, 1e9]",
    )
    label_smoothing: float = key(
        0.1, "Probability mass that label smoothing distributes over the classes.", interval=FRACTION
    )
    smoothing_classes: str = key(
        "all",
        "Classes among which label smoothing distributes the probability: all (all V), others (the V - 1 incorrect"
        " ones) or others_without_pad (the V - 2 incorrect ones without padding).",
        choices=SMOOTHING_CLASSES,
    )
    bpe_dropout: float = key(
        0.0,
        "BPE dropout: probability of skipping a merge when the training text is segmented again in each epoch; 0"
        " disables it. It needs a bpe tokenizer. In parsing, it applies to the sentences.",
        interval=FRACTION,
    )
    mask_rate: float = key(
        0.15, "Masked language model: fraction of the tokens of a text that are predicted.", interval="(0, 1)"
    )
    rdrop_weight: float = key(
        0.0,
        "R-Drop: weight of the symmetric KL divergence between two passes with different dropout; 0 disables it. An"
        " update then takes about three times as long.",
        interval="[0, 1000]",
    )
    precision: str = key(
        "float32",
        "Dtype of the computation. On a GPU also tf32 (faster float32 matmuls) and, with float32 master weights, bf16"
        " or fp16 (with loss scaling); float64 is for checks.",
        choices=PRECISIONS,
    )
    cuda_graphs: bool = key(
        False,
        "On a GPU, launch all kernels of a micro-batch at once, as a CUDA graph. Small batches are up to four times as"
        " fast.",
    )
    gradient_checkpointing: bool = key(
        False,
        "Save only the inputs and outputs of each layer and recompute the rest in the backward pass. The gradients are"
        " the same; training needs less memory and more time.",
        may_change=True,
    )
    max_skipped_updates: int = key(
        10,
        "Stop training if more than this many updates in a row are skipped because a loss or gradient is not finite.",
        interval="[0, 1e6]",
        may_change=True,
    )
    validate_every: int = key(1000, "Updates between validations.", interval=COUNT, may_change=True)
    checkpoint_every: int = key(1000, "Updates between checkpoints.", interval=COUNT, may_change=True)
    checkpoint_minutes: float = key(
        0.0,
        "Minutes of training between checkpoints (the paper: 10); 0 uses checkpoint_every.",
        interval="[0, 1e6]",
        may_change=True,
    )
    keep_last: int = key(5, "Number of checkpoints to keep; `average` averages them.", interval=COUNT, may_change=True)
    best_metric: str | None = key(
        None,
        "Metric that selects checkpoints/best (lowest loss or highest score) and decides about early stopping."
        " Commands load checkpoints/best. An equal score is no improvement, unless both are 0 and the loss is lower.",
        choices=METRICS,
        none_means="F1 for parsing; accuracy for classification and tagging; otherwise patience applies to the loss and"
        " no best checkpoint is kept",
        may_change=True,
    )
    keep_best: int = key(
        1,
        "Number of best checkpoints to keep. With 2 or more, checkpoints/best-N keeps the weights after step N, and"
        " `average --best` averages them.",
        interval="[1, 1000]",
        may_change=True,
    )
    patience: int = key(
        0,
        "Stop after this many consecutive validations without an improvement of best_metric; 0 disables early"
        " stopping.",
        interval="[0, 1e6]",
        may_change=True,
    )
    validate_score: bool = key(
        True,
        "In validations, also translate, parse or label the text, to measure BLEU, chrF, F1 or accuracy.",
        may_change=True,
    )
    shard_optimizer: bool = key(
        False,
        "With several ranks, each stores and updates only its shard of Adam's moments and of the float32 master weights"
        " of bf16 and fp16.",
        may_change=True,
    )
    reduce_dtype: str = key(
        "float32",
        "Dtype in which ranks send gradients: float32, or bf16 for half the bytes. The ranks add them in their original"
        " dtype.",
        choices=("float32", "bf16"),
    )
    rank_timeout: float = key(
        20.0,
        "Seconds after which a run with several ranks ends if a rank sends no heartbeat or keeps the others waiting.",
        interval="[1, 1e6]",
        may_change=True,
    )
    log_every: int = key(50, "Updates between lines of metrics.jsonl and log.txt.", interval=COUNT, may_change=True)
    csv: bool = key(False, "Also write the metrics to metrics.csv.", may_change=True)
    tensorboard: bool = key(
        False, "Also write the metrics as TensorBoard event files (extra tensorboard).", may_change=True
    )

    def loss_options(self, loss_normalizer: float) -> dict[str, Any]:
        """Return the keyword arguments of a model's loss in training."""
        options = {
            "label_smoothing": self.label_smoothing,
            "smoothing_classes": self.smoothing_classes,
            "loss_normalizer": loss_normalizer,
        }
        return options | ({"rdrop_weight": self.rdrop_weight} if self.rdrop_weight else {})


@dataclass(frozen=True)
class SearchSection:
    """[search]: Defaults of `translate` and `parse`, which their options override. Validations search greedily."""

    beam_size: int = key(
        4, "Beam width; 1 is greedy if candidate_rule is plain or fairseq.", interval="[1, 512]", may_change=True
    )
    length_penalty: float = key(
        0.6,
        "Exponent of the length penalty (the paper's alpha). 0 disables it, and a negative one favors short outputs.",
        interval=LENGTH_PENALTY_RANGE.interval,
        may_change=True,
    )
    length_penalty_type: str = key(
        "paper",
        "Score = log-probability / ((5 + |Y|) / 6)^length_penalty (paper), or log-probability / |Y|^length_penalty"
        " (length: fairseq, Marian, CTranslate2); |Y| counts the end of the sentence.",
        choices=LENGTH_PENALTY_TYPES,
        may_change=True,
    )
    candidate_rule: str = key(
        "plain",
        "Of the continuations at each step, which finish and which stay live. plain: of the `beam_size` best, those"
        " with an end-of-sentence finish and the others stay live. tensor2tensor: of the 2 x beam_size best, those with"
        " an end-of-sentence finish and the `beam_size` best others stay live. transformers (and Marian): the same, but"
        " only the `beam_size` best can finish. fairseq (and CTranslate2): the same as transformers, but the search"
        " stops when `beam_size` hypotheses have finished, and not only when no other can be better.",
        choices=CANDIDATE_RULES,
        may_change=True,
    )
    max_extra_tokens: int = key(
        50,
        "Maximum length of an output: the length of its source plus this many tokens.",
        interval="[1, 10000]",
        may_change=True,
    )
    batch_tokens: int = key(
        4096, "Maximum source tokens of a search batch, padding included.", interval=COUNT, may_change=True
    )


SECTIONS: dict[str, Any] = {"model": ModelSection, "data": DataSection, "train": TrainSection, "search": SearchSection}

# The values of [train] that the paper (Table 3) or the authors of a model use for its preset.
PRESET_TRAIN: dict[str, dict[str, Any]] = {
    "big": {"max_steps": 300_000},
    "big-enfr": {"max_steps": 300_000},
    "D-ls0.0": {"label_smoothing": 0.0},
    "D-ls0.2": {"label_smoothing": 0.2},
    "parsing-wsj": {"max_steps": 40_000},
    "parsing-semi": {"max_steps": 300_000},
    "parsing-small": {"max_steps": 13_000},
    "tiny": {"max_steps": 8000, "batch_tokens": 4096, "warmup_steps": 1000},
}
# The values of [data] that suit a preset: a small model trains on a small text.
PRESET_DATA: dict[str, dict[str, Any]] = {"tiny": {"vocab_size": 8000}}
# Choosing a preset or variant resets these keys to the values in PRESET_TRAIN, PRESET_DATA and VARIANTS or, for keys
# without such a value, to their defaults.
RESET_KEYS: dict[str, tuple[str, ...]] = {
    "data": ("vocab_size",),
    "train": (
        "label_smoothing", "max_steps", "batch_tokens", "warmup_steps", "lr_scale", "smoothing_classes",
        "adam_eps_before_correction",
    ),
    "search": ("candidate_rule",),
}  # fmt: skip
SELECTORS = ("preset", "variant")  # the keys of [model] that stand for a set of other keys
