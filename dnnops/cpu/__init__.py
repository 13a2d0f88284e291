"""Backend Ops for the CPU, which use oneDNN and, where oneDNN has no support, BLAS or C++ loops."""
