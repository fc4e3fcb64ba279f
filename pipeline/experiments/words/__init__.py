"""Zero-shot accuracy over the words that pretraining has seen: `curve.py` measures, `plot.py` draws."""
