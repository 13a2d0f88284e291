"""Backend Ops on the CPU: oneDNN, and BLAS or plain loops for what oneDNN does not have."""
