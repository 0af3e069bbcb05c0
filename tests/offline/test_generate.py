"""`actorlm generate`, as a function and as a command."""

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from actorlm.config import Config
from actorlm.errors import BadRequest, ConfigError
from actorlm.offline import generate as module
from actorlm.offline.generate import generate
from actorlm.offline.rows import Defaults
from actorlm.offline.session import load
from actorlm.screen import Screen

NULL = {"model": {"model_impl": "null"}}
MAIN = "import sys; from actorlm.cli import main; sys.argv[0] = 'actorlm'; main()"


class Files:
    def __init__(self, directory):
        self.source = directory / "in.jsonl"
        self.target = directory / "out.jsonl"

    def ask(self, *rows):
        self.source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self, sections=None, *, seed=None, **defaults):
        config = msgspec.convert(sections or NULL, Config)
        return generate(config, self.source, self.target, defaults=Defaults(**defaults), seed=seed, screen=Screen())

    def answers(self):
        """By row; a row that is answered twice fails."""
        found = [json.loads(line) for line in self.target.read_text().splitlines()]
        assert len({answer["index"] for answer in found}) == len(found)
        return {answer["index"]: answer for answer in found}

    def command(self, *arguments, **options):
        command = [sys.executable, "-c", MAIN, "generate", "-i", str(self.source), "-o", str(self.target), *arguments]
        return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.mark.timeout(600)
def test_golden_ids_through_jsonl(files, golden):
    files.ask(
        *(
            {"messages": [{"role": "user", "content": item["prompt"]}], "custom_id": str(number)}
            if item["kind"] == "chat"
            else {"prompt_token_ids": item["prompt_ids"], "custom_id": str(number)}
            for number, item in enumerate(golden)
        )
    )
    assert files.run({"model": {"dtype": "float32"}}, temperature=0, max_tokens=64)
    answers = files.answers()
    for number, item in enumerate(golden):
        (choice,) = answers[number]["choices"]
        assert (choice["token_ids"], choice["text"]) == (item["greedy_ids"], item["greedy_text"])
        assert answers[number]["custom_id"] == str(number)
        assert answers[number]["usage"]["prompt_tokens"] == len(item["prompt_ids"])


