"""Losses of a step: next tokens, and optionally the share of attention on the own document."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workbench.core.errors import InputError
from workbench.training.rows import IGNORED

__all__ = ["TokenLoss", "token_loss"]


@dataclass(frozen=True)
class TokenLoss:
    """Loss over the predicted tokens of some rows.

    Parameters
    ----------
    total : sum of -log p, in nats; differentiable.
    tokens : number of predicted tokens.
    correct : how many of them were the likeliest token.
    """

    total: Tensor
    tokens: int
    correct: int


def token_loss(logits: Tensor, targets: Tensor) -> TokenLoss:
    """Cross-entropy of next tokens.

    Parameters
    ----------
    logits : (rows, n, vocabulary).
    targets : (rows, n) int64, `IGNORED` where nothing is predicted.

    Raises
    ------
    InputError : no token is predicted, or a loss is not finite.
    """
    predicted = targets != IGNORED
    tokens = int(predicted.sum())
    if tokens == 0:
        # Still a function of the parameters, so that every process of a step has gradients.
        return TokenLoss(logits.sum() * 0.0, 0, 0)
    chosen, wanted = logits[predicted], targets[predicted]
    total = functional.cross_entropy(chosen.float(), wanted, reduction="sum")
    if not bool(torch.isfinite(total)):
        raise InputError(
            "the loss is not finite: lower the learning rate, or check the model's weights."
        )
    return TokenLoss(total, tokens, int((chosen.argmax(dim=-1) == wanted).sum()))
