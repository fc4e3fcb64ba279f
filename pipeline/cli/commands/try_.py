"""`make try`: what an encoder knows, to look at."""

from __future__ import annotations

import argparse
import sys

from pipeline.cli.arguments import (
    Parser,
    add_corpus,
    add_encoder,
    add_model,
    add_overrides,
    natural,
    number,
    positive,
    request_of,
)
from pipeline.errors import UserError
from pipeline.training.requests import CorpusRequest

HELP = "look at what an encoder knows"


def add_arguments(parser: Parser) -> None:
    add_model(parser)
    add_corpus(parser)
    add_encoder(parser)
    about = "text to continue, or to fill: [MASK] (BERT), <mask> (BART), <extra_id_0> (T5)"
    parser.add_argument("--prompt", default=None, help=about)
    parser.add_argument("--word", default=None, help="word whose nearest neighbors are shown (ELMo)")
    parser.add_argument("--score", action="store_true", help="show what each token of the prompt costs, in nats")
    parser.add_argument("--language", default=None, help="of the prompt, as de: for an encoder of several (mBART)")
    parser.add_argument("--tokens", type=positive, default=60, help="new tokens, at most")
    parser.add_argument("--beam", type=positive, default=1, help="beam search: hypotheses kept, instead of drawing")
    parser.add_argument("--temperature", type=number, default=0.8, help="0 takes the likeliest token each time")
    parser.add_argument("--top-k", type=natural, default=0, help="draw from the k likeliest tokens; 0: from all")
    parser.add_argument(
        "--top-p",
        type=number,
        default=0.95,
        help="nucleus sampling: draw from the likeliest tokens that have this probability together",
    )
    add_overrides(parser)


def run(options: argparse.Namespace) -> None:
    from pipeline import encoders
    from pipeline.cli.encoder_folders import encoder_folder
    from pipeline.inspection.show import check_word, show
    from pipeline.models.encoder_decoder import set_language
    from pipeline.models.generation import Search

    folder = encoder_folder(options.model, options.encoder)
    encoder = encoders.load_with_heads(folder)
    if options.word is not None:
        check_word(encoder)
    if options.word is None or options.prompt is not None:
        if options.overrides:
            raise UserError(f"try does not know the flag {options.overrides[0]}; see python -m pipeline try --help.")
        names = ("tokens", "beam", "temperature", "top_k", "top_p", "seed")
        how = Search(**{name: getattr(options, name) for name in names})
        if options.language is not None and not getattr(encoder, "names_languages", False):
            raise UserError(f"--language has no effect: {encoder.model_type} does not mark languages. Leave it out.")
        if note := set_language(encoder, options.language):
            print(note, file=sys.stderr)
        print(show(encoder, options.prompt, score=options.score, how=how))
        return
    from pipeline.cli.config import pretraining  # imports Lightning, which takes seconds
    from pipeline.inspection.nearest_neighbors import nearest_neighbors

    request = request_of(CorpusRequest, options).override({"data.tokenizer.file": folder / "tokenizer.json"})
    data = pretraining(request).data
    data.prepare()
    print(nearest_neighbors(encoder, options.word, data.valid))
