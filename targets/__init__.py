"""Chips as data: one TOML file each, every number with its unit and its source.

    names()      the targets there are
    load(name)   one of them, aliases accepted
    load_file(path)   a target file of one's own
"""

from qbench.targets.loader import aliases, load, load_file, names

__all__ = ["aliases", "load", "load_file", "names"]
