"""Test machinery for kernels (CUDA emulator, compiler report, interleaved threads), imported only when it is used."""
