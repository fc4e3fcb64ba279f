"""Formats and harnesses of others: ELMo's HDF5, lm-eval."""
