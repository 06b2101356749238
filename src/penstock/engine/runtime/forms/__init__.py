"""Forms: what a framework takes an item as, and how it comes to a device. A file each, imported
when asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, get_args

from ....arguments import check_choice
from ....errors import ConfigError

FormName: TypeAlias = Literal["numpy", "torch", "jax"]

FORMS: tuple[FormName, ...] = get_args(FormName)


class Form(Protocol):
    """The output form of items. `copies`: they are also copied in advance."""

    @property
    def copies(self) -> bool: ...

    @property
    def place(self) -> tuple[int, int] | None:
        """The rank and the world size of the rows that this process must give; None where any
        do."""
        ...

    def values(self, items: list[Any], /) -> list[Any]:
        """The items in this form, where they lie."""
        ...

    def copy(self, item: Any, /) -> Callable[[], Any]:
        """Begin to copy an item of this form, on the thread that copies; what is returned gives the
        copy, on the thread that takes it.
        """
        ...


def form_of(to: FormName, device: object, pin_memory: bool | None) -> Form | None:
    """The form that was asked for; None leaves items as the pipeline makes them."""
    check_choice(to, FORMS, "to={}")
    if to == "numpy":
        if device is not None or pin_memory:
            raise ConfigError(
                f"device={device!r}, pin_memory={pin_memory}: NumPy arrays are in plain memory of "
                "this machine; use to='torch' or 'jax'"
            )
        return None
    if to == "jax":
        if pin_memory:
            raise ConfigError(
                "pin_memory=True is for to='torch', because JAX pins by itself; leave it out"
            )
        from .jax import JaxForm

        return JaxForm(device)
    from .torch import TorchForm

    return TorchForm(device, pin_memory)
