"""The names of remote calls: they are part of the wire protocol.

hivemind derives them from the answering class, so that renaming a class would separate old peers from new ones. Our
classes set the name themselves, so it survives a renaming.
"""

from typing import ClassVar

from hivemind.p2p import ServicerBase


class NamedServicer(ServicerBase):
    """Answers remote calls under an explicit name, as do its subclasses, whatever their class names."""

    PROTOCOL_NAME: ClassVar[str]
    """First part of the name of each remote call, as in `NAMESPACE::PROTOCOL_NAME.rpc_introduce`."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls._rpc_handlers = cls._stub_type = None  # hivemind caches these per class and would return the parent's

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        name = f"{cls.PROTOCOL_NAME}.{method_name}"
        return name if namespace is None else f"{namespace}::{name}"
