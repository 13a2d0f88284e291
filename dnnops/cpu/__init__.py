"""Backend Ops for the CPU, which use oneDNN where it supports them, else BLAS or C++ loops."""
