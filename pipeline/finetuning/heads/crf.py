"""A linear-chain conditional random field (Lafferty et al. 2001) over the words of a sentence.

Shapes: B batch, W words, C tags. Words that are not there stand behind those that are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Crf(nn.Module):
    """score(tags) = sum of emissions + transitions between neighbors + start and end scores.

    No maintained library has one, so it is here; the tests compare it with all sequences of tags written out.

    Args:
        tags: C.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.transitions = nn.Parameter(torch.zeros(tags, tags))  # from row to column
        self.start = nn.Parameter(torch.zeros(tags))
        self.end = nn.Parameter(torch.zeros(tags))

    def log_likelihood(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """(B, W, C), (B, W), (B, W) bool -> log p(tags) of each row (B,), in nats."""
        return self.score(emissions, tags, mask) - self.log_partition(emissions, mask)

    def score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The unnormalized score of a sequence, (B,)."""
        tags = tags * mask
        last = tags.gather(1, mask.sum(1, keepdim=True) - 1)[:, 0]
        own = (emissions.gather(-1, tags[..., None])[..., 0] * mask).sum(1)
        between = (self.transitions[tags[:, :-1], tags[:, 1:]] * mask[:, 1:]).sum(1)
        return self.start[tags[:, 0]] + own + between + self.end[last]

    def log_partition(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """log sum of exp(score) over all sequences (B,): the forward algorithm."""
        total = self.start + emissions[:, 0]
        for i in range(1, emissions.shape[1]):
            step = torch.logsumexp(total[:, :, None] + self.transitions, 1) + emissions[:, i]
            total = torch.where(mask[:, i, None], step, total)
        return torch.logsumexp(total + self.end, 1)

    @torch.no_grad()
    def decode(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """The best sequence (B, W): the Viterbi algorithm; values at padding are undefined."""
        best, came_from = self.start + emissions[:, 0], []
        same = torch.arange(emissions.shape[-1], device=emissions.device).expand_as(best)
        for i in range(1, emissions.shape[1]):
            scores, sources = (best[:, :, None] + self.transitions).max(1)
            best = torch.where(mask[:, i, None], scores + emissions[:, i], best)
            came_from.append(torch.where(mask[:, i, None], sources, same))
        tags = [(best + self.end).argmax(-1)]
        for sources in reversed(came_from):
            tags.append(sources.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1)

    def marginals(self, emissions: Tensor, mask: Tensor) -> Tensor:
        """p(tag of a word) given all words, (B, W, C): the gradient of the log-partition."""
        with torch.inference_mode(False), torch.enable_grad():
            emissions, mask = emissions.detach().clone().requires_grad_(), mask.clone()
            return torch.autograd.grad(self.log_partition(emissions, mask).sum(), emissions)[0]
