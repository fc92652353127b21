"""AdamW (Loshchilov and Hutter, 2019) with statistics in 8 or 32 bits."""

import torch

from pipelines.core.optimizers.lamb import Lamb


class AdamW(Lamb):
    """LAMB without the trust ratio, which is AdamW: `optimizer: adamw`. Needs smaller learning rates, such as 1e-3."""

    def trust_ratio(self, parameter: torch.Tensor, direction: torch.Tensor) -> float:
        """Return 1: all parameters step with the learning rate itself."""
        return 1.0
