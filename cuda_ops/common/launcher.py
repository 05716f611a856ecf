"""Launches of CUDA kernels through pycuda, next to PyTorch.

Data loaders fork after the import, so nothing here touches CUDA before the
first launch. Launchers live as long as the process, because pycuda must not
release a context that PyTorch uses.
"""

import importlib.util
import struct
import threading
import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .nvcc import SOURCES, load

#: Dtypes of the kernels' inputs, and the suffixes of the kernels' names.
DTYPES = {
    torch.float32: 'float32',
    torch.float16: 'float16',
    torch.bfloat16: 'bfloat16',
}
WARP = 32
BYTES_PER_FLOAT = 4
MAX_BLOCKS = 2**31 - 1
_MAX_FLOAT = torch.finfo(torch.float32).max

#: ``struct Tensor`` of storage.cuh: address, sizes and strides.
DESCRIPTOR = struct.Struct('=Q4q4q')

#: Result of :func:`status` for a device that runs the kernels.
IN_USE = 'CUDA kernels'
#: CU_STREAM_NON_BLOCKING keeps pycuda's stream independent of stream 0.
NON_BLOCKING = 1

_lock = threading.Lock()
_launchers: dict[int, 'Launcher'] = {}
_reasons: dict[int, str] = {}


class Launch(NamedTuple):
    """One kernel launch.

    Attributes:
        kernel: Full name of the kernel, with its dtype.
        grid: Number of blocks; every grid has one axis.
        block: Threads per block.
        shared: Bytes of dynamic shared memory.
        arguments: Kernel arguments, see :func:`kernel_argument`.
    """

    kernel: str
    grid: int
    block: int
    shared: int
    arguments: tuple[np.generic, ...]


def make_launch(
    kernel: str,
    dtype: torch.dtype,
    grid: int,
    block: int,
    shared_floats: int,
    *arguments: Tensor | int | float,
) -> Launch:
    """Describe a launch.

    Args:
        kernel: Name of the kernel without its dtype.
        dtype: Key of :data:`DTYPES`.
        grid: Number of blocks.
        block: Threads per block.
        shared_floats: Floats of dynamic shared memory.
        arguments: Kernel arguments: first tensors, then integers, then floats,
            because pycuda does not align tensors.
    """
    return Launch(
        f'{kernel}_{DTYPES[dtype]}',
        grid,
        block,
        shared_floats * BYTES_PER_FLOAT,
        tuple(map(kernel_argument, arguments)),
    )


def kernel_argument(value: Tensor | int | float) -> np.generic:
    """Convert an argument to the type that the kernel declares.

    A tensor (B, h, rows, columns) becomes ``struct Tensor``, an integer or
    bool ``long long``, and a float ``float``, limited to the finite range.
    """
    if isinstance(value, Tensor):
        return np.void(
            DESCRIPTOR.pack(value.data_ptr(), *value.shape, *value.stride())
        )
    if isinstance(value, int):
        return np.int64(value)
    return np.float32(max(-_MAX_FLOAT, min(_MAX_FLOAT, value)))


def four_axes(tensor: Tensor) -> Tensor:
    """View a tensor (..., rows, columns) as (B, h, rows, columns).

    Merging more than two leading axes may need a copy. The tensors of a call
    have the same leading axes, so their B and h agree.
    """
    if tensor.dim() > 4:
        return tensor.flatten(0, -4)
    return tensor[(None,) * (4 - tensor.dim())]


