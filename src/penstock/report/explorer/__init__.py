"""Explorer of a plan: answers for a browser, and the local server that gives them.

`Explorer` answers questions in Python. `server` makes it a web application, `security` guards that,
and `static` holds the page.
"""

from .explorer import Explorer

__all__ = ["Explorer"]
