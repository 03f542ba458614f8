"""The CUDA layer below the kernels: launching, GEMMs and CUDA graphs."""
