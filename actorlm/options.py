"""Flags, environment variables and TOML keys, derived from the structs in `config.py`, and merged into one Config.

Two things have no flag and come from the file alone: `[hosts.NAME]`, and the addresses in `[sockets]`.
"""

import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from actorlm.config import Config
from actorlm.deployment import Deployment, nearest, take_deployment
from actorlm.errors import ConfigError, reason_of


class Option(NamedTuple):
    """One option in all its spellings. `choices` is empty unless the values are a fixed list."""

    section: str
    field: str
    flag: str
    variable: str
    group: str
    help: str
    unit: str
    default: Any
    choices: tuple[str, ...]
    is_switch: bool

    @property
    def key(self) -> str:
        """The TOML key, with its table."""
        return f"{self.section}.{self.field}"

    @property
    def parameter(self) -> str:
        """The flag's name as a Python identifier."""
        return self.flag.removeprefix("--").replace("-", "_")


def _options() -> tuple[Option, ...]:
    return tuple(
        _option(section.name, section.type, field)
        for section in msgspec.structs.fields(Config)
        if isinstance(section.type, type)
        for field in msgspec.structs.fields(section.type)
    )


def _option(section: str, struct: type, field: "msgspec.structs.FieldInfo") -> Option:
    kind, meta = get_args(field.type)[0], get_args(field.type)[1]
    extra = meta.extra
    flag = "--" + (extra["flag"] or field.name).replace("_", "-")
    return Option(
        section=section,
        field=field.name,
        flag=flag,
        variable="ACTORLM_" + flag.removeprefix("--").replace("-", "_").upper(),
        group=(struct.__doc__ or section).strip(" ."),
        help=meta.description,
        unit=extra["unit"],
        default=field.default,
        choices=_choices(kind),
        is_switch=kind is bool,
    )


def _choices(kind: Any) -> tuple[str, ...]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        return next((choices for part in get_args(kind) if (choices := _choices(part))), ())
    return ()


OPTIONS = _options()
_BY_KEY = {option.key: option for option in OPTIONS}


def merge(flags: Mapping[str, Any], variables: Mapping[str, str], file: Path | None) -> Config:
    """The Config of these sources: a flag beats the environment, which beats the file.

    `flags` are by `Option.parameter`; None means not given. Raises ConfigError naming the flag, variable or key.
    """
    table, deployment = _read(file) if file else ({}, Deployment({}, {}))
    known = {option.variable for option in OPTIONS}
    for variable in variables:
        if variable not in known:
            raise ConfigError(f"{variable} is no option of actorlm{nearest(variable, known)}")
    for option in OPTIONS:
        value = flags.get(option.parameter)
        if value is None:
            value = variables.get(option.variable)
        if value is not None:
            table.setdefault(option.section, {})[option.field] = value
    return msgspec.structs.replace(_convert(table), **deployment._asdict())


def _read(file: Path) -> tuple[dict[str, dict[str, Any]], Deployment]:
    """The options of the file, and what only a file can say."""
    try:
        table = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {reason_of(error)}") from None
    deployment = take_deployment(table, file)
    for section, values in table.items():
        keys = [f"{section}.{field}" for field in values] if isinstance(values, dict) else [section]
        for key in keys:
            if key not in _BY_KEY:
                raise ConfigError(f"{file}: unknown key {key}{nearest(key, _BY_KEY)}")
    return table, deployment


def _convert(table: Mapping[str, Mapping[str, Any]]) -> Config:
    for section, values in table.items():
        for field, value in values.items():
            _check(_BY_KEY[f"{section}.{field}"], value)
    config = msgspec.convert(table, Config, strict=False)
    _check_key("--api-key (http.api_key)", config.http.api_key)
    _check_key("--admin-key (http.admin_key)", config.http.admin_key)
    return config


def _check_key(what: str, key: str | None) -> None:
    if key is not None and not key.strip():
        raise ConfigError(f"{what} is empty; leave it out to serve without a key")
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigError(f"{what} has characters that a header may lose; take letters and digits")


def _check(option: Option, value: Any) -> None:
    """Converts one option alone, so that an error can name it in the words that its user typed."""
    try:
        msgspec.convert({option.section: {option.field: value}}, Config, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).split(" - at ")[0]
        allowed = f"; choose one of {', '.join(option.choices)}" if option.choices else ""
        raise ConfigError(
            f"{option.flag} (TOML {option.key}, environment {option.variable}) is {value!r}: {reason}{allowed}"
        ) from None
