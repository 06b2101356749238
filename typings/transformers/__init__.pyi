# Its real types are mostly unknown, and binding them takes most of a minute.
from typing import Any

def __getattr__(name: str) -> Any: ...
