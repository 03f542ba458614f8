"""Catalog of the known corpora: URLs and hashes of the archives, and the files of each part in each language.

The SHA-256 hashes of the WMT archives are published by TensorFlow Datasets, and the hashes of Multi30k by torchtext.
The test sets and their MD5 hashes come from sacreBLEU. IWSLT14 has no published hash, so the manifest only records the
hash of the downloaded file.
"""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Archive:
    """A file to download. An unpublished `size` (bytes) is 0, and an unpublished hash is ""."""

    name: str
    url: str
    size: int = 0
    sha256: str = ""
    md5: str = ""

    @property
    def hash(self) -> str:
        """The expected hash, for messages."""
        return f"SHA-256 {self.sha256}" if self.sha256 else f"MD5 {self.md5}" if self.md5 else "no published hash"


@dataclass(frozen=True)
class Pair:
    """Two parallel texts: line i of one is the translation of line i of the other.

    `src` and `tgt` are members of the archive, or paths of files if `archive` is "".
    """

    archive: str
    src: str
    tgt: str
    form: str = "lines"  # key of LINE_FILTERS in unpack.py


@dataclass(frozen=True)
class Dataset:
    """A corpus: its archives, parts and vocabulary."""

    src: str  # language
    tgt: str
    archives: tuple[Archive, ...]
    train: tuple[Pair, ...]
    valid: tuple[Pair, ...] = ()
    test: tuple[Pair, ...] = ()
    tokenizer: str = "bpe"
    vocab_size: int = 37_000
    held_out: int = 0  # n: every n-th training pair is used for validation; 0: `valid` has separate texts

    @property
    def parts(self) -> dict[str, tuple[Pair, ...]]:
        """The texts of each part; parts without texts are omitted."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        return {part: pairs for part, pairs in parts.items() if pairs}


STATMT = "https://www.statmt.org"
EUROPARL = Archive(
    "training-parallel-europarl-v7.tgz", f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz", 657_632_379,
    "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
)  # fmt: skip
COMMON_CRAWL = Archive(
    "training-parallel-commoncrawl.tgz", f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz", 918_311_367,
    "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
)  # fmt: skip
NEWS_COMMENTARY = Archive(
    "training-parallel-nc-v9.tgz", f"{STATMT}/wmt14/training-parallel-nc-v9.tgz", 80_418_416,
    "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
)  # fmt: skip
UN = Archive(
    "training-parallel-un.tgz", f"{STATMT}/wmt13/training-parallel-un.tgz", 2_365_634_246,
    "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
)  # fmt: skip
GIGA = Archive(
    "training-giga-fren.tar", f"{STATMT}/wmt10/training-giga-fren.tar", 2_595_102_720,
    "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
)  # fmt: skip
SHEFFIELD = "http://www.quest.dcs.shef.ac.uk/wmt16_files_mmt"
MULTI30K = tuple(
    Archive(name, f"{SHEFFIELD}/{name}", sha256=sha256)
    for name, sha256 in {
        "training.tar.gz": "20140d013d05dd9a72dfde46478663ba05737ce983f478f960c1123c6671be5e",
        "validation.tar.gz": "a7aa20e9ebd5ba5adce7909498b94410996040857154dab029851af3a866da8c",
        "mmt16_task1_test.tar.gz": "0681be16a532912288a91ddd573594fbdd57c0fbb81486eff7c55247e35326c2",
    }.items()
)
TED = Archive("de-en.tgz", "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
NAMES = ("wmt14-en-de", "wmt14-en-fr", "multi30k", "iwslt14-de-en")


@cache
def dataset(name: str) -> Dataset:
    """Return the dataset with the given name from NAMES."""
    if name == "multi30k":
        texts = {
            part: (Pair(a.name, f"{stem}.en", f"{stem}.de"),)
            for part, stem, a in zip(("train", "valid", "test"), ("train", "val", "test"), MULTI30K, strict=True)
        }
        return Dataset("en", "de", MULTI30K, texts["train"], texts["valid"], texts["test"], vocab_size=9712)
    if name == "iwslt14-de-en":
        tests = ("TED.dev2010", "TED.tst2010", "TED.tst2011", "TED.tst2012", "TEDX.dev2012")
        train = (Pair(TED.name, "de-en/train.tags.de-en.de", "de-en/train.tags.de-en.en", "tags"),)
        stems = (f"de-en/IWSLT14.{test}.de-en" for test in tests)
        test = tuple(Pair(TED.name, f"{stem}.de.xml", f"{stem}.en.xml", "segments") for stem in stems)
        return Dataset("de", "en", (TED,), train, test=test, vocab_size=10_000, held_out=23)
    if name == "wmt14-en-de":
        en_de = {EUROPARL: "training/europarl-v7.de-en", COMMON_CRAWL: "commoncrawl.de-en",
                 NEWS_COMMENTARY: "training/news-commentary-v9.de-en"}  # fmt: skip
        return wmt14("de", en_de, "bpe", 37_000)
    en_fr = {EUROPARL: "training/europarl-v7.fr-en", COMMON_CRAWL: "commoncrawl.fr-en", UN: "un/undoc.2000.fr-en",
             NEWS_COMMENTARY: "training/news-commentary-v9.fr-en"}  # fmt: skip
    giga = Pair(GIGA.name, "giga-fren.release2.fixed.en.gz", "giga-fren.release2.fixed.fr.gz")
    return wmt14("fr", en_fr, "wordpiece", 32_000, (GIGA,), (giga,))


def wmt14(
    language: str,
    stems: dict[Archive, str],
    tokenizer: str,
    vocab_size: int,
    archives: tuple[Archive, ...] = (),
    pairs: tuple[Pair, ...] = (),
) -> Dataset:
    """Return WMT 2014 from English to `language`, validated on newstest2013 and tested on the full newstest2014."""
    valid_archive, valid = newstest("wmt13", language)
    test_archive, test = newstest("wmt14/full", language)
    texts = tuple(Pair(archive.name, f"{stem}.en", f"{stem}.{language}") for archive, stem in stems.items())
    files = (*stems, *archives, valid_archive, test_archive)
    return Dataset("en", language, files, texts + pairs, (valid,), (test,), tokenizer, vocab_size)


def newstest(name: str, language: str) -> tuple[Archive, Pair]:
    """Return one of sacreBLEU's test sets: its archive and its pair of texts."""
    from sacrebleu.dataset import DATASETS

    entry = DATASETS[name]
    assert entry.data and entry.md5
    url, md5 = entry.data[0], entry.md5[0]
    source, reference = (entry.langpairs or {})[f"en-{language}"][:2]
    archive = Archive(f"{name.replace('/', '-')}-{url.rsplit('/', 1)[1]}", url, md5=md5)
    return archive, Pair(archive.name, source, reference, "segments")
