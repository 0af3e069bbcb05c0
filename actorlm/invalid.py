"""What msgspec has against a value, in words that name the field and show what it holds."""

import re
from typing import Any

import msgspec

MAX_SHOWN = 60
"""Characters of a value."""
LOCATED = re.compile(r"^(?P<reason>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`$", re.DOTALL)
FIELD = re.compile(r"(?:unknown|required) field `(?P<name>.*)`$", re.DOTALL)
STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")


class Fault(msgspec.Struct, frozen=True):
    """`reason` is msgspec's, `path` like `messages[0].role`, and empty for the whole value."""

    reason: str
    path: str
    value: str | None = None
    """What stands there, as JSON, cut; None where nothing does, or where it could not be found."""

    @property
    def field(self) -> str:
        """The outermost field."""
        return re.split(r"[.\[]", self.path, maxsplit=1)[0]

    @property
    def message(self) -> str:
        """All in one sentence."""
        if not self.path:
            return self.reason
        return f"{self.path}: {self.reason}" if self.value is None else f"{self.path} is {self.value}: {self.reason}"


def fault(error: msgspec.ValidationError, root: Any) -> Fault:
    """What `error` says of `root`, which is what was converted, decoded without types."""
    located = LOCATED.match(str(error))
    reason, path = (located["reason"], located["path"]) if located else (str(error), "")
    if absent := FIELD.search(reason):
        return Fault(reason, f"{path}.{absent['name']}".lstrip("."))
    is_key = located is not None and located["key"] is not None
    return Fault(reason, path.lstrip(".").removesuffix("[...]"), None if is_key else _shown_at(path, root))


def json_fault(error: msgspec.ValidationError, data: bytes) -> Fault:
    """The same for JSON, which may end in the middle."""
    try:
        root = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        root = None
    return fault(error, root)


def _shown_at(path: str, root: Any) -> str | None:
    begin, value = 0, root
    while begin < len(path):
        step = STEP.match(path, begin)
        if step is None:
            return None
        try:
            value = value[step["name"]] if step["name"] else value[int(step["index"])]
        except (KeyError, IndexError, TypeError):
            return None
        begin = step.end()
    return shown(value)


def shown(value: Any) -> str | None:
    """A value as JSON, cut, of arrays and objects only their size; None if it has no such form."""
    if isinstance(value, (list, dict)):
        return f"an {'array' if isinstance(value, list) else 'object'} of {len(value)}"
    if isinstance(value, str):
        value = value[:MAX_SHOWN]
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, UnicodeError, msgspec.EncodeError):
        return None
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
