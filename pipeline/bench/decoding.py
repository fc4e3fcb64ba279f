"""Beam search by an encoder-decoder: ours, and transformers' `generate` with the same weights, sources and lengths."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from pipeline import encoders
from pipeline.bench.steps import Sizes, read_tensors, words
from pipeline.bench.timing import Built, Candidate, Row, compared, interleave
from pipeline.models.bart import Bart
from pipeline.models.encoder_decoder import EncoderDecoder
from pipeline.models.generation import Search
from pipeline.models.inputs import padded
from pipeline.models.transformer import Transformer
from pipeline.models.transformer_encoder_decoder import TransformerEncoderDecoder
from pipeline.tokenization.seq2seq_bpe import Seq2SeqBpe

BEAM = 5
# Nats. Hypotheses whose sums of log-probabilities differ by less than float32 can tell are kept in either order.
TIE = 0.01
NEVER = -1e4  # the bias of the end of a text: every target is as long as it may be
KINDS: dict[str, tuple[Callable[..., TransformerEncoderDecoder], str]] = {
    "transformer": (Transformer, "MarianMTModel"),
    "bart": (Bart, "BartForConditionalGeneration"),
}


def prepare(name: str, sizes: Sizes, folder: Path) -> None:
    """A model with random weights, and sources from half as long to as long as the sizes say."""
    tokenizer = Seq2SeqBpe.train(words(), vocab_size=min(sizes.vocab, 8192))
    torch.manual_seed(0)
    model = KINDS[name][0](tokenizer, **sizes.options)
    for parameter in model.parameters():  # so far from 0 that no two tokens are as likely
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.get_buffer("output_bias")[tokenizer.id("eos")] = NEVER
    model.save(folder)
    lengths = torch.randint(sizes.length // 2, sizes.length + 1, (sizes.rows, 1))
    mask = torch.arange(sizes.length) < lengths
    ids = torch.randint(len(tokenizer.special_ids), len(tokenizer), mask.shape).masked_fill(~mask, tokenizer.id("pad"))
    ours, theirs = {"input_ids": ids, "mask": mask}, {"input_ids": ids, "attention_mask": mask.long()}
    torch.save({"ours": ours, "theirs": theirs}, folder / "batch.pt")


def our_search(folder: Path, tokens: int, *, device: str) -> Built:
    model = cast(EncoderDecoder, encoders.load(folder).to(device))
    batch, how = read_tensors(folder, "ours", device), Search(tokens=tokens, beam=BEAM)
    return Built(lambda: model.write(batch, how), result=model.write(batch, how), device=device)


def their_search(folder: Path, kind: str, tokens: int, *, device: str) -> Built:
    import transformers

    model = getattr(transformers, kind).from_pretrained(folder).eval().to(device)
    batch, special = read_tensors(folder, "theirs", device), set(encoders.load(folder).tokenizer.special_ids)

    def step() -> list[list[int]]:
        rows = model.generate(**batch, num_beams=BEAM, max_new_tokens=tokens, do_sample=False).tolist()
        return [[token for token in row if token not in special] for row in rows]

    return Built(step, result=step(), device=device)


@torch.no_grad()
def log_probs(folder: Path, texts: list[list[int]]) -> Tensor:
    """(B,) nats of texts, given the sources, by our model."""
    model, batch = cast(EncoderDecoder, encoders.load(folder)), read_tensors(folder, "ours", "cpu")
    labels = padded(texts, pad=-1)["input_ids"]
    return model.log_probs({**batch, "decoder_input_ids": model.shifted(labels)}, labels).sum(-1)


def decoding(name: str, sizes: Sizes, options: argparse.Namespace) -> Row:
    """The row of a table; both must write the same tokens, or ones that are as likely."""
    sizes = Sizes(**{**vars(sizes), "length": sizes.length // 2})
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(name, sizes, folder)
        candidates = [
            Candidate("ours", partial(our_search, folder, sizes.length, device=options.device), ours=True),
            Candidate(
                f"transformers, generate(num_beams={BEAM})",
                partial(their_search, folder, KINDS[name][1], sizes.length, device=options.device),
            ),
        ]
        results = interleave(candidates, rounds=-(-options.rounds // 3))
        (_, ours), (against, theirs) = results.items()
        same = sum(a == b for a, b in zip(ours.result, theirs.result, strict=True))
        worse = (log_probs(folder, theirs.result) - log_probs(folder, ours.result)).max().item()
    if worse > TIE:
        raise SystemExit(f"Error: {name} writes a text that is {worse:.3f} nats less likely than that of transformers.")
    print(f"{name}, beam {BEAM}: {sizes.rows} sources of up to {sizes.length} tokens; {sizes.length} tokens each")
    print(f"the same tokens for {same} sources, as likely or likelier ones for the others")
    tokens = sizes.rows * sizes.length
    return compared(f"{name}, beam {BEAM}", against, tokens / ours.median, tokens / theirs.median)
