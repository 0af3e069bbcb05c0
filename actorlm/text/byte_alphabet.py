"""The byte alphabet of byte-level tokenizers: one printable character for each byte, as GPT-2 defined it."""


def _characters() -> tuple[str, ...]:
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


CHARACTERS = _characters()
"""The character of each byte."""

BYTES = {character: byte for byte, character in enumerate(CHARACTERS)}
"""The byte of each character."""


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; one with a character outside of the alphabet (an added token) is itself."""
    try:
        return bytes([BYTES[character] for character in token])
    except KeyError:
        return token.encode()
