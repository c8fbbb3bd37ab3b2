"""Tokens of simulated answers and prompts: pure functions of a seed and an index, the same in every process.

A simulated engine makes them and a client makes them again to see that it got each once and in order.
"""

from collections.abc import Sequence

VOCABULARY = 1 << 15
"""Token ids are 0 to VOCABULARY - 1."""

_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which "
    "one you were all her she there would their we him been has when who will no more if out so up said what its "
    "about than into them can only other time new some could these two may first then do any like my now over such "
    "our man me even most made after also did many off before must well back through years much where your way down "
    "should because long each just state those people too mr how little good world make very year still see own work "
    "men day get here old life both between being under three never know same last another while us might great go "
    "come since against right came take used himself few house use place during high without again home around small "
    "however found part school thought went say general once upon every left war far fact put head think set called "
    "water enough took side system better night end hand number public something data cache queue token model server "
    "load time step batch memory request answer window order rate tier share burst trace engine block prompt reply "
    "limit wait start finish plan route measure result policy"
)
_WORDS = tuple(_TEXT.split())
_STOPS = (".", ",", ",", ";")
_MASK = (1 << 64) - 1


def token_at(seed: int, index: int) -> int:
    """Return the token of an answer at an index, 0 to VOCABULARY - 1 (the finaliser of splitmix64)."""
    mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 49


def tokens_at(seed: int, first: int, count: int) -> list[int]:
    """Return the tokens of an answer at indexes [first, first + count)."""
    return [token_at(seed, index) for index in range(first, first + count)]


def piece_of(token: int) -> str:
    """Return the text of a token: a blank and a common word, at times with the stop that follows it."""
    word, rest = _WORDS[token % len(_WORDS)], token // len(_WORDS)
    return f" {word}{_STOPS[rest % 32]}" if rest % 32 < len(_STOPS) else f" {word}"


def text_of(tokens: Sequence[int]) -> str:
    """Return the text of several tokens in a row."""
    return "".join(map(piece_of, tokens))


def faults_in(seed: int, offset: int, tokens: Sequence[int], wanted: int) -> tuple[int, int]:
    """Return (lost, repeated or false) among tokens that arrived for index ``wanted`` with this offset."""
    lost = max(0, offset - wanted)
    again = min(len(tokens), max(0, wanted - offset))
    false = sum(token != token_at(seed, offset + place) for place, token in enumerate(tokens[again:], again))
    return lost, again + false
