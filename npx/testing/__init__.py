"""Test machinery for kernels: a CUDA emulator, a compiler report and interleaved threads. Imported only when used."""
