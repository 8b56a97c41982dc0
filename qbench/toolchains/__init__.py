"""Vendors' toolchains in environments of their own, made only when asked, and workers that run in them.

    names(), load(name)      what qbench can use, and its pins
    check(name)              what is here: version, Python, or why it cannot be used
    install(name)            make its environment in the user's cache
    need(name)               its interpreter, or one clear line on how to get it
    call(...)                run a script there: JSON in, JSON out
"""

from qbench.toolchains.environment import Status, check, find, how_to_get, install, need
from qbench.toolchains.record import Toolchain, load, names
from qbench.toolchains.worker import call, log_of

__all__ = ["Status", "Toolchain", "call", "check", "find", "how_to_get", "install", "load", "log_of", "names", "need"]
