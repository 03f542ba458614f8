"""A CUDA emulator: `emulator.py` compiles and launches kernels, the headers emulate CUDA in C++."""
