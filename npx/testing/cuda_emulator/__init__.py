"""Runs the CUDA kernels without a GPU: `emulator.py` on this side, the headers beside it on the C++ side."""