def test_every_kind_of_row(files, oracle):
    files.ask(
        {"prompt": "abc", "id": 7, "temperature": 0},
        {"prompt_token_ids": [1, 2], "seed": 5, "n": 2, "max_tokens": 30},
        {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 3, "ignore_eos": True},
    )
    assert files.run()
    answers = files.answers()
    assert answers[0]["id"] == 7
    assert answers[0]["choices"][0]["token_ids"] == oracle.generated(list(b"abc"), 16)
    assert [choice["token_ids"] for choice in answers[1]["choices"]] == [
        oracle.generated([1, 2], 30, seed=5, choice=choice) for choice in range(2)
    ]
    assert answers[2]["usage"] == {
        "prompt_tokens": 21, "completion_tokens": 3, "total_tokens": 24, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip
    assert answers[2]["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_of_a_row(files):
    files.ask({"prompt_token_ids": [1, 2], "max_tokens": 3, "logprobs": 1, "prompt_logprobs": 0, "ignore_eos": True})
    assert files.run()
    answer = files.answers()[0]
    assert [place and list(place) for place in answer["prompt_logprobs"]] == [None, ["2"]]
    (choice,) = answer["choices"]
    assert [next(iter(place)) for place in choice["logprobs"]] == [str(token) for token in choice["token_ids"]]
    assert files.run(), "the file is read again"


def test_what_only_the_model_can_tell_is_an_answer_with_an_error(files, capfd):
    files.ask(
        {"prompt_token_ids": [1] * 100, "id": "long"},
        {"prompt": "a"},
        {"prompt": ""},
        {"prompt": "a", "stop_token_ids": [999]},
    )
    assert not files.run({"model": {"model_impl": "null", "max_model_len": 64}})
    answers = files.answers()
    assert answers[0]["id"] == "long"
    assert answers[0]["error"]["code"] == "context_length_exceeded"
    assert answers[0]["error"]["param"] == "prompt_token_ids"
    assert answers[1]["choices"]
    assert "prompt is empty" in answers[2]["error"]["message"]
    assert "999" in answers[3]["error"]["message"]
    assert "3 of 4 answers are errors" in capfd.readouterr().err


def test_a_bad_line_is_refused_before_anything_is_done(files):
    files.ask({"prompt": "a"}, {"promt": "a"})
    with pytest.raises(BadRequest, match="line 2: .*promt"):
        files.run({"model": {"path": "/no/such/model"}})
    assert not files.target.exists()


def test_rows_with_an_answer_are_skipped_and_the_model_is_not_loaded_for_nothing(files, capfd):
    files.ask({"prompt": "a"}, {"prompt": "b"})
    files.target.write_text('{"index":1,"choices":[]}\n{"index":0,"cho')
    assert files.run()
    answers = files.answers()
    assert answers[0]["choices"]
    assert answers[1]["choices"] == []
    assert files.run({"model": {"path": "/no/such/model"}})
    assert files.answers() == answers
    assert "2 rows had answers" in capfd.readouterr().err


def test_a_seed_makes_a_run_that_was_cut_equal_to_one_that_was_not(files):
    files.ask(*({"prompt": "a", "ignore_eos": True} for _ in range(6)))
    files.run(seed=3)
    whole = files.answers()
    lines = files.target.read_text().splitlines(keepends=True)
    files.target.write_text("".join(lines[:3]) + lines[3][:20])
    files.run(seed=3)
    assert files.answers() == whole
    assert len({answer["choices"][0]["text"] for answer in whole.values()}) == 6


def test_input_and_output_are_two_files(files):
    files.ask({"prompt": "a"})
    files.target = files.source
    with pytest.raises(BadRequest, match="is input and output"):
        files.run()


def test_a_pipe_is_refused_because_it_cannot_be_read_twice(files):
    os.mkfifo(files.source)
    with pytest.raises(BadRequest, match="is no regular file"):
        files.run()


def test_an_input_that_loses_rows_meanwhile_is_noticed(files, monkeypatch):
    files.ask({"prompt": "a"}, {"prompt": "b"})

    def load_and_lose(config, screen):
        files.ask({"prompt": "a"})
        return load(config, screen)

    monkeypatch.setattr(module, "load", load_and_lose)
    with pytest.raises(BadRequest, match="changed while it was read"):
        files.run()


def test_options_of_a_tree_are_refused(files):
    files.ask({"prompt": "a"})
    with pytest.raises(ConfigError, match="--dp 2: offline there is one replica"):
        files.run({**NULL, "parallel": {"data": 2}})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_it_leaves_a_file_that_the_next_run_completes(files, number):
    files.ask(*({"prompt_token_ids": [i], "max_tokens": 20 + i, "ignore_eos": True, "seed": i} for i in range(60)))
    options = ("--model-impl", "null", "--null-step-ms", "5", "--max-num-seqs", "8")
    with files.command(*options) as process:
        while not files.target.exists() or files.target.read_bytes().count(b"\n") < 5:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    done = files.answers()
    assert 5 <= len(done) < 60
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "of 60 rows are in" in said
        assert said.endswith("actorlm: interrupted\n")
    with files.command(*options) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    answers = files.answers()
    assert len(answers) == 60
    assert all(answers[index] == answer for index, answer in done.items())
    assert all(len(answers[index]["choices"][0]["token_ids"]) == 20 + index for index in range(60))


def test_answers_go_to_standard_output_too(files):
    files.ask({"prompt": "a"})
    command = [sys.executable, "-c", MAIN, "generate", "--model-impl", "null", "-i", str(files.source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["index"] == 0


def test_errors_are_one_line_and_a_status(files):
    files.ask({"prompt": ""})
    with files.command("--model-impl", "null") as process:
        process.communicate(timeout=60)
    assert process.returncode == 1
    files.ask({"no": 1})
    with files.command("--model-impl", "null") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.count("\n") == 1
    assert "line 1" in said
    with files.command("--no-such-flag") as process:
        process.communicate(timeout=60)
    assert process.returncode == 2


def test_a_terminal_gets_a_bar(files):
    files.ask(*({"prompt": "a"} for _ in range(3)))
    ours, theirs = os.openpty()
    command = [
        sys.executable,
        "-c",
        MAIN,
        "generate",
        "--model-impl",
        "null",
        "-i",
        str(files.source),
        "-o",
        str(files.target),
    ]
    with subprocess.Popen(command, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 4096)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    assert b"3/3" in said
    assert b"tokens/s" in said
