from abc import ABCMeta
from collections.abc import Sequence
from typing import Any

class Error(Exception):
    sqlstate: str
    detail: str | None
    hint: str | None

class SPIError(Error): ...

class Result(Sequence[dict[str, Any]], metaclass=ABCMeta):
    def nrows(self) -> int: ...

class Plan:
    def execute(self, args: Sequence[Any] = ..., limit: int = ...) -> Result: ...

def prepare(query: str, argtypes: Sequence[str] = ...) -> Plan: ...
def log(msg: str, *, detail: str = ..., hint: str = ...) -> None: ...
