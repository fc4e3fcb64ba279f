"""Model cards: the README.md of the folder of an encoder or model, with the front matter of the Hugging Face hub.

- `encoder.py`, `finetuned.py`: the cards of the two kinds of folder. `sections.py`, `loading.py`: what both have.
- `publish.py`: what a card says once the folder has a name on the hub.
"""
