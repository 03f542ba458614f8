"""The CUDA layer below the kernels: launching, matmuls and CUDA graphs."""
