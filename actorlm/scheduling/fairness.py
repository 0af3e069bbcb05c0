"""Who waits, and who of them is next: callers take turns by what they use, and each caller's requests keep their order.

Start-time fair queueing. Each caller has an account in tokens of work, divided by its weight; the next request is one
of the caller who has used least. Whoever begins to wait starts where the one that was let in last stood, so that
nobody saves up turns; once nobody waits, all accounts are even. Must not know: time, slots, blocks. policy.py tells
the policy.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, NamedTuple

from actorlm.scheduling.line import Line
from actorlm.scheduling.load import DECODE_COST, near, work
from actorlm.scheduling.request import Request

FEW = 64
"""Accounts up to which none is forgotten that owes something."""


class Waiting(NamedTuple):
    """So many requests wait, with so many known tokens."""

    requests: int
    tokens: int


@dataclass(slots=True, eq=False)
class _Account:
    """What one caller has used, and who waits in its name. `open` counts its requests that have not ended."""

    used: float
    weight: float = 1.0
    line: Line[Request] = field(default_factory=Line)
    rank: tuple[float, int] = (0.0, 0)
    open: int = 0
    waiting: int = 0
    tokens: int = 0


class FairQueue:
    """All requests of a replica that wait: those that have never run, by turns, behind those that have."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._turns: Line[_Account] = Line()
        """The accounts in whose name somebody waits who has never run."""
        self._returned: Line[Request] = Line()
        self._level = self._most = 0.0
        """Where newcomers start, and the most that any account has ever had."""
        self._numbers = count(1)
        self._entries = count(1)
        self._callers = self._newcomers = 0
        self._look_at = FEW
        self.tokens = 0
        """Known tokens of all requests that wait."""

    def __len__(self) -> int:
        return self._newcomers + len(self._returned)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._returned, *(account.line for account in self._turns))

    @property
    def first(self) -> Request:
        """Who is next: who has run before, unless one that has not is more urgent."""
        if not self._turns:
            return self._returned.first
        newcomer = self._turns.first.line.first
        if self._returned and self._returned.first.rank[0] <= newcomer.rank[0]:
            return self._returned.first
        return newcomer

    def of(self, tenant: str) -> Waiting:
        """Those that wait in this caller's name."""
        account = self._accounts.get(tenant)
        return Waiting(0, 0) if account is None else Waiting(account.waiting, account.tokens)

    def callers_with(self, tenant: str) -> int:
        """How many callers have somebody waiting, this one counted in any case."""
        return self._callers + (self.of(tenant).requests == 0)

    def add(self, request: Request, urgency: int) -> None:
        """A new request; the least urgency goes first among its caller's. One that resumes goes before all new ones."""
        account = self._account(request)
        account.open += 1
        self._count(account, request, 1)
        if request.attempt:
            request.rank = urgency, next(self._entries)
            self._returned.add(request)
            return
        request.rank = urgency, next(self._numbers)
        if not account.line:
            account.used = max(account.used, self._level)
            self._queue(account)
        account.line.add(request)
        self._newcomers += 1

    def put_back(self, request: Request) -> None:
        """One that runs is preempted: it waits in the order in which they entered."""
        self._count(self._accounts[request.tenant], request, 1)
        self._returned.add(request)

    def enter(self, request: Request) -> None:
        """The request that is next begins to run. What it is expected to use is charged, once."""
        account = self._accounts[request.tenant]
        if account.line and account.line.first is request:
            self._level = max(self._level, account.used)
            self._take(account, request)
            request.rank = request.rank[0], next(self._entries)
        else:
            self._returned.remove(request)
        self._count(account, request, -1)
        if not request.charged_at:
            known = request.charged_at = len(request.token_ids)
            self._charge(account, work(known, near(request.max_length - known)))
        self._even_out()

    def leave(self, request: Request) -> None:
        """The request ends while it waits."""
        account = self._accounts[request.tenant]
        self._count(account, request, -1)
        if request.charged_at or request.attempt:
            self._returned.remove(request)
        else:
            self._take(account, request)
        self.ended(request)

    def ended(self, request: Request) -> None:
        """The request has ended, in whatever phase: what it was charged and did not use goes back, or the other way."""
        account = self._accounts[request.tenant]
        if request.charged_at:
            known = request.charged_at
            generated = len(request.token_ids) - known
            self._charge(account, DECODE_COST * (generated - near(request.max_length - known)))
        account.open -= 1
        self._even_out()
        if not account.open and account.used <= self._level:
            del self._accounts[request.tenant]

    def check(self) -> None:
        """Proves the accounts. Raises AssertionError."""
        assert self._newcomers == sum(len(account.line) for account in self._accounts.values())
        assert set(self._turns) == {account for account in self._accounts.values() if account.line}
        assert self.tokens == sum(len(request.token_ids) for request in self), f"{self.tokens} tokens wait"
        for tenant, account in self._accounts.items():
            own = [len(request.token_ids) for request in self if request.tenant == tenant]
            assert (account.waiting, account.tokens) == (len(own), sum(own)), f"{tenant}: {account}"
            assert account.open >= account.waiting, f"{tenant}: {account}"
        assert self._callers == sum(account.waiting > 0 for account in self._accounts.values())
        _check_order(self._turns)
        for line in (self._returned, *(account.line for account in self._turns)):
            _check_order(line)

    def _account(self, request: Request) -> _Account:
        account = self._accounts.get(request.tenant)
        if account is None:
            self._forget_idle()
            account = self._accounts[request.tenant] = _Account(self._level)
        account.weight = request.weight
        return account

    def _forget_idle(self) -> None:
        """When accounts are many: what callers with nothing open still owe, one request at most, is forgiven."""
        if len(self._accounts) >= self._look_at:
            self._accounts = {tenant: account for tenant, account in self._accounts.items() if account.open}
            self._look_at = FEW + 2 * len(self._accounts)

    def _even_out(self) -> None:
        if not self._turns:
            self._level = self._most

    def _queue(self, account: _Account) -> None:
        account.rank = account.used, next(self._numbers)
        self._turns.add(account)

    def _take(self, account: _Account, request: Request) -> None:
        account.line.remove(request)
        self._newcomers -= 1
        if not account.line:
            self._turns.remove(account)

    def _charge(self, account: _Account, tokens: int) -> None:
        waits = bool(account.line)
        if waits:
            self._turns.remove(account)
        account.used += tokens / account.weight
        self._most = max(self._most, account.used)
        if waits:
            self._queue(account)

    def _count(self, account: _Account, request: Request, sign: int) -> None:
        """One more waits in this name, or one less."""
        tokens = sign * len(request.token_ids)
        self.tokens += tokens
        account.tokens += tokens
        self._callers -= account.waiting > 0
        account.waiting += sign
        self._callers += account.waiting > 0


def _check_order(line: Line[Any]) -> None:
    ranks = [one.rank for one in line]
    assert ranks == sorted(set(ranks)), f"not in line: {ranks}"
