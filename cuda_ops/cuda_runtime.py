"""Launches of the CUDA kernels through pycuda, beside PyTorch.

Nothing here touches CUDA before the first launch: data loaders fork after
the import. One entry for each device lives as long as the process, because
pycuda's contexts must not be collected while PyTorch uses the device.
"""

import importlib.util
import threading
import warnings

import torch

from .cuda_build import load
from .cuda_launch import MOST_BLOCKS, SOURCES, Launch, kernel_names

#: What :func:`status` says of a device that runs the kernels.
IN_USE = 'CUDA kernels'
#: CU_STREAM_NON_BLOCKING: pycuda's stream does not wait for stream 0.
NON_BLOCKING = 1

_lock = threading.Lock()
_launchers: dict[int, 'Launcher'] = {}
_reasons: dict[int, str] = {}


class Launcher:
    """Launches kernels on one device, on PyTorch's current stream.

    Attributes:
        most_shared: Bytes of shared memory that a block can have.
    """

    def __init__(self, index: int) -> None:
        """Load all kernels.

        Args:
            index: PyTorch's number of the device.

        Raises:
            Exception: pycuda, nvcc or the driver cannot do it.
        """
        # PyTorch first, so that both share the primary context.
        torch.cuda.init()
        import pycuda.driver as driver

        driver.init()
        device = driver.Device(index)
        major, minor = device.compute_capability()
        codes = [load(source, f'{major}{minor}') for source in SOURCES]
        self.most_shared = device.get_attribute(
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
                for name in kernel_names(source):
                    function = module.get_function(name)
                    function.set_attribute(
                        driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        self.most_shared,
                    )
                    self._functions[name] = function
            self._bridge = driver.Stream(NON_BLOCKING)
            self._bridge_handle = self._bridge.handle
        finally:
            # A context left on pycuda's stack aborts the process when the
            # thread ends.
            self._pop()

    def __call__(self, launch: Launch) -> None:
        """Launch after what PyTorch's current stream holds, and before more.

        Raises:
            RuntimeError: The driver refuses the launch.
        """
        if launch.grid > MOST_BLOCKS:
            raise RuntimeError(
                f'{launch.kernel}: {launch.grid} blocks, the most is '
                f'{MOST_BLOCKS}; split the batch'
            )
        current = torch.cuda.current_stream(self._index)
        if current.cuda_stream == 0:
            self._launch(launch, None)
            return
        # pycuda takes no stream of another library: its own one waits for
        # PyTorch's, and PyTorch's for it. Both are captured by CUDA graphs.
        with self._bridge_lock:
            bridge = torch.cuda.ExternalStream(
                self._bridge_handle, device=self._index
            )
            bridge.wait_stream(current)
            self._launch(launch, self._bridge)
            current.wait_stream(bridge)

    def _launch(self, launch: Launch, stream) -> None:
        # Autograd's threads may have no context, or another device's.
        self._context.push()
        try:
            self._functions[launch.kernel]._launch_kernel(
                (launch.grid, 1),
                (launch.block, 1, 1),
                launch.arguments,
                launch.shared,
                stream,
            )
        except Exception as error:
            raise RuntimeError(
                f'{launch.kernel}: grid {launch.grid}, block {launch.block}, '
                f'{launch.shared} bytes of shared memory: {error}'
            ) from error
        finally:
            self._pop()


def launcher(index: int) -> Launcher | None:
    """The launcher of a device; None, after one warning, where it has none.

    Args:
        index: PyTorch's number of the device.

    Raises:
        RuntimeError: A CUDA graph is being captured and nothing is loaded
            yet; loading would break the capture.
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
            f'mmlaplacian: plain PyTorch instead of CUDA kernels on cuda:'
            f'{index}: {_reasons[index]}',
            stacklevel=2,
        )
    return _launchers.get(index)


def status(index: int) -> str:
    """:data:`IN_USE`, or ``plain PyTorch`` with the reason in brackets.

    Loads the kernels, and compiles them where needed.

    Args:
        index: PyTorch's number of the device.
    """
    if importlib.util.find_spec('pycuda') is None:
        return 'plain PyTorch (pycuda is missing: pip install pycuda)'
    if not torch.cuda.is_available():
        return 'plain PyTorch (PyTorch sees no GPU)'
    if launcher(index) is None:
        return f'plain PyTorch ({_reasons[index]})'
    return IN_USE
