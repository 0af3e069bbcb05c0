"""What the null model must say, computed here: the oracle of tests that compare the answers of whole trees."""

import zlib
from array import array

from actorlm.api.lower import derived_seed
from actorlm.execution.randomness import MASK, word

VOCAB_SIZE = 259
END_OF_TEXT, MESSAGE_START, MESSAGE_END = 256, 257, 258
ENDS = (END_OF_TEXT, MESSAGE_END)
SPECIALS = {END_OF_TEXT: b"<|endoftext|>", MESSAGE_START: b"<|im_start|>", MESSAGE_END: b"<|im_end|>"}


def bias(ids):
    """A `logit_bias` that leaves no token but these: what is hashed if it is among them, else their lowest."""
    return {str(token): 100 for token in ids}


def generated(prompt_ids, count, *, seed=0, choice=0, ends=ENDS, among=(), vocab_size=VOCAB_SIZE):
    """The ids that follow a prompt: `count`, or up to the first of `ends`. Seed 0 is greedy; `among` as in `bias`."""
    seed = derived_seed(seed, choice) & MASK
    ids = array("i", prompt_ids)
    crc, new = zlib.crc32(ids.tobytes()), []
    while len(new) < count and not (new and new[-1] in ends):
        token = word(word(seed, crc), len(ids) + len(new)) % vocab_size
        if among and token not in among:
            token = min(among)
        crc = zlib.crc32(token.to_bytes(4, "little"), crc)
        new.append(token)
    return new


def decoded(ids, *, skip_special_tokens=True):
    """The text of ids, all at once."""
    specials = dict.fromkeys(SPECIALS, b"") if skip_special_tokens else SPECIALS
    return b"".join(specials[token] if token in specials else bytes([token]) for token in ids).decode(errors="replace")


def answer(prompt_ids, count, **options):
    """The text of the answer to a request."""
    ids = generated(prompt_ids, count, **options)
    return decoded(ids[:-1] if ids[-1] in options.get("ends", ENDS) else ids)
