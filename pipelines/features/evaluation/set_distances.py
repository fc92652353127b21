"""Distances between two sets of pictures, from their features, as torch-fidelity computes them.

All take `(picture, feature)` tensors and compute with 64 bits on the CPU.
"""

import numpy as np
import torch
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_kid import kernel_poly, kernel_rbf, mmd2

CMMD_SIGMA, CMMD_SCALE = 10.0, 1000.0
"""Of Jayasumana et al. 2024, Rethinking FID."""

FEWEST_PICTURES = 2


def frechet_distance(features: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the Fréchet distance of two normal distributions fitted to the features (FID, Heusel et al. 2017).

    It is biased: fewer pictures have a larger distance. Compare it only for equal numbers.
    """
    first, second = (fid_features_to_statistics(_checked(item)) for item in (features, reference))
    return float(fid_statistics_to_metric(first, second, verbose=False)[KEY_METRIC_FID])


def kernel_distance(features: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the squared MMD with a cubic kernel (KID, Binkowski et al. 2018), without bias, from all pictures."""
    first, second = _checked(features).numpy(), _checked(reference).numpy()
    options = dict(kid_kernel_poly_degree=3, kid_kernel_poly_gamma=None, kid_kernel_poly_coef0=1.0)
    return _mmd(
        kernel_poly(first, first, **options),
        kernel_poly(first, second, **options),
        kernel_poly(second, second, **options),
    )


def cmmd(embeddings: torch.Tensor, reference: torch.Tensor) -> float:
    """Return CLIP's maximum mean discrepancy (CMMD, Jayasumana et al. 2024), in its units of 1/1000.

    `embeddings` are unit vectors. Unlike the paper's own estimate this one has no bias, so that it may be below zero.
    """
    first, second = _checked(embeddings).numpy(), _checked(reference).numpy()
    kernel = dict(kid_kernel_rbf_sigma=CMMD_SIGMA)
    return CMMD_SCALE * _mmd(
        kernel_rbf(first, first, **kernel), kernel_rbf(first, second, **kernel), kernel_rbf(second, second, **kernel)
    )


def _mmd(within: np.ndarray, between: np.ndarray, within_reference: np.ndarray) -> float:
    """Return the unbiased squared MMD; torch-fidelity's takes sets of equal size only."""
    if within.shape == within_reference.shape:
        return float(mmd2(within, between, within_reference))
    first, second = (
        (kernel.sum() - np.trace(kernel)) / (len(kernel) * (len(kernel) - 1)) for kernel in (within, within_reference)
    )
    return float(first + second - 2 * between.mean())


def _checked(features: torch.Tensor) -> torch.Tensor:
    if features.dim() != 2 or len(features) < FEWEST_PICTURES:
        raise ValueError(f"Expected features (picture, feature) of {FEWEST_PICTURES} or more, got {features.shape}.")
    return features.double().cpu()
