"""The models of the paper and some small ones by name, as differences from the paper's base model."""

from typing import Any

BIG = {"d_model": 1024, "d_ff": 4096, "n_heads": 16, "dropout": 0.3}

PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "big": BIG,
    "big-enfr": {**BIG, "dropout": 0.1},
    # Table 3. A: heads; B: key size; C: model size; D: dropout and label smoothing; E: learned positions.
    "A-h1": {"n_heads": 1, "d_k": 512, "d_v": 512},
    "A-h4": {"n_heads": 4, "d_k": 128, "d_v": 128},
    "A-h16": {"n_heads": 16, "d_k": 32, "d_v": 32},
    "A-h32": {"n_heads": 32, "d_k": 16, "d_v": 16},
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    "C-N2": {"n_layers": 2},
    "C-N4": {"n_layers": 4},
    "C-N8": {"n_layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-drop0.0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "D-ls0.0": {},
    "D-ls0.2": {},
    "E-learned": {"positions": "learned"},
    # Section 6.3, constituency parsing: base (trained on WSJ only) and big (semi-supervised), with 4 layers of width
    # 1024. The paper tuned dropout on section 22 without reporting it; these rates are from the authors' code.
    "parsing-wsj": {"d_model": 1024, "n_layers": 4, "dropout": 0.2, "attention_dropout": 0.2},
    "parsing-semi": {**BIG, "n_layers": 4, "dropout": 0.1},
    # Not in the paper: a small parser for a few thousand trees, and the Multi30k model of Wu et al. (ACL 2021).
    "parsing-small": {
        "d_model": 192,
        "d_ff": 768,
        "n_heads": 4,
        "n_layers": 4,
        "norm_placement": "pre",
        "dropout": 0.25,
    },
    "tiny": {"d_model": 128, "d_ff": 256, "n_heads": 4, "n_layers": 4, "dropout": 0.3},
}
