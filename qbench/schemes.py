"""Schemes as text, for users without a listed chip: "uint8", "int8:symmetric,narrow", "int16:symmetric,power_of_two"."""

from __future__ import annotations

import re

from qbench.affine import Scheme
from qbench.errors import InputError
from qbench.target import QuantScheme

FLAGS = ("symmetric", "narrow", "power_of_two")
MOST_BITS = 16


def scheme_of(text: str) -> Scheme:
    """The scheme that `text` describes: int2 ... int16 or uint2 ... uint16, then flags behind a colon.

    Raises InputError for anything else, saying what there is.
    """
    name, colon, rest = text.strip().partition(":")
    found = re.fullmatch(r"(u?)int(\d{1,2})", name.strip())
    if found is None or not 2 <= int(found[2]) <= MOST_BITS:
        raise InputError(f"scheme {text!r}: {name.strip()!r} is no type of codes; expected int2 to int{MOST_BITS} or uint2 to uint{MOST_BITS}, "
                         "e.g. uint8 or int8:symmetric,narrow")
    flags = [f.strip() for f in rest.split(",")] if colon else []
    for number, flag in enumerate(flags):
        if flag not in FLAGS:
            raise InputError(f"scheme {text!r}: {flag!r} is unknown; expected {', '.join(FLAGS)}, joined by commas")
        if flag in flags[:number]:
            raise InputError(f"scheme {text!r}: {flag!r} is given twice")
    return Scheme(int(found[2]), not found[1], *(f in flags for f in FLAGS))


def quant_scheme(activation: str, weight: str, *, weight_per_channel: bool = True, bias_bits: int = 32, weight_block: int = 0) -> QuantScheme:
    """How tensors are stored, from the texts of two schemes; the rest as the fields of `QuantScheme`.

    Raises InputError for a text that is no scheme, or a number that no target has.
    """
    if not 8 <= bias_bits <= 64:
        raise InputError(f"bias_bits is {bias_bits}; expected 8 to 64, most chips have 32")
    if weight_block < 0:
        raise InputError(f"weight_block is {weight_block}; expected the input channels that share a scale, e.g. 32, or 0 for none")
    return QuantScheme(scheme_of(activation), scheme_of(weight), weight_per_channel, bias_bits, weight_block)
