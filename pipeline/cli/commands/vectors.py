"""`make vectors`: the vectors of an encoder's tokens as a file of word2vec."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import OUTPUT, Parser, add_encoder, add_model, check_free, place

HELP = "the vectors of an encoder's tokens as a text file of word2vec, which gensim and others open"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_encoder(parser, "encoder folder [runs/pretrain/MODEL/encoder]")
    parser.group(OUTPUT).add_argument("--out", type=place, required=True, help="text file to write")


def run(options: argparse.Namespace) -> None:
    from pipeline import encoders
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.interop import word2vec
    from pipeline.storage.atomic import write_atomically

    check_free(options.out)
    encoder = encoders.load(encoder_folder(options.model, options.encoder))
    lines = [*word2vec.as_text(encoder)]
    write_atomically(options.out, "".join(lines))
    print(f"Saved {options.out}: {len(lines) - 1:,} tokens, {lines[0].split()[1]} numbers each")
