"""Addresses of databases and servers: with the driver they need, and as they may be printed."""

from __future__ import annotations

import re

DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
"""Of a URL that names no driver."""


def with_driver(url: str) -> str:
    """The URL with the driver that qbench[databases] installs, where it names none."""
    scheme, colon, rest = url.partition(":")
    return DRIVERS.get(scheme, scheme) + colon + rest


def without_password(url: str) -> str:
    """The URL as it may be printed."""
    return re.sub(r"([?&](?:password|passwd|sslpassword)=)[^&]*", r"\1***", re.sub(r"(://[^:/@]*):[^@]*@", r"\1:***@", url))
