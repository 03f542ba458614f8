"""Results printed in the paper. Table 3 is keyed by preset, Tables 2 and 4 by model."""


def _row(bleu: float, ppl: float, params_millions: float = 65) -> dict[str, float]:
    return {"ppl": ppl, "bleu": bleu, "params_millions": params_millions}


# Table 3: perplexity and BLEU on newstest2013 (English-German), parameters in millions.
TABLE3: dict[str, dict[str, float]] = {
    "base": _row(25.8, 4.92),
    "big": _row(26.4, 4.33, 213),
    "A-h1": _row(24.9, 5.29),
    "A-h4": _row(25.5, 5.00),
    "A-h16": _row(25.8, 4.91),
    "A-h32": _row(25.4, 5.01),
    "B-dk16": _row(25.1, 5.16, 58),
    "B-dk32": _row(25.4, 5.01, 60),
    "C-N2": _row(23.7, 6.11, 36),
    "C-N4": _row(25.3, 5.19, 50),
    "C-N8": _row(25.5, 4.88, 80),
    "C-d256": _row(24.5, 5.75, 28),
    "C-d1024": _row(26.0, 4.66, 168),
    "C-ff1024": _row(25.4, 5.12, 53),
    "C-ff4096": _row(26.2, 4.75, 90),
    "D-drop0.0": _row(24.6, 5.77),
    "D-drop0.2": _row(25.5, 4.95),
    "D-ls0.0": _row(25.3, 4.67),
    "D-ls0.2": _row(25.7, 5.47),
    "E-learned": _row(25.7, 4.92),
}

# Table 4: parser, training data, labeled F1 on section 23 of the Wall Street Journal.
TABLE4: list[tuple[str, str, float]] = [
    ("Vinyals & Kaiser et al. (2014)", "WSJ only, discriminative", 88.3),
    ("Petrov et al. (2006)", "WSJ only, discriminative", 90.4),
    ("Zhu et al. (2013)", "WSJ only, discriminative", 90.4),
    ("Dyer et al. (2016)", "WSJ only, discriminative", 91.7),
    ("Transformer (4 layers)", "WSJ only, discriminative", 91.3),
    ("Zhu et al. (2013)", "semi-supervised", 91.3),
    ("Huang & Harper (2009)", "semi-supervised", 91.3),
    ("McClosky et al. (2006)", "semi-supervised", 92.1),
    ("Vinyals & Kaiser et al. (2014)", "semi-supervised", 92.1),
    ("Transformer (4 layers)", "semi-supervised", 92.7),
    ("Luong et al. (2015)", "multi-task", 93.0),
    ("Dyer et al. (2016)", "generative", 93.3),
]

# Table 2: BLEU on newstest2014 and training cost in FLOPs of each language pair, if the paper prints them.
TABLE2: list[dict[str, str]] = [
    {"model": "ByteNet", "en-de": "23.75"},
    {"model": "Deep-Att + PosUnk", "en-fr": "39.2", "en-fr FLOPs": "1.0e20"},
    {"model": "GNMT + RL", "en-de": "24.6", "en-fr": "39.92", "en-de FLOPs": "2.3e19", "en-fr FLOPs": "1.4e20"},
    {"model": "ConvS2S", "en-de": "25.16", "en-fr": "40.46", "en-de FLOPs": "9.6e18", "en-fr FLOPs": "1.5e20"},
    {"model": "MoE", "en-de": "26.03", "en-fr": "40.56", "en-de FLOPs": "2.0e19", "en-fr FLOPs": "1.2e20"},
    {"model": "Deep-Att + PosUnk, ensemble", "en-fr": "40.4", "en-fr FLOPs": "8.0e20"},
    {"model": "GNMT + RL, ensemble", "en-de": "26.30", "en-fr": "41.16", "en-de FLOPs": "1.8e20",
     "en-fr FLOPs": "1.1e21"},
    {"model": "ConvS2S, ensemble", "en-de": "26.36", "en-fr": "41.29", "en-de FLOPs": "7.7e19",
     "en-fr FLOPs": "1.2e21"},
    {"model": "Transformer (base)", "en-de": "27.3", "en-fr": "38.1", "en-de FLOPs": "3.3e18", "en-fr FLOPs": "3.3e18"},
    {"model": "Transformer (big)", "en-de": "28.4", "en-fr": "41.8", "en-de FLOPs": "2.3e19", "en-fr FLOPs": "2.3e19"},
]  # fmt: skip
TABLE2_ROWS = {  # maps a preset to its language pairs and row in Table 2
    "base": (("en-de", "en-fr"), TABLE2[-2]),
    "big": (("en-de",), TABLE2[-1]),
    "big-enfr": (("en-fr",), TABLE2[-1]),
}
SUSTAINED_TFLOPS = {"K80": 2.8, "K40": 3.7, "M40": 6.0, "P100": 9.5}  # TFLOP/s in single precision, footnote 5
