from abc import ABCMeta
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

class Error(Exception):
    sqlstate: str
    detail: str | None
    hint: str | None

# Not a kind of Error, though it has the same attributes.
class SPIError(Exception):
    sqlstate: str
    detail: str | None
    hint: str | None

class Result(Sequence[dict[str, Any]], metaclass=ABCMeta):
    def nrows(self) -> int: ...

class Plan:
    def execute(self, args: Sequence[Any] = ..., limit: int = ...) -> Result: ...

def subtransaction() -> AbstractContextManager[None]: ...
def prepare(query: str, argtypes: Sequence[str] = ...) -> Plan: ...
def log(msg: str, *, detail: str = ..., hint: str = ...) -> None: ...
def execute(query: str, limit: int = ...) -> Result: ...
def quote_ident(text: str) -> str: ...
def quote_literal(text: str) -> str: ...
