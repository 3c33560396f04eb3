"""Eager calls that need nothing of torch's dispatcher.

A call of an operator passes the dispatcher twice, to the autograd kernel and from there to the
device's, and each time every argument is turned into a C++ value and back: most of the time that a
small call takes on the host (docs/architecture.md has the figures). Where nothing lies between the
caller and the device's kernel the kernel is called at once. That is decided from what the
dispatcher itself looks at, so whatever is not known here goes through the dispatcher.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

import torch
from torch import _C
from torch.autograd import forward_ad, profiler

from ._arguments import is_compiling

_dispatch_keys = _C._dispatch_keys
_included, _excluded = _C._dispatch_tls_local_include_set, _C._dispatch_tls_local_exclude_set


AUTOCAST_KEYS = _C.DispatchKeySet(_C.DispatchKey.AutocastCPU) | _C.DispatchKeySet(
    _C.DispatchKey.AutocastCUDA
)
_NO_AUTOCAST = ~AUTOCAST_KEYS.raw_repr()


def _plain_states() -> frozenset[tuple[int, int]]:
    """The dispatcher's thread-local keys where no mode or transform is on, autocast aside.

    Those of a thread of its own: this module may be imported under any of them.
    """
    states = set()

    def read() -> None:
        for inference in (False, True):
            with torch.inference_mode(inference):
                states.add((_included().raw_repr(), _excluded().raw_repr() & _NO_AUTOCAST))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return frozenset(states)


def _plain_tensors() -> dict[int, str]:
    """Dispatch keys of tensors with strides, data, and no subclass or lazy operation about them."""
    kinds = {}
    for backend in ("CPU", "CUDA"):
        inference = ("", "Autocast")  # tensors made in inference mode
        for prefixes in (inference, (*inference, "Autograd")):
            keys = _C.DispatchKeySet(_C.DispatchKey.Undefined)
            for prefix in prefixes:
                keys = keys | _C.DispatchKeySet(getattr(_C.DispatchKey, prefix + backend))
            if len(prefixes) == 3:
                keys = keys | _C.DispatchKeySet(_C.DispatchKey.ADInplaceOrView)
            kinds[keys.raw_repr()] = backend.lower()
    return kinds


_PLAIN_STATES = _plain_states()
_PLAIN_TENSORS = _plain_tensors()


def device_of(tensors: Iterable[torch.Tensor | None]) -> str | None:
    """The backend, "cpu" or "cuda", whose kernel an operator of these tensors comes to.

    None where the dispatcher has more to do, as for subclasses of torch.Tensor and under modes and
    transforms, or where compilers, tracers and profilers must see the operator. Autograd and
    autocast are left to the caller.
    """
    if (
        is_compiling()
        or (_included().raw_repr(), _excluded().raw_repr() & _NO_AUTOCAST) not in _PLAIN_STATES
        or forward_ad._current_level >= 0
        or _C._len_torch_function_stack()
        or profiler._is_profiler_enabled
    ):
        return None
    device = None
    for x in tensors:
        if x is None:
            continue
        if type(x) is not torch.Tensor:
            return None
        found = _PLAIN_TENSORS.get(_dispatch_keys(x).raw_repr())
        if found != device:
            if found is None or device is not None:
                return None
            device = found
    return device
