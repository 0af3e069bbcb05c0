"""The loop of `actorlm chat`: a line, an answer, until the lines end."""

from collections.abc import Mapping
from typing import Any

from actorlm.chat.background import Background
from actorlm.chat.conversation import Conversation
from actorlm.chat.source import Source
from actorlm.chat.terminal import Terminal
from actorlm.errors import ActorlmError


class Talk:
    """One conversation. `fields` are those of every chat completion that it takes."""

    def __init__(
        self,
        conversation: Conversation,
        source: Source,
        fields: Mapping[str, Any],
        terminal: Terminal,
        background: Background,
    ) -> None:
        self._conversation = conversation
        self._source = source
        self._fields = fields
        self._terminal = terminal
        self._background = background

    def run(self) -> bool:
        """Whether all went well: where somebody types and sees what fails, always.

        Ctrl-C stops an answer; where nobody types it raises KeyboardInterrupt. Raises errors of ours.
        """
        model = self._background.run(self._source.open())
        try:
            if self._terminal.interactive:
                self._terminal.hint(f"{model}. /reset forgets what was said, /exit leaves, Ctrl-C stops an answer.")
            return self._take_all() or self._terminal.interactive
        except BrokenPipeError:
            return True  # who read the answers wants no more of them
        finally:
            self._background.run(self._source.close())

    def _take_all(self) -> bool:
        fine = True
        while (line := self._terminal.read()) is not None and line.strip() != "/exit":
            fine = self._take(line.strip()) and fine
        return fine

    def _take(self, line: str) -> bool:
        match line:
            case "":
                return True
            case "/reset":
                self._conversation.reset()
                return True
            case question:
                return self._answer(question)

    def _answer(self, question: str) -> bool:
        """False for an answer that failed; the conversation then goes on as if the question had not been."""
        said: list[str] = []
        try:
            self._ask(question, said)
        except ActorlmError as error:
            self._interject(f"actorlm: {error.message}", said)
            return False
        except KeyboardInterrupt:
            self._interject("stopped", said)
            if not self._terminal.interactive:
                raise
        else:
            self._terminal.show("\n")
        if said:
            self._conversation.answered(question, "".join(said))
        return True

    def _ask(self, question: str, said: list[str]) -> None:
        def show(text: str) -> None:
            said.append(text)
            self._terminal.show(text)

        messages = self._conversation.with_question(question)
        self._background.run(self._source.answer(messages, self._fields, show))

    def _interject(self, text: str, said: list[str]) -> None:
        """On a line of its own."""
        if said:
            self._terminal.show("\n")
        self._terminal.hint(text)
