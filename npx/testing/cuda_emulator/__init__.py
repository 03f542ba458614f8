"""A CUDA emulator: `emulator.py` compiles and launches kernels, and the headers emulate CUDA in C++."""
