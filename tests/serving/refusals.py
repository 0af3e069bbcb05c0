"""What every refusal looks like."""

from tree import PATIENCE

TYPES = {
    400: "invalid_request_error",
    401: "invalid_request_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    504: "timeout_error",
    503: "service_unavailable_error",
}


def error_of(answer, *statuses):
    """The error object of an answer, 400 unless other statuses are named, after checks of its form."""
    assert answer.status_code in (statuses or (400,)), f"{answer.status_code}: {answer.text[:1000]}"
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == TYPES[answer.status_code]
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) <= 500
    assert error["param"] is None or 0 < len(error["param"]) <= 100
    assert error["code"] is None or error["code"].isidentifier()
    if answer.status_code in (429, 503):
        assert int(answer.headers["retry-after"]) >= 1
    return error


def refused(tree, path, body, *statuses):
    """Sends a body that is to be refused, whole and as a stream, which is refused alike; returns the error.

    A refusal takes less than a second, whatever its size.
    """
    answers = [tree.post(path, {"model": tree.model} | body | {"stream": stream}) for stream in (False, True)]
    whole, stream = (error_of(answer, *statuses) for answer in answers)
    assert stream == whole
    assert max(answer.elapsed.total_seconds() for answer in answers) < PATIENCE
    return whole
