"""`import-elmo`: published ELMo weights -> an encoder folder."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import Parser, check_free, place

HELP = "published ELMo weights -> an encoder folder"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--options", type=place, required=True, help="options.json")
    parser.add_argument("--weights", type=place, required=True, help="weights.hdf5")
    parser.add_argument("--out", type=place, required=True, help="encoder folder to write")
    about = "each text begins from a zero state, or from that of the text before"
    parser.add_argument("--state", choices=("reset", "carry"), default="reset", help=about)


def run(options: argparse.Namespace) -> None:
    from pipeline.cards.encoder import imported_card
    from pipeline.interop import elmo_hdf5
    from pipeline.storage.folders import write_folder

    check_free(options.out)
    encoder = elmo_hdf5.import_elmo(options.options, options.weights, state=options.state)
    origin = f"Imported from {options.options.name} and {options.weights.name}; it has no output layer."
    card = imported_card(encoder, origin)
    write_folder(options.out, lambda folder: encoder.save(folder, card=card))
    count = sum(p.numel() for p in encoder.parameters())
    print(f"Saved {options.out}: {count:,} parameters, layers of {encoder.size}, state {options.state}.")
