"""Formats and harnesses of others: ARPA, ELMo's HDF5, word2vec's text, lm-eval."""
