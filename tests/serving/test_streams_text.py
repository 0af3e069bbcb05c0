"""The text of streams of whole trees: equal to the text in one piece, equal to what the ids mean, and never late."""

import json
import random
from functools import partial

import null_model
import pytest
from answers import both_ways, events, text_of, whole
from exchange import PATHS
from null_model import MESSAGE_END, bias
from tokenizers import AddedToken, Tokenizer, decoders, models
from tree import in_parallel

pytestmark = [pytest.mark.serving]

COMPLETIONS, CHAT = PATHS
ASCII = tuple(range(32, 127))
FEW = tuple(b"ab")


def test_b01_broken_utf8_stays_whole(null_tree):
    """100 texts of random bytes hold characters of every length, cut by every kind of bad byte."""
    lengths = set()
    for seed in range(100):
        expected = null_model.answer([1, seed], 200, seed=seed)
        answer = both_ways(null_tree, COMPLETIONS, prompt=[1, seed], seed=seed, max_tokens=200)
        assert answer.texts == [expected]
        lengths |= {len(character.encode()) for character in expected if character != "\ufffd"}
    assert lengths == {1, 2, 3, 4}


def test_b01_no_piece_is_a_part_of_a_character(null_tree):
    """No event has a U+FFFD that the whole text has not, at the same place."""
    for seed in range(20):
        found = events(null_tree, COMPLETIONS, prompt=[1, seed], seed=seed, max_tokens=200)
        text = null_model.answer([1, seed], 200, seed=seed)
        for event in found:
            piece = event["choices"][0]["text"]
            assert text.startswith(piece)
            text = text.removeprefix(piece)


@pytest.mark.parametrize("path", PATHS)
def test_b01_the_prompt_ends_inside_a_character(null_tree, path):
    """What the prompt leaves incomplete belongs to the answer, in both modes the same."""
    prompt = list("日".encode()[:2]) if path == COMPLETIONS else "日"
    for seed in range(10):
        both_ways(null_tree, path, prompt=prompt, seed=seed, max_tokens=20)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("byte", [172, 0xE6, 0xF0, 0xC3])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_b03_ends_inside_a_character(null_tree, path, byte, max_tokens):
    answer = both_ways(null_tree, path, logit_bias=bias([byte]), max_tokens=max_tokens)
    assert answer.texts == [(bytes([byte]) * max_tokens).decode(errors="replace")]
    assert answer.reasons == ["length"]
    assert answer.usage["completion_tokens"] == max_tokens


