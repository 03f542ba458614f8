"""What the CUDA versions of the kernels stand on: launching, matrix products, the compiler, and an emulator."""
