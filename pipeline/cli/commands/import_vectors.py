"""`import-vectors`: word vectors of word2vec, GloVe or fastText -> an encoder folder."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser, check_free, place, positive

HELP = "word vectors of word2vec, GloVe or fastText, as text -> an encoder folder"
WORDS = 100_000


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--vectors", type=place, required=True, help="text file, may be .gz or .xz")
    parser.add_argument("--words", type=positive, default=WORDS, help="at most, the first of the file")
    parser.add_argument("--out", type=place, required=True, help="encoder folder to write")


def run(options: argparse.Namespace) -> None:
    from pipeline.cards.encoder import imported_card
    from pipeline.console import typed
    from pipeline.interop import word2vec
    from pipeline.storage.folders import write_folder

    check_free(options.out)
    words, vectors = word2vec.read(options.vectors, most=options.words)
    encoder = word2vec.encoder_of(words, vectors)
    origin = f"Imported from {options.vectors.name}; it has no output layer."
    card = imported_card(encoder, origin)
    write_folder(options.out, lambda folder: encoder.save(folder, card=card))
    found, size = word2vec.readable(encoder, words), f"{len(words):,} words, {vectors.shape[1]} numbers each"
    cased = "as it is" if encoder.tokenizer.normalize("A") == "A" else "in lower case"
    print(f"Saved {options.out}: {size}; {found:,} of the words are found in texts, others have punctuation or spaces.")
    print(f"Text is read {cased}.")
    print(f"Next: {typed.command('finetune', model=encoder.model_type, from_=options.out)}")
