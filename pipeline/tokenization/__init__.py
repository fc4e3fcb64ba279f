"""Tokenizers: one file a scheme."""
