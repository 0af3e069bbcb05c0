"""What is found again in a file of answers, what is cut, and what is never touched."""

import os

import pytest

from actorlm.errors import BadRequest
from actorlm.offline.output_file import OutputFile
from actorlm.offline.rows import Answer

KEYS = ["a", None, "c", 4]
LINE = b'{"index":0,"id":"a","choices":[]}\n'


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.jsonl"


def test_what_was_written_is_found_again(path):
    with OutputFile(path, KEYS) as output:
        assert output.done == set()
        output.append(Answer(index=2, id="c", choices=[]))
        output.append(Answer(index=1, error=None))
    with OutputFile(path, KEYS) as output:
        assert output.done == {1, 2}
        output.append(Answer(index=3, custom_id=4))
    assert [line[:10] for line in path.read_bytes().splitlines()] == [b'{"index":2', b'{"index":1', b'{"index":3']


@pytest.mark.parametrize("length", range(1, len(LINE)))
def test_a_torn_last_line_is_cut_off(path, length):
    path.write_bytes(b'{"index":1}\n' + LINE[:length])
    with OutputFile(path, KEYS) as output:
        assert output.done == {1}
        output.append(Answer(index=0, id="a"))
    assert path.read_bytes() == b'{"index":1}\n{"index":0,"id":"a"}\n'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"my notes", "line 1 is no answer"),
        (b"my notes\n", "line 1 is no answer"),
        (b'{"index":1}\n{"prompt": "a"}\n', "line 2 is no answer"),
        (b'{"index":1}\n{"torn\n{"index":2}\n', "line 2 is no answer"),
        (b'{"index":4}\n', "line 1 answers row 4, and the input has 4 rows"),
        (b'{"index":-1}\n', "line 1 answers row -1"),
        (b'{"index":2,"id":"b"}\n', "line 1 answers row 2 with the id 'b', and the input's is 'c'"),
        (b'{"index":1}\n{"index":1}\n', "line 2 answers row 1 again"),
    ],
)
def test_a_file_that_is_not_ours_is_left_as_it_is(path, content, named):
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=f"out.jsonl: {named}.*another file"):
        OutputFile(path, KEYS)
    assert path.read_bytes() == content


def test_errors_are_counted(path):
    path.write_bytes(b'{"index":1,"error":{"message":"m","type":"t","param":null,"code":null}}\n')
    with OutputFile(path, KEYS) as output:
        assert (output.done, output.errors) == ({1}, 1)


def test_one_writer_at_a_time(path):
    with OutputFile(path, KEYS), pytest.raises(BadRequest, match="is being written by another process"):
        OutputFile(path, KEYS)
    OutputFile(path, KEYS).close()


def test_what_cannot_be_opened_or_written_says_why(tmp_path):
    with pytest.raises(BadRequest, match="cannot write to .*: Is a directory"):
        OutputFile(tmp_path, KEYS)
    with OutputFile(tmp_path / "x", KEYS) as output, pytest.raises(BadRequest, match="cannot write to .*No space left"):
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, output._descriptor)
        os.close(full)
        output.append(Answer(index=1))


def test_standard_output_and_devices_are_not_read(capfd):
    with OutputFile(None, KEYS) as output:
        output.append(Answer(index=1))
    assert capfd.readouterr().out == '{"index":1}\n'
