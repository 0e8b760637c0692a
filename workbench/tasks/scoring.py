"""Rules by which an output is right."""

from __future__ import annotations

import re

__all__ = ["contains", "first_integer"]


def first_integer(output: str, answer: str) -> bool:
    """The first run of digits in the output is the answer (∞-Bench's rule for passkeys).

    A number of which the answer is only a part ("714325" for "71432") is wrong.
    """
    found = re.search(r"[0-9]+", output)
    return found is not None and found.group() == answer


def contains(output: str, answer: str) -> bool:
    """The answer stands in the output, letter by letter, not inside a longer word or number."""
    place = rf"(?<![0-9A-Za-z]){re.escape(answer)}(?![0-9A-Za-z])"
    return bool(answer) and re.search(place, output) is not None
