"""A loader as a node of torchdata."""

from __future__ import annotations

from typing import Any, cast

from ...errors import make_missing_extra_error
from ...loader import Loader
from ..trainers import require_loader

try:
    from torchdata import nodes  # pyright: ignore[reportMissingImports, reportMissingTypeStubs, reportUnknownVariableType]
except ImportError:
    raise make_missing_extra_error(
        "torchdata", "torch", "penstock.integrations.torch.nodes"
    ) from None

_TorchBaseNode: type[Any] = cast("Any", nodes).BaseNode


class LoaderNode(_TorchBaseNode):
    """Serve a loader as the first node of a torchdata chain; every reset begins the next pass.

    The state is the loader's, so it loads on any number of its workers.

    Args:
        loader: a `penstock.Loader`, with workers if wanted.

    >>> import penstock as ps
    >>> from torchdata.nodes import Loader as Chain
    >>> from penstock.integrations.torch.nodes import LoaderNode
    >>> chain = Chain(LoaderNode(ps.Loader(ps.from_sequence(range(4)))))
    >>> list(chain)
    [0, 1, 2, 3]
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._loader = require_loader(loader, "LoaderNode")

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin at a state, or with the next pass.

        Args:
            initial_state: the return value of `get_state()`.
        """
        super().reset(initial_state)  # pyright: ignore[reportUnknownMemberType]
        if initial_state is not None:
            self._loader.load_state_dict(initial_state)
        self._items = iter(self._loader)

    def next(self) -> Any:
        """Return the next item."""
        return next(self._items)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the loader after its last item."""
        return self._loader.state_dict()