@pytest.mark.parametrize("include", [False, True])
def test_b03_ends_by_a_stop_token_inside_a_character(null_tree, include):
    """min_tokens keeps the stop token out for two tokens; what is incomplete then is flushed, with or without it."""
    answer = both_ways(
        null_tree, COMPLETIONS, logit_bias=bias([0xE6, 0x9F]), stop_token_ids=[0x9F], min_tokens=2, max_tokens=9,
        include_stop_str_in_output=include,
    )  # fmt: skip
    assert answer.reasons == ["stop"]
    assert answer.texts == [(b"\xe6\xe6\x9f" if include else b"\xe6\xe6").decode(errors="replace")]
    assert answer.usage["completion_tokens"] == 3


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory):
    """A model directory with a tokenizer like Llama 2's: spaces as ▁, one token for each byte, no pre-tokenizer."""
    directory = tmp_path_factory.mktemp("sentencepiece")
    words = ["▁Hello", ".", "▁", "▁▁", "▁world", "\n", "\n\n", "\t", "é", "▁é", "日", ",", "lo", "▁.", "s", "▁▁▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    backend = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens[:3]])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(directory / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": len(tokens), "hidden_size": 64,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory, backend, tokens


@pytest.mark.parametrize("skip", [True, False])
def test_b05_spaces_are_neither_lost_nor_doubled(sentencepiece, tree_of, skip):
    directory, backend, tokens = sentencepiece
    tree = tree_of("--model-impl", "null", "--model", directory)
    words, specials = range(259, len(tokens)), (1, 2)
    among = (*words, *specials)
    for seed in range(25):
        prompt = [1, *random.Random(seed).choices(words, k=4)]
        ids = null_model.generated(prompt, 60, seed=seed, ends=(), among=among, vocab_size=len(tokens))
        before = backend.decode(prompt, skip_special_tokens=skip)
        expected = backend.decode(prompt + ids, skip_special_tokens=skip).removeprefix(before)
        answer = both_ways(
            tree, COMPLETIONS, prompt=prompt, seed=seed, max_tokens=60, ignore_eos=True, logit_bias=bias(among),
            skip_special_tokens=skip,
        )  # fmt: skip
        assert answer.texts == [expected]


@pytest.mark.parametrize("skip", [True, False])
def test_b05_bytes_of_a_sentencepiece_model(sentencepiece, tree_of, skip):
    """Unbiased, nearly all tokens are bytes."""
    directory, backend, tokens = sentencepiece
    tree = tree_of("--model-impl", "null", "--model", directory)
    for seed in range(25):
        ids = null_model.generated([260], 100, seed=seed, ends=(2,), vocab_size=len(tokens))
        rendered = ids[:-1] if ids[-1] == 2 else ids
        expected = backend.decode([260, *rendered], skip_special_tokens=skip).removeprefix(backend.decode([260]))
        answer = both_ways(tree, COMPLETIONS, prompt=[260], seed=seed, max_tokens=100, skip_special_tokens=skip)
        assert answer.texts == [expected]


@pytest.mark.parametrize("path", PATHS)
def test_b08_text_that_begins_no_stop_string_is_not_held_back(slow_null_tree, path):
    forced = {"logit_bias": bias(b"A"), "max_tokens": 25}
    for stop in ("B" * 100, "BA" * 50, "AAB"):
        pieces = [text_of(event["choices"][0]) for event in events(slow_null_tree, path, **forced, stop=stop)]
        pieces = [piece for piece in pieces if piece]
        assert "".join(pieces) == "A" * 25
        assert len(pieces[0]) < 12, "the first text waited for more"
        assert len(pieces) > 5, "text came in lumps"


@pytest.mark.parametrize("path", PATHS)
def test_b08_what_may_be_a_stop_string_is_held_and_then_given(null_tree, path):
    answer = both_ways(null_tree, path, logit_bias=bias(b"A"), max_tokens=25, stop="A" * 26)
    assert (answer.texts, answer.reasons) == (["A" * 25], ["length"])


def test_b09_the_end_token(null_tree):
    """Whether it counts, whether it shows, and what else may end there: as documented, and the same in both modes."""
    seed = next(s for s in range(1000) if null_model.generated([1], 50, seed=s)[-1] == MESSAGE_END)
    ids = null_model.generated([1], 50, seed=seed)
    without, shown = null_model.decoded(ids[:-1]), null_model.decoded(ids, skip_special_tokens=False)
    endless = null_model.generated([1], 50, seed=seed, ends=())
    all_hidden, all_shown = (null_model.decoded(endless, skip_special_tokens=skip) for skip in (True, False))
    eos = "<|im_end|>"

    def ask(**fields):
        answer = both_ways(null_tree, COMPLETIONS, prompt=[1], seed=seed, max_tokens=50, **fields)
        return answer.texts[0], answer.reasons[0], answer.usage["completion_tokens"]

    assert ask() == (without, "stop", len(ids))
    assert ask(skip_special_tokens=False) == (without, "stop", len(ids))
    assert ask(skip_special_tokens=False, include_stop_str_in_output=True) == (shown, "stop", len(ids))
    assert ask(include_stop_str_in_output=True) == (without, "stop", len(ids))
    assert ask(stop_token_ids=[MESSAGE_END]) == (without, "stop", len(ids))
    assert ask(stop_token_ids=[MESSAGE_END], ignore_eos=True) == (without, "stop", len(ids))
    assert ask(ignore_eos=True) == (all_hidden, "length", 50)
    assert ask(ignore_eos=True, skip_special_tokens=False) == (all_shown, "length", 50)
    assert ask(ignore_eos=True, stop=eos) == (all_hidden, "length", 50)
    stopped = {"ignore_eos": True, "stop": eos, "skip_special_tokens": False}
    assert ask(**stopped) == (shown.removesuffix(eos), "stop", len(ids))
    assert ask(**stopped, include_stop_str_in_output=True) == (shown, "stop", len(ids))


def first_match(text, stops):
    """Where the first stop string that is complete begins and ends; of those complete together, the longest."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    end, begin = min(found, default=(len(text), len(text)))
    return begin, end


def stop_sets(text):
    """Stop strings cut out of a text of at least 40 characters, and some that it lacks."""
    yield [text[12:19]]
    yield [text[:1]]
    yield [text[:3]]
    yield [text[20:22], text[20:23]]
    yield [text[20:23], text[20:22]]
    yield [text[20:25], text[22:24]]
    yield [text[8:30], text[28:31]]
    yield [text[-1]]
    yield [text[-3:]]
    yield ["\nUser:"]
    yield [text[-2:] + "\u00e9"]
    yield [text[10:13] + "\u00e9", text[11:12] + "\u00e8"]
    yield [*(text[i : i + 4] + "!?" for i in range(0, 36, 4)), text[33:37]]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("among", [ASCII, FEW], ids=["varied text", "two letters"])
@pytest.mark.parametrize("include", [False, True], ids=["cut", "included"])
def test_b06_no_stop_string_leaks(null_tree, path, among, include):
    """Each token is one character, so every longer stop string is split over tokens."""
    for seed in range(2):
        fields = {"prompt": "Hi", "seed": seed, "max_tokens": 40, "logit_bias": bias(among)}
        text = whole(null_tree, path, **fields).texts[0]
        assert len(text) == 40
        for stops in stop_sets(text):
            begin, end = first_match(text, stops)
            answer = both_ways(null_tree, path, **fields, stop=stops, include_stop_str_in_output=include)
            assert answer.texts == [text[: end if include else begin]], stops
            assert answer.reasons == ["stop" if begin < end else "length"]
            assert answer.usage["completion_tokens"] == end, "what came after the stop string is billed"


def own_part(texts, index):
    """A part of one text that no other has."""
    parts = (texts[index][i : i + 6] for i in range(5, 34))
    return next(part for part in parts if sum(part in text for text in texts) == 1)


@pytest.mark.parametrize("path", PATHS)
def test_b06_each_choice_stops_by_itself(null_tree, path):
    fields = {"seed": 5, "n": 4, "max_tokens": 40, "logit_bias": bias(ASCII)}
    texts = whole(null_tree, path, **fields).texts
    stops = [own_part(texts, 1), own_part(texts, 3)]
    matches = [first_match(text, stops) for text in texts]
    answer = both_ways(null_tree, path, **fields, stop=stops)
    assert answer.texts == [text[:begin] for text, (begin, _) in zip(texts, matches, strict=True)]
    assert answer.reasons == ["stop" if begin < end else "length" for begin, end in matches]
    assert answer.usage["completion_tokens"] == sum(end for _, end in matches)
    assert answer.reasons == ["length", "stop", "length", "stop"]


def test_b06_the_prompt_is_not_searched(null_tree):
    """A stop string that the prompt ends with, begins or holds stops nothing; an echo is not cut either."""
    forced = {"logit_bias": bias(b"C"), "max_tokens": 5}
    for stop in ("AB", "BC", "B"):
        answer = both_ways(null_tree, COMPLETIONS, prompt="AB", **forced, stop=stop, echo=True)
        assert (answer.texts, answer.reasons) == (["ABCCCCC"], ["length"])


def test_b06_inside_one_token_of_a_real_model(smollm2, golden):
    """Tokens of several characters: a stop string begins and ends in the middle of them."""
    item = next(item for item in golden if len(item["greedy_ids"]) >= 24 and item["greedy_text"].isascii())
    fields = {"prompt": item["prompt_ids"], "temperature": 0, "max_tokens": 24}
    text = whole(smollm2, COMPLETIONS, **fields).texts[0]
    assert item["greedy_text"].startswith(text)
    stops = [text[begin : begin + 3] for begin in range(9, 15)]
    answers = in_parallel([partial(both_ways, smollm2, COMPLETIONS, **fields, stop=stop) for stop in stops])
    for stop, answer in zip(stops, answers, strict=True):
        assert (answer.texts, answer.reasons) == ([text[: text.find(stop)]], ["stop"])
    billed = [answer.usage["completion_tokens"] for answer in answers]
    assert len(set(billed)) < len(billed), "no two stop strings ended in the same token"


def test_b01_bytes_of_a_real_model(smollm2):
    """Forced to bytes above 127, which its vocabulary has as tokens of their own: characters broken and whole."""
    fields = {"prompt": "The flags: 👩‍🚀", "temperature": 2, "max_tokens": 24, "logit_bias": bias(range(111, 224))}
    for answer in in_parallel([partial(both_ways, smollm2, COMPLETIONS, **fields, seed=seed) for seed in range(4)]):
        assert answer.usage["completion_tokens"] == 24
        assert not answer.texts[0].isascii()