class Launcher:
    """Launches kernels on one device, on PyTorch's current stream.

    Attributes:
        max_shared: Bytes of shared memory that a block can have.
    """

    def __init__(self, index: int) -> None:
        """Load all kernels.

        Args:
            index: PyTorch's number of the device.

        Raises:
            Exception: If pycuda, nvcc or the driver fails.
        """
        # PyTorch first, so that both share the primary context.
        torch.cuda.init()
        import pycuda.driver as driver

        driver.init()
        device = driver.Device(index)
        major, minor = device.compute_capability()
        codes = [load(source, f'{major}{minor}') for source in SOURCES]
        self.max_shared = device.get_attribute(
            driver.device_attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        )
        self._index = index
        self._pop = driver.Context.pop
        self._context = device.retain_primary_context()
        self._bridge_lock = threading.Lock()
        self._functions = {}
        self._context.push()
        try:
            self._modules = [driver.module_from_buffer(c) for c in codes]
            for source, module in zip(SOURCES, self._modules, strict=True):
                for name in kernel_names(source.kernels):
                    function = module.get_function(name)
                    function.set_attribute(
                        driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        self.max_shared,
                    )
                    self._functions[name] = function
            self._bridge = driver.Stream(NON_BLOCKING)
            self._bridge_handle = self._bridge.handle
        finally:
            # A context left on pycuda's stack aborts the process when the
            # thread ends.
            self._pop()

    def __call__(self, launch: Launch) -> None:
        """Launch in the order of PyTorch's current stream.

        Raises:
            RuntimeError: If the driver refuses the launch.
        """
        if launch.grid > MAX_BLOCKS:
            raise RuntimeError(
                f'{launch.kernel}: expected at most {MAX_BLOCKS} blocks, '
                f'got {launch.grid}; split the batch'
            )
        current = torch.cuda.current_stream(self._index)
        if current.cuda_stream == 0:
            self._launch(launch, None)
            return
        # pycuda cannot launch on the stream of another library. Its own
        # stream waits for PyTorch's and PyTorch's for it, which a CUDA graph
        # captures as well.
        with self._bridge_lock:
            bridge = torch.cuda.ExternalStream(
                self._bridge_handle, device=self._index
            )
            bridge.wait_stream(current)
            self._launch(launch, self._bridge)
            current.wait_stream(bridge)

    def _launch(self, launch: Launch, stream) -> None:
        # Autograd's threads have no context, or that of another device.
        self._context.push()
        try:
            self._functions[launch.kernel](
                *launch.arguments,
                grid=(launch.grid, 1),
                block=(launch.block, 1, 1),
                shared=launch.shared,
                stream=stream,
            )
        except Exception as error:
            raise RuntimeError(
                f'{launch.kernel}: grid {launch.grid}, block {launch.block}, '
                f'{launch.shared} bytes of shared memory: {error}'
            ) from error
        finally:
            self._pop()


def kernel_names(kernels: tuple[str, ...]) -> list[str]:
    """Full names of kernels for all of :data:`DTYPES`."""
    return [f'{name}_{dtype}' for name in kernels for dtype in DTYPES.values()]


def find_launcher(index: int) -> Launcher | None:
    """Return the launcher of a device, or None after one warning.

    Args:
        index: PyTorch's number of the device.

    Raises:
        RuntimeError: If a CUDA graph is being captured before the kernels are
            loaded, because loading would break the capture.
    """
    found = _launchers.get(index)
    if found is not None or index in _reasons:
        return found
    with _lock:
        if index in _launchers or index in _reasons:
            return _launchers.get(index)
        if torch.cuda.is_available() and (
            torch.cuda.is_current_stream_capturing()
        ):
            raise RuntimeError(
                'mmlaplacian: call the operators once before capturing a '
                'CUDA graph; kernels cannot be loaded during a capture'
            )
        try:
            _launchers[index] = Launcher(index)
        except Exception as error:
            _reasons[index] = f'{type(error).__name__}: {error}'
    if index in _reasons:
        warnings.warn(
            f'mmlaplacian: plain PyTorch runs instead of CUDA kernels on '
            f'cuda:{index}: {_reasons[index]}',
            stacklevel=2,
        )
    return _launchers.get(index)


def unavailable_reason(index: int) -> str | None:
    """Explain why a device runs no kernels at all; None if it runs them.

    Loads the kernels, and compiles them if needed.

    Args:
        index: PyTorch's number of the device.
    """
    if importlib.util.find_spec('pycuda') is None:
        return 'pycuda is missing: pip install pycuda'
    if not torch.cuda.is_available():
        return 'PyTorch sees no GPU'
    if find_launcher(index) is None:
        return _reasons[index]
    return None


def status(index: int) -> str:
    """Return :data:`IN_USE`, or ``plain PyTorch (REASON)``.

    Args:
        index: PyTorch's number of the device.
    """
    reason = unavailable_reason(index)
    return IN_USE if reason is None else f'plain PyTorch ({reason})'
