"""Forms that users write by hand, replaced by the Ops that they stand for."""
