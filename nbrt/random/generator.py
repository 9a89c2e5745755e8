"""`Generator`: NumPy's methods over a Philox stream, on any device."""

from __future__ import annotations

from nbrt.random.gammas import RejectionSampled
from nbrt.random.multivariate import Multivariate

__all__ = ["Generator"]


class Generator(RejectionSampled, Multivariate):
    """Random arrays on one device, with the methods of `numpy.random.Generator`.

    Element i of a draw is a function of (seed, offset, i) alone, so every device gives the same
    bits; a draw moves the offset by the words it used, in whole blocks of 4. Any number of threads
    may draw from one generator: each draw gets a range of its own. A draw that fails takes nothing.

    Parameters
    ----------
    seed : int or numpy.random.SeedSequence, optional
        In [-2**63, 2**64); taken from the operating system if None. A negative one stands for
        ``2**64 - 1 + seed``, as in torch.
    device : Device, str, int or None
        Where the arrays are made; the device that is current now by default.
    layout : str or Layout
        Which words of the stream belong to which element: "element", a function of the index alone;
        "torch", as torch's CUDA kernels share them out on a certain GPU; "torch_stateless", as
        torch.func._random does.
    gpu : str or (int, int), optional
        The GPU that "torch" follows, by name or as (multiprocessors, threads per multiprocessor);
        that of `device` by default.

    Examples
    --------
    >>> import nbrt
    >>> a = nbrt.Generator(7, device="cpu:0").random(4, dtype="float32")
    >>> b = nbrt.Generator(7, device="cpu:0").random(8, dtype="float32")
    >>> bool((a == b[:4]).all())
    True
    """
