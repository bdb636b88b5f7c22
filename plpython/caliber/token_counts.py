"""Tokens: how many a text has when its writer does not say.

The built-in estimate is one token for four bytes of UTF-8, rounded up. It is stored with what
it was made for, so what is already written keeps its count.
"""

from __future__ import annotations

from caliber import checks

BYTES_PER_TOKEN = 4
MAX_TOKENS = 10_000_000


def counted(content: str, given: int | None) -> int:
    """The caller's count where there is one, else the estimate."""
    if given is not None:
        checks.between("tokens", given, 0, MAX_TOKENS)
        return given
    return estimate(content)


def estimate(content: str) -> int:
    return -(-len(content.encode()) // BYTES_PER_TOKEN)
