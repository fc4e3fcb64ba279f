"""Zero-shot accuracy over the words that pretraining has seen.

`saved.py` finds the encoders that runs have saved on their way, `curve.py` asks them, `plot.py` draws.
"""
