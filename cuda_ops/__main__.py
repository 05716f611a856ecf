"""Say which path the operators take on each device, and why."""

import torch

from . import cuda_kernels
from .common.compiled import COMPILED, HOW_TO_BUILD


def main():
    if COMPILED.trouble:
        print(f'cpu: plain PyTorch ({COMPILED.trouble}; {HOW_TO_BUILD})')
    else:
        print(f'cpu: compiled, {COMPILED.variant}')
    if not torch.cuda.is_available():
        print('cuda: PyTorch sees no GPU')
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        print(f'cuda:{index} ({name}): {cuda_kernels.status(index)}')


if __name__ == '__main__':
    main()
