"""Known symptoms by message: `symptoms.toml` read, and the entries that are most like a text, best first."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from math import log
from typing import Any

MOST = 5
PATTERN = 0.8
"""Score of an entry whose own pattern is in the text; its words add to that."""
LEAST = 0.18
"""Score below which two texts have words in common and nothing else."""
_WORD = re.compile(r"[a-z0-9]+(?:[._][a-z0-9]+)*")
_COMMON = frozenset(re.findall("[a-z]+", "a an and are as at be but by can do does for from get gets give gives has have i in is it its me my no not of on or so that the their then there they "
                    "this to was we what when why will with you your"))


@dataclass(frozen=True, slots=True)
class Symptom:
    """patterns   regular expressions of messages, tried on each line; says   how users put it
    steps      how to find out; check   the qbench command that looks; source, year   where it was told
    """

    name: str
    title: str
    cause: str
    cure: str
    source: str
    year: int
    patterns: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    check: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    """score   0 to 1; because   the pattern that matched, or the words in common"""

    symptom: Symptom
    score: float
    because: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"score": self.score, "because": list(self.because)} | asdict(self.symptom)


@cache
def symptoms() -> tuple[Symptom, ...]:
    """Everything in the table."""
    body = tomllib.loads(resources.files("qbench.diagnosis").joinpath("symptoms.toml").read_text(encoding="utf-8"))
    rows: dict[str, dict[str, Any]] = {name: {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for name, row in body.items()}
    return tuple(Symptom(name=name, **row) for name, row in rows.items())


def look_up(text: str, most: int = MOST) -> tuple[Match, ...]:
    """The symptoms most like `text`, a message or a whole log; at most `most`.

    An entry whose pattern occurs scores PATTERN and more; otherwise the share of its rarest words that the text has, and of the text's
    words that it has (both weighted by how rare a word is in the table). A log counts by its best line.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    weights = _weights()
    found = [m for s in symptoms() if (m := _match(s, lines, weights)) is not None]
    return tuple(sorted(found, key=lambda m: (-m.score, m.symptom.name))[:most])


def _match(s: Symptom, lines: Sequence[str], weights: dict[str, float]) -> Match | None:
    hit = next((found[0].strip() for p in s.patterns for line in lines if (found := re.search(p, line, re.IGNORECASE))), None)
    # many lines are a log: words that lie far apart say nothing together
    texts = lines if len(lines) > 8 else [" ".join(lines)]
    share, shared = max((_alike(_words(t), phrase, weights) for t in texts for phrase in _phrases(s)), default=(0.0, ()))
    if hit is not None:
        return Match(s, PATTERN + (1.0 - PATTERN) * share, (hit,))
    return Match(s, share * PATTERN, shared) if share * PATTERN >= LEAST else None


def _alike(text: frozenset[str], phrase: frozenset[str], weights: dict[str, float]) -> tuple[float, tuple[str, ...]]:
    """Weight of the common words over that of all words of both, and the common words, rarest first."""
    rare = max(weights.values())
    common = text & phrase
    total = sum(weights.get(w, rare) for w in text | phrase)
    return (sum(weights.get(w, rare) for w in common) / total if total else 0.0), tuple(sorted(common, key=lambda w: (-weights.get(w, rare), w)))


def _words(text: str) -> frozenset[str]:
    return frozenset(_stem(w) for w in _WORD.findall(text.lower()) if w not in _COMMON)


def _stem(word: str) -> str:
    """Plural and past tense off, so that "outputs" is "output"."""
    for end in ("ing", "ed", "es", "s"):
        if word.endswith(end) and len(word) - len(end) >= 4:
            return word[:-len(end)]
    return word


@cache
def _phrases_of(name: str) -> tuple[frozenset[str], ...]:
    s = next(x for x in symptoms() if x.name == name)
    return tuple(_words(p) for p in (s.title, *s.says))


def _phrases(s: Symptom) -> tuple[frozenset[str], ...]:
    return _phrases_of(s.name)


@cache
def _weights() -> dict[str, float]:
    """Word -> log of how rare it is among the entries."""
    every = symptoms()
    counts = Counter(w for s in every for w in frozenset().union(*_phrases(s)))
    return {w: log(1.0 + len(every) / n) for w, n in counts.items()}
