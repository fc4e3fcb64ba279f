"""Text and tables on disk -> token ids on disk -> rows. NumPy, no torch."""
