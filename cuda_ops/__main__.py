"""Print which implementation of the operators each device uses, and why."""

import torch

from .common import launcher
from .common.compiled import COMPILED, HOW_TO_BUILD


def main():
    reason = COMPILED.unavailable_reason
    if reason:
        print(f'cpu: plain PyTorch ({reason}; {HOW_TO_BUILD})')
    else:
        print(f'cpu: compiled, {COMPILED.variant}')
    if not torch.cuda.is_available():
        print('cuda: PyTorch sees no GPU')
    for index in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(index)
        print(f'cuda:{index} ({name}): {launcher.status(index)}')


if __name__ == '__main__':
    main()
