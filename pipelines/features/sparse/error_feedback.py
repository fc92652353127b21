"""What a peer has not sent of its progress is added to its later progress (Seide et al., 2014; SparseLoCo)."""

from collections.abc import Sequence

import torch

from pipelines.features.sparse.codec import SparseCodec, SparseUpdate


class ErrorFeedback:
    """The accumulated progress that has not been sent: float32 of the parameters' size, on the CPU.

    `decay`, in (0, 1]: what is left of it with every round.
    """

    def __init__(self, codec: SparseCodec, decay: float) -> None:
        if not 0 < decay <= 1:
            raise ValueError(f"The decay of the error feedback is {decay}; expected more than 0 and at most 1.")
        self._codec, self._decay = codec, decay
        self._vector = torch.zeros(codec.layout.num_values)
        self._sent: SparseUpdate | None = None

    @property
    def error(self) -> list[torch.Tensor]:
        """What has not been sent, in the tensors' shapes: views, not copies."""
        return self._codec.views(self._vector)

    def compress(self, progress: Sequence[torch.Tensor], num_samples: int) -> bytes:
        """Return the bytes to send in a round: the largest values of the accumulated progress, which then loses them.

        `num_samples`: of how many the progress is.

        Raises:
            ValueError: the progress has other shapes, is not finite, or of no samples; nothing has changed then.
        """
        self._codec.layout.check_shapes(progress)
        total = self._vector.mul(self._decay)
        for own, new in zip(self._codec.views(total), progress, strict=True):
            own.add_(new)
        payload = self._codec.encode(self._codec.views(total), num_samples)
        self._vector, self._sent = total, self._codec.decode(payload)
        self._codec.add_to(self._vector, self._sent, -1.0)
        return payload

    def restore(self, share: float = 1.0) -> None:
        """Take back a share of what `compress` has sent last, once: no peer applies it.

        All of it if the round failed, or what the mean has cut.
        """
        if self._sent is not None:
            self._codec.add_to(self._vector, self._sent, share)
            self._sent = None

    def reset(self) -> None:
        """Forget everything: the state has changed from outside, and this progress is that of another one."""
        self._vector.zero_()
        self._sent = None
