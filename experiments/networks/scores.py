"""Metrics that qbench does not have: each gives one score a sample from outputs and labels, higher is better.

Named as `scores:characters` and so on; see qbench/metrics/user.py for the contract.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Array = NDArray[Any]
BLANK = 0  # PP-OCR's CTC blank
NO_LABEL = -1  # fills label rows up to a common length
MAP_THRESHOLD = 0.3  # PP-OCR det: a pixel is text above this (DBPostProcess, thresh)
BOX_THRESHOLD = 0.6  # a box counts when its mean score is above this (box_thresh)
UNCLIP = 1.5  # boxes grow by area * ratio / perimeter (unclip_ratio; Liao et al. 2020, arXiv 1911.08947)
OVERLAP = 0.5  # intersection over union from which a box is the right one
NOTE_THRESHOLD = 0.3  # basic-pitch's default frame threshold


def characters(outputs: Mapping[str, Array], labels: Array) -> Array:
    """Text lines: 1 - edit distance / length of the right text, not below 0.

    outputs   first: [n, steps, characters] scores, greedy CTC decoding
    labels    [n, longest] character numbers, NO_LABEL after the end
    """
    best = next(iter(outputs.values())).argmax(-1)
    pairs = zip(map(_ctc, best), ([c for c in row if c != NO_LABEL] for row in labels.tolist()), strict=True)
    return np.array([max(0.0, 1.0 - _distance(found, right) / max(len(right), 1)) for found, right in pairs])


def _ctc(best: Array) -> list[int]:
    """Repeats dropped, then blanks."""
    kept = best[np.r_[True, best[1:] != best[:-1]]]
    return [int(c) for c in kept if c != BLANK]


def _distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Edit distance. Source: Levenshtein 1966, Soviet Physics Doklady 10(8)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        left, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            left, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, left + (x != y))
    return row[-1]


def boxes(outputs: Mapping[str, Array], labels: Array) -> Array:
    """Text detection: F1 of the boxes of a picture, upright boxes only.

    outputs   first: [n, 1, H, W] probability of text, shrunk as PP-OCR's DB head is trained
    labels    [n, most, 4] left, top, right, bottom in pixels, NO_LABEL where a picture has fewer
    """
    maps = next(iter(outputs.values()))[:, 0]
    return np.array(
        [_f1(_found_boxes(m), [b for b in row if b[0] != NO_LABEL]) for m, row in zip(maps, labels, strict=True)]
    )


def _found_boxes(scores: Array) -> list[Array]:
    areas, _ = ndimage.label(np.nan_to_num(scores) > MAP_THRESHOLD)
    found = []
    for part in ndimage.find_objects(areas):
        height, width = (s.stop - s.start for s in part)
        if min(height, width) < 3 or scores[part].mean() < BOX_THRESHOLD:
            continue
        grow = height * width * UNCLIP / (2 * (height + width))
        found.append(np.array([part[1].start - grow, part[0].start - grow, part[1].stop + grow, part[0].stop + grow]))
    return found


def _f1(found: Sequence[Array], right: Sequence[Array]) -> float:
    left, hits = list(right), 0
    for box in found:
        best = max(range(len(left)), key=lambda k: _overlap(box, left[k]), default=None)
        if best is not None and _overlap(box, left[best]) >= OVERLAP:
            left.pop(best)
            hits += 1
    return 2.0 * hits / max(len(found) + len(right), 1)


def _overlap(a: Array, b: Array) -> float:
    width, height = (min(a[k + 2], b[k + 2]) - max(a[k], b[k]) for k in (0, 1))
    both = max(width, 0.0) * max(height, 0.0)
    return float(both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both))


def notes(outputs: Mapping[str, Array], labels: Array) -> Array:
    """Music: F1 of the sounding notes over all frames of a sample; first output and labels [n, frames, keys]."""
    found, right = next(iter(outputs.values())) > NOTE_THRESHOLD, labels > 0
    both = (found & right).sum((1, 2))
    return np.asarray(2.0 * both / np.maximum(found.sum((1, 2)) + right.sum((1, 2)), 1))


def frames(outputs: Mapping[str, Array], labels: Array) -> Array:
    """Speech: share of frames on the right side of 0.5; first output and labels [n, frames]."""
    found = next(iter(outputs.values())).reshape(labels.shape) > 0.5
    return np.asarray((found == (labels > 0)).mean(1))


def mask(outputs: Mapping[str, Array], labels: Array) -> Array:
    """Matting: intersection over union of the mask above 0.5 and the labels, both [n, H, W], an axis of 1 allowed."""
    found, right = next(iter(outputs.values())).reshape(len(labels), -1) > 0.5, labels.reshape(len(labels), -1) > 0
    either = (found | right).sum(1)
    return np.asarray(np.where(either > 0, (found & right).sum(1) / np.maximum(either, 1), 1.0))


def retrieval(outputs: Mapping[str, Array], labels: Array) -> Array:
    """Sentences: 1 where the right entry of an index is the nearest by cosine.

    outputs   first: [n, width] embeddings
    labels    [n, entries, width] embeddings of the index, made by the float model; entry 0 is the right one
    """
    query = next(iter(outputs.values()))
    unit = labels / np.linalg.norm(labels, axis=-1, keepdims=True)
    return np.asarray(np.einsum("nw,new->ne", np.nan_to_num(query), unit).argmax(-1) == 0, np.float64)
