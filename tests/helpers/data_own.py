"""`data own` on a folder of texts, and the files that it writes."""

from train.cli import main

SIDES = (("src", "en"), ("tgt", "de"))


def prepare(text, out, *options, part="train", valid="valid"):
    """Run `data own` on the texts of a folder; return its exit status. An option of `options` replaces the default."""
    files = [f"--train-{side}={text}/{part}.{language}" for side, language in SIDES]
    files += [f"--valid-{side}={text}/{valid}.{language}" for side, language in SIDES] if valid else []
    size = [] if any(option.startswith("--vocab-size") for option in options) else ["--vocab-size=265"]
    return main(["data", "own", *files, *size, "--keep-duplicates", f"--out={out}", *options])


def contents(folder):
    """Return the content of each file in a folder, except the manifest."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"}
