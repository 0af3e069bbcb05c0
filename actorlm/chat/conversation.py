"""What was said, and thus what the model is sent with the next question."""

from typing import Any


class Conversation:
    """Turns of user and assistant, behind a system prompt if there is one."""

    def __init__(self, system: str | None = None) -> None:
        self._system = [{"role": "system", "content": system}] if system is not None else []
        self._turns: list[dict[str, Any]] = []

    def with_question(self, text: str) -> list[dict[str, Any]]:
        """All messages, with a question at the end that is not part of the conversation before it was answered."""
        return [*self._system, *self._turns, {"role": "user", "content": text}]

    def answered(self, question: str, answer: str) -> None:
        """A turn is complete."""
        self._turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        """Forgets everything but the system prompt."""
        self._turns.clear()
