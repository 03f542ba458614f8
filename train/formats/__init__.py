"""Import models of other programs as run folders, and export runs to the formats of other programs."""

# Each import registers the formats that it writes.
from train.formats import bert, ctranslate2, gpt2, marian_folder, onnx
from train.formats.export import export_run
from train.formats.importer import import_folder

__all__ = ["bert", "ctranslate2", "export_run", "gpt2", "import_folder", "marian_folder", "onnx"]
