"""qbench.toml: what a project does not want to say on every command line, read into frozen records that refuse what they do not know.

Precedence: option > environment variable > file > built-in default. The file is ./qbench.toml, or what --config or QBENCH_CONFIG names; paths in
it are relative to its folder. Keys at the top hold for every command that has an option of that name; a table, [search] or [compare], for its
command alone. The variable of a key is QBENCH_ and its name (QBENCH_TARGET), with the table's name where it is in one (QBENCH_SEARCH_TRIALS);
several values are separated by ";".
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from qbench.errors import ConfigError, nearest

FILE = "qbench.toml"
PREFIX = "QBENCH_"
OTHERS = ("QBENCH_CONFIG", "QBENCH_TOOLCHAINS")
"""Variables that are no keys of the file."""
PATHS = ("model", "data", "eval_data", "power", "output")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Texts = Annotated[tuple[str, ...] | None, BeforeValidator(_listed)]
Share = Annotated[str | None, BeforeValidator(_text)]


class Table(BaseModel):
    """Keys that are not given are None; unknown ones are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Search(Table):
    """[search]: options of `qbench search` alone."""

    budget: Texts = None
    max_drop: Share = None
    max_class_drop: Share = None
    preset: str | None = None
    power: str | None = None
    precision: Texts = None
    calibrator: Texts = None
    scale: Texts = None
    correct: Texts = None
    op_point: Texts = None
    trials: int | None = None
    seed: int | None = None
    strategy: str | None = None
    output: str | None = None
    track: bool | None = None
    storage: str | None = None
    executor: str | None = None
    board: Texts = None


class Compare(Table):
    """[compare]: options of `qbench compare` alone."""

    calibrator: Texts = None
    scale: Texts = None
    precision: Texts = None
    output: str | None = None


class Settings(Table):
    """The whole file."""

    target: str | None = None
    toolkit: str | None = None
    sample: str | None = None
    model: str | None = None
    data: str | None = None
    eval_data: str | None = None
    metric: str | None = None
    preprocess: str | None = None
    input_shape: Texts = None
    input_value: Texts = None
    limit: int | None = None
    non_finite: str | None = None
    search: Search = Search()
    compare: Compare = Compare()

    def of(self, command: str) -> dict[str, Any]:
        """Option name -> value for one command: the top, then its table."""
        tables = {"search": self.search, "compare": self.compare}
        top = self.model_dump(exclude_none=True, exclude={"search", "compare"})
        return top | (tables[command].model_dump(exclude_none=True) if command in tables else {})


def load(path: Path | None, environment: Mapping[str, str]) -> Settings:
    """What file and environment say together. No file: the environment alone. Raises ConfigError with the place and the nearest known key."""
    body: dict[str, Any] = {}
    if path is not None:
        try:
            body = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; `qbench init` writes a {FILE}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not TOML: {error}") from error
        _checked(body, str(path))
        _anchor(body, path.parent)
    said = _of_environment(environment)
    for key, value in said.items():
        body[key] = body.get(key, {}) | value if isinstance(value, dict) else value
    settings = _checked(body, str(path) if path and not said else "environment variables QBENCH_...")
    if settings.sample and settings.model:
        raise ConfigError(f"{path or 'environment'}: sample = {settings.sample!r} and model = {settings.model!r}: give one of the two")
    return settings


def variables() -> dict[str, tuple[str, ...]]:
    """Environment variable -> where its key is in the file, e.g. QBENCH_SEARCH_TRIALS -> ("search", "trials")."""
    found: dict[str, tuple[str, ...]] = {}
    for name, field in Settings.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        if inner is None:
            found[f"{PREFIX}{name.upper()}"] = (name,)
        else:
            found |= {f"{PREFIX}{name.upper()}_{key.upper()}": (name, key) for key in inner}
    return found


def _of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for variable, place in variables().items():
        text = environment.get(variable, "")
        if not text:
            continue
        table = body if len(place) == 1 else body.setdefault(place[0], {})
        table[place[-1]] = text.split(";") if ";" in text else text
    return body


def _checked(body: Mapping[str, Any], where: str) -> Settings:
    try:
        return Settings.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = tuple(str(p) for p in first["loc"])
        if first["type"] == "extra_forbidden":
            known = _keys_beside(place)
            meant = nearest(place[-1], known)
            inside = f"[{place[0]}]: " if len(place) > 1 else ""
            elsewhere = _table_of(place[-1]) if place[-1] not in known else ""
            hint = f"it belongs {elsewhere}; " if elsewhere else f"did you mean {meant!r}? " if meant else ""
            raise ConfigError(f"{where}: {inside}no key {place[-1]!r}; {hint}known: {', '.join(known)}") from None
        raise ConfigError(f"{where}: {'.'.join(place)} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}") from None


def _table_of(key: str) -> str:
    """Where a key of the file stands, in words; "" for one that stands nowhere."""
    tables = [f"[{p[0]}]" for p in variables().values() if p[-1] == key and len(p) > 1]
    return f"into {' or '.join(tables)}" if tables else "at the top, above the tables" if key in Settings.model_fields else ""


def misspelled(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that nobody reads -> the one that was probably meant: a variable of ours with a letter or two wrong."""
    known = variables()
    near = {v: get_close_matches(v, known, n=1, cutoff=0.88) for v in environment if v.startswith(PREFIX) and v not in known and v not in OTHERS}
    return {v: found[0] for v, found in near.items() if found}


def _keys_beside(place: tuple[str, ...]) -> tuple[str, ...]:
    owner: Any = Settings.model_fields[place[0]].annotation if len(place) > 1 else Settings
    return tuple(owner.model_fields)


def _anchor(body: dict[str, Any], folder: Path) -> None:
    """Paths that exist below the file's folder are taken from there, so that the file may be used from elsewhere."""
    for table in (body, *(v for v in body.values() if isinstance(v, dict))):
        for key in PATHS:
            if isinstance(table.get(key), str) and (key == "output" or (folder / table[key]).exists()):
                table[key] = str(folder / table[key])


TEMPLATE = """# Defaults of qbench in this folder; an option on the command line wins, then an environment variable (QBENCH_TARGET, QBENCH_SEARCH_TRIALS).
# Paths are relative to this file. Unknown keys are an error.
{top}
[search]
{search}
"""
_TOP = {"target": "rk3588", "model": "net.onnx", "data": "calibration.npz", "eval_data": "validation.npz", "metric": "top1",
        "preprocess": "size=224x224,colour=rgb,mean=0.485/0.456/0.406,std=0.229/0.224/0.225", "toolkit": "2.5.0"}
_SEARCH: Mapping[str, Any] = {"budget": ["20ms", "64MB"], "max_drop": "0.5%", "precision": ["int8", "fp16"], "trials": 24, "track": True}


def written(given: Mapping[str, Any], budget: Sequence[str]) -> str:
    """The text of a new file: what was given as keys, the rest as examples behind a "#". Parses back to exactly what was given."""
    top = [_line(k, given.get(k), example) for k, example in _TOP.items()]
    search = [_line(k, list(budget) if k == "budget" and budget else None, example) for k, example in _SEARCH.items()]
    return TEMPLATE.format(top="\n".join(top), search="\n".join(search))


def _line(key: str, value: Any, example: Any) -> str:
    text = json.dumps(example if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")      # JSON lets DEL stand, TOML does not
    return f"{'# ' if value is None else ''}{key} = {text}"
